#!/bin/sh
# -I: a program run as root must not use the working directory or the caller's Python environment.
exec /usr/local/lib/fwtop/venv/bin/python -I -m fwtop "$@"
