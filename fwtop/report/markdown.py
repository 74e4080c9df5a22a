"""The report as Markdown, for a ticket or a mail; no text can become markup or a link."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fwtop.model.text import safe_text
from fwtop.render.numbers import percent
from fwtop.report.facts.effects import RuleEffect
from fwtop.report.facts.spans import AttackSpan
from fwtop.report.page.attacks import attack_words, hex_lines, table_titles, tables_note
from fwtop.report.page.first import done, figures_of
from fwtop.report.page.html import event_name
from fwtop.report.page.rules import expected_harm, figure, measured_harm
from fwtop.report.page.tables import forged_note, shown_tables
from fwtop.report.summary import Digest
from fwtop.report.trends import trends_lines
from fwtop.report.wording import clock, day_and_time, si
from fwtop.rules.command_line import command_line

_ROWS = 10
_PART_ROWS = 5
_HEX_BYTES = 64
_MAX_EVENTS = 60
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|<>~&$])")
_LINK = re.compile(r"(?i)(:)(//)|(www)(\.)|(@)")


def render_markdown(digest: Digest) -> str:
    """Write the whole report."""
    info = digest.info
    where = ", ".join(info.interfaces) + (f" in {info.netns}" if info.netns else "")
    lines = [
        f"# {escape(digest.headline)}",
        "",
        escape(" · ".join(part for part in (info.host, where, day_and_time(info.started)) if part)),
        "",
        escape(" ".join(digest.summary)),
        "",
        f"**At the end: {escape(digest.state[:1].lower() + digest.state[1:])}**",
        "",
        *_table(("figure", "", ""), [(escape(a), escape(b), escape(c)) for a, b, c in figures_of(digest)]),
        "",
        "### What was done",
        "",
        *([f"- {escape(line)}" for line in done(digest.effects)] or ["No rule was installed."]),
        "",
        "### Next steps",
        "",
        *(f"{number}. {escape(step)}" for number, step in enumerate(digest.next_steps, 1)),
        "",
        "## What it was",
        "",
        *_attacks(digest.spans),
        "## What was done, and what it did",
        "",
        *_actions(digest.effects),
        *_tables(digest),
        *trends_lines(digest.trends, escape),
        *(["## What happened, in order", ""] if digest.events else []),
    ]
    lines += [
        f"- {clock(event.at)} **{escape(event_name(event))}**: {escape(event.text)}"
        for event in digest.events[-_MAX_EVENTS:]
    ]
    lines += ["", *(f"> {escape(note)}  " for note in digest.notes)]
    lines += ["", escape(f"Session {info.id}, recorded by fwtop {info.version}. Times are UTC.")]
    lines += ["", escape(f"Countries and networks: {info.geoip}")] if info.geoip else []
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def escape(text: str) -> str:
    """Make any text plain in Markdown: one line, no emphasis, no HTML, no link that finds itself."""
    plain = _SPECIAL.sub(r"\\\1", safe_text(text, limit=1_000))
    return _LINK.sub(_unlink, plain)


def _unlink(found: re.Match[str]) -> str:
    before, after = (found[1] or found[3] or ""), (found[2] or found[4] or found[5])
    return f"{before}\\{after}"


def _attacks(spans: Sequence[AttackSpan]) -> list[str]:
    if not spans:
        return ["Nothing in the traffic looked like an attack.", ""]
    lines = []
    for span in spans[:20]:
        lines.append(f"**{escape(span.title)}**, {escape('; '.join(attack_words(span)))}.")
        lines += ["", *(f"- {escape(sentence)}" for sentence in span.evidence), "", *_detail(span)]
    return lines


def _detail(span: AttackSpan) -> list[str]:
    lines = []
    tables = span.detail.tables
    if tables:
        lines += [escape(tables_note(span)), ""]
    for name, title in table_titles(span).items():
        if rows := tables.get(name):
            cells = [
                (escape(row.key), escape(row.detail), percent(row.share, None)) for row in rows[:_PART_ROWS]
            ]
            lines += [*_table((title, "", "share"), cells), ""]
    packet = span.detail.shown
    if packet is not None:
        layers = " / ".join(layer.name for layer in span.detail.dissection.layers) or "not decoded"
        words = f"One of its packets, at {clock(packet.at)}, {packet.length:,} bytes: {layers}"
        lines += [escape(words), "", hex_lines(packet.data[:_HEX_BYTES]), ""]
    return lines


def _actions(effects: Sequence[RuleEffect]) -> list[str]:
    if not effects:
        return ["No rule was installed.", ""]
    rows = [
        (
            escape(effect.rule.id),
            escape(effect.rule.summary),
            clock(effect.applied) if effect.applied is not None else "before",
            f"{clock(effect.ended)} ({effect.ending})" if effect.ended is not None else "still active",
            si(effect.rule.predicted_pps, "pps") if effect.rule.predicted_pps is not None else "",
            si(effect.actual_pps, "pps"),
            si(effect.packets),
        )
        for effect in effects
    ]
    head = ("rule", "what", "applied", "ended", "predicted", "actual", "packets")
    lines = [*_table(head, rows), ""]
    for effect in effects:
        figures = [
            f"{change.name} {figure(change.before, change.unit)} → {figure(change.after, change.unit)}"
            for change in effect.changes
        ]
        if figures:
            lines.append(f"Rule {escape(effect.rule.id)}, before → after: {', '.join(figures)}.")
        if effect.rule.predicted_collateral_share is not None:
            lines.append(f"Rule {escape(effect.rule.id)} was {expected_harm(effect.rule)}.")
        if measured := measured_harm(effect):
            lines.append(f"Measured: {measured}.")
        line = command_line(effect.rule, max_sources=None)
        if line and line.isprintable() and "```" not in line:
            lines += ["", "```sh", line[:2_000], "```"]
        lines.append("")
    return lines


def _tables(digest: Digest) -> list[str]:
    tops = digest.tops
    lines = ["## All traffic of that time", ""]
    if tops.during_attack:
        lines += ["Summed while it was attacked.", ""]
    if forged := forged_note(tops):
        lines += [f"**{escape(forged)}**", ""]
    for name, title in (*shown_tables(tops), ("payload", "Payloads")):
        rows = [
            (escape(row.key), escape(row.detail), si(row.packets), percent(row.share, None))
            for row in tops.tables.get(name, [])[:_ROWS]
        ]
        if rows:
            lines += [*_table((title, "", "packets", "share"), rows), ""]
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(cell.strip() for cell in row)} |" for row in rows),
    ]
