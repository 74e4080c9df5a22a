"""Attach compiled rules by XDP or at tc ingress, replace them in place, leave foreign programs alone.

Programs are attached by links (bpf_link_create), which never replace another program; the link's pin in bpffs
keeps it attached without any process. Where another program occupies XDP, the same rules go to tc ingress,
after the observers, which count and sample what is dropped there. Source: dev_xdp_attach in net/core/dev.c.

A VLAN device has no XDP, and packets reach it long after the driver: programs go to the interface below. A
bond passes an XDP program on to its members if they support it (Linux 5.15,
drivers/net/bonding/bond_main.c); if not, each member gets one. A bridge's ports get none, as they carry
other machines' packets, too.

Before Linux 6.6 a clsact filter takes the place of a link at tc ingress. It needs no pin to stay; its
program is pinned only to show that the interface has our rules.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.kernel import bpf, clsact
from fwtop.kernel.descriptors import closing
from fwtop.kernel.links import Link, list_links
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.xdp.messages import Attachment

_DEEPEST = 8  # levels of nested VLANs


class Target(Struct, frozen=True):
    """An interface to attach XDP to; `above` is the interface that was asked for, if another one."""

    link: Link
    above: str = ""
    members: tuple[Link, ...] = ()  # of a bond: used if the bond itself takes no program


def targets(links: list[Link], chosen: list[Link]) -> list[Target]:
    """Return the interfaces to attach to for the chosen ones, without duplicates."""
    by_index = {link.index: link for link in links}
    found: dict[int, Target] = {}
    for link in chosen:
        low = _below(by_index, link)
        members = tuple(one for one in links if one.master == low.index) if low.kind == "bond" else ()
        if low.index not in found or low is link:
            found[low.index] = Target(low, "" if low is link else link.name, members)
    return list(found.values())


def _below(by_index: dict[int, Link], link: Link) -> Link:
    for _ in range(_DEEPEST):
        lower = by_index.get(link.lower) if link.kind == "vlan" else None
        if lower is None:
            return link
        link = lower
    return link


FILTER = "filter"  # pins are named KIND-MODE-INTERFACE


def attach_tc(directory: Path, program: int, ifindex: int, mode: str) -> None:
    """Attach a program after all others and pin the link; raises OSError."""
    try:
        descriptor = bpf.attach_tcx_ingress(program, ifindex, last=True)
    except OSError as error:
        if error.errno != errno.EINVAL:  # no TCX before Linux 6.6
            raise
        attach_filter(directory, program, ifindex, mode)
        return
    _pin(descriptor, directory / f"link-{mode}-{ifindex}")


def attach_filter(directory: Path, program: int, ifindex: int, mode: str) -> None:
    """Attach a program by a clsact filter, replacing our last one; raises OSError."""
    clsact.attach_rules(program, ifindex, mode)
    path = directory / f"{FILTER}-{mode}-{ifindex}"
    path.unlink(missing_ok=True)
    bpf.pin(program, path)


def detach_filter(ifindex: int, mode: str) -> None:
    """Remove the filter, if its interface still exists."""
    with contextlib.suppress(OSError):
        clsact.detach_rules(ifindex, mode)


NATIVE, GENERIC, TC, INGRESS = "native", "generic", "tc", "ingress"
XDP_MODES = (NATIVE, GENERIC, TC)  # of rules of kind XDP; TC includes the rules of kind tc
_TAKEN = (errno.EBUSY, errno.EEXIST)
_REASONS = {
    errno.EOPNOTSUPP: "its driver has no XDP, or not with the current offloads",
    errno.ERANGE: "its MTU is too large for the driver's XDP",
    errno.EINVAL: "its driver refuses XDP with the current MTU, offloads or queues",
    errno.ENOSPC: "its driver has too few queues for XDP",
    errno.ENOMEM: "its driver has too little memory for XDP",
}


class Programs:
    """The compiled programs by mode, built on first use; a mode without a builder has no rules."""

    def __init__(self, builders: Mapping[str, Callable[[], int]]) -> None:
        self._builders = builders
        self._built: dict[Callable[[], int], int] = {}

    def wanted(self, mode: str) -> bool:
        """Return whether a mode has rules."""
        return mode in self._builders

    def of(self, mode: str) -> int:
        """Return the descriptor of the program for a mode; raises FwtopError."""
        build = self._builders[mode]
        if build not in self._built:
            self._built[build] = build()
        return self._built[build]

    def close(self) -> None:
        """Close the programs; links keep theirs."""
        while self._built:
            os.close(self._built.popitem()[1])


def swap_or_attach(
    directory: Path, links: list[Link], chosen: list[Link], programs: Programs
) -> list[Attachment]:
    """Attach the programs to the chosen interfaces, and replace them wherever they are attached already.

    Rules at tc move to XDP once it is free. Programs that are no longer needed are detached last, so that no
    packet slips between two. Raises FwtopError, and doesn't roll back: new rules are disabled until they get
    a deadline.
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
    """Return whether rules at tc can move to XDP, on an interface among the targets."""
    _, ifindex, mode = found
    reached = {one.index for place in places for one in (place.link, *place.members)}
    return mode == TC and ifindex in reached and not foreign_program(ifindex)


