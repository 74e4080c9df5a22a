"""Network interfaces of this namespace: links, routes, bridges, receive rings, classic tc ingress."""
