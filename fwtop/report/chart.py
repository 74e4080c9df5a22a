"""The timeline as inline SVG: packets arrived, delivered and dropped; attacks and rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log10

from fwtop.model.traffic.session import Tick
from fwtop.report.effects import RuleEffect
from fwtop.report.markup import Markup, join, tag
from fwtop.report.spans import AttackSpan
from fwtop.report.wording import clock, si

WIDTH = 1000.0
_LEFT, _RIGHT = 58.0, 8.0
_COLUMNS = 480
_DIGIT_WIDTH = 7.2  # of the bold font of 11 units in markers
_MIN_GAP_SECONDS = 15.0
_TIME_STEPS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14400,
    21600,
    43200,
    86400,
    604800,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """The plot area and its two scales."""

    first: float  # Unix seconds
    last: float
    top: float  # of the area, in SVG units
    bottom: float
    maximum: float  # value at `top`

    def x(self, at: float) -> float:
        """Place a moment."""
        part = (at - self.first) / (self.last - self.first)
        return _LEFT + min(max(part, 0.0), 1.0) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Place a value."""
        return self.bottom - min(max(value / self.maximum, 0.0), 1.0) * (self.bottom - self.top)


def traffic_chart(
    ticks: Sequence[Tick], spans: Sequence[AttackSpan], effects: Sequence[RuleEffect]
) -> Markup:
    """Draw packets a second: delivered below, dropped upon it, arrived as the line over both."""
    columns = resample(ticks, _COLUMNS)
    if len(columns) < 2 or columns[0].at >= columns[-1].at:
        return Markup("")
    frame = Frame(columns[0].at, columns[-1].at, 46.0, 268.0, nice_ceiling(max(tick.pps for tick in columns)))
    runs = _runs(columns)
    shapes = [
        *(_band(frame, span) for span in spans),
        _grid(frame, _axis_label, "packets/s"),
        *(_area(frame, run, lambda tick: tick.accepted_pps, lambda _: 0.0, "delivered") for run in runs),
        *(_area(frame, run, _stacked, lambda tick: tick.accepted_pps, "dropped") for run in runs),
        *(_line(frame, run, lambda tick: tick.pps, "arrived") for run in runs),
        *(_mark(frame, effect) for effect in effects),
        *_labels(frame, spans),
        _time_axis(frame),
    ]
    return tag(
        "svg",
        *shapes,
        viewBox=f"0 0 {WIDTH:.0f} 296",
        role="img",
        aria_label="Packets a second over the session: arrived, delivered and dropped",
    )


def gauge_chart(
    ticks: Sequence[Tick], spans: Sequence[AttackSpan], take: Callable[[Tick], float | None], label: str
) -> Markup:
    """Draw one share (0 to 1) over the same time, small; empty where it was never measured."""
    columns = [tick for tick in resample(ticks, _COLUMNS) if take(tick) is not None]
    if len(columns) < 2 or ticks[0].at >= ticks[-1].at:
        return Markup("")
    frame = Frame(ticks[0].at, ticks[-1].at, 14.0, 84.0, 1.0)

    def value(tick: Tick) -> float:
        return take(tick) or 0.0

    shapes = [
        *(_band(frame, span) for span in spans),
        _grid(frame, lambda share: f"{share * 100:.0f} %", "", steps=2),
    ]
    for run in _runs(columns):
        shapes += [_area(frame, run, value, lambda _: 0.0, "gauge"), _line(frame, run, value, "gauge-line")]
    return tag(
        "svg", *shapes, _time_axis(frame), viewBox=f"0 0 {WIDTH:.0f} 112", role="img", aria_label=label
    )


def resample(ticks: Sequence[Tick], columns: int) -> list[Tick]:
    """Return at most `columns` ticks: the one with the most packets of each interval, so peaks remain."""
    if len(ticks) <= columns:
        return list(ticks)
    first, last = ticks[0].at, ticks[-1].at
    width = max((last - first) / columns, 1e-9)
    best: dict[int, Tick] = {}
    for tick in ticks:
        slot = min(int((tick.at - first) / width), columns - 1)
        if slot not in best or tick.pps > best[slot].pps:
            best[slot] = tick
    return [best[slot] for slot in sorted(best)]


def nice_ceiling(value: float) -> float:
    """Return the next of 1, 2, 2.5, 4, 5, 8 × 10ⁿ: it divides into four round steps."""
    if value <= 0:
        return 1.0
    size = 10.0 ** floor(log10(value))
    return next(step * size for step in (1, 2, 2.5, 4, 5, 8, 10) if step * size >= value * 0.999)


def _axis_label(value: float) -> str:
    return re.sub(r"\.?0+( |$)", r"\1", si(value)) if "." in si(value) else si(value)


