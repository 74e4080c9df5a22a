"""Senders of attacks whose sources look real: the only ones to be listed, blocked or complained about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import SessionRecord
from fwtop.render.observation import rfc3339
from fwtop.report.export import csv_text
from fwtop.report.facts.spans import AttackSpan

_ACCUSED = ("", "attack")  # what `Source.who` says of everybody else is that they aren't attackers
_MOST = 5_000
_LOOKS = 3  # at an attack, before anybody is accused of it: in one or two a busy moment passes for an attack


class Sender(Struct, frozen=True):
    """An address that sent packets of an attack; its rate is an estimate from samples."""

    address: Prefix
    kind: str
    title: str
    first: float  # Unix seconds: first and last look that showed it
    last: float
    peak_pps: float
    asn: int | None
    as_name: str
    country: str


def senders(record: SessionRecord, spans: Iterable[AttackSpan]) -> tuple[Sender, ...]:
    """Return the senders of all attacks with real sources, the fastest first."""
    found: dict[tuple[Prefix, str], Sender] = {}
    real = [span for span in spans if not (span.spoofed or span.uncertain) and len(span.points) >= _LOOKS]
    for look in record.evidence:
        of_kind = (one for one in real if one.kind == look.kind)
        span = next((one for one in of_kind if one.began <= look.at <= one.until), None)
        if span is None:
            continue
        for source in look.part.tables.sources.address:
            if source.prefix is None or source.who not in _ACCUSED:
                continue
            key = (source.prefix, look.kind)
            sender = Sender(
                source.prefix, look.kind, safe_text(span.title), look.at, look.at, source.share.pps,
                source.asn, safe_text(source.as_name or ""), safe_text(source.country or ""),
            )  # fmt: skip
            before = found.get(key)
            if before is not None:
                peak = max(before.peak_pps, sender.peak_pps)
                sender = replace(before, last=look.at, peak_pps=peak)
            found[key] = sender
    return tuple(sorted(found.values(), key=lambda item: -item.peak_pps)[:_MOST])


def block_lists(found: Sequence[Sender]) -> dict[str, str]:
    """Return a file of addresses for each family, that any firewall and `fwtop block @FILE` can read."""
    files = {}
    for family in (4, 6):
        mine = sorted({sender.address for sender in found if sender.address.family == family})
        files[f"blocklist-ipv{family}.txt"] = "".join(f"{prefix}\n" for prefix in mine)
    return files


def senders_csv(found: Sequence[Sender]) -> str:
    """Write a row for each sender and attack."""
    head = ("address", "as", "as_name", "country", "attack", "peak_pps_estimated", "first_seen", "last_seen")
    rows = (
        (
            str(sender.address), sender.asn, sender.as_name, sender.country, sender.title,
            round(sender.peak_pps, 1), rfc3339(sender.first), rfc3339(sender.last),
        )
        for sender in found
    )  # fmt: skip
    return csv_text(head, rows)
