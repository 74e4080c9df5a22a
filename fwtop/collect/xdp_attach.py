"""Attach compiled rules to interfaces, swap them in place, and never touch somebody else's program.

Links keep an attachment (bpf_link_create): the kernel lets none replace a program that is there, and the
link's name in bpffs keeps it attached without any process. Where XDP is taken, the same rules go to tc
ingress behind the observers (`tc_rules`), so that these count and sample what is dropped there.
Source: dev_xdp_attach in net/core/dev.c.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fwtop.collect import bpf, bpf_objects, netlink, tc_rules
from fwtop.collect.links import Link
from fwtop.collect.xdp_targets import Target, targets
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

NATIVE, GENERIC, TC, INGRESS = "native", "generic", "tc", "ingress"
XDP_MODES = (NATIVE, GENERIC, TC)  # of rules for XDP: TC where XDP is taken, with the rules for tc among them
_RTM_GETLINK = 18
_IFLA_XDP = 43
_XDP_PROGRAM_IDS = (4, 5, 6, 7)  # IFLA_XDP_PROG_ID, and those of each mode when there are several
_XDP_ATTACHED, _ATTACHED_GENERIC = 2, 2  # IFLA_XDP_ATTACHED, XDP_ATTACHED_SKB
_TAKEN = (errno.EBUSY, errno.EEXIST)
_REASONS = {
    errno.EOPNOTSUPP: "its driver has no XDP, or not with the offloads that are on",
    errno.ERANGE: "its MTU is too large for the driver's XDP",
    errno.EINVAL: "its driver refuses XDP as the interface is set up (MTU, offloads, queues)",
    errno.ENOSPC: "its driver has too few queues for XDP",
    errno.ENOMEM: "its driver has too little memory for XDP",
}


@dataclass(frozen=True, slots=True)
class Attachment:
    """Where rules are. `foreign` names the XDP program that made it tc, `above` the interface asked for."""

    ifindex: int
    name: str
    mode: str
    foreign: str = ""
    above: str = ""
    reason: str = ""  # why it is not native


class Programs:
    """The compiled rules by mode, built when first needed; a mode without a builder has no rules."""

    def __init__(self, builders: Mapping[str, Callable[[], int]]) -> None:
        self._builders = builders
        self._built: dict[Callable[[], int], int] = {}

    def wanted(self, mode: str) -> bool:
        """Say whether there are rules for a mode."""
        return mode in self._builders

    def of(self, mode: str) -> int:
        """Return the descriptor of the program for a mode; raises FwtopError."""
        build = self._builders[mode]
        if build not in self._built:
            self._built[build] = build()
        return self._built[build]

    def close(self) -> None:
        """Close what was built; links hold what they need."""
        while self._built:
            os.close(self._built.popitem()[1])


def swap_or_attach(
    directory: Path, links: list[Link], chosen: list[Link], programs: Programs
) -> list[Attachment]:
    """Put the programs on the chosen interfaces and wherever they are already; returns where they are.

    Rules that are at tc because XDP was taken go to XDP once it is free. What no rule needs any more is
    detached last, so that no packet passes between two programs. Raises FwtopError; what was swapped until
    then stays, as rules are inert until they are given a deadline.
    """
    before = pinned(directory)
    names = {link.index: safe_text(link.name) for link in links}
    places = targets(links, chosen) if programs.wanted(NATIVE) else []
    stay = [item for item in before if not _can_go_back(item, places)]
    done = _swap_all(stay, names, programs)
    for target in places:
        has = {ifindex for ifindex, mode in done if mode in XDP_MODES}
        for missing in _missing(target, has):
            done |= {(item.ifindex, item.mode): item for item in _attach(directory, missing, programs)}
    if programs.wanted(INGRESS):
        for link in chosen:
            if not {(link.index, TC), (link.index, INGRESS)} & done.keys():
                done[link.index, INGRESS] = _attach_ingress(directory, link, programs)
    for path, ifindex, mode in before:
        if (ifindex, mode) not in done or (mode == INGRESS and (ifindex, TC) in done):
            done.pop((ifindex, mode), None)
            _detach(path, ifindex, mode)
    above = {one.index: place.above or place.link.name for place in places for one in place.members}
    above |= {place.link.index: place.above for place in places}
    return [replace(item, above=safe_text(above.get(item.ifindex, ""))) for item in done.values()]


def _can_go_back(found: tuple[Path, int, str], places: list[Target]) -> bool:
    """Say whether rules are at tc where XDP is free, on an interface that is asked for now."""
    _, ifindex, mode = found
    reached = {one.index for place in places for one in (place.link, *place.members)}
    return mode == TC and ifindex in reached and not foreign_program(ifindex)


def _missing(target: Target, has: set[int]) -> list[Target]:
    """Return where programs are still to go: on a bond itself, or on those members that joined it since."""
    if target.link.index in has:
        return []
    joined = [Target(member) for member in target.members if member.index not in has]
    return joined if len(joined) < len(target.members) else [target]


def _swap_all(
    before: list[tuple[Path, int, str]], names: dict[int, str], programs: Programs
) -> dict[tuple[int, str], Attachment]:
    """Swap the programs where they are attached and have rules; a link without its interface stays out."""
    return {
        (ifindex, mode): Attachment(
            ifindex, names[ifindex], mode, foreign_program(ifindex) if mode == TC else ""
        )
        for path, ifindex, mode in before
        if ifindex in names and programs.wanted(mode) and _swap(path, ifindex, mode, programs.of(mode))
    }


def pinned(directory: Path) -> list[tuple[Path, int, str]]:
    """List what is pinned of attachments: path, interface number, mode."""
    found = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        kind, _, rest = path.name.partition("-")
        mode, _, index = rest.partition("-")
        if kind in ("link", tc_rules.FILTER) and index.isdigit():
            found.append((path, int(index), mode))
    return found


def is_filter(path: Path) -> bool:
    """Tell a filter's pin, which is of its program, from a link's."""
    return path.name.startswith(tc_rules.FILTER)


def detach_all(directory: Path) -> None:
    """Detach everything now, even if somebody else still holds it open."""
    for path, ifindex, mode in pinned(directory):
        _detach(path, ifindex, mode)


def _detach(path: Path, ifindex: int, mode: str) -> None:
    if is_filter(path):
        tc_rules.detach_filter(ifindex, mode)
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(OSError):
        link = bpf_objects.open_pin(path)
        try:
            bpf_objects.detach_link(link)
        finally:
            os.close(link)
    path.unlink(missing_ok=True)


def foreign_program(ifindex: int) -> str:
    """Describe the XDP program on an interface: "name (id N)"; empty without one."""
    # struct ifinfomsg: family, padding, type, index, flags, change
    for body in netlink.dump(socket.NETLINK_ROUTE, _RTM_GETLINK, struct.pack("<BBHiII", 0, 0, 0, 0, 0, 0)):
        if struct.unpack_from("<BBHi", body)[3] != ifindex:
            continue
        nested = dict(netlink.attributes(body, 16)).get(_IFLA_XDP, b"")
        inner = dict(netlink.attributes(nested))
        numbers = {struct.unpack("<I", inner[key])[0] for key in _XDP_PROGRAM_IDS if key in inner} - {0}
        return ", ".join(f"{_name_of(number)} (id {number})" for number in sorted(numbers))
    return ""


def generic_links() -> set[int]:
    """Return the interfaces on which generic XDP runs, whosever program it is."""
    found = set()
    for body in netlink.dump(socket.NETLINK_ROUTE, _RTM_GETLINK, struct.pack("<BBHiII", 0, 0, 0, 0, 0, 0)):
        nested = dict(netlink.attributes(body, 16)).get(_IFLA_XDP, b"")
        if dict(netlink.attributes(nested)).get(_XDP_ATTACHED, b"\0")[0] == _ATTACHED_GENERIC:
            found.add(struct.unpack_from("<BBHi", body)[3])
    return found


def _name_of(number: int) -> str:
    try:
        return safe_text(bpf_objects.program_name(number)) or "unnamed"
    except OSError:
        return "unnamed"


def _swap(path: Path, ifindex: int, mode: str, program: int) -> bool:
    if is_filter(path):
        tc_rules.attach_filter(path.parent, program, ifindex, mode)
        return True
    link = bpf_objects.open_pin(path)
    try:
        bpf_objects.update_link(link, program)
    except OSError as error:
        if error.errno in (errno.ENOLINK, errno.ENODEV):
            return False
        raise FwtopError(f"swapping the rules in failed: {safe_text(error.strerror)}") from None
    finally:
        os.close(link)
    return True


def _attach(directory: Path, target: Target, programs: Programs) -> list[Attachment]:
    """Attach for XDP: on the bond or its members, in the driver or generic, or at tc where XDP is taken."""
    link = target.link
    if not link.ethernet:
        line = f"{safe_text(link.name)} has no Ethernet header, which XDP rules need; nothing was installed"
        raise FwtopError(f"{line}: use ipset or string rules instead", 3)
    program = programs.of(NATIVE)
    why, code = _try_xdp(directory, link, program, NATIVE)
    if not code:
        return [Attachment(link.index, safe_text(link.name), NATIVE)]
    if target.members and code not in _TAKEN:
        return [item for member in target.members for item in _attach(directory, Target(member), programs)]
    if code not in _TAKEN:
        failed, code = _try_xdp(directory, link, program, GENERIC)
        if not code:
            return [Attachment(link.index, safe_text(link.name), GENERIC, reason=why)]
        if code not in _TAKEN:
            line = f"XDP can't be attached to {safe_text(link.name)}: {failed}"
            raise FwtopError(f"{line}; nothing was installed")
    foreign = foreign_program(link.index)
    try:
        tc_rules.attach(directory, programs.of(TC), link.index, TC)
    except OSError as error:
        line = f"{safe_text(link.name)} has the XDP program {foreign}, which was left alone, and its tc"
        line += f" ingress takes no program: {safe_text(error.strerror)}"
        raise FwtopError(f"{line}; nothing was installed", 3) from None
    return [Attachment(link.index, safe_text(link.name), TC, foreign)]


def _try_xdp(directory: Path, link: Link, program: int, mode: str) -> tuple[str, int]:
    """Attach and pin; else return why the kernel refused, for people and as a number."""
    try:
        descriptor = bpf.attach_xdp(program, link.index, native=mode == NATIVE)
    except OSError as error:
        code = error.errno or errno.EINVAL
        return _REASONS.get(code, safe_text(error.strerror)), code
    _pin(descriptor, directory / f"link-{mode}-{link.index}")
    return "", 0


def _attach_ingress(directory: Path, link: Link, programs: Programs) -> Attachment:
    name = safe_text(link.name)
    if not link.ethernet:
        raise FwtopError(
            f"{name} has no Ethernet header, which compiled rules need; nothing was installed", 3
        )
    try:
        tc_rules.attach(directory, programs.of(INGRESS), link.index, INGRESS)
    except OSError as error:
        line = f"tc ingress of {name} takes no program: {safe_text(error.strerror)}"
        raise FwtopError(f"{line}; nothing was installed", 3) from None
    return Attachment(link.index, name, INGRESS)


def _pin(descriptor: int, path: Path) -> None:
    try:
        bpf_objects.pin(descriptor, path)
    finally:
        os.close(descriptor)
