"""Where compiled rules run, in words, as it is now: interfaces go down, are renamed, vanish and come back."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterable
from typing import Any

from fwtop.model.rule import Kind, Rule
from fwtop.model.text import safe_text

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


def carries(attachment: dict[str, Any], rule: Rule) -> bool:
    """Say whether a program there has this rule."""
    return attachment["mode"] in (("tc", "ingress") if rule.kind is Kind.TC else _XDP_MODES)


def described(attachments: Iterable[dict[str, Any]], rule: Rule) -> str:
    """Return where a rule runs, one interface behind the other, by the names that they have now."""
    names = dict(socket.if_nameindex())
    return "; ".join(_described(item, names) for item in attachments if carries(item, rule))


def holds(note: str, attachments: Iterable[dict[str, Any]], rule: Rule) -> bool:
    """Say whether a note of where a rule runs names each place as it is now."""
    names = dict(socket.if_nameindex())
    return all(
        _MODES[item["mode"]].format(name=item["name"]) in note
        and safe_text(names.get(item["ifindex"], "")) == item["name"]
        and not _is_down(names[item["ifindex"]])
        for item in attachments
        if carries(item, rule)
    )


def _described(item: dict[str, Any], names: dict[int, str]) -> str:
    name = names.get(item["ifindex"])
    text = _MODES[item["mode"]] + _WHY.get(item["mode"], "") + (_ABOVE if item["above"] else "")
    text += _GONE if name is None else "; {name} is down" if _is_down(name) else ""
    # What is known only when a program is attached, not when it is swapped
    reason = item["reason"] or "its driver has no XDP, or not as it is set up"
    foreign = item["foreign"] or "another program"
    shown = item["name"] if name is None else safe_text(name)
    return text.format(name=shown, reason=reason, foreign=foreign, above=item["above"])


def _is_down(name: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        try:
            answer = fcntl.ioctl(channel, _SIOCGIFFLAGS, struct.pack("16s16x", name.encode()[:15]))
        except OSError:  # it went this moment
            return False
    return not struct.unpack_from("H", answer, 16)[0] & _IFF_UP
