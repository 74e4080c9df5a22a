"""Clients served: sockets, requests and answers, and the worker that carries them out."""
