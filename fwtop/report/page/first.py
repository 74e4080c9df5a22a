"""The first page, for whoever has to decide: what happened, how big, what users felt, what is left to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fwtop.render.numbers import duration_words, percent, plural
from fwtop.report.facts.effects import RuleEffect
from fwtop.report.facts.users import UserFigure
from fwtop.report.page.chart import knows_who, traffic_chart
from fwtop.report.page.markup import Markup, join, tag, text
from fwtop.report.summary import Digest
from fwtop.report.wording import clock, day_and_time, si

_MOST_DONE = 6
_UNIT = re.compile(r"(?<=\d) (?=(?:%|h|min|s|[kMGT])\b|%)")
_AS_USUAL = 0.995
Figure = tuple[str, str, str]


def first_page(digest: Digest) -> Markup:
    """Return the first page."""
    info = digest.info
    where = ", ".join(info.interfaces) + (f" in {info.netns}" if info.netns else "")
    when = f"{day_and_time(info.started)}, {duration_words(info.seconds)}"
    bad = " bad" if digest.protection.attacked_at_end else ""
    figures = (
        tag("div", tag("dt", name), tag("dd", _unbroken(value), tag("small", _unbroken(more))))
        for name, value, more in figures_of(digest)
    )
    return tag(
        "div",
        tag("p", " · ".join(part for part in (info.host, where, when) if part), class_="eyebrow"),
        tag("h1", digest.headline),
        tag("p", _unbroken(" ".join(digest.summary)), class_="lead"),
        tag("p", f"At the end: {digest.state[:1].lower()}{digest.state[1:]}", class_=f"state{bad}"),
        tag("dl", *figures, class_="figures"),
        _timeline(digest),
        tag("div", _done(digest.effects), _next(digest.next_steps), class_="todo"),
        class_="first",
    )


def figures_of(digest: Digest) -> list[Figure]:
    """Return name, value and a note of the figures that matter most."""
    sums, protection = digest.sums, digest.protection
    dropped = sums.dropped / sums.packets if sums.packets else 0.0
    figures = [
        ("Peak", si(sums.peak_pps, "pps"), f"{si(sums.peak_bps, 'bit/s')}, at {clock(sums.peak_at)}"),
        ("Arrived", si(round(sums.packets)), f"packets, {si(sums.bytes, 'B')}"),
        ("Dropped", percent(dropped, None), f"{si(round(sums.dropped))} packets{_droppers(digest)}"),
    ]
    if digest.spans:
        figures.append(_unprotected(digest))
    if protection.stopped_after is not None:
        figures.append(("Stopped for good", duration_words(protection.stopped_after), "after its first sign"))
    figures += [_user_figure(item, attacked=bool(digest.spans)) for item in digest.user_figures]
    figures.append(("Rules", str(len(digest.effects)), _rules_matched(digest.effects)))
    if sums.conntrack_peak is not None and sums.conntrack_max:
        fill = percent(sums.conntrack_peak / sums.conntrack_max, None)
        figures.append(("Connection table, fullest", fill, f"of {sums.conntrack_max:,} entries"))
    return figures


def _unbroken(words: str) -> Markup:
    """Keep numbers and their units on one line."""
    return Markup(_UNIT.sub("&nbsp;", text(words)))


def _droppers(digest: Digest) -> str:
    sums = digest.sums
    if sums.mine is None or sums.other is None or sums.kernel is None or not sums.dropped:
        return ""
    mine, other, kernel = (si(round(packets)) for packets in (sums.mine, sums.other, sums.kernel))
    return f": fwtop {mine}, other firewalls {other}, kernel {kernel}"


def _unprotected(digest: Digest) -> Figure:
    protection = digest.protection
    whole = duration_words(protection.attacked)
    if protection.unknown > protection.attacked / 2:
        return ("Unprotected", "not known", f"of {whole} under attack: recorded by an earlier fwtop")
    words = f"of {whole} under attack"
    if protection.partly >= 1:
        words += f"; partly stopped for {duration_words(protection.partly)}"
    if protection.protected >= 1:
        words += f"; stopped for {duration_words(protection.protected)}"
    return ("Unprotected", duration_words(protection.unprotected), words)


def _user_figure(item: UserFigure, *, attacked: bool) -> Figure:
    name = f"Users' {item.name}"
    if item.normal is None:
        now = item.attacked if attacked else item.at_end
        return (name, f"{si(now or 0.0)}/s", "what is usual isn't known: no calm time in the record")
    usual = f"usual: {si(item.normal)}/s"
    share = item.of_normal(item.attacked)
    if share is None:
        return (name, f"{si(item.normal)}/s", "all the time")
    worst = item.of_normal(item.worst)
    lowest = (
        f"; at worst {percent(worst, None)}, at {clock(item.worst_at)}"
        if worst is not None and item.worst_at is not None and worst < _AS_USUAL
        else ""
    )
    return (name, percent(share, None), f"of normal under attack ({usual}){lowest}")


def _rules_matched(effects: Sequence[RuleEffect]) -> str:
    return f"matched {si(sum(effect.packets for effect in effects))} packets" if effects else "none installed"


def _timeline(digest: Digest) -> Markup:
    chart = traffic_chart(digest.ticks, digest.spans, digest.effects, digest.unstored)
    if not chart:
        return join((tag("h2", "Timeline"), tag("p", "Too short for a timeline.", class_="none")))
    keys = [("arrived", "arrived"), ("delivered", "accepted")]
    if knows_who(digest.ticks):
        keys += [("dropped", "dropped by kernel"), ("other", "by other firewalls")]
        keys.append(("mine", "by fwtop's rules"))
    else:
        keys.append(("dropped", "dropped"))
    if digest.spans:
        keys.append(("attack", "attack"))
    if digest.effects:
        keys.append(("rule", "rule applied; hollow where it ended"))
    if digest.unstored:
        keys.append(("unstored", "not stored"))
    legend = (tag("li", tag("i", class_=f"k-{key}"), label) for key, label in keys)
    return join((tag("h2", "Timeline"), chart, tag("ul", *legend, class_="legend")))


def _done(effects: Sequence[RuleEffect]) -> Markup:
    shown = [tag("li", sentence) for sentence in done(effects)]
    if not shown:
        return tag("div", tag("h2", "What was done"), tag("p", "No rule was installed.", class_="none"))
    return tag("div", tag("h2", "What was done"), tag("ul", *shown))


def done(effects: Sequence[RuleEffect]) -> list[str]:
    """Say of each rule when it was installed and what it dropped."""
    lines = [
        f"{_when(effect)}: rule {effect.rule.id}, {effect.rule.summary}; "
        f"it dropped {si(effect.packets)} packets."
        for effect in effects[:_MOST_DONE]
    ]
    left = len(effects) - _MOST_DONE
    return [*lines, f"And {plural(left, 'rule')} more."] if left > 0 else lines


def _when(effect: RuleEffect) -> str:
    return clock(effect.applied) if effect.applied is not None else "Before the record"


def _next(steps: Sequence[str]) -> Markup:
    return tag("div", tag("h2", "Next steps"), tag("ol", *(tag("li", step) for step in steps)))
