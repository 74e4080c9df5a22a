"""Match payload bytes: anywhere with xt_string, at an exact offset with xt_u32.

xt_string counts its offsets from the IP header and doesn't know how long that or TCP's is; u32 follows the
header lengths (iptables-extensions(8), u32) and takes masks, so anchored bytes are its job.
"""

from __future__ import annotations

from fwtop.mitigate.artifacts import Artifacts, ChainLine
from fwtop.mitigate.drivers.common import TCP, UDP, base, field_args
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import PayloadMatch, Rule

_TESTS_PER_MATCH = 10  # xt_u32.h: XT_U32_MAXSIZE
_SHORT_HEADER = 8  # UDP, and ICMP's common part
_NO_LATER_FRAGMENT = "4&0x1FFF=0x0"  # a later fragment has no transport header to count from


def build(rule: Rule, exceptions: tuple[Prefix, ...]) -> Artifacts:
    """Return the lines that drop packets with all of the rule's byte strings."""
    clock = base(rule, exceptions)
    lines = []
    for family, asks in clock.asks.items():
        for protocol in _protocols(rule):
            fields = field_args(rule.match, family, protocol)
            payload = [arg for item in rule.match.payload for arg in payload_args(item, family, protocol)]
            lines.append(ChainLine(family, (*fields, *asks, *payload), ("-j", "DROP")))
    return Artifacts(clock.sets, tuple(lines))


def _protocols(rule: Rule) -> tuple[int | None, ...]:
    """An offset counts from a transport header: without a protocol both usual ones get a line."""
    anchored = any(item.offset is not None for item in rule.match.payload)
    return (TCP, UDP) if anchored and rule.match.protocol is None else (rule.match.protocol,)


def payload_args(item: PayloadMatch, family: int, protocol: int | None) -> tuple[str, ...]:
    """Return the matches for one byte string; raises FwtopError (code 2) on a mask without an offset."""
    if item.offset is not None:
        return _anchored_args(item, item.offset, family, protocol)
    if item.mask is not None:
        raise FwtopError("a masked string needs an offset; nothing was installed", 2)
    # Resolvers keep the case of a name, whatever it is, and attackers vary it (RFC 4343, 4.1).
    case = ("--icase",) if item.dns_name is not None else ()
    return ("-m", "string", "--algo", "bm", *case, "--hex-string", f"|{item.data.hex()}|")


def _anchored_args(item: PayloadMatch, offset: int, family: int, protocol: int | None) -> tuple[str, ...]:
    start = _start(family, protocol)
    mask = item.mask or b"\xff" * len(item.data)
    tests = [_NO_LATER_FRAGMENT] if family == 4 else []
    # A word that reached past the packet's end would never match: the last one is moved to the left.
    shift = -(len(item.data) % 4) % 4
    lead = min(shift, offset) if protocol == TCP else shift
    data, bits = b"\0" * lead + item.data, b"\0" * lead + mask
    for at in range(0, len(data), 4):
        word = int.from_bytes(data[at : at + 4].ljust(4, b"\0"), "big")
        care = int.from_bytes(bits[at : at + 4].ljust(4, b"\0"), "big")
        if care:
            tests.append(f"{_place(start, offset - lead + at)}&0x{care:X}=0x{word & care:X}")
    args: list[str] = []
    for at in range(0, len(tests), _TESTS_PER_MATCH):
        args += ["-m", "u32", "--u32", "&&".join(tests[at : at + _TESTS_PER_MATCH])]
    return tuple(args)


def _start(family: int, protocol: int | None) -> tuple[str, int]:
    """Return u32's way to the transport payload: the jumps, and what to add to an offset."""
    if protocol == TCP:
        return ("0>>22&0x3C@12>>26&0x3C@", 0) if family == 4 else ("52>>26&0x3C@", 40)
    return ("0>>22&0x3C@", _SHORT_HEADER) if family == 4 else ("", 40 + _SHORT_HEADER)


def _place(start: tuple[str, int], offset: int) -> str:
    jumps, add = start
    return f"{jumps}{add + offset}"
