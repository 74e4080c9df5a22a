"""The short-lived child that compiles, loads and attaches the observers, passes everything on, and exits.

bcc brings 100 MB of LLVM with it: only children that end import it (this one, and xdp_loader for compiled
rules), so neither the guardian nor the console ever carries that. What stays attached does so through the
descriptors that are passed on: when the last process that holds one ends, in whatever way, it is detached.

`python -I -m fwtop.collect.loader FD` answers one request on the SOCK_SEQPACKET socket FD;
`python -I -m fwtop.collect.loader --detach SLOT|all [RINGS]` takes away what descriptors don't release;
RINGS is the descriptor of the array of rings that XDP rules sample into.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from fwtop.collect.xdp_maps import SHARED, put_ring
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import MAX_MESSAGE, Answer, encode_answer
from fwtop.model.text import safe_text


def main(arguments: list[str]) -> int:
    """Run one of the two forms and return the exit status."""
    if len(arguments) in (2, 3) and arguments[0] == "--detach":
        return _detach(arguments[1], arguments[2] if len(arguments) == 3 else "")
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("usage: python -I -m fwtop.collect.loader FD | --detach SLOT|all [RINGS]", file=sys.stderr)
        return 2
    with socket.socket(fileno=int(arguments[0])) as channel:
        message, given, _, _ = socket.recv_fds(channel, MAX_MESSAGE, len(SHARED))
        answer, descriptors = _serve(message, given)
        socket.send_fds(channel, [encode_answer(answer)], descriptors)
    return answer.code


def _serve(message: bytes, given: list[int]) -> tuple[Answer, list[int]]:
    from fwtop.collect.observers import Observers

    try:
        request = json.loads(message)
        names, slot = [str(name) for name in request["interfaces"]], int(request.get("slot", 0))
        fast = dict(zip(request.get("fast", []), given, strict=True))
    except (ValueError, KeyError, TypeError) as error:
        return Answer(False, f"the loader can't read its request: {safe_text(error)}", 2), []
    observers = Observers(slot)
    try:
        return Answer(True, data=observers.attach(names, fast)), observers.descriptors
    except FwtopError as error:
        observers.close()
        return Answer(False, str(error), error.code), []
    except OSError as error:
        observers.close()
        line = f"attaching the observers failed: {safe_text(error)}; nothing was left attached"
        return Answer(False, line, 1), []


def _detach(slot: str, rings: str) -> int:
    from fwtop.collect import clsact, nftables

    if slot != "all" and not slot.isdigit():
        print("fwtop: --detach takes a slot's number, or all", file=sys.stderr)
        return 2
    try:
        clsact.detach(None if slot == "all" else int(slot))
        nftables.detach(None if slot == "all" else int(slot))
        if slot != "all" and rings.isdigit():
            put_ring({"rings": int(rings)}, int(slot), None)
    except FwtopError as error:
        print(f"fwtop: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"fwtop: taking the observers off failed: {safe_text(error)}", file=sys.stderr)
        return 3 if isinstance(error, PermissionError) else 1
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
