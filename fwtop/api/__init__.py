"""The stream for programs: a socket on which a line is a JSON document, and what changes on the machine."""
