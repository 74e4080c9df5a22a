"""What all drivers share: the clock that a rule hangs on, and the fields of a Match in iptables' words."""

from __future__ import annotations

from dataclasses import dataclass

from fwtop.mitigate.artifacts import SetSpec, set_name
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match, Range, Rule

TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58
_PORT_PROTOCOLS = {6: "tcp", 17: "udp", 33: "dccp", 132: "sctp", 136: "udplite"}
_FLAG_NAMES = ((1, "FIN"), (2, "SYN"), (4, "RST"), (8, "PSH"), (16, "ACK"), (32, "URG"))


@dataclass(frozen=True, slots=True)
class Base:
    """The sets of a rule and, for each family, the matches that ask them first."""

    sets: tuple[SetSpec, ...]
    asks: dict[int, tuple[str, ...]]


def halves(family: int) -> tuple[Prefix, Prefix]:
    """Return the two halves of all addresses: hash:net can't hold /0."""
    return Prefix(family, 0, 1), Prefix(family, 1 << (31 if family == 4 else 127), 1)


def base(rule: Rule, exceptions: tuple[Prefix, ...], *, side: str = "src") -> Base:
    """Return the sets whose elements' timeouts end the rule without any process.

    With sources the set holds them; without, a switch set holds both halves of the address space. Several
    destinations are a set too. `exceptions` are allow-listed: what lies inside them is left out, and where
    they lie inside a source they become `nomatch` elements.
    """
    sets: list[SetSpec] = []
    asks: dict[int, tuple[str, ...]] = {}
    for family in rule.match.families:
        if rule.match.sources:
            spec = _source_set(rule, family, exceptions)
            if not spec.elements:
                continue
        else:
            spec = SetSpec(set_name(rule.id, family, "on"), family, halves(family))
        sets.append(spec)
        ask = ["-m", "set", "--match-set", spec.name, side]
        targets = tuple(prefix for prefix in rule.match.destinations if prefix.family == family)
        if rule.match.destinations and not targets:
            sets.pop()
            continue
        if len(targets) == 1:
            ask += ["-d" if side == "src" else "-s", str(targets[0])]
        elif targets:
            sets.append(SetSpec(set_name(rule.id, family, "dst"), family, targets))
            ask += ["-m", "set", "--match-set", sets[-1].name, "dst" if side == "src" else "src"]
        asks[family] = tuple(ask)
    if not asks:
        raise FwtopError("no address is left to match after the allow-list; nothing was installed")
    return Base(tuple(sets), asks)


def _source_set(rule: Rule, family: int, exceptions: tuple[Prefix, ...]) -> SetSpec:
    listed = [prefix for prefix in rule.match.sources if prefix.family == family]
    spared = [prefix for prefix in exceptions if prefix.family == family]
    if not spared:
        return SetSpec(set_name(rule.id, family), family, tuple(dict.fromkeys(listed)))
    kept = [prefix for prefix in listed if not any(entry.contains(prefix) for entry in spared)]
    return SetSpec(set_name(rule.id, family), family, tuple(dict.fromkeys(kept)), tuple(spared))


def field_args(match: Match, family: int, protocol: int | None = None) -> tuple[str, ...]:
    """Return a Match's header fields as iptables arguments (sets and payload not included).

    `protocol` overrides the match's. Raises FwtopError (code 2) on what iptables can't express.
    """
    wanted = match.protocol if protocol is None else protocol
    args: list[str] = ["-p", str(wanted)] if wanted is not None else []
    args += _port_args(match, wanted)
    if match.icmp_type is not None:
        args += _icmp_args(match.icmp_type, wanted, family)
    if match.tcp_flags is not None:
        if wanted != TCP:
            raise FwtopError("TCP flags need --proto tcp; nothing was installed", 2)
        args += ["--tcp-flags", *_flag_names(*match.tcp_flags)]
    if match.ip_length is not None:
        args += ["-m", "length", "--length", f"{match.ip_length.low}:{match.ip_length.high}"]
    if match.ttl is not None:
        args += _ttl_args(match.ttl, family)
    if match.fragment is not None:
        args += _fragment_args(match.fragment, family)
    return tuple(args)


def _port_args(match: Match, protocol: int | None) -> list[str]:
    if match.sport is None and match.dport is None:
        return []
    if protocol not in _PORT_PROTOCOLS:
        raise FwtopError("a port needs --proto tcp or udp; nothing was installed", 2)
    args = ["-m", _PORT_PROTOCOLS[protocol]]
    args += ["--sport", str(match.sport)] if match.sport is not None else []
    return args + (["--dport", str(match.dport)] if match.dport is not None else [])


def _icmp_args(kind: int, protocol: int | None, family: int) -> list[str]:
    if protocol != (ICMP if family == 4 else ICMPV6):
        raise FwtopError(
            "an ICMP type needs --proto icmp with -4, or icmpv6 with -6; nothing was installed", 2
        )
    return ["--icmp-type" if family == 4 else "--icmpv6-type", str(kind)]


def _flag_names(mask: int, value: int) -> tuple[str, str]:
    if mask & ~0x3F or value & ~mask:
        raise FwtopError("iptables knows FIN, SYN, RST, PSH, ACK and URG only; nothing was installed", 2)
    named = [",".join(name for bit, name in _FLAG_NAMES if number & bit) for number in (mask, value)]
    return named[0] or "NONE", named[1] or "NONE"


def _ttl_args(wanted: Range, family: int) -> list[str]:
    module, option = ("ttl", "--ttl") if family == 4 else ("hl", "--hl")
    if wanted.low == wanted.high:
        return ["-m", module, f"{option}-eq", str(wanted.low)]
    args = ["-m", module, f"{option}-gt", str(wanted.low - 1)] if wanted.low > 0 else []
    return args + (["-m", module, f"{option}-lt", str(wanted.high + 1)] if wanted.high < 255 else [])


def _fragment_args(wanted: bool, family: int) -> list[str]:
    if family == 4:  # more-fragments bit or an offset: `-f` would miss the first fragment
        return ["-m", "u32", "--u32", "4&0x3FFF=0x1:0x3FFF" if wanted else "4&0x3FFF=0x0"]
    header = ["--header", "frag", "--soft"]
    return ["-m", "ipv6header", *header] if wanted else ["-m", "ipv6header", "!", *header]
