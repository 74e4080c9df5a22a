"""Rules as iptables and ipset arguments, for the guardian to run and for proposals to show.

xt_string counts offsets from the IP header, whatever the length of the IP and TCP headers; u32 follows header
lengths and has masks, so it matches bytes at an offset (iptables-extensions(8), u32). A hashlimit table keeps
the parameters under which it was created, so its name contains the rule's id and a digest of them: another
rate is another table (net/netfilter/xt_hashlimit.c, htable_find_get).
"""

from __future__ import annotations

import re
import time
from binascii import crc32
from collections.abc import Iterable, Sequence

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match, PayloadMatch, RateLimit, Rule
from fwtop.model.traffic.protocols import ICMP, ICMPV6, TCP, UDP, WITH_PORTS, protocol_name
from fwtop.rules import fields
from fwtop.rules.fields import Field, option_words, u32
from fwtop.rules.kind import SetSpec

MAX_PACKETS_PER_SECOND = 1_000_000  # XT_HASHLIMIT_SCALE_v2: iptables refuses more
MIN_BYTES_PER_SECOND = 64  # below 16, its unit, iptables 1.8.9 divides by zero
MAX_BYTES_PER_SECOND = (1 << 32) - 1
HASHLIMIT_MAX = 262_144  # source prefixes in a table; when full, packets of new ones are dropped (hotdrop)
HASHLIMIT_EXPIRE_MS = 10_000  # idle time of a prefix
MAX_TIMEOUT_SECONDS = 2147483  # ipset(8): the kernel's milliseconds are 32 bits wide
UNLISTED = "un"  # role of enable sets that match no source of the allow-list
_MIN_ELEMENTS = 64
TIMED_ELEMENTS = 1_000  # longer lists have no timeout of their own, as renewing it would take seconds
COUNTED_ELEMENTS = 65_536  # larger sets have no counters per element, as listing them costs CPU
_BEFORE = (fields.ICMP_TYPE, fields.TCP_FLAGS, *fields.IP)  # what comes before the fields that u32 reads
_TESTS_PER_MATCH = 10  # xt_u32.h: XT_U32_MAXSIZE
_SHORT_HEADER = 8  # UDP, and ICMP's common part
_NO_LATER_FRAGMENT = "4&0x1FFF=0x0"  # later fragments have no transport header


def set_name(rule_id: str, family: int, role: str = "") -> str:
    """Return the name of a rule's set (at most 31 characters, IPSET_MAXNAMELEN)."""
    return f"fwtop-{rule_id}-{role}{family}"


def list_set_name(name: str, family: int) -> str:
    """Return the name of a named list's set."""
    return f"fwtop-list-{name}-{family}"


def halves(family: int) -> tuple[Prefix, Prefix]:
    """Return the two halves of the address space, as hash:net can't store /0."""
    return Prefix(family, 0, 1), Prefix(family, 1 << (31 if family == 4 else 127), 1)


def create_line(
    name: str,
    family: int,
    count: int,
    timeout_seconds: int | None,
    kind: str = "hash:net",
    *,
    counted: bool = True,
) -> str:
    """Return the line for `ipset restore` that creates a set with room for `count` elements.

    Counters of elements cost each packet that matches two atomic additions.
    """
    size = max(_MIN_ELEMENTS, count)
    hashsize = 1 << max(6, (size - 1).bit_length() - 1)
    clock = f" timeout {timeout_seconds}" if timeout_seconds is not None else ""
    inet = "inet" if family == 4 else "inet6"
    counters = " counters" if counted and count <= COUNTED_ELEMENTS else ""
    return f"create {name} {kind} family {inet} hashsize {hashsize} maxelem {size}{clock}{counters}"


def set_line(spec: SetSpec, timeout_seconds: int) -> str:
    """Return the line for `ipset restore` that creates a rule's set."""
    count = len(spec.elements) + len(spec.exceptions)
    clock = timeout_seconds if spec.timed else None
    return create_line(spec.name, spec.family, count, clock, counted=spec.counted)


def fill_text(spec: SetSpec, timeout_seconds: int) -> str:
    """Return the input of `ipset -exist restore` that creates and fills a rule's set.

    Exceptions come before what they are exceptions from, and stay longer: at no time is anybody dropped who
    is to be spared.
    """
    lines = [set_line(spec, timeout_seconds)]
    for elements, extra, flag in ((spec.exceptions, 1, " nomatch"), (spec.elements, 0, "")):
        seconds = min(timeout_seconds + extra, MAX_TIMEOUT_SECONDS)
        clock = f" timeout {seconds}" if spec.timed else ""
        lines += [f"add {spec.name} {prefix}{clock}{flag}" for prefix in elements]
    return "\n".join([*lines, ""])


