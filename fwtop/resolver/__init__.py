"""Public DNS servers on this machine: the servers, their questions and their answers."""
