"""Compiled rules on their way: planned, compiled by the loader, and where they are attached, in words.

The loader is a child with bcc that compiles, swaps the programs, and exits.
"""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fwtop.guardian.mechanisms.compiled.slots import is_pinned, open_pin
from fwtop.kernel import bpf, children, clsact, programs
from fwtop.kernel.descriptors import closing
from fwtop.kernel.links import readable_links
from fwtop.model.addresses.prefix_list import ATTACH_ABOVE
from fwtop.model.errors import FwtopError
from fwtop.model.messages import ProtocolError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import of
from fwtop.xdp.maps import BUCKETS, COMPILED_PREFIXES, MAX_RULES
from fwtop.xdp.messages import (
    KEPT_SECONDS,
    Apply,
    Attachment,
    Compile,
    Loaded,
    Request,
    receive_reply,
    send_request,
)

_LOADER = "fwtop.xdp.loader"
_SECONDS = 30.0
_POLL_MS = 20
_SPARE_SECONDS = 5.0  # before it ends, a child that waits is no longer asked
_MOST = 16  # rules of a set


class Running:
    """A loader child; closing it ends it."""

    def __init__(self, request: Request) -> None:
        """Start it with a request, whose descriptors stay the caller's. Raises FwtopError."""
        try:
            self._child, self._mine = children.start_with_socket(_LOADER)
        except OSError as error:  # no memory, no process to be had
            raise FwtopError(f"the XDP loader could not be started: {error.strerror}") from None
        self._mine.settimeout(_SECONDS)
        self._until = time.monotonic() + KEPT_SECONDS - _SPARE_SECONDS
        self.send(request)

    def send(self, request: Request) -> None:
        """Ask it; raises FwtopError, and has ended it then."""
        try:
            send_request(self._mine, request)
        except OSError as error:
            self.close()
            raise FwtopError(f"the XDP loader could not be asked: {error}") from None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._child.poll() is not None

    @property
    def at_work(self) -> bool:
        """Whether it has not answered yet."""
        return not self.over and not self._is_readable(0)

    @property
    def waits(self) -> bool:
        """Whether it will wait for another request, once it has compiled."""
        return not self.over and time.monotonic() < self._until

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
        while not self._is_readable(_POLL_MS):
            if time.monotonic() >= end:
                raise TimeoutError
            serve_urgent()

    def _is_readable(self, milliseconds: int) -> bool:
        poll = select.poll()
        poll.register(self._mine, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def close(self, patience: float = 1.0) -> None:
        """Wait `patience` seconds for it to exit, then kill it."""
        self._mine.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(patience)
        if not self.over:
            self._child.kill()
            self._child.wait()


def ask(
    request: Request, serve_urgent: Callable[[], None] = lambda: None, ready: Running | None = None
) -> Loaded:
    """Have a request carried out, whose descriptors stay the caller's; raises FwtopError.

    `ready` has compiled for it, or does: another Python would take a tenth of a second to start.
    """
    running = _handed(request, serve_urgent, ready) if ready is not None else None
    running = running or Running(request)
    try:
        return running.answer(serve_urgent)
    finally:
        running.close()


def _handed(request: Request, serve_urgent: Callable[[], None], ready: Running) -> Running | None:
    """Hand a request to a loader that has compiled for it; None if it failed: another one tells why."""
    try:
        ready.answer(serve_urgent)
        ready.send(request)
    except FwtopError:
        ready.close(patience=0.0)
        return None
    return ready


class Precompiler:
    """Compiles rules that may be installed next into the cache, in one child at a time, which then waits."""

    def __init__(self) -> None:
        self._child: Running | None = None
        self._code: object = None  # what its code depends on

    def start(self, order: Compile, *, instead: bool = False) -> None:
        """Start, unless one has done it or is at work, `instead` of it if so; raises FwtopError, OSError."""
        child, code = self._child, _code(order)
        if child is not None and ((child.at_work and not instead) or (child.waits and code == self._code)):
            return
        self._drop()
        self._child, self._code = Running(order), code

    def take(self, order: Apply) -> Running | None:
        """Give away the child if it compiles the rules of this request; another would make that wait."""
        child, is_same = self._child, _code(order) == self._code
        if child is None or not is_same or not child.waits:
            self._drop()
            return None
        self._child, self._code = None, None
        return child

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


_MODES = {
    "native": "XDP in the driver of {name}",
    "generic": "generic XDP on {name}",
    "tc": "tc ingress of {name}",
    "ingress": "tc ingress of {name}",
}
_WHY = {
    "generic": ", about three times the cost: {reason}",
    "tc": ", about four times the cost: XDP there is {foreign}'s, which was left alone",
}
_ABOVE = ", below {above}: it sees all that arrives there"
_XDP_MODES = ("native", "generic", "tc")
_GONE = "; {name} is gone: the rules are put on again when an interface of that name is made"
_SIOCGIFFLAGS, _IFF_UP = 0x8913, 1


class Attachments:
    """The attachments of one namespace, and the interfaces that should have one."""

    def __init__(self) -> None:
        self._current: tuple[Attachment, ...] = ()
        self._chosen: set[str] = set()  # interfaces that have or had the rules, by name
        self._tried: set[int] = set()  # new interfaces of these names, by index
        self._programs: dict[Attachment, int] = {}  # ids, as found first

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self._current)

    def replace(self, current: tuple[Attachment, ...]) -> None:
        """Take what the loader attached or found."""
        self._current = current
        self._programs = {}
        # A VLAN or bond was chosen, not the interfaces below it
        self._chosen |= {item.above or item.name for item in current}

    def clear(self) -> None:
        """Forget all: nothing is attached any more."""
        self._current, self._chosen, self._tried, self._programs = (), set(), set(), {}

    def names_with(self, rule: Rule) -> list[str]:
        """Return the interfaces whose program has a rule, or would have it."""
        return [item.name for item in self._current if _carries(item, rule)]

    def wanted(self, watched: set[str]) -> list[str]:
        """Return the existing interfaces to attach to; none: those with a default route."""
        present = {name for _, name in socket.if_nameindex()}
        wanted = (watched | self._chosen) & present
        return sorted(wanted or {item.name for item in self._current} & present)

    def need_program(self) -> bool:
        """Return whether an interface came back, or a bond got a new member; once for each."""
        present = {name: index for index, name in socket.if_nameindex()}
        held = [item for item in self._current if item.ifindex in present.values()]
        attached = {item.ifindex for item in held} | {present.get(item.above) for item in held}
        wanted = {index for name, index in present.items() if name in self._chosen} | self._members()
        new = wanted - attached - self._tried
        self._tried |= new
        return bool(new)

    def _members(self) -> set[int]:
        """Return the members of the bonds whose members carry the rules."""
        above = {item.above for item in self._current} - {""}
        links = readable_links() if above else []
        upper = [link for link in links if link.name in above]
        masters = {index for link in upper for index in (link.index, link.lower)} - {0}  # lower: of VLANs
        return {link.index for link in links if link.master in masters}

    def detached(self, rule: Rule, pins: Path) -> str:
        """Name an interface whose link carries a rule's program no more; "" if none. Raises OSError."""
        names = dict(socket.if_nameindex())
        for item in self._current:
            if item.ifindex not in names or not _carries(item, rule):
                continue
            program = _attached(pins, item)
            if not program or self._programs.setdefault(item, program) != program:
                return safe_text(names[item.ifindex])
        return ""

    def describe(self, rule: Rule) -> str:
        """Say where a rule runs, by the interfaces' present names."""
        names = dict(socket.if_nameindex())
        return "; ".join(_described(item, names) for item in self._current if _carries(item, rule))

    def match(self, note: str, rule: Rule) -> bool:
        """Return whether an earlier description of a rule's places is still true."""
        names = dict(socket.if_nameindex())
        return all(
            _MODES[item.mode].format(name=item.name) in note
            and safe_text(names.get(item.ifindex, "")) == item.name
            and not _is_down(names[item.ifindex])
            for item in self._current
            if _carries(item, rule)
        )