def field_args(match: Match, family: int, protocol: int | None = None) -> tuple[str, ...]:
    """Return the iptables arguments for a match's header fields, without sets and payload.

    `protocol` overrides the match's. Raises FwtopError (code 2) if iptables can't express one.
    """
    wanted = match.protocol if protocol is None else protocol
    args: list[str] = ["-p", str(wanted)] if wanted is not None else []
    args += _port_args(match, wanted)
    for field in _BEFORE:
        args += _args(field, match, family, wanted)
    # Extension headers would shift the offsets: packets with them don't match
    tests = [test for field in fields.SEGMENT for test in _args(field, match, family, wanted)]
    if tests:
        args += u32([_NO_LATER_FRAGMENT if family == 4 else "6>>24=0x6", *tests])
    return (*args, *_args(fields.FRAGMENT, match, family, wanted))


def _args(field: Field, match: Match, family: int, protocol: int | None) -> Sequence[str]:
    condition = field.of(match)
    if condition is None:
        return ()
    if field is fields.ICMP_TYPE and protocol != (ICMP if family == 4 else ICMPV6):
        raise FwtopError(
            "an ICMP type needs --proto icmp with -4, or icmpv6 with -6; nothing was installed", 2
        )
    if field.protocols and protocol not in field.protocols:
        which = "TCP flags" if field is fields.TCP_FLAGS else "fields of TCP"
        raise FwtopError(f"{which} need --proto tcp; nothing was installed", 2)
    if family not in field.families:
        raise FwtopError("IPv6 packets have no IP id: use -4; nothing was installed", 2)
    return field.xtables(condition, family)


def _port_args(match: Match, protocol: int | None) -> list[str]:
    ports = option_words(fields.PORTS, match)
    if ports and protocol not in WITH_PORTS:
        raise FwtopError("a port needs --proto tcp or udp; nothing was installed", 2)
    return ["-m", protocol_name(protocol), *ports] if ports and protocol is not None else []


def match_protocols(rule: Rule) -> tuple[int | None, ...]:
    """Return the protocols that need a line each, as the payload offset depends on the header."""
    anchored = any(item.offset is not None for item in rule.match.payload)
    return (TCP, UDP) if anchored and rule.match.protocol is None else (rule.match.protocol,)


def payload_args(item: PayloadMatch, family: int, protocol: int | None) -> tuple[str, ...]:
    """Return the iptables arguments for one byte string; FwtopError (code 2) for a mask without offset."""
    if item.offset is not None:
        return _anchored_args(item, item.offset, family, protocol)
    if item.mask is not None:
        raise FwtopError("a masked string needs an offset; nothing was installed", 2)
    # Resolvers preserve the case of names, and attackers vary it (RFC 4343, 4.1).
    case = ("--icase",) if item.dns_name is not None else ()
    return ("-m", "string", "--algo", "bm", *case, "--hex-string", f"|{item.data.hex()}|")


def with_payload(rule: Rule, family: int, protocol: int | None, asks: Iterable[str]) -> tuple[str, ...]:
    """Return what asks the rule's sets, and its byte strings, in the order that costs least.

    Sources go first, as most packets come from others. Without any, only packets with the strings need the
    lookup that tells whether the rule is in force.
    """
    payload = [word for item in rule.match.payload for word in payload_args(item, family, protocol)]
    by_source = rule.match.sources or rule.list_name is not None
    return (*asks, *payload) if by_source else (*payload, *asks)


def _anchored_args(item: PayloadMatch, offset: int, family: int, protocol: int | None) -> tuple[str, ...]:
    start = _start(family, protocol)
    mask = item.compared_bits
    tests = [_NO_LATER_FRAGMENT] if family == 4 else []
    # A word beyond the end of the packet never matches: the last one is shifted to the left.
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
        args += u32(tests[at : at + _TESTS_PER_MATCH])
    return tuple(args)


def _start(family: int, protocol: int | None) -> tuple[str, int]:
    """Return u32's jumps to the transport payload, and what to add to an offset in it."""
    if protocol == TCP:
        return ("0>>22&0x3C@12>>26&0x3C@", 0) if family == 4 else ("52>>26&0x3C@", 40)
    return ("0>>22&0x3C@", _SHORT_HEADER) if family == 4 else ("", 40 + _SHORT_HEADER)


