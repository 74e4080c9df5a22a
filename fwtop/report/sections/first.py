"""The first page, for whoever has to decide: what happened, how big, what users felt, what is left to do."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.render.numbers import duration_words, percent, plural
from fwtop.report.document import Block, Drawing, Items, Section, Table, Text
from fwtop.report.facts.effects import RuleEffect
from fwtop.report.facts.users import UserFigure
from fwtop.report.page.chart import traffic_chart
from fwtop.report.page.markup import tag
from fwtop.report.summary import Digest
from fwtop.report.wording import clock, si

NO_RULE = Text("No rule was installed.", "none")
_MOST_DONE = 6
_AS_USUAL = 0.995
_Figure = tuple[str, str, str]  # name, value, a note


def first_page(digest: Digest) -> tuple[Block, ...]:
    """Return the first page."""
    bad = " bad" if digest.protection.attacked_at_end else ""
    done = _done(digest.effects)
    todo = (
        Section("What was done", [Items(done) if done else NO_RULE], look=""),
        Section("Next steps", [Items(digest.next_steps, ordered=True)], look=""),
    )
    return (
        Text(" ".join(digest.summary), "lead"),
        Text(f"At the end: {digest.state[:1].lower()}{digest.state[1:]}", f"state{bad}", strong=True),
        Table(("figure", "", ""), _figures(digest), "figures"),
        Section("Timeline", [_timeline(digest)], look=""),
        Section("", todo, look="todo"),
    )


def _figures(digest: Digest) -> list[_Figure]:
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
        after = duration_words(protection.stopped_after)
        figures.append(("Stopped for good", after, "after its first sign"))
    figures += [_user_figure(item, attacked=bool(digest.spans)) for item in digest.user_figures]
    matched = sum(effect.packets for effect in digest.effects)
    told = f"matched {si(matched)} packets" if digest.effects else "none installed"
    figures.append(("Rules", str(len(digest.effects)), told))
    if sums.conntrack_peak is not None and sums.conntrack_max:
        fill = percent(sums.conntrack_peak / sums.conntrack_max, None)
        figures.append(("Connection table, fullest", fill, f"of {sums.conntrack_max:,} entries"))
    return figures


def _droppers(digest: Digest) -> str:
    sums = digest.sums
    if not sums.dropped:
        return ""
    mine, other, kernel = (si(round(packets)) for packets in (sums.mine, sums.other, sums.kernel))
    return f": fwtop {mine}, other firewalls {other}, kernel {kernel}"


def _unprotected(digest: Digest) -> _Figure:
    protection = digest.protection
    whole = duration_words(protection.attacked)
    words = f"of {whole} under attack"
    if protection.partly >= 1:
        words += f"; partly stopped for {duration_words(protection.partly)}"
    if protection.protected >= 1:
        words += f"; stopped for {duration_words(protection.protected)}"
    return ("Unprotected", duration_words(protection.unprotected), words)


def _user_figure(item: UserFigure, *, attacked: bool) -> _Figure:
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


def _timeline(digest: Digest) -> Drawing:
    chart = traffic_chart(digest.ticks, digest.spans, digest.effects, digest.unstored)
    if not chart:
        return Drawing(tag("p", "Too short for a timeline.", class_="none"))
    keys = [
        ("arrived", "arrived"),
        ("delivered", "accepted"),
        ("dropped", "dropped by kernel"),
        ("other", "by other firewalls"),
        ("mine", "by fwtop's rules"),
    ]
    if digest.spans:
        keys.append(("attack", "attack"))
    if digest.effects:
        keys.append(("rule", "rule applied; hollow where it ended"))
    if digest.unstored:
        keys.append(("unstored", "not stored"))
    return Drawing(chart, keys=keys)


def _done(effects: Sequence[RuleEffect]) -> list[str]:
    lines = [
        f"{clock(effect.applied) if effect.applied is not None else 'Before the record'}: "
        f"rule {effect.rule.id}, {effect.rule.summary}; it dropped {si(effect.packets)} packets."
        for effect in effects[:_MOST_DONE]
    ]
    left = len(effects) - _MOST_DONE
    return [*lines, f"And {plural(left, 'rule')} more."] if left > 0 else lines
