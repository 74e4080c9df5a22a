"""A rule as an operator would type it: with ipset and iptables, and as an fwtop command line."""

from __future__ import annotations

from collections.abc import Callable

from fwtop.model.rule import Kind, Match, PayloadMatch, Range, Rule

_NAMES = {1: "icmp", 6: "tcp", 17: "udp", 47: "gre", 50: "esp", 58: "ipv6-icmp"}
_FLAGS = ((1, "FIN"), (2, "SYN"), (4, "RST"), (8, "PSH"), (16, "ACK"), (32, "URG"))
_ON_ONE_LINE = 32  # prefixes; longer lists are piped into ipset, and fwtop takes the proposal's number


def shell_commands(rule: Rule) -> tuple[str, ...]:
    """Return the commands that do the same by hand, for each address family that the rule matches."""
    if rule.kind is Kind.IPSET:
        return _ipset(rule)
    lines: list[str] = []
    for family in rule.match.families:
        program = "iptables" if family == 4 else "ip6tables"
        condition = conditions(rule.match, family)
        if rule.kind is Kind.NOTRACK:
            lines.append(f"{program} -t raw -I PREROUTING{condition} -j CT --notrack")
        elif rule.kind is Kind.HASHLIMIT and rule.limit is not None:
            limit = rule.limit
            mask = limit.prefix_v4 if family == 4 else limit.prefix_v6
            mode = "srcip,dstport" if limit.by_dport else "srcip"
            rate = f"{limit.per_second}{'b' if limit.in_bytes else ''}/s"
            name = f"ops-{limit.per_second}-{family}"
            lines.append(
                f"{program} -t raw -I PREROUTING{condition} -m hashlimit --hashlimit-name {name} "
                f"--hashlimit-mode {mode} --hashlimit-srcmask {mask} --hashlimit-above {rate} "
                f"--hashlimit-burst {limit.burst} -j DROP"
            )
        else:
            lines.append(f"{program} -t raw -I PREROUTING{condition} -j DROP")
    return tuple(lines)


def conditions(match: Match, family: int) -> str:
    """Return a match as iptables options, each with a leading space."""
    parts = []
    if match.protocol is not None:
        parts.append(f"-p {_protocol(match.protocol)}")
    parts += [f"-s {p}" for p in match.sources[:1] if p.family == family]
    parts += [f"-d {p}" for p in match.destinations[:1] if p.family == family]
    if match.fragment is True:
        parts.append(
            '-m u32 --u32 "4&0x3FFF=1:0x3FFF"' if family == 4 else "-m ipv6header --header frag --soft"
        )
    if match.sport is not None:
        parts.append(f"--sport {match.sport}")
    if match.dport is not None:
        parts.append(f"--dport {match.dport}")
    if match.tcp_flags is not None:
        parts.append(f"--tcp-flags {_flags(match.tcp_flags[0])} {_flags(match.tcp_flags[1])}")
    if match.icmp_type is not None:
        parts.append(f"--{'icmp' if family == 4 else 'icmpv6'}-type {match.icmp_type}")
    if match.ip_length is not None:
        low, high = match.ip_length.low, match.ip_length.high
        parts.append(f"-m length --length {low if low == high else f'{low}:{high}'}")
    if match.ttl is not None:
        parts += _ttl(match.ttl, family)
    parts += [_string(item, match.protocol) for item in match.payload]
    return "".join(f" {part}" for part in parts)


def fwtop_line(rule: Rule, number: int) -> str:
    """Return the fwtop command line of a rule; `fwtop apply N` where no line can say it."""
    words = _LINES[rule.kind](rule)
    if words is None:
        return f"fwtop apply {number}"
    return f"fwtop {words} --ttl {_seconds(rule.ttl_seconds)}"


def _block_words(rule: Rule) -> str | None:
    sources = rule.match.sources
    return f"block {' '.join(map(str, sources))}" if len(sources) <= _ON_ONE_LINE else None


def _limit_words(rule: Rule) -> str | None:
    match, limit = rule.match, rule.limit
    if limit is None or limit.in_bytes or match.tcp_flags is not None or match.sport is not None:
        return None
    return f"limit{_scope(match)} --per {limit.prefix_v4} --rate {limit.per_second}/s"