def _stacked(tick: Tick) -> float:
    return min(tick.accepted_pps + tick.dropped_pps, max(tick.pps, tick.accepted_pps))


def _runs(ticks: Sequence[Tick]) -> list[list[Tick]]:
    """Split where nothing was stored, so that the gap is visible."""
    steps = sorted(after.at - before.at for before, after in pairwise(ticks))
    limit = max(_MIN_GAP_SECONDS, 4 * steps[len(steps) // 2])
    runs = [[ticks[0]]]
    for before, after in pairwise(ticks):
        if after.at - before.at > limit:
            runs.append([])
        runs[-1].append(after)
    return runs


_Take = Callable[[Tick], float]


def _area(frame: Frame, run: Sequence[Tick], upper: _Take, lower: _Take, name: str) -> Markup:
    there = [f"{frame.x(tick.at):.1f} {frame.y(upper(tick)):.1f}" for tick in run]
    back = [f"{frame.x(tick.at):.1f} {frame.y(lower(tick)):.1f}" for tick in reversed(run)]
    return tag("path", class_=name, d=Markup(f"M{' L'.join(there + back)} Z"))


def _line(frame: Frame, run: Sequence[Tick], take: _Take, name: str) -> Markup:
    points = [f"{frame.x(tick.at):.1f} {frame.y(take(tick)):.1f}" for tick in run]
    return tag("path", class_=name, d=Markup(f"M{' L'.join(points)}"))


def _band(frame: Frame, span: AttackSpan) -> Markup:
    left, right = frame.x(span.began), frame.x(span.until)
    return tag(
        "rect",
        class_="attack",
        x=left,
        y=frame.top,
        width=max(right - left, 1.5),
        height=frame.bottom - frame.top,
    )


def _labels(frame: Frame, spans: Sequence[AttackSpan]) -> list[Markup]:
    """Name the bands above the plot, except names that would overlap the one before."""
    shapes, free = [], 0.0
    for span in spans:
        left, right = frame.x(span.began), frame.x(span.until)
        shapes.append(tag("line", class_="attack-bar", x1=left, x2=max(right, left + 1.5), y1=46.0, y2=46.0))
        room = len(span.title) * 6.6
        at = min(left, WIDTH - _RIGHT - room)
        if at >= free:
            shapes.append(tag("text", span.title, class_="attack-name", x=at, y=38.0))
            free = at + room + 12
    return shapes


def _mark(frame: Frame, effect: RuleEffect) -> Markup:
    if effect.applied is None:
        return Markup("")
    x = frame.x(effect.applied)
    number = effect.rule.id[:8] or "?"
    shapes = [
        tag("line", class_="rule", x1=x, x2=x, y1=22.0, y2=frame.bottom),
        _pill("rule-dot", x, number),
        tag("text", number, class_="rule-number", x=x, y=16.0),
    ]
    if effect.ended is not None:
        end = frame.x(effect.ended)
        shapes.append(tag("line", class_="rule-end", x1=end, x2=end, y1=22.0, y2=frame.bottom))
        shapes.append(_pill("rule-over", end, number))
        shapes.append(tag("text", number, class_="rule-over-number", x=end, y=16.0))
    return join(shapes)


def _pill(look: str, x: float, text: str) -> Markup:
    """Draw a marker as wide as its number: a circle for up to two digits."""
    width = max(20.0, len(text) * _DIGIT_WIDTH + 8.0)
    return tag("rect", class_=look, x=x - width / 2, y=2.0, width=width, height=20.0, rx=10.0)


def _grid(frame: Frame, write: Callable[[float], str], unit: str, *, steps: int = 4) -> Markup:
    shapes = []
    for step in range(steps + 1):
        value = frame.maximum * step / steps
        y = frame.y(value)
        name = "axis" if step == 0 else "grid"
        shapes.append(tag("line", class_=name, x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y))
        shapes.append(tag("text", write(value), class_="tick-y", x=_LEFT - 8, y=y + 4))
    if unit:
        shapes.append(tag("text", unit, class_="tick-y unit", x=_LEFT - 8, y=frame.top - 14))
    return join(shapes)


def _time_axis(frame: Frame) -> Markup:
    length = frame.last - frame.first
    step = next((size for size in _TIME_STEPS if length / size <= 8), _TIME_STEPS[-1])
    at = (floor(frame.first / step) + 1) * step
    shapes = []
    while at < frame.last:
        x = frame.x(at)
        shapes.append(tag("line", class_="axis", x1=x, x2=x, y1=frame.bottom, y2=frame.bottom + 4))
        if _LEFT + 20 < x < WIDTH - 34:
            label = clock(at, seconds=step < 60)
            shapes.append(tag("text", label, class_="tick-x", x=x, y=frame.bottom + 18))
        at += step
    return join(shapes)
