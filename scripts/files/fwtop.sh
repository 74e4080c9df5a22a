#!/bin/sh
# Isolated: neither the working directory nor the caller's Python settings reach a program that runs as root.
exec /usr/local/lib/fwtop/venv/bin/python -I -m fwtop "$@"