def _missing(target: Target, has: set[int]) -> list[Target]:
    """Return what still needs a program: the interface itself, or members that joined the bond."""
    if target.link.index in has:
        return []
    joined = [Target(member) for member in target.members if member.index not in has]
    return joined if len(joined) < len(target.members) else [target]


def _swap_all(
    before: list[tuple[Path, int, str]], names: dict[int, str], programs: Programs
) -> dict[tuple[int, str], Attachment]:
    """Replace the programs where they are attached and have rules, on existing interfaces."""
    return {
        (ifindex, mode): Attachment(
            ifindex, names[ifindex], mode, foreign_program(ifindex) if mode == TC else ""
        )
        for path, ifindex, mode in before
        if ifindex in names and programs.wanted(mode) and _swap(path, ifindex, mode, programs.of(mode))
    }


def pinned(directory: Path) -> list[tuple[Path, int, str]]:
    """List the pinned attachments: path, interface number, mode."""
    found = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        kind, _, rest = path.name.partition("-")
        mode, _, index = rest.partition("-")
        if kind in ("link", FILTER) and index.isdigit():
            found.append((path, int(index), mode))
    return found


def is_filter(path: Path) -> bool:
    """Return whether a pin is a filter's program, not a link."""
    return path.name.startswith(FILTER)


def detach_all(directory: Path) -> None:
    """Detach everything at once, even if another process holds the links open."""
    for path, ifindex, mode in pinned(directory):
        _detach(path, ifindex, mode)


def _detach(path: Path, ifindex: int, mode: str) -> None:
    if is_filter(path):
        detach_filter(ifindex, mode)
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(OSError), closing(bpf.open_pin(path)) as link:
        bpf.detach_link(link)
    path.unlink(missing_ok=True)


def foreign_program(ifindex: int) -> str:
    """Describe the XDP programs of an interface, like "name (id N)"; empty without any."""
    programs = next((link.xdp_programs for link in list_links() if link.index == ifindex), ())
    return ", ".join(f"{_name_of(number)} (id {number})" for number in programs)


def _name_of(number: int) -> str:
    try:
        return safe_text(bpf.program_name(number), limit=40) or "unnamed"
    except (OSError, FwtopError):  # it is gone, or only root may ask
        return "unnamed"


def _swap(path: Path, ifindex: int, mode: str, program: int) -> bool:
    if is_filter(path):
        attach_filter(path.parent, program, ifindex, mode)
        return True
    link = bpf.open_pin(path)
    try:
        bpf.update_link(link, program)
    except OSError as error:
        if error.errno in (errno.ENOLINK, errno.ENODEV):  # detached by somebody else: drop its pin
            path.unlink(missing_ok=True)
            return False
        raise FwtopError(f"replacing the rules failed: {safe_text(error.strerror)}") from None
    finally:
        os.close(link)
    return True


def _attach(directory: Path, target: Target, programs: Programs) -> list[Attachment]:
    """Attach by native or else generic XDP, to a bond or its members, or at tc where XDP is occupied."""
    link = target.link
    if not link.ethernet:
        line = f"{safe_text(link.name)} has no Ethernet header, which XDP needs; nothing was installed"
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
        attach_tc(directory, programs.of(TC), link.index, TC)
    except OSError as error:
        line = f"{safe_text(link.name)} has the XDP program {foreign}, which was left alone, and attaching at"
        line += f" tc ingress failed: {safe_text(error.strerror)}"
        raise FwtopError(f"{line}; nothing was installed", 3) from None
    return [Attachment(link.index, safe_text(link.name), TC, foreign)]


def _try_xdp(directory: Path, link: Link, program: int, mode: str) -> tuple[str, int]:
    """Attach and pin; returns ("", 0), or why the kernel refused, in words and as errno."""
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
            f"{name} has no Ethernet header, which compiled rules require; nothing was installed", 3
        )
    try:
        attach_tc(directory, programs.of(INGRESS), link.index, INGRESS)
    except OSError as error:
        line = f"attaching at tc ingress of {name} failed: {safe_text(error.strerror)}"
        raise FwtopError(f"{line}; nothing was installed", 3) from None
    return Attachment(link.index, name, INGRESS)


def _pin(link: int, path: Path) -> None:
    with closing(link):
        bpf.pin(link, path)
