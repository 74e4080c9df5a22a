"""What helped, as a shell script that puts it back."""

from __future__ import annotations

import shlex

from fwtop.model.rule import Kind, Match, PayloadMatch, Rule
from fwtop.model.text import safe_text
from fwtop.report.digest import Digest
from fwtop.report.effects import RuleEffect
from fwtop.report.wording import day_and_time, si

_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 47: "gre", 50: "esp", 58: "icmpv6"}


def rules_script(digest: Digest) -> str:
    """Write the rules that matched anything as `fwtop` commands; those that did nothing are left out."""
    info = digest.info
    lines = [
        "#!/bin/sh",
        f"# What helped in session {_comment(info.id)} on {_comment(info.host)}.",
        f"# {_comment(digest.headline)}; {day_and_time(info.started)}.",
        "# Each rule expires by itself; 'fwtop undo --all' takes all back. Run as root.",
        "set -eu",
    ]
    helped = [effect for effect in digest.effects if effect.packets]
    for effect in helped:
        lines += ["", *_rule_lines(effect)]
    if not helped:
        lines += ["", "# No rule of that session matched anything."]
    return "\n".join(lines) + "\n"


def _rule_lines(effect: RuleEffect) -> list[str]:
    rule = effect.rule
    lines = [
        f"# Rule {_comment(rule.id)}: {_comment(rule.summary)}",
        f"# It stopped {si(effect.actual_pps)} packets a second, {si(effect.packets)} in all.",
    ]
    lines += [f"#   as run then: {_comment(command)}" for command in effect.commands]
    line = command_line(rule)
    lines.append(f"{line} --yes" if line else "# It has a condition that no command line can say.")
    return lines


def command_line(rule: Rule) -> str:
    """Write a rule as the `fwtop` command that makes it, quoted for a shell; "" where there is none."""
    argv = _argv(rule)
    line = shlex.join(["fwtop", *argv, "--ttl", _ttl(rule.ttl_seconds)])
    return line if argv and line.isprintable() else ""


def _argv(rule: Rule) -> list[str]:
    match = rule.match
    if match.destinations or match.icmp_type is not None:
        return []
    if rule.kind is Kind.IPSET or (rule.kind is Kind.XDP and match.sources):
        only_sources = match == Match(sources=match.sources, family=match.family)
        sources = [rule.origin] if rule.origin else [str(prefix) for prefix in match.sources]
        return ["block", *sources, "--via", rule.kind.value] if only_sources and sources else []
    if match.sources:
        return []
    return _BY_KIND[rule.kind](rule) if rule.kind in _BY_KIND else []


def _limit(rule: Rule) -> list[str]:
    limit = rule.limit
    if limit is None or limit.in_bytes:
        return []
    length = limit.prefix_v6 if rule.match.family == 6 else limit.prefix_v4
    return ["limit", *_where(rule.match), "--per", str(length), "--rate", f"{limit.per_second}/s"]


def _match(rule: Rule) -> list[str]:
    payloads = rule.match.payload
    if len(payloads) != 1 or payloads[0].mask is not None:
        return []
    offset = [] if payloads[0].offset is None else ["--offset", str(payloads[0].offset)]
    return ["match", *_bytes(payloads[0]), *offset, *_where(rule.match)]


def _bytes(payload: PayloadMatch) -> list[str]:
    if payload.dns_name is not None:
        return ["--dns", payload.dns_name]
    return ["--hex", payload.data.hex()]


def _drop(rule: Rule) -> list[str]:
    match = rule.match
    words = ["drop", *_where(match)]
    for option, span in (("--length", match.ip_length), ("--ttl-field", match.ttl)):
        words += [option, f"{span.low}:{span.high}"] if span else []
    if match.tcp_flags is not None:
        words += ["--tcp-flags", f"{match.tcp_flags[0]:#04x}/{match.tcp_flags[1]:#04x}"]
    words += ["--fragment"] if match.fragment else []
    sayable = not match.payload and match.fragment is not False
    return [*words, "--via", "xdp"] if sayable else []


def _notrack(rule: Rule) -> list[str]:
    return ["notrack", *_where(rule.match)]


_BY_KIND = {Kind.HASHLIMIT: _limit, Kind.STRING: _match, Kind.XDP: _drop, Kind.NOTRACK: _notrack}


def _where(match: Match) -> list[str]:
    words = [f"-{match.family}"] if match.family is not None else []
    if match.protocol is not None:
        words += ["--proto", _PROTOCOLS.get(match.protocol, str(match.protocol))]
    for option, port in (("--sport", match.sport), ("--dport", match.dport)):
        words += [option, str(port)] if port is not None else []
    return words


def _ttl(seconds: int) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _comment(text: str) -> str:
    """Keep a text within its comment: no line break or control character is left in it."""
    return safe_text(text, limit=400)
