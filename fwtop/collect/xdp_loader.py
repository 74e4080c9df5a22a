"""The short-lived child that compiles XDP rules and swaps them in, so that the guardian never carries LLVM.

`python -I -m fwtop.collect.xdp_loader FD` takes one message on the socket FD, {"fds": [names]};
the first descriptor, "request", is a memory file with the request as JSON. The answer is an `Answer` with the
descriptors of the shared maps, and of the prefixes' counters by rule, named in data["fds"]. Verbs: `apply`
makes exactly the given rules the compiled, `open` only looks, `clear` takes everything away, `sweep` what is
left of namespaces that are gone, `compile` compiles for an `apply` that may come.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from fwtop.collect import bpffs, xdp_attach, xdp_list_pins, xdp_pins
from fwtop.collect.links import choose_links, list_links, lowest_links
from fwtop.collect.xdp_attach import GENERIC, INGRESS, NATIVE, TC, Attachment, Programs
from fwtop.collect.xdp_build import build_tc, build_xdp, precompile
from fwtop.collect.xdp_maps import SHARED, layout
from fwtop.collect.xdp_rule import SlotRule
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import MAX_MESSAGE, Answer, encode_answer
from fwtop.model.rule import Kind
from fwtop.model.text import safe_text

_MAX_DESCRIPTORS = 250  # of a message: SCM_MAX_FD is 253
_MOST_HITS = 240


def main(arguments: list[str]) -> int:
    """Answer one request and return the exit status."""
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("usage: python -I -m fwtop.collect.xdp_loader FD", file=sys.stderr)
        return 2
    bpffs.enter_first_mounts()
    with socket.socket(fileno=int(arguments[0])) as channel:
        message, descriptors, _, _ = socket.recv_fds(channel, MAX_MESSAGE, _MAX_DESCRIPTORS)
        answer, shared = _serve(message, descriptors)
        socket.send_fds(channel, [encode_answer(answer)], list(shared.values()))
    return answer.code


def _serve(message: bytes, descriptors: list[int]) -> tuple[Answer, dict[str, int]]:
    try:
        given = dict(zip(json.loads(message)["fds"], descriptors, strict=True))
        with open(given["request"], "rb", closefd=False) as file:
            file.seek(0)
            request = json.loads(file.read())
        with bpffs.locked():
            attachments, shared = _carry_out(request, given)
    except FwtopError as error:
        return Answer(False, str(error), error.code), {}
    except OSError as error:
        return Answer(False, f"XDP rules could not be changed: {safe_text(error)}", 1), {}
    except (ValueError, KeyError, TypeError) as error:
        return Answer(False, f"the XDP loader can't read its request: {safe_text(error)}", 2), {}
    listed = [asdict(item) for item in attachments]
    return Answer(True, data={"fds": list(shared), "layout": layout(), "attachments": listed}), shared


def _carry_out(request: dict[str, Any], given: dict[str, int]) -> tuple[list[Attachment], dict[str, int]]:
    netns = os.stat("/proc/self/ns/net").st_ino
    directory = bpffs.directory_of(netns)
    match request["verb"]:
        case "apply":
            try:
                return _apply(bpffs.make_directory(netns), request, given)
            except BaseException:
                if not xdp_attach.pinned(directory):  # nothing runs: the first rule failed
                    bpffs.remove_directory(netns)
                raise
        case "open":
            hits = _named(xdp_list_pins.all_hits(directory, _MOST_HITS))
            return _attachments(directory), xdp_pins.open_shared(directory) | hits
        case "clear":
            xdp_attach.detach_all(directory)
            bpffs.remove_directory(netns)
            return [], {}
        case "sweep":
            xdp_pins.sweep(netns)
            return _attachments(directory), {}
        case "compile":
            _compile(directory, request, at_tc=bool(request["at_tc"]))
            return [], {}
        case _:
            raise ValueError("unknown verb")


def _apply(
    directory: Path, request: dict[str, Any], given: dict[str, int]
) -> tuple[list[Attachment], dict[str, int]]:
    shared = xdp_pins.shared_maps(directory, {name: given[name] for name in SHARED if name in given})
    sources = {
        int(name.partition(":")[2]): descriptor
        for name, descriptor in given.items()
        if name.startswith("sources:")
    }
    with _compiling_ahead(directory, request):
        rules = xdp_pins.slot_rules(directory, request["rules"], sources)
    numbers = {int(item["slot"]): int(item["number"]) for item in request["rules"]}
    xdp_pins.occupy(shared, rules, numbers)
    allow = _allowed(request)
    at_xdp, at_tc = ([rule for rule in rules if rule.at_tc is tc] for tc in (False, True))
    programs = Programs(_builders(at_xdp, at_tc, allow, shared))
    links = list_links()
    chosen = choose_links(links, [str(name) for name in request["interfaces"]])
    # Two ends of one cable in this namespace stand on each other: then each is a way in
    attachments = xdp_attach.swap_or_attach(directory, links, lowest_links(links, chosen) or chosen, programs)
    programs.close()
    xdp_pins.forget(directory, shared, numbers)
    wanted = {int(item["number"]) for item in request["rules"] if item["tell_hits"]}
    hits = {numbers[rule.slot]: rule.hits for rule in rules if rule.counted and numbers[rule.slot] in wanted}
    return attachments, shared | _named(hits)


def _compile(directory: Path, request: dict[str, Any], *, at_tc: bool) -> None:
    """Compile rules into the cache, as far as their code is known; raises FwtopError."""
    rules = xdp_pins.rules_to_compile(directory, request["rules"])
    mine = [rule for rule in rules if rule.at_tc is at_tc]
    if mine:
        precompile(mine, _allowed(request), for_tc=at_tc)


@contextlib.contextmanager
def _compiling_ahead(directory: Path, request: dict[str, Any]) -> Iterator[None]:
    """Compile in a child while long lists are built: what fails there is tried again, and told, behind it."""
    child = os.fork() if any(item["listed"] for item in request["rules"]) else None
    if child == 0:
        try:
            for at_tc in {Kind(item["rule"]["kind"]) is Kind.TC for item in request["rules"]}:
                _compile(directory, request, at_tc=at_tc)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        if child is not None:
            os.waitpid(child, 0)


def _named(hits: dict[int, int]) -> dict[str, int]:
    """Name the counters of rules for an answer, that takes so many descriptors."""
    return {f"hits:{number}": descriptor for number, descriptor in list(hits.items())[-_MOST_HITS:]}


def _allowed(request: dict[str, Any]) -> tuple[Prefix, ...]:
    return tuple(Prefix.parse(text) for text in request["allow"])


def _builders(
    at_xdp: list[SlotRule], at_tc: list[SlotRule], allow: tuple[Prefix, ...], shared: dict[str, int]
) -> dict[str, Callable[[], int]]:
    """Return how the program of each mode that has rules is made."""
    found: dict[str, Callable[[], int]] = {}
    if at_xdp:
        for_xdp = partial(build_xdp, at_xdp, allow, shared)
        found |= {NATIVE: for_xdp, GENERIC: for_xdp, TC: partial(build_tc, at_xdp + at_tc, allow, shared)}
    if at_tc:
        found[INGRESS] = partial(build_tc, at_tc, allow, shared)
    return found


def _attachments(directory: Path) -> list[Attachment]:
    names = {link.index: link.name for link in list_links()}
    found = []
    for _, ifindex, mode in xdp_attach.pinned(directory):
        if ifindex in names:
            foreign = xdp_attach.foreign_program(ifindex) if mode == xdp_attach.TC else ""
            found.append(Attachment(ifindex, safe_text(names[ifindex]), mode, foreign))
    return found


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
