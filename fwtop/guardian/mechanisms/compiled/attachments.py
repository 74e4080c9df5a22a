"""Where compiled rules are attached: as the loader told, as it is now, and in words."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

from fwtop.guardian.mechanisms.compiled.slots import is_pinned, open_pin
from fwtop.kernel import bpf, clsact
from fwtop.kernel.descriptors import closing
from fwtop.kernel.links import readable_links
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import of
from fwtop.xdp.messages import Attachment

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
