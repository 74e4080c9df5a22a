"""Attach compiled rules to interfaces, swap them in place, and never touch somebody else's program.

Links keep an attachment (bpf_link_create): the kernel lets none replace a program that is there, and the
link's name in bpffs keeps it attached without any process. Where XDP is taken, the same rules go to tc
ingress behind the observers, so that these count and sample what is dropped there.
Source: dev_xdp_attach in net/core/dev.c.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fwtop.collect import bpf, bpf_objects, netlink
from fwtop.collect.links import Link
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

NATIVE, GENERIC, TC = "native", "generic", "tc"
_RTM_GETLINK = 18
_IFLA_XDP = 43
_XDP_PROGRAM_IDS = (4, 5, 6, 7)  # IFLA_XDP_PROG_ID, and those of each mode when there are several
_XDP_ATTACHED, _ATTACHED_GENERIC = 2, 2  # IFLA_XDP_ATTACHED, XDP_ATTACHED_SKB
_TAKEN = (errno.EBUSY, errno.EEXIST)


@dataclass(frozen=True, slots=True)
class Attachment:
    """Where the rules are; `foreign` names the XDP program that made it tc."""

    ifindex: int
    name: str
    mode: str
    foreign: str = ""


class Programs:
    """The compiled rules for each place, built when first needed."""

    def __init__(self, xdp: Callable[[], int], tc: Callable[[], int]) -> None:
        self._build = {False: xdp, True: tc}
        self._built: dict[bool, int] = {}

    def of(self, mode: str) -> int:
        """Return the descriptor of the program for a mode; raises FwtopError."""
        for_tc = mode == TC
        if for_tc not in self._built:
            self._built[for_tc] = self._build[for_tc]()
        return self._built[for_tc]

    def close(self) -> None:
        """Close what was built; links hold what they need."""
        while self._built:
            os.close(self._built.popitem()[1])


def swap_or_attach(
    directory: Path, links: list[Link], wanted: list[Link], programs: Programs
) -> list[Attachment]:
    """Put the programs on every wanted interface and wherever they are already; returns where they are.

    Raises FwtopError; what was swapped until then stays, as rules are inert until they are given a deadline.
    """
    by_index = {link.index: link for link in links}
    done: dict[int, Attachment] = {}
    for path, ifindex, mode in pinned(directory):
        name = by_index[ifindex].name if ifindex in by_index else ""
        if name and _swap(path, programs.of(mode)):
            done[ifindex] = Attachment(ifindex, safe_text(name), mode)
        else:  # the interface is gone
            path.unlink()
    for link in wanted:
        if link.index not in done:
            done[link.index] = _attach(directory, link, programs)
    return list(done.values())


def pinned(directory: Path) -> list[tuple[Path, int, str]]:
    """List the pinned links: path, interface number, mode."""
    found = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        kind, _, rest = path.name.partition("-")
        mode, _, index = rest.partition("-")
        if kind == "link" and index.isdigit():
            found.append((path, int(index), mode))
    return found


def detach_all(directory: Path) -> None:
    """Detach every pinned link now, even if somebody else still holds it open."""
    for path, _, _ in pinned(directory):
        with contextlib.suppress(OSError):
            link = bpf_objects.open_pin(path)
            try:
                bpf_objects.detach_link(link)
            finally:
                os.close(link)
        path.unlink()


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


def _swap(path: Path, program: int) -> bool:
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


def _attach(directory: Path, link: Link, programs: Programs) -> Attachment:
    name = safe_text(link.name)
    if not link.ethernet:
        line = f"{name} has no Ethernet header, which XDP rules need; nothing was installed"
        raise FwtopError(f"{line}: use ipset or string rules instead", 3)
    mode, descriptor, foreign = _open_link(link, programs)
    try:
        bpf_objects.pin(descriptor, directory / f"link-{mode}-{link.index}")
    finally:
        os.close(descriptor)
    return Attachment(link.index, name, mode, foreign)


def _open_link(link: Link, programs: Programs) -> tuple[str, int, str]:
    for mode in (NATIVE, GENERIC):
        try:
            return mode, bpf.attach_xdp(programs.of(mode), link.index, native=mode == NATIVE), ""
        except OSError as error:
            if error.errno in _TAKEN:
                break
            if mode == GENERIC:
                line = f"XDP can't be attached to {safe_text(link.name)}: {safe_text(error.strerror)}"
                raise FwtopError(f"{line}; nothing was installed") from None
    foreign = foreign_program(link.index)
    try:
        return TC, bpf.attach_tcx_ingress(programs.of(TC), link.index, last=True), foreign
    except OSError as error:
        line = (
            f"{safe_text(link.name)} has the XDP program {foreign}, which was left alone, and its tc ingress"
        )
        line += f" takes no program: {safe_text(error.strerror)}"
        raise FwtopError(f"{line} (Linux 6.6 or newer does); nothing was installed", 3) from None
