"""A session's rules for machines without fwtop, and what to tell the provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import FULL_TABLE
from fwtop.render.numbers import percent, si, span_words
from fwtop.report.attacks import AttackSpan
from fwtop.report.summary import Digest
from fwtop.report.wording import comment, day_and_time
from fwtop.rules import kinds
from fwtop.rules.exports import nft, xtables
from fwtop.rules.exports.flowspec import routes
from fwtop.rules.kind import PREROUTING
from fwtop.rules.nft_objects import set_lines

CHAIN = "FWTOP-REPORT"
TABLE = "inet fwtop-report"
_SETS = "report-"  # begins their names; fwtop takes what has its own names out


def nftables_text(digest: Digest) -> str:
    """Write a file for `nft -f`; rules that nftables can't express stand in it as comments."""

    def written(rule: Rule) -> Iterator[str]:
        made = nft.plain(rule)
        for item in made.sets:
            yield from set_lines(TABLE, rule.id, item)
        yield from (f"add rule {TABLE} dropped {text}" for _, text in made.lines)

    return _text(
        "#!/usr/sbin/nft -f",
        f"# What helped in session {comment(digest.info.id)}; 'nft delete table {TABLE}' removes it.",
        "# Without fwtop's allow-list: whoever is in a list is dropped, even your own addresses.",
        *(f"{command} table {TABLE}" for command in ("add", "delete", "add")),
        "# before fragments are put together, as what is dropped needs no such work",
        f"add chain {TABLE} dropped {{ type filter hook prerouting priority -450; policy accept; }}",
        *_rules(digest, "nftables", written),
    )


def ipset_text(digest: Digest) -> str:
    """Write the rules' sets for `ipset -exist restore`, which takes no comments."""

    def written(rule: Rule) -> Iterator[str]:
        for spec in xtables.plain(rule, _SETS).sets:
            yield from xtables.set_lines(spec)

    return _text(*(line for line in _rules(digest, "ipset", written) if not line.startswith("#")))


def iptables_text(digest: Digest, family: int) -> str:
    """Write a file for `iptables-restore --noflush`; what iptables can't express is a comment in it."""
    program = xtables.PROGRAMS[family]

    def written(rule: Rule) -> Iterator[str]:
        for line in xtables.plain(rule, _SETS).lines:
            if line.family == family and line.hook == PREROUTING:
                yield xtables.line_text(CHAIN, line)

    return _text(
        f"# What helped in session {comment(digest.info.id)}; load rules.ipset first. To remove it:",
        f"# {program} -t raw -D PREROUTING -j {CHAIN}",
        f"# {program} -t raw -F {CHAIN}; {program} -t raw -X {CHAIN}",
        "# Without fwtop's allow-list: whoever is in a set is dropped, even your own addresses.",
        "*raw",
        f":{CHAIN} - [0:0]",
        f"-I PREROUTING -j {CHAIN}",
        *_rules(digest, program, written),
        "COMMIT",
    )


def _text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def _rules(digest: Digest, program: str, written: Callable[[Rule], Iterator[str]]) -> Iterator[str]:
    """Yield the lines of each rule that dropped anything, after a comment, or why there are none."""
    for effect in digest.effects:
        if not effect.dropped:
            continue
        rule = effect.rule
        yield f"# Rule {comment(rule.id)}: {comment(rule.summary)}"
        if effect.left_out:
            yield f"# {effect.left_out} are in the record"
        try:
            yield from _lines(replace(rule, id=_number(rule)), program, written)
        except FwtopError as error:
            yield f"# {program} can't do this: {comment(str(error).removesuffix('; nothing was installed'))}"


def _lines(rule: Rule, program: str, written: Callable[[Rule], Iterator[str]]) -> Sequence[str]:
    if not (kinds.of(rule.kind).is_filter or kinds.of(rule.kind).untracks):
        return [f"# A rule of kind {rule.kind.value} is no filter: see rules.sh"]
    return [*written(rule)] or [f"# Nothing for {program}."]


def _number(rule: Rule) -> str:
    return "".join(letter for letter in rule.id if letter.isdecimal() and letter.isascii())[:9] or "0"


def provider_text(digest: Digest) -> str:
    """Write the facts that a provider needs to filter: targets, rates, times, fields."""
    spans = [span for span in digest.spans if span.kind != FULL_TABLE]
    if not spans:
        return "No attack was seen.\n"
    sums = digest.sums
    lines = [
        f"Attack on {digest.info.host}: {digest.headline}.",
        f"At the peak {si(sums.peak_pps)} packets/s and {si(sums.peak_bps, 'bit/s')} arrived. Times are UTC.",
        "",
    ]
    for span in spans:
        lines += [*_attack(span), ""]
    proposals = digest.peak.judgement.proposals if digest.peak else ()
    for offer in [item for item in proposals if item.kind == "upstream"][:5]:
        lines += [
            f"{offer.summary}:",
            *(f"  {line}" for command in offer.commands for line in command.split("\n")),
            "",
        ]
    lines.append("FlowSpec rules for your routers are in rules.flowspec.")
    return "".join(f"{safe_text(line, limit=1_000)}\n" for line in lines)


def _attack(span: AttackSpan) -> Iterator[str]:
    end = day_and_time(span.ended) if span.ended is not None else "still on when the record ended"
    yield f"{span.title}, {day_and_time(span.began)} to {end} ({span_words(span.seconds)})"
    yield f"  at most {si(span.peak_pps)} packets/s, {percent(span.share, None)} of all that arrived"
    for name, word in (("target", "targets"), ("port", "ports"), ("signature", "packets")):
        rows = span.detail.tables.get(name, ())[:5]
        if rows:
            yield f"  {word}: " + ", ".join(f"{row.key} ({percent(row.share, None)})" for row in rows)
    if span.spoofed:
        yield "  The sources look forged: please filter by the fields, not by source, and trace the ways in."
    elif not span.uncertain:
        rows = span.detail.tables.get("address", ())
        if rows:
            yield "  largest sources: " + ", ".join(f"{row.key} ({percent(row.share, None)})" for row in rows)


def flowspec_text(digest: Digest) -> str:
    """Write the rules that dropped anything as FlowSpec routes; those that no router can express say so."""
    lines = [
        "# FlowSpec (RFC 8955, for IPv6 RFC 8956) in ExaBGP's words. Each route drops packets.",
    ]
    targets = _targets(digest)
    for effect in digest.effects:
        if not effect.dropped:
            continue
        lines += ["", f"# Rule {comment(effect.rule.id)}: {comment(effect.rule.summary)}"]
        found = routes(effect.rule, targets)
        lines += [route.text for route in found] or ["# No FlowSpec route can say this."]
        lines += [f"# as NLRI: {found[0].nlri.hex()}"] if len(found) == 1 else []
    return "\n".join(lines) + "\n"


def _targets(digest: Digest) -> list[Prefix]:
    """Return the attacked addresses: a route must name what it protects."""
    found = []
    for span in digest.spans:
        rows = span.detail.tables.get("target", ())
        found += [row.key for row in rows if row.share > 0.5]
    targets = []
    for text in dict.fromkeys(found):
        try:
            targets.append(Prefix.parse(text))
        except ValueError:
            continue
    return targets
