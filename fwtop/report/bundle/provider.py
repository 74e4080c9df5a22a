"""What to tell the provider, and FlowSpec rules for its routers."""

from __future__ import annotations

from collections.abc import Iterator

from fwtop.model.addresses.address import Prefix
from fwtop.model.text import safe_text
from fwtop.model.traffic.flow import FULL_TABLE
from fwtop.render.numbers import duration_words, percent
from fwtop.report.facts.spans import AttackSpan
from fwtop.report.summary import Digest
from fwtop.report.wording import day_and_time, si
from fwtop.rules.exports.flowspec import routes

_MOST_SOURCES = 200  # a router holds some thousand FlowSpec routes for all its customers


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
        lines += [f"{offer.summary}:", *(line for command in offer.commands for line in _lines(command)), ""]
    lines.append("FlowSpec rules for your routers are in rules.flowspec.")
    return "".join(f"{safe_text(line, limit=1_000)}\n" for line in lines)


def _lines(text: str) -> list[str]:
    return [f"  {line}" for line in text.split("\n")]


def _attack(span: AttackSpan) -> Iterator[str]:
    end = day_and_time(span.ended) if span.ended is not None else "still on when the record ended"
    yield f"{span.title}, {day_and_time(span.began)} to {end} ({duration_words(span.seconds)})"
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
        if not effect.packets:
            continue
        lines += ["", f"# Rule {_comment(effect.rule.id)}: {_comment(effect.rule.summary)}"]
        found = routes(effect.rule, targets)
        lines += [route.text for route in found] or ["# No FlowSpec route can say this."]
        lines += [f"# as NLRI: {found[0].nlri.hex()}"] if len(found) == 1 else []
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    return safe_text(text, limit=400)


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
