"""A snapshot as a page of plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fwtop.model.traffic.snapshot import LedgerRow, Sampling, Share, Snapshot
from fwtop.render.numbers import percent
from fwtop.render.observation import rfc3339
from fwtop.rules.words import describe

_ROWS = 10


def render(snapshot: Snapshot, *, top: int = _ROWS) -> str:
    """Render a snapshot for a terminal or an e-mail; all text in it is sanitised already."""
    tables, totals = snapshot.tables, snapshot.tables.totals
    where = snapshot.origin.file or ", ".join(snapshot.origin.interfaces) or "no interface"
    lines = [
        f"{snapshot.host}  {where}  {snapshot.seconds:.1f} s",
        f"{totals.packets:,} packets  {si(totals.pps)}pps  {si(totals.bps)}bit/s  "
        f"dropped {totals.dropped:,}  accepted {totals.accepted:,}",
        f"sampled 1 in {tables.sampling.one_in:.0f}: {tables.sampling.samples:,} samples, "
        f"{tables.sampling.lost:,} lost{_estimated(tables.sampling)}",
        "",
    ]
    lines += _attacks(snapshot)
    lines += _table(
        "signatures",
        (
            (_share(one.share), f"normal {percent(one.baseline_share)}", describe(one.match))
            for one in snapshot.judgement.signatures[: min(top, _ROWS)]
        ),
    )
    sources = tables.sources
    for title, entries in (("sources", sources.address), ("prefixes", sources.prefix), ("AS", sources.asn)):
        lines += _table(
            title,
            (
                (entry.key, _share(entry.share), entry.who, entry.country or "", (entry.as_name or "")[:40])
                for entry in entries[: min(top, _ROWS)]
            ),
        )
    lines += _table(
        "to those behind",
        (
            (target.key, _share(target.share), " ".join(target.serves) or target.part)
            for target in [one for one in tables.destinations if one.part][: min(top, _ROWS)]
        ),
    )
    lines += _table(
        "ports",
        (
            (f"{port.protocol} {port.side} {port.port}", _share(port.share), port.service or "")
            for port in tables.ports[: min(top, _ROWS)]
        ),
    )
    payloads = snapshot.judgement.payloads or tables.payloads
    lines += _table(
        "payloads",
        (
            (payload.dns_name or payload.text or payload.data.hex()[:32], _share(payload.share))
            for payload in payloads[: min(top, _ROWS)]
        ),
    )
    lines += _table(
        "where packets ended",
        ((f"{row.layer} {row.reason}", f"{row.packets:,}", _ends_there(row)) for row in tables.ledger),
    )
    lines += _proposals(snapshot)
    lines += [f"note: {note}" for note in snapshot.notes]
    return "\n".join(lines).rstrip() + "\n"


def _ends_there(row: LedgerRow) -> str:
    if row.rule:
        return f"rule {row.rule}"
    return f"{percent(row.mostly_share)} {describe(row.mostly)}" if row.mostly is not None else ""


def si(number: float) -> str:
    """Format a rate with a metric prefix: 1234567 → '1.23 M'."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g} "


def _estimated(sampling: Sampling) -> str:
    return (
        f"; drops are estimated from {percent(sampling.watched, 1)} of the packets"
        if sampling.watched < 1
        else ""
    )


def _attacks(snapshot: Snapshot) -> list[str]:
    missing = snapshot.judgement.not_judged
    if not snapshot.judgement.attacks:
        return ["not judged: it is not known whether there is an attack" if missing else "no attack seen", ""]
    lines = ["not judged: what follows is older"] if missing else []
    for attack in snapshot.judgement.attacks:
        forged = ", forged sources" if attack.spoofed else ""
        lines.append(
            f"{attack.title}: {percent(attack.share, 1)} of packets, {si(attack.pps)}pps{forged} "
            f"(confidence {percent(attack.confidence)}), since {rfc3339(attack.since)}"
        )
        lines += [f"    {sentence}" for sentence in attack.evidence]
    return [*lines, ""]


def _proposals(snapshot: Snapshot) -> list[str]:
    lines = []
    for proposal in snapshot.judgement.proposals:
        guess = " (a guess)" if proposal.guess else ""
        already = proposal.already_share
        beyond = f" ({percent(already, 1)} of which active rules stop)" if already else ""
        lines.append(
            f"{proposal.number}. {proposal.summary}: "
            f"stops {percent(proposal.attack_share, 1)} of the attack{beyond}, "
            f"hits {percent(proposal.collateral_share, 2)} of normal traffic{guess}"
        )
        if proposal.fwtop:
            lines.append(f"       {proposal.fwtop}")
    return ["proposals", *lines, ""] if lines else []


def _share(share: Share) -> str:
    return f"{percent(share.share, 1):>7}  {si(share.pps)}pps"


def _table(title: str, rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [list(row) for row in rows]
    if not cells:
        return []
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    body = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return [title, *body, ""]
