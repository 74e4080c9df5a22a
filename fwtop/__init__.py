"""fwtop: see what is flooding this Linux machine, and stop it with one key."""

from fwtop.model.late import put_off

__version__ = "0.1.0"

put_off()
