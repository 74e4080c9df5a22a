"""Import the guardian, then fork one for each request: its arguments in JSON, with its network namespace.

Arguments: the clone's path, and the module's name. The requests come on standard input, a socket.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import NoReturn

MOST_BYTES = 1 << 16


def serve(requests: socket.socket) -> None:
    """Answer each request with the exit status of what starts the guardian, and its complaint."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 1)
        if not message:
            return
        (netns,) = descriptors
        reader, writer = os.pipe()
        starter = os.fork()
        if starter == 0:
            requests.close()
            os.close(reader)
            os.dup2(writer, 2)
            os.close(writer)
            become_guardian([*json.loads(message), "--netns-fd", str(netns)])
        os.close(netns)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            complaint = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(starter, 0)[1])
        requests.send(b"%d " % status + complaint[-MOST_BYTES // 2 :])


def become_guardian(arguments: list[str]) -> NoReturn:
    from fwtop.guardian.main import main

    status = 1
    try:
        sys.argv = [sys.argv[2], *arguments]
        status = main()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.path[0] = sys.argv[1]
    import fwtop.guardian.main  # noqa: F401 (for all that are forked)

    with socket.socket(fileno=os.dup(0)) as asked:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        serve(asked)
