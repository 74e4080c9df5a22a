"""The rules that helped for iptables and ipset, for machines without fwtop."""

from __future__ import annotations

from collections.abc import Iterator

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Rule
from fwtop.model.text import safe_text
from fwtop.report.facts.effects import RuleEffect
from fwtop.report.summary import Digest
from fwtop.rules.xtables import (
    create_line,
    field_args,
    halves,
    limit_args,
    match_protocols,
    payload_args,
    quote,
)

CHAIN = "FWTOP-REPORT"
_DROPS = (Kind.IPSET, Kind.XDP, Kind.TC, Kind.NFTABLES, Kind.STRING, Kind.HASHLIMIT)
_TARGETS = {Kind.NOTRACK: ("-j", "CT", "--notrack")}


def ipset_text(digest: Digest) -> str:
    """Write the rules' sets for `ipset -exist restore`, which takes no comments."""
    lines: list[str] = []
    for effect in _helped(digest):
        rule = effect.rule
        for family in rule.match.families:
            for role, given in (("src", rule.match.sources), ("dst", rule.match.destinations)):
                mine = [prefix for prefix in given if prefix.family == family]
                if mine:
                    lines += _set_lines(_set_name(rule, family, role), family, mine)
    return "".join(f"{line}\n" for line in lines)


def _set_lines(name: str, family: int, prefixes: list[Prefix]) -> list[str]:
    """Return the lines of a set; hash:net can't store /0."""
    whole = any(prefix.length == 0 for prefix in prefixes)
    stored = list(halves(family)) if whole else sorted(set(prefixes))
    return [create_line(name, family, len(stored), None), *(f"add {name} {prefix}" for prefix in stored)]


def iptables_text(digest: Digest, family: int) -> str:
    """Write a file for `iptables-restore --noflush`; what iptables can't express is a comment in it."""
    program = "iptables" if family == 4 else "ip6tables"
    lines = [
        f"# What helped in session {safe_text(digest.info.id)}; load rules.ipset first. To remove it:",
        f"# {program} -t raw -D PREROUTING -j {CHAIN}",
        f"# {program} -t raw -F {CHAIN}; {program} -t raw -X {CHAIN}",
        "# Without fwtop's allow-list: whoever is in a set is dropped, even your own addresses.",
        "*raw",
        f":{CHAIN} - [0:0]",
        f"-I PREROUTING -j {CHAIN}",
    ]
    for effect in _helped(digest):
        rule = effect.rule
        lines.append(f"# Rule {safe_text(rule.id, limit=20)}: {safe_text(rule.summary, limit=200)}")
        lines += [f"# {effect.left_out} are in the record"] if effect.left_out else []
        try:
            made = list(_rule_lines(rule, family))
        except FwtopError as error:
            why = safe_text(str(error).removesuffix("; nothing was installed"), limit=200)
            lines.append(f"# {program} can't do this: {why}")
            continue
        lines += made or [f"# Nothing for {program}."]
    return "\n".join((*lines, "COMMIT", ""))


def _helped(digest: Digest) -> Iterator[RuleEffect]:
    return (effect for effect in digest.effects if effect.packets)


def _rule_lines(rule: Rule, family: int) -> Iterator[str]:
    if (rule.kind not in _DROPS and rule.kind not in _TARGETS) or family not in rule.match.families:
        return
    asks: list[str] = []
    for role, given in (("src", rule.match.sources), ("dst", rule.match.destinations)):
        if not given:
            continue
        if not any(prefix.family == family for prefix in given):
            return
        asks += ["-m", "set", "--match-set", _set_name(rule, family, role), role]
    limit = limit_args(f"report-{_number(rule)}", rule.limit, family) if rule.limit is not None else ()
    target = _TARGETS.get(rule.kind, ("-j", "DROP"))
    for protocol in match_protocols(rule):
        fields = field_args(rule.match, family, protocol)
        payload = [word for item in rule.match.payload for word in payload_args(item, family, protocol)]
        yield " ".join(map(quote, ("-A", CHAIN, *fields, *asks, *payload, *limit, *target)))


def _number(rule: Rule) -> str:
    return "".join(letter for letter in rule.id if letter.isdecimal() and letter.isascii())[:9] or "0"


def _set_name(rule: Rule, family: int, role: str) -> str:
    return f"fwtop-report-{_number(rule)}-{role}{family}"
