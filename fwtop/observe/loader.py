"""The short-lived process that compiles, loads and attaches the observers, and passes their descriptors on.

bcc takes 100 MB of LLVM, so only short-lived processes import it (this one, and fwtop.xdp.loader), never the
guardian or the console. The programs stay attached through the descriptors that are passed on: when the last
process that holds them ends, for whatever reason, the kernel detaches them.

`python -I -m fwtop.observe.loader FD` answers one request (messages.py) on the SOCK_SEQPACKET socket FD;
`python -I -m fwtop.observe.loader --detach SLOT|all [RINGS]` removes what descriptors don't release, where
RINGS is the descriptor of the map of rings that XDP rules sample into;
`python -I -m fwtop.observe.loader --scope FD/MAX_WATCHED/INDEX=NAME/… …` finds the watched interfaces again,
for each of these scope maps.
"""

from __future__ import annotations

import os
import socket
import sys

from fwtop.model.errors import FwtopError
from fwtop.model.messages import MAX_MESSAGE, Answer, ProtocolError, encode_answer
from fwtop.model.text import safe_text
from fwtop.observe.messages import decode_request, encode_reply
from fwtop.xdp.maps import SHARED, put_ring


def main(arguments: list[str]) -> int:
    """Run one of the three commands and return the exit status."""
    if len(arguments) in (2, 3) and arguments[0] == "--detach":
        return _detach(arguments[1], arguments[2] if len(arguments) == 3 else "")
    if len(arguments) >= 2 and arguments[0] == "--scope":
        return max(map(_renew_scope, arguments[1:]))
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("usage: python -I -m fwtop.observe.loader FD | --detach … | --scope …", file=sys.stderr)
        return 2
    with socket.socket(fileno=int(arguments[0])) as channel:
        message, given, _, _ = socket.recv_fds(channel, MAX_MESSAGE, len(SHARED))
        answer, descriptors = _serve(message, given)
        socket.send_fds(channel, [encode_answer(answer)], descriptors)
    return answer.code


def _serve(message: bytes, given: list[int]) -> tuple[Answer, list[int]]:
    from fwtop.observe.programs import Observers

    try:
        request = decode_request(message, given)
    except ProtocolError as error:
        return Answer(False, f"the loader can't read its request: {safe_text(error)}", 2), []
    observers = Observers(request.slot)
    try:
        observation = observers.attach(request.interfaces, request.xdp_maps)
        return encode_reply(observation, observers.descriptors)
    except FwtopError as error:
        observers.close()
        return Answer(False, str(error), error.code), []
    except OSError as error:
        observers.close()
        line = f"attaching the observers failed: {safe_text(error)}; nothing was left attached"
        return Answer(False, line, 1), []


def _detach(slot: str, rings: str) -> int:
    from fwtop.observe import older_kernels

    if slot != "all" and not slot.isdigit():
        print("fwtop: --detach takes a slot number, or all", file=sys.stderr)
        return 2
    try:
        older_kernels.remove_left(None if slot == "all" else int(slot))
        if slot != "all" and rings.isdigit():
            put_ring({"rings": int(rings)}, int(slot), None)
    except FwtopError as error:
        print(f"fwtop: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"fwtop: detaching the observers failed: {safe_text(error)}", file=sys.stderr)
        return 3 if isinstance(error, PermissionError) else 1
    return 0


def _renew_scope(words: str) -> int:
    from fwtop.observe import scope

    try:
        descriptor, max_watched, *chosen = words.split("/")  # which no interface's name contains
        pairs = [(int(index), name) for index, _, name in (item.partition("=") for item in chosen)]
        scope.renew(int(descriptor), pairs, int(max_watched))
    except (FwtopError, OSError, ValueError) as error:
        print(f"fwtop: the interfaces could not be found again: {safe_text(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