def _carries(attachment: Attachment, rule: Rule) -> bool:
    """Return whether the program there is compiled of rules of this kind."""
    return attachment.mode in (("tc", "ingress") if of(rule.kind).layer is Layer.TC else _XDP_MODES)


def _attached(pins: Path, item: Attachment) -> int:
    """Return the id of the program that a link attaches there, 0 if none; raises OSError.

    Before Linux 6.6 a filter attaches it: then 1.
    """
    if is_pinned(pins / f"filter-{item.mode}-{item.ifindex}"):
        return int(clsact.has_rules(item.ifindex, item.mode))
    try:
        descriptor = open_pin(pins / f"link-{item.mode}-{item.ifindex}")
    except FileNotFoundError:
        return 0
    with closing(descriptor):
        return bpf.link_program_id(descriptor) if bpf.link_interface(descriptor) == item.ifindex else 0


def _described(item: Attachment, names: dict[int, str]) -> str:
    name = names.get(item.ifindex)
    text = _MODES[item.mode] + _WHY.get(item.mode, "") + (_ABOVE if item.above else "")
    text += _GONE if name is None else "; {name} is down" if _is_down(name) else ""
    # What is known only when a program is attached, not when it is swapped
    reason = item.reason or "its driver has no XDP, or not as it is set up"
    foreign = item.foreign or "another program"
    shown = item.name if name is None else safe_text(name)
    return text.format(name=shown, reason=reason, foreign=foreign, above=item.above)


def _is_down(name: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        try:
            answer = fcntl.ioctl(channel, _SIOCGIFFLAGS, struct.pack("16s16x", name.encode()[:15]))
        except OSError:  # it went this moment
            return False
    return not struct.unpack_from("H", answer, 16)[0] & _IFF_UP
