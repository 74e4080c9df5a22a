"""All that is known about a row, as lines of the details dialog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fwtop.model.costs import CALIBRATE
from fwtop.model.observation import rfc3339
from fwtop.model.rule import RuleStatus
from fwtop.model.snapshot import Attack, Payload, Port, Proposal, Share, Snapshot, Source
from fwtop.model.wording import describe
from fwtop.ui.cells import Line
from fwtop.ui.format import duration, hex_dump, nanoseconds, number, octets, percent
from fwtop.ui.items import Figure, Item, LedgerLine
from fwtop.ui.palette import ACCENT, DIM, GOOD, STRONG, TEXT, WARN
from fwtop.ui.rule_facts import rule_facts
from fwtop.ui.sheet import LABEL, fact, labelled, wrapped
from fwtop.ui.traffic_panels import payload_name, port_name
from fwtop.ui.verdict_panels import harm


def facts_of(item: Item, now: float) -> tuple[str, list[Line]]:
    """Return the title and the lines for a selected row."""
    return _WRITERS[type(item)](item, now)


def attack_facts(snapshot: Snapshot, now: float) -> list[Line]:
    """Write every attack with its evidence, and what normal was measured on."""
    lines: list[Line] = []
    for attack in snapshot.judgement.attacks:
        lines += [[]] if lines else []
        lines += _attack(attack, now)
    if not lines:
        lines.append([("no attack in what arrives", GOOD)])
    if snapshot.judgement.baseline:
        lines += [[], *wrapped("normal", snapshot.judgement.baseline)]
    for note in snapshot.notes:
        lines += wrapped("note", note)
    return lines


def _attack(attack: Attack, now: float) -> list[Line]:
    facts = (
        f"{percent(attack.share)} of traffic, {number(attack.pps)} pps, {attack.confidence * 100:.0f} % sure"
    )
    lines: list[Line] = [[(attack.title, STRONG)], fact("share", facts)]
    lines.append(fact("since", f"{rfc3339(attack.since)}, {duration(now - attack.since)} ago"))
    forged = "forged: blocking them one by one won't help" if attack.spoofed else "look real"
    if attack.share > 0:  # a full table has no packets of its own, nor senders
        lines.append(fact("sources", forged))
    for number_of, sentence in enumerate(attack.evidence):
        lines += wrapped("evidence" if number_of == 0 else "", sentence)
    return lines


def _source(item: Source, _: float) -> tuple[str, list[Line]]:
    lines = [fact("source", item.key)]
    lines.append(fact("country", item.country or "not known"))
    network = f"AS{item.asn} {item.as_name or ''}" if item.asn is not None else "not known"
    lines.append(fact("network", network.strip()))
    lines += _share(item.share)
    lines.append(fact("dropped", f"{percent(item.dropped_share)} of its own packets"))
    rule = f"rule {item.active_rule} covers it" if item.active_rule else "none covers it"
    lines.append(fact("rule", rule))
    return item.key, lines


def _port(item: Port, _: float) -> tuple[str, list[Line]]:
    side = "destination" if item.side == "dst" else "source"
    lines = [fact("port", f"{item.protocol} {side} port {item.port}")]
    lines.append(fact("service", item.service or "not known"))
    return port_name(item), [*lines, *_share(item.share)]


def _payload(item: Payload, _: float) -> tuple[str, list[Line]]:
    where = "anywhere in the payload" if item.offset is None else f"at byte {item.offset} of the payload"
    lines = [fact("place", where), fact("length", f"{len(item.data)} bytes")]
    if item.dns_name is not None:
        lines += wrapped("DNS name", item.dns_name)
    lines += _share(item.share)
    lines.append(fact("normal", f"{percent(item.baseline_share)} of normal packets have it too"))
    lines += [[], [("bytes", DIM)]]
    for offset, pairs, text in hex_dump(item.data):
        lines.append([(f"{offset}  ", DIM), (pairs, TEXT), (f"  {text}", ACCENT)])
    return f"payload {payload_name(item)}", lines


def _ledger(item: LedgerLine, _: float) -> tuple[str, list[Line]]:
    row = item.row
    lines = [fact("layer", row.layer), *wrapped("reason", row.reason)]
    lines.append(fact("rule", f"fwtop rule {row.rule}" if row.rule else "none of fwtop's"))
    if row.mostly is not None:
        lines.append(fact("mostly", f"{describe(row.mostly)}: {percent(row.mostly_share)} of the samples"))
    lines.append(fact("packets", f"{row.packets:,} ({percent(item.part)} of what arrived)"))
    lines.append(fact("rate", f"{number(row.pps)} packets a second"))
    return f"{row.layer}: {row.reason}", lines


def _figure(item: Figure, _: float) -> tuple[str, list[Line]]:
    return f"conntrack {item.name}", [fact(item.name, item.value), *wrapped("", item.meaning)]


def _proposal(item: Proposal, _: float) -> tuple[str, list[Line]]:
    lines = wrapped("does", item.summary)
    lines.append(fact("stops", f"{percent(item.attack_share)} of the attack, {number(item.stopped_pps)} pps"))
    harmed: Line = [*harm(item.collateral_share, guess=item.guess), (" of normal traffic", TEXT)]
    lines.append(labelled("harms", harmed, width=LABEL))
    if item.guess:
        lines.append(labelled("", [("a guess: nothing was seen before the attack", WARN)], width=LABEL))
    for number_of, example in enumerate(item.collateral_examples):
        lines += wrapped("such as" if number_of == 0 else "", example)
    if item.cost_ns is not None:
        where = "measured on this machine" if item.cost_measured else f"a default; '{CALIBRATE}' measures"
        lines += wrapped("costs", f"{nanoseconds(item.cost_ns)} a packet ({where})")
    if item.fwtop:
        lines += wrapped("the same", item.fwtop)
    for number_of, command in enumerate(item.commands):
        lines += wrapped("runs" if number_of == 0 else "", command)
    return f"proposal {item.number}", lines


def _share(share: Share) -> list[Line]:
    low, high = percent(share.share_low), percent(share.share_high)
    return [
        fact("share", f"{percent(share.share)} of what arrives; with 95 % surety {low} to {high}"),
        fact("packets", f"{share.packets:,}, {number(share.pps)} a second"),
        fact("bytes", octets(share.bytes)),
    ]


_WRITERS: dict[type, Callable[[Any, float], tuple[str, list[Line]]]] = {
    Source: _source,
    Port: _port,
    Payload: _payload,
    LedgerLine: _ledger,
    Figure: _figure,
    RuleStatus: rule_facts,
    Proposal: _proposal,
}
