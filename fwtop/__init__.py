"""fwtop: see what is flooding this Linux machine, and stop it with one key."""

__version__ = "0.1.0"
