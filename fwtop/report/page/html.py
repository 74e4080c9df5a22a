"""The report as one self-contained HTML file, without scripts, pictures or links."""

from __future__ import annotations

from collections.abc import Callable

from fwtop.model.text import safe_text
from fwtop.model.traffic.session import Event, Tick
from fwtop.render.numbers import plural
from fwtop.report.facts.users import FIGURES
from fwtop.report.page.attacks import attacks_section
from fwtop.report.page.chart import gauge_chart, rate_chart
from fwtop.report.page.first import first_page
from fwtop.report.page.markup import Markup, join, tag
from fwtop.report.page.rules import rules_section
from fwtop.report.page.style import STYLE
from fwtop.report.page.tables import cost_ladder, tables_section
from fwtop.report.summary import Digest
from fwtop.report.trends import trends_section
from fwtop.report.wording import clock, si

EVENT_NAMES = {
    "attack_began": "attack began",
    "attack_changed": "attack changed",
    "attack_ended": "attack ended",
    "rule_proposed": "proposed",
    "rule_applied": "rule {} applied",
    "rule_confirmed": "rule {} confirmed",
    "rule_undone": "rule {} removed",
    "rule_expired": "rule {} expired",
    "guardian_lost": "guardian lost",
    "guardian_back": "guardian back",
    "records_lost": "samples lost",
    "not_judged": "not judged",
    "judged_again": "judged again",
    "storing_stopped": "storing stopped",
    "storing_resumed": "storing resumed",
}
# Nothing may be loaded or run, even if some text became markup after all.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render_html(digest: Digest) -> str:
    """Write the whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{digest.headline} · {digest.info.host} · fwtop"),
        tag("style", STYLE),
    )
    body = tag(
        "main",
        first_page(digest),
        attacks_section(digest),
        rules_section(digest.effects),
        _users(digest),
        tables_section(digest),
        _machine(digest),
        cost_ladder(digest.costs, {effect.rule.kind for effect in digest.effects}),
        trends_section(digest.trends),
        _log(digest),
        _footer(digest),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _users(digest: Digest) -> Markup:
    takes: dict[str, Callable[[Tick], float | None]] = dict(FIGURES)
    drawn = []
    for item in digest.user_figures:
        label = f"{item.name[:1].upper()}{item.name[1:]} a second"
        chart = rate_chart(digest.ticks, digest.spans, takes[item.name], item.normal, label)
        if chart:
            usual = f"; dashed: the usual {si(item.normal)}" if item.normal else ""
            drawn.append(join((tag("h4", f"{label}{usual}"), chart)))
    if not drawn:
        return Markup("")
    words = "Of this host's own TCP: handshakes that clients finished, and segments that they acknowledged."
    return tag(
        "section",
        tag("h2", "What users felt"),
        tag("p", words, class_="hint"),
        *(tag("figure", drawing, style="margin:0 0 18px") for drawing in drawn),
    )


def _machine(digest: Digest) -> Markup:
    charts = [
        ("Connection table", "how full", _fill),
        ("CPU time in softirq", "of all cores", _softirq),
    ]
    drawn = [
        join((tag("h4", f"{title}, {what}"), chart))
        for title, what, take in charts
        if (chart := gauge_chart(digest.ticks, digest.spans, take, title))
    ]
    if not drawn:
        return Markup("")
    sums = digest.sums
    words = []
    if sums.conntrack_max:
        words.append(f"Up to {si(sums.conntrack_new_peak)} new connections a second were tracked.")
    return tag(
        "section",
        tag("h2", "How the machine fared"),
        tag("p", " ".join(words), class_="hint") if words else None,
        *(tag("figure", drawing, style="margin:0 0 18px") for drawing in drawn),
    )


def _fill(tick: Tick) -> float | None:
    if tick.conntrack is None or not tick.conntrack_max:
        return None
    return tick.conntrack / tick.conntrack_max


def _softirq(tick: Tick) -> float | None:
    return tick.softirq_share


def _log(digest: Digest) -> Markup:
    if not digest.events:
        return Markup("")
    left_out = f"{plural(digest.events_left_out, 'event')} left out." if digest.events_left_out else ""
    return tag(
        "section",
        tag("h2", "What happened, in order"),
        tag("p", left_out, class_="hint") if left_out else None,
        tag("table", *(_event(event) for event in digest.events), class_="log"),
    )


def _event(event: Event) -> Markup:
    look = "what name-attack" if event.kind.value.startswith("attack") else "what"
    return tag(
        "tr", tag("td", clock(event.at)), tag("td", event_name(event), class_=look), tag("td", event.text)
    )


def event_name(event: Event) -> str:
    """Say in two or three words what happened."""
    return EVENT_NAMES[event.kind.value].format(safe_text(event.subject, limit=8))


def _footer(digest: Digest) -> Markup:
    info = digest.info
    notes = tag("ul", *(tag("li", note) for note in digest.notes), class_="notes") if digest.notes else None
    words = f"Session {info.id}, recorded by fwtop {info.version}. Times are UTC. "
    sampled = (
        f"Contents were sampled, at most 1 packet in {digest.sums.one_in_max:,.0f}; totals are exact, shares "
        "and what became of attacks' packets (about) are estimates."
    )
    origins = f" Countries and networks: {info.geoip}" if info.geoip else ""
    return tag("footer", notes, words, sampled if digest.sums.one_in_max > 1 else "", origins)
