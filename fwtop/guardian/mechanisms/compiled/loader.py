"""Compiled rules before they are installed: the loader, what is planned, and what compiles it ahead.

The loader is a child with bcc that compiles, swaps the programs, and exits.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fwtop.kernel import children, programs
from fwtop.model.addresses.prefix_list import ATTACH_ABOVE
from fwtop.model.errors import FwtopError
from fwtop.model.messages import ProtocolError
from fwtop.model.rule import Rule
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import of
from fwtop.xdp.maps import BUCKETS, COMPILED_PREFIXES, MAX_RULES
from fwtop.xdp.messages import Apply, Compile, Loaded, Request, receive_reply, send_request

_LOADER = "fwtop.xdp.loader"
_SECONDS = 30.0
_POLL_MS = 20
_MOST = 16  # rules of a set


class Running:
    """A loader child at work on one request; closing it ends it."""

    def __init__(self, request: Request) -> None:
        """Start it; the request's descriptors stay the caller's. Raises FwtopError."""
        try:
            self._child, self._mine = children.start_with_socket(_LOADER)
        except OSError as error:  # no memory, no process to be had
            raise FwtopError(f"the XDP loader could not be started: {error.strerror}") from None
        self._mine.settimeout(_SECONDS)
        try:
            send_request(self._mine, request)
        except OSError as error:
            self.close()
            raise FwtopError(f"the XDP loader could not be asked: {error}") from None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._child.poll() is not None

    def answer(self, serve_urgent: Callable[[], None] = lambda: None) -> Loaded:
        """Wait for the answer, calling `serve_urgent` meanwhile; raises FwtopError."""
        seconds = programs.limited(_SECONDS)
        try:
            self._await(seconds, serve_urgent)
            return receive_reply(self._mine)
        except TimeoutError:
            line = f"the XDP loader was not done after {seconds:g} s: many prefixes in many rules take long"
            raise FwtopError(
                f"{line} to compile; take some back, or put the prefixes into one list"
            ) from None
        except (OSError, ProtocolError) as error:
            raise FwtopError(f"the XDP loader did not answer: {self._ended() or error}") from None

    def _ended(self) -> str:
        """Say how the child ended, "" if it goes on: a reset connection alone doesn't tell."""
        how = children.ending(self._child)
        return f"it {how}; was fwtop reinstalled meanwhile, or memory short? Try again" if how else ""

    def _await(self, seconds: float, serve_urgent: Callable[[], None]) -> None:
        """Wait until there is something to read; raises TimeoutError."""
        end = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._mine, select.POLLIN)
        while not poll.poll(_POLL_MS):
            if time.monotonic() >= end:
                raise TimeoutError
            serve_urgent()

    def close(self, patience: float = 1.0) -> None:
        """Wait `patience` seconds for it to exit, then kill it."""
        self._mine.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(patience)
        if not self.over:
            self._child.kill()
            self._child.wait()


def ask(request: Request, serve_urgent: Callable[[], None] = lambda: None) -> Loaded:
    """Run a loader for one request, whose descriptors stay the caller's; raises FwtopError."""
    running = Running(request)
    try:
        return running.answer(serve_urgent)
    finally:
        running.close()


class Precompiler:
    """Compiles the rules that may be installed next into the cache, in one child at a time."""

    def __init__(self) -> None:
        self._child: Running | None = None
        self._code: object = None  # what its code depends on

    def start(self, order: Compile, *, instead: bool = False) -> None:
        """Start, unless a child is at work; `instead` of it, if so. Raises FwtopError, OSError."""
        if self._child is not None and not self._child.over and not instead:
            return
        self._drop()
        self._child, self._code = Running(order), _code(order)

    def spare(self, order: Apply) -> None:
        """Kill the child unless it compiles the rules of this request, which would have to wait for it."""
        if _code(order) != self._code:
            self._drop()

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close(patience=0.0)
        self._child, self._code = None, None