def _match_words(rule: Rule) -> str | None:
    match = rule.match
    if len(match.payload) != 1 or match.sport is not None or match.payload[0].mask is not None:
        return None
    return f"match {_what(match.payload[0])}{_scope(match)}"


def _drop_words(rule: Rule) -> str | None:
    match = rule.match
    if match.payload or match.sources or match.destinations or match.icmp_type is not None:
        return None
    return f"drop{_scope(match)}{_fields(match)} --via xdp"


def _notrack_words(rule: Rule) -> str | None:
    return f"notrack{_scope(rule.match)}"


_LINES: dict[Kind, Callable[[Rule], str | None]] = {
    Kind.IPSET: _block_words,
    Kind.HASHLIMIT: _limit_words,
    Kind.STRING: _match_words,
    Kind.XDP: _drop_words,
    Kind.NOTRACK: _notrack_words,
}


def _ipset(rule: Rule) -> tuple[str, ...]:
    lines = []
    for family in rule.match.families:
        mine = [prefix for prefix in rule.match.sources if prefix.family == family]
        if not mine:
            continue
        name, inet = f"ops-block{family}", "inet" if family == 4 else "inet6"
        ttl = rule.ttl_seconds
        lines.append(
            f"ipset create {name} hash:net family {inet} timeout {ttl} maxelem {max(65536, len(mine))}"
        )
        if len(mine) <= _ON_ONE_LINE:
            lines += [f"ipset add {name} {prefix}" for prefix in mine]
        else:
            members = "\n".join(f"add {name} {prefix}" for prefix in mine)
            lines.append(f"ipset restore <<'END'\n{members}\nEND")
        program = "iptables" if family == 4 else "ip6tables"
        lines.append(f"{program} -t raw -I PREROUTING -m set --match-set {name} src -j DROP")
    return tuple(lines)


def _protocol(number: int) -> str:
    return _NAMES.get(number, str(number))


def _flags(bits: int) -> str:
    names = [name for bit, name in _FLAGS if bits & bit]
    return "ALL" if len(names) == len(_FLAGS) else ",".join(names) or "NONE"


def _ttl(ttl: Range, family: int) -> list[str]:
    word, option = ("ttl", "--ttl") if family == 4 else ("hl", "--hl")
    if ttl.low == ttl.high:
        return [f"-m {word} {option}-eq {ttl.low}"]
    return [f"-m {word} {option}-gt {ttl.low - 1} -m {word} {option}-lt {ttl.high + 1}"]


def _string(item: PayloadMatch, protocol: int | None) -> str:
    """Write a string match. Its offsets count from the IP header: 20 bytes, and those of the transport."""
    header = 20 + {6: 20, 17: 8, 1: 8, 58: 8}.get(protocol or 0, 0)
    where = ""
    if item.offset is not None and protocol == 17:
        where = f" --from {header + item.offset} --to {header + item.offset + len(item.data)}"
    return f'-m string --algo bm{where} --hex-string "|{item.data.hex()}|"'


def _what(item: PayloadMatch) -> str:
    if item.dns_name is not None:
        return f"--dns {item.dns_name}"
    offset = f" --offset {item.offset}" if item.offset is not None else ""
    return f"--hex {item.data.hex()}{offset}"


def _scope(match: Match) -> str:
    scope = f" --proto {_protocol(match.protocol)}" if match.protocol is not None else ""
    return scope + (f" --dport {match.dport}" if match.dport is not None else "")


def _fields(match: Match) -> str:
    parts = []
    if match.sport is not None:
        parts.append(f"--sport {match.sport}")
    if match.ip_length is not None:
        parts.append(f"--length {match.ip_length.low}:{match.ip_length.high}")
    if match.ttl is not None:
        parts.append(f"--ttl-field {match.ttl.low}:{match.ttl.high}")
    if match.tcp_flags is not None:
        parts.append(f"--tcp-flags {_flags(match.tcp_flags[0])}/{_flags(match.tcp_flags[1])}")
    if match.fragment is True:
        parts.append("--fragment")
    if match.family is not None:
        parts.append(f"-{match.family}")
    return "".join(f" {part}" for part in parts)


def _seconds(ttl: int) -> str:
    return f"{ttl // 60}m" if ttl % 60 == 0 else f"{ttl}s"
