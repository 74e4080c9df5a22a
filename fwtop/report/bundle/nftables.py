"""The rules that helped as an nftables table of their own, for machines without fwtop."""

from __future__ import annotations

from collections.abc import Iterator

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, RateLimit, Rule
from fwtop.model.text import safe_text
from fwtop.report.summary import Digest
from fwtop.rules.nft_fields import field_words

TABLE = "inet fwtop-report"
_TYPES = {4: "ipv4_addr", 6: "ipv6_addr"}
_DROPS = (Kind.IPSET, Kind.XDP, Kind.TC, Kind.NFTABLES, Kind.STRING, Kind.HASHLIMIT)
_LIMITED = 65_535  # source prefixes that a limit remembers


def nftables_text(digest: Digest) -> str:
    """Write a file for `nft -f`; rules that nftables can't express stand in it as comments."""
    sets: list[str] = []
    lines: list[str] = []
    for effect in digest.effects:
        if not effect.packets:
            continue
        rule = effect.rule
        lines.append(f"    # Rule {_comment(rule.id)}: {_comment(rule.summary)}")
        lines += [f"    # {effect.left_out} are in the record"] if effect.left_out else []
        try:
            made = list(_rule(rule))
        except FwtopError as error:
            why = str(error).removesuffix("; nothing was installed")
            lines.append(f"    # nftables can't do this: {_comment(why)}")
            continue
        for own, line in made:
            sets += own
            lines.append(f"    {line}")
        if not made:
            lines.append(f"    # A rule of kind {rule.kind.value} is no filter: see rules.sh")
    return "\n".join(
        (
            "#!/usr/sbin/nft -f",
            f"# What helped in session {_comment(digest.info.id)}; 'nft delete table {TABLE}' removes it.",
            "# Without fwtop's allow-list: whoever is in a list is dropped, even your own addresses.",
            f"table {TABLE}",
            f"delete table {TABLE}",
            f"table {TABLE} {{",
            *sets,
            "  chain dropped {",
            "    # before fragments are put together, as what is dropped needs no such work",
            "    type filter hook prerouting priority -450; policy accept;",
            *lines,
            "  }",
            "}",
            "",
        )
    )


def _comment(text: str) -> str:
    return safe_text(text, limit=200)


def _rule(rule: Rule) -> Iterator[tuple[list[str], str]]:
    """Yield sets and line for each family."""
    if rule.kind not in _DROPS and rule.kind is not Kind.NOTRACK:
        return
    for family in rule.match.families:
        words, sets = [f"meta nfproto {'ipv4' if family == 4 else 'ipv6'}"], []
        ip = "ip" if family == 4 else "ip6"
        skipped = False
        for side, role, given in (
            ("saddr", "src", rule.match.sources),
            ("daddr", "dst", rule.match.destinations),
        ):
            mine = outermost([prefix for prefix in given if prefix.family == family])
            skipped = skipped or bool(given and not mine)
            if mine:
                name = f"r{_number(rule)}-{role}{family}"
                sets.append(_set(name, family, mine))
                words.append(f"{ip} {side} @{name}")
        fields = field_words(rule.match, family)
        if skipped or fields is None:
            continue
        words += fields
        if rule.limit is not None:
            own, word = _limit(rule, rule.limit, family)
            sets.append(own)
            words.append(word)
        yield sets, " ".join((*words, "counter", "notrack" if rule.kind is Kind.NOTRACK else "drop"))


def _number(rule: Rule) -> str:
    return "".join(letter for letter in rule.id if letter.isdecimal() and letter.isascii()) or "0"


def _set(name: str, family: int, prefixes: list[Prefix]) -> str:
    elements = ", ".join(map(str, prefixes))
    return f"  set {name} {{ type {_TYPES[family]}; flags interval; elements = {{ {elements} }} }}"


def _limit(rule: Rule, limit: RateLimit, family: int) -> tuple[str, str]:
    """Return the set that remembers source prefixes, and the match on what is above the limit."""
    name = f"r{_number(rule)}-limit{family}"
    length = limit.prefix_v4 if family == 4 else limit.prefix_v6
    bits = 32 if family == 4 else 128
    mask = Prefix(family, (1 << bits) - (1 << (bits - length)), bits)
    key = f"{'ip' if family == 4 else 'ip6'} saddr" + (f" and {mask}" if length < bits else "")
    kind = _TYPES[family] + (" . inet_service" if limit.by_dport else "")
    port = " . th dport" if limit.by_dport else ""
    unit = " bytes/second" if limit.in_bytes else "/second"
    burst = f"{limit.burst} {'bytes' if limit.in_bytes else 'packets'}"
    held = f"  set {name} {{ type {kind}; size {_LIMITED}; flags dynamic,timeout; timeout 10s; }}"
    return held, f"update @{name} {{ {key}{port} limit rate over {limit.per_second}{unit} burst {burst} }}"


def outermost(prefixes: list[Prefix]) -> list[Prefix]:
    """Return the prefixes of one family that lie within no other: nft refuses overlaps."""
    kept: list[Prefix] = []
    for prefix in sorted(set(prefixes)):
        if not kept or not kept[-1].contains(prefix):
            kept.append(prefix)
    return kept
