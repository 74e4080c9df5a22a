"""A report as one document, from what a session was condensed to."""

from __future__ import annotations

from fwtop.model.text import safe_text
from fwtop.model.traffic.session import Event
from fwtop.render.numbers import duration_words, plural
from fwtop.report.document import Block, Document, Section, Table, Text
from fwtop.report.sections.attacks import attacks_section
from fwtop.report.sections.first import first_page
from fwtop.report.sections.rules import rules_section
from fwtop.report.sections.traffic import (
    costs_section,
    machine_section,
    traffic_section,
    trends_section,
    users_section,
)
from fwtop.report.summary import Digest
from fwtop.report.wording import clock, day_and_time

_NAMES = {"rule_proposed": "proposed", "rule_undone": "rule removed", "records_lost": "samples lost"}


def document(digest: Digest) -> Document:
    """Put all sections in order."""
    info = digest.info
    where = ", ".join(info.interfaces) + (f" in {info.netns}" if info.netns else "")
    when = f"{day_and_time(info.started)}, {duration_words(info.seconds)}"
    return Document(
        title=digest.headline,
        host=info.host,
        where=" · ".join(part for part in (info.host, where, when) if part),
        first=first_page(digest),
        sections=(
            attacks_section(digest),
            rules_section(digest.effects),
            users_section(digest),
            traffic_section(digest),
            machine_section(digest),
            costs_section(digest.costs, {effect.rule.kind for effect in digest.effects}),
            trends_section(digest.trends),
            _log(digest),
        ),
        notes=digest.notes,
        origin=_origin(digest),
    )


def _log(digest: Digest) -> Section:
    blocks: list[Block] = []
    if digest.events_left_out:
        blocks.append(Text(f"{plural(digest.events_left_out, 'event')} left out.", "hint"))
    if digest.events:
        blocks.append(Table((), [_row(event) for event in digest.events], "log"))
    return Section("What happened, in order", blocks)


def _row(event: Event) -> tuple[str, Text, Text]:
    """Say in two or three words what happened, and in which rule's life."""
    name = _NAMES.get(event.kind, event.kind.replace("_", " "))
    name = name.replace("rule ", f"rule {safe_text(event.subject, limit=8)} ")
    look = "what name-attack" if event.kind.startswith("attack") else "what"
    return clock(event.at), Text(name, look, strong=True), Text(event.text)


def _origin(digest: Digest) -> str:
    info = digest.info
    sampled = (
        f"Contents were sampled, at most 1 packet in {digest.sums.one_in_max:,.0f}; totals are exact, shares "
        "and what became of attacks' packets (about) are estimates."
    )
    return (
        f"Session {info.id}, recorded by fwtop {info.version}. Times are UTC. "
        + (sampled if digest.sums.one_in_max > 1 else "")
        + (f" Countries and networks: {info.geoip}" if info.geoip else "")
    )