def _place(start: tuple[str, int], offset: int) -> str:
    jumps, add = start
    return f"{jumps}{add + offset}"


def limit_args(rule_id: str, limit: RateLimit, family: int) -> tuple[str, ...]:
    """Return the match for packets above the limit; FwtopError (code 2) if the rate is out of range."""
    most = MAX_BYTES_PER_SECOND if limit.in_bytes else MAX_PACKETS_PER_SECOND
    least = MIN_BYTES_PER_SECOND if limit.in_bytes else 1
    if not least <= limit.per_second <= most:
        raise FwtopError(f"hashlimit takes {least} to {most:,} a second; nothing was installed", 2)
    above = f"{limit.per_second}b/s" if limit.in_bytes else f"{limit.per_second}/sec"
    rate = limit.per_second
    fullest = max(limit.burst, rate + rate // 16 + 1500, iptables_bytes(rate) if limit.in_bytes else 0)
    burst = f"{fullest}b" if limit.in_bytes else str(limit.burst)
    words = (
        "-m", "hashlimit",
        "--hashlimit-above", above,
        "--hashlimit-burst", burst,
        "--hashlimit-mode", "srcip,dstport" if limit.by_dport else "srcip",
        "--hashlimit-srcmask", str(limit.prefix_v4 if family == 4 else limit.prefix_v6),
        "--hashlimit-htable-max", str(HASHLIMIT_MAX),
        "--hashlimit-htable-expire", str(HASHLIMIT_EXPIRE_MS),
    )  # fmt: skip
    parameters = crc32(" ".join(words).encode())
    return (*words, "--hashlimit-name", f"fwtop-{rule_id}-{parameters:08x}-{family}")


def quote(argument: str) -> str:
    """Quote an argument for `iptables-restore`, which supports double quotes and backslashes only."""
    if re.fullmatch(r"[\w./:,=+-]+", argument):
        return argument
    return '"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"'


# The rate that a limit really keeps: none has every rate, as a packet costs a whole number of credits.
# Sources: iptables, extensions/libxt_hashlimit.c (parse_rate, bytes_to_cost); net/netfilter/xt_hashlimit.c
# (user2credits, user2credits_byte) since revision 2, which iptables takes where the kernel has it (Linux
# 4.8); bpf/xdp_limit.h. Revision 1 is coarser (10,000 instead of a million parts of a second), but iptables
# refuses rates that it can't have.
LIMIT_SECOND = 64 * 10**9  # a second in units of over_limit in bpf/xdp_limit.h
_SCALE = 1_000_000  # XT_HASHLIMIT_SCALE_v2
_WHOLE = (1 << 32) - 1
_CHUNK_BYTES = 16  # 1 << XT_HASHLIMIT_BYTE_SHIFT
_CLOCK_MONOTONIC_COARSE = 6  # linux/time.h; its resolution is a tick of the kernel


def compiled_rate(limit: RateLimit) -> float:
    """Return the packets or bytes a second that a compiled rule lets pass."""
    return LIMIT_SECOND / compiled_cost(limit)


def hashlimit_rate(limit: RateLimit) -> float:
    """Return the packets or bytes a second that hashlimit lets pass."""
    return _hashlimit_bytes(limit.per_second) if limit.in_bytes else _hashlimit_packets(limit.per_second)


def compiled_cost(limit: RateLimit) -> int:
    """Return what a packet, or a byte, costs in a compiled rule, of LIMIT_SECOND a second."""
    return max(1, LIMIT_SECOND // limit.per_second)


def _hashlimit_packets(asked: int) -> float:
    return _SCALE / max(1, _SCALE // asked)


def iptables_bytes(asked: int) -> int:
    """Return the bytes a second that iptables makes of a rate; it takes no smaller burst."""
    return (_WHOLE // _cost(asked) - 1) * _CHUNK_BYTES


def _cost(asked: int) -> int:
    """Return what 16 bytes cost, of 2^32 a second (bytes_to_cost)."""
    return _WHOLE // (asked // _CHUNK_BYTES + 1)


def _hashlimit_bytes(asked: int) -> float:
    """Return it as the kernel converts that cost to credits, of which each tick brings a power of 2."""
    ticks = round(1 / time.clock_getres(_CLOCK_MONOTONIC_COARSE))
    credits = ticks * (1 << (_WHOLE // ticks).bit_length() - 1)  # gained in a second
    cost = _cost(asked) * credits >> 32
    return _CHUNK_BYTES * credits / max(1, cost)
