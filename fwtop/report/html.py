"""The report as one self-contained HTML file, without scripts, pictures or links."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import Event, Tick
from fwtop.render.command_line import command_line
from fwtop.render.numbers import duration_words, percent
from fwtop.report.chart import gauge_chart, traffic_chart
from fwtop.report.effects import Change, RuleEffect
from fwtop.report.html_tables import cost_ladder, tables_section
from fwtop.report.markup import STYLE, Markup, join, tag
from fwtop.report.spans import AttackSpan
from fwtop.report.summary import Digest
from fwtop.report.trends import trends_section
from fwtop.report.wording import clock, day_and_time, plural, si

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
        _header(digest),
        _timeline(digest),
        _attacks(digest.spans),
        _actions(digest.effects),
        tables_section(digest),
        _machine(digest),
        cost_ladder(digest.costs, {effect.rule.kind for effect in digest.effects}),
        trends_section(digest.trends),
        _log(digest),
        _footer(digest),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _header(digest: Digest) -> Markup:
    info = digest.info
    where = ", ".join(info.interfaces) + (f" in {info.netns}" if info.netns else "")
    when = f"{day_and_time(info.started)}, {duration_words(info.seconds)}"
    return tag(
        "header",
        tag("p", " · ".join(part for part in (info.host, where, when) if part), class_="eyebrow"),
        tag("h1", digest.headline),
        tag("p", " ".join(digest.summary), class_="lead"),
        _figures(digest),
    )


def _figures(digest: Digest) -> Markup:
    sums = digest.sums
    dropped = sums.dropped / sums.packets if sums.packets else 0.0
    figures = [
        ("Peak", si(sums.peak_pps, "pps"), f"{si(sums.peak_bps, 'bit/s')}, at {clock(sums.peak_at)}"),
        ("Arrived", si(sums.packets), f"packets, {si(sums.bytes, 'B')}"),
        ("Dropped", percent(dropped, None), f"{si(sums.dropped)} packets"),
        ("Rules", str(len(digest.effects)), _rules_matched(digest.effects)),
    ]
    if sums.conntrack_peak is not None and sums.conntrack_max:
        fill = percent(sums.conntrack_peak / sums.conntrack_max, None)
        figures.append(("Connection table, fullest", fill, f"of {sums.conntrack_max:,} entries"))
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value, tag("small", more))) for name, value, more in figures),
        class_="figures",
    )


def _rules_matched(effects: Sequence[RuleEffect]) -> str:
    return f"matched {si(sum(effect.packets for effect in effects))} packets" if effects else "none installed"


def _timeline(digest: Digest) -> Markup:
    chart = traffic_chart(digest.ticks, digest.spans, digest.effects)
    if not chart:
        return tag("section", tag("h2", "Timeline"), tag("p", "Too short for a timeline.", class_="none"))
    keys = [("arrived", "arrived"), ("delivered", "delivered"), ("dropped", "dropped")]
    if digest.spans:
        keys.append(("attack", "attack"))
    if digest.effects:
        keys.append(("rule", "rule applied; hollow where it ended"))
    legend = (tag("li", tag("i", class_=f"k-{key}"), label) for key, label in keys)
    return tag("section", tag("h2", "Timeline"), chart, tag("ul", *legend, class_="legend"))


def _attacks(spans: Sequence[AttackSpan]) -> Markup:
    shown = [_attack(span) for span in spans[:20]]
    if not shown:
        shown = [tag("p", "Nothing in the traffic looked like an attack.", class_="none")]
    return tag("section", tag("h2", "What it was"), *shown)


def _attack(span: AttackSpan) -> Markup:
    end = clock(span.ended) if span.ended is not None else "the end of the record"
    meta = [
        f"{clock(span.began)} to {end} ({duration_words(span.seconds)})",
        f"at its height {si(span.peak_pps, 'pps')}, {percent(span.share, None)} of all packets",
        f"{percent(span.confidence, None)} sure",
    ]
    if span.spoofed:
        meta.append("sources look forged")
    return tag(
        "div",
        tag("h3", span.title, class_="name-attack"),
        tag("p", " · ".join(meta), class_="meta"),
        tag("ul", *(tag("li", sentence) for sentence in span.evidence)) if span.evidence else None,
        class_="item",
    )


def _actions(effects: Sequence[RuleEffect]) -> Markup:
    shown = [_action(effect) for effect in effects[:40]]
    if not shown:
        shown = [tag("p", "No rule was installed.", class_="none")]
    return tag("section", tag("h2", "What was done, and what it did"), *shown)


def _action(effect: RuleEffect) -> Markup:
    rule = effect.rule
    meta = [part for part in (_life(effect), f"by {rule.created_by}" if rule.created_by else "") if part]
    meta.append(f"matched {si(effect.packets)} packets, {si(effect.bytes, 'B')}")
    if rule.predicted_collateral_share is not None:
        meta.append(expected_harm(rule))
    line = command_line(rule, max_sources=None)
    return tag(
        "div",
        tag("h3", tag("span", rule.id, class_="number"), rule.summary),
        tag("p", " · ".join(meta), class_="meta"),
        tag("div", _prediction(effect), _changes(effect.changes), class_="effect"),
        tag("pre", line[:2_000]) if line else None,
        class_="item",
    )


def expected_harm(rule: Rule) -> str:
    """Write the predicted harm; what was estimated without a baseline says so."""
    share = percent(rule.predicted_collateral_share or 0.0, None)
    guess = " (?: estimated, no baseline)" if rule.predicted_guess else ""
    return f"expected to hit {share} of other traffic{guess}"


def _life(effect: RuleEffect) -> str:
    applied = clock(effect.applied) if effect.applied is not None else "before the record"
    if effect.ended is None:
        return f"{applied} to the end of the record"
    return f"{applied} to {clock(effect.ended)}, then {effect.ending}"


def _prediction(effect: RuleEffect) -> Markup:
    predicted = effect.rule.predicted_pps
    largest = max(predicted or 0.0, effect.actual_pps, 1e-9)
    rows: list[Markup] = []
    if predicted is not None:
        rows += _meter("predicted", predicted, largest, "meter expected")
    rows += _meter("actual", effect.actual_pps, largest, "meter")
    return tag("div", tag("h4", "Packets stopped a second"), tag("div", *rows, class_="pair"))


def _meter(name: str, pps: float, largest: float, look: str) -> list[Markup]:
    width = f"width:{pps / largest * 100:.1f}%"
    return [
        tag("span", name),
        tag("span", tag("span", class_=look, style=width)),
        tag("span", si(pps, "pps")),
    ]


def _changes(changes: Sequence[Change]) -> Markup:
    if not changes:
        return tag("div")
    rows = (
        tag(
            "tr",
            tag("td", change.name),
            tag("td", _figure(change.before, change.unit), class_="n"),
            tag("td", _figure(change.after, change.unit), class_="n"),
        )
        for change in changes
    )
    head = tag(
        "tr", tag("th", "The machine"), tag("th", "before", class_="n"), tag("th", "after", class_="n")
    )
    return tag("div", tag("table", head, *rows))


def _figure(value: float, unit: str) -> str:
    return percent(value, None) if unit == "share" else si(value, unit)


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
    sampled = f"Contents were sampled, at most 1 packet in {digest.sums.one_in_max:,.0f}; totals are exact."
    return tag("footer", notes, words, sampled if digest.sums.one_in_max > 1 else "")
