"""The short-lived process that compiles XDP rules and swaps them in, so that the guardian never loads LLVM.

`python -I -m fwtop.xdp.loader FD` answers one request (fwtop/xdp/messages.py) on the socket FD and exits. One
that has compiled waits a while for what is to be done with the code.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fwtop.kernel import bpffs, namespaces
from fwtop.kernel.links import choose_links, list_links, lowest_links
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer, ProtocolError
from fwtop.model.text import safe_text
from fwtop.xdp import attach, messages, pins
from fwtop.xdp.attach import GENERIC, INGRESS, NATIVE, TC, Programs
from fwtop.xdp.build import build_tc, build_xdp, precompile
from fwtop.xdp.maps import SlotRule

_MAX_HITS = 240  # maps of counters in one reply: SCM_MAX_FD is 253


def main(arguments: list[str]) -> int:
    """Answer a request and return the exit status."""
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("usage: python -I -m fwtop.xdp.loader FD", file=sys.stderr)
        return 2
    bpffs.enter_init_mounts()
    with socket.socket(fileno=int(arguments[0])) as channel:
        request, reply = _serve(channel)
        messages.send_reply(channel, reply)
        has_compiled = isinstance(request, messages.Compile) and isinstance(reply, messages.Loaded)
        if has_compiled and _is_asked_again(channel):
            _, reply = _serve(channel)
            messages.send_reply(channel, reply)
    return reply.code if isinstance(reply, Answer) else 0


def _is_asked_again(channel: socket.socket) -> bool:
    """Wait for another request; False if none comes in time, or the guardian needs none."""
    channel.settimeout(messages.KEPT_SECONDS)
    try:
        found = channel.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return False
    channel.settimeout(None)
    return bool(found)


def _serve(channel: socket.socket) -> tuple[messages.Request | None, messages.Loaded | Answer]:
    """Carry out one request; return it, if it could be read, and the reply."""
    request = None
    try:
        request = messages.receive_request(channel)
        with bpffs.locked():
            return request, _execute(request)
    except ProtocolError as error:
        return request, Answer(False, f"the XDP loader can't read its request: {safe_text(error)}", 2)
    except FwtopError as error:
        return request, Answer(False, str(error), error.code)
    except OSError as error:
        return request, Answer(False, f"XDP rules could not be changed: {safe_text(error)}", 1)


def _execute(request: messages.Request) -> messages.Loaded:
    netns = namespaces.own()
    directory = bpffs.directory_of(netns)
    bpffs.remove_former(netns)
    match request:
        case messages.Apply():
            try:
                return _apply(bpffs.make_directory(netns), request)
            except BaseException:
                if not attach.pinned(directory):  # the first rule failed, so nothing is running
                    bpffs.remove_directory(netns)
                raise
        case messages.Open():
            hits = _by_rule_id(pins.all_hits(directory, _MAX_HITS))
            return messages.Loaded(_attachments(directory), pins.open_shared(directory), hits)
        case messages.Clear():
            attach.detach_all(directory)
            bpffs.remove_directory(netns)
        case messages.Sweep():
            pins.sweep(netns)
        case messages.Compile():
            _compile(directory, request.rules, request.allow, at_tc=request.at_tc)
    return messages.Loaded()


def _apply(directory: Path, request: messages.Apply) -> messages.Loaded:
    shared = pins.shared_maps(directory, request.maps)
    with _compiling_ahead(directory, request):
        rules = pins.slot_rules(directory, request.rules, request.sources)
    numbers = {item.slot: item.number for item in request.rules}
    pins.assign_slots(shared, rules, numbers)
    at_xdp, at_tc = ([rule for rule in rules if rule.at_tc is tc] for tc in (False, True))
    programs = Programs(_builders(at_xdp, at_tc, request.allow, shared))
    links = list_links()
    chosen = choose_links(links, list(request.interfaces))
    # Both ends of a veth pair in this namespace are each below the other: then attach to both
    attachments = attach.swap_or_attach(directory, links, lowest_links(links, chosen) or chosen, programs)
    programs.close()
    pins.release_slots(directory, shared, numbers, {item.key for item in request.rules})
    wanted = {item.slot for item in request.rules if item.report_hits}
    hits = {numbers[rule.slot]: rule.hits for rule in rules if rule.counted and rule.slot in wanted}
    return messages.Loaded(tuple(attachments), shared, _by_rule_id(hits))


def _compile(
    directory: Path, items: tuple[messages.RequestedRule, ...], allow: tuple[Prefix, ...], *, at_tc: bool
) -> None:
    """Compile rules into the cache, as far as their code is known; raises FwtopError."""
    rules = [rule for rule in pins.rules_to_compile(directory, items) if rule.at_tc is at_tc]
    if rules:
        precompile(rules, allow, for_tc=at_tc)


@contextlib.contextmanager
def _compiling_ahead(directory: Path, request: messages.Apply) -> Iterator[None]:
    """Compile in a child while long lists are built; the parent reports errors when it compiles again."""
    child = os.fork() if any(item.listed for item in request.rules) else None
    if child == 0:
        try:
            for at_tc in {item.at_tc for item in request.rules}:
                _compile(directory, request.rules, request.allow, at_tc=at_tc)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        if child is not None:
            os.waitpid(child, 0)


def _by_rule_id(hits: dict[int, int]) -> dict[str, int]:
    """Name the latest rules' counters, as many as fit into a reply."""
    return {str(number): descriptor for number, descriptor in list(hits.items())[-_MAX_HITS:]}


def _builders(
    at_xdp: list[SlotRule], at_tc: list[SlotRule], allow: tuple[Prefix, ...], shared: dict[str, int]
) -> dict[str, Callable[[], int]]:
    """Return a function that builds the program, for each mode that has rules."""
    found: dict[str, Callable[[], int]] = {}
    if at_xdp:
        for_xdp = partial(build_xdp, at_xdp, allow, shared)
        found |= {NATIVE: for_xdp, GENERIC: for_xdp, TC: partial(build_tc, at_xdp + at_tc, allow, shared)}
    if at_tc:
        found[INGRESS] = partial(build_tc, at_tc, allow, shared)
    return found


def _attachments(directory: Path) -> tuple[messages.Attachment, ...]:
    names = {link.index: link.name for link in list_links()}
    found = []
    for _, ifindex, mode in attach.pinned(directory):
        if ifindex in names:
            foreign = attach.foreign_program(ifindex) if mode == attach.TC else ""
            found.append(messages.Attachment(ifindex, safe_text(names[ifindex]), mode, foreign))
    return tuple(found)


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