def _code(request: Apply | Compile) -> object:
    """Return what determines the compiled code: the rules without their ids and deadlines, and who passes."""
    rules = sorted(request.rules, key=lambda item: item.slot)
    code = [
        (item.slot, item.rule.kind, item.rule.match, item.rule.limit, item.listed, item.list_key)
        for item in rules
    ]
    return code, request.allow


class Planned:
    """The rules that were planned last, in their order."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def add(self, rule: Rule, *, follows: bool) -> None:
        """Add a rule to the set, or begin a new one."""
        self._rules = [*(self._rules if follows else ()), rule][-_MOST:]

    def forget_long(self) -> None:
        """Let go of the set if a rule in it has a long list, up to 119 MiB, which may never be installed."""
        if any(len(rule.match.sources) > ATTACH_ABOVE for rule in self._rules):
            self._rules = []

    @property
    def first(self) -> Rule:
        """The first rule of the set."""
        return self._rules[0]

    def others(self, rule: Rule, used: Iterable[int]) -> dict[int, Rule]:
        """Return the rules of a rule's set that can be compiled with it, in free slots.

        Those with maps of their own can't: the maps bear the number that a rule gets when it is installed.
        """
        if not any(same_code(rule, planned) for planned in self._rules):
            return {}
        found = [planned for planned in self._rules if _is_short(planned) and not same_code(rule, planned)]
        taken = set(used)
        free = [slot for slot in range(MAX_RULES) if slot not in taken]
        return dict(zip(free, found, strict=False))


def plan_lines(
    rule: Rule, alike: int, pins: Path, interfaces: Iterable[str], attached: Iterable[str]
) -> list[str]:
    """Return what installing a rule would do, a line each.

    `alike` counts the rules of its kind in the program, itself included. `attached` are the interfaces where
    that runs already; where it doesn't, it is attached to `interfaces`, else to those with a default route.
    """
    lines = [] if pins.parent.parent.is_dir() and _is_bpffs() else ["mount -t bpf bpf /sys/fs/bpf"]
    program = "fwtop_tc" if of(rule.kind).layer is Layer.TC else "fwtop_xdp"
    rules = f"{alike} rule{'s' if alike > 1 else ''}"
    lines.append(f"bcc: compile {rules} and the allow-list into program {program}")
    if len(rule.match.sources) > COMPILED_PREFIXES or rule.list_name is not None:
        lines.append(f"bpf map: {len(rule.match.sources):,} prefixes, pinned as {pins}/list-N-*")
    if rule.limit is not None:
        lines.append(f"bpf map: {BUCKETS:,} source prefixes at most, pinned as {pins}/limit-N")
    if there := ", ".join(attached):
        lines.append(f"bpf link update: swap program {program} on {there}")
    else:
        where = ", ".join(sorted(interfaces)) or "the interfaces with a default route"
        at_tc = f"tcx ingress on {where}, before Linux 6.6 a clsact filter"
        at_xdp = f"XDP on {where}, in the driver or else generic"
        lines.append(f"bpf link create: {at_tc if of(rule.kind).layer is Layer.TC else at_xdp}")
        lines.append(f"bpf link pin {pins}/link-*")
    lines.append(f"bpf map update {pins}/slots: rule N ends in {rule.ttl_seconds} s by the kernel's clock")
    return lines


def _is_bpffs() -> bool:
    with contextlib.suppress(OSError):
        return " /sys/fs/bpf " in Path("/proc/1/mountinfo").read_text()
    return False


def same_code(one: Rule, other: Rule) -> bool:
    """Return whether two rules compile to the same code."""
    wanted = (other.kind, other.list_name, other.match, other.limit, other.mode)
    return (one.kind, one.list_name, one.match, one.limit, one.mode) == wanted


def _is_short(rule: Rule) -> bool:
    return (
        of(rule.kind).layer is Layer.DRIVER
        and rule.limit is None
        and rule.list_name is None
        and not rule.match.sources
    )
