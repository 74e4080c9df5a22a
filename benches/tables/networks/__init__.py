"""Tables on connection tracking, forwarding and servers under attack."""
