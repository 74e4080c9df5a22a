"""The timeline as inline SVG: packets arrived, delivered and dropped; attacks and rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import floor, log10

from msgspec import Struct

from fwtop.model.traffic.session import FULL_TABLE, Tick, Unstored
from fwtop.render.numbers import si
from fwtop.render.trends import averaged
from fwtop.report.attacks import AttackSpan
from fwtop.report.document import Markup, join, tag
from fwtop.report.effects import RuleEffect
from fwtop.report.sums import resample
from fwtop.report.wording import clock

WIDTH = 1000.0
_LEFT, _RIGHT = 58.0, 8.0
_COLUMNS = 480
_STRIP = 58.0  # height of an attack's strip
_DIGIT_WIDTH = 7.2  # of the bold font of 11 units in markers
_MIN_GAP_SECONDS = 15.0
_TIME_STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 604800,
)  # fmt: skip
_BARS = 60  # of 15 days: six hours each
_BARS_WIDTH, _BARS_HEIGHT = 240.0, 26.0

_STACKED = {
    "delivered": "accepted_pps", "dropped": "kernel_pps", "other": "other_pps", "mine": "mine_pps",
}  # fmt: skip
_Take = Callable[[Tick], float]


class Frame(Struct, frozen=True):
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
    ticks: Sequence[Tick],
    spans: Sequence[AttackSpan],
    effects: Sequence[RuleEffect],
    missing: Sequence[Unstored] = (),
) -> Markup:
    """Draw packets a second by where they ended, one upon the other, and arrived as the line over all.

    `missing` is what was not stored.
    """
    columns = resample(ticks, _COLUMNS)
    if len(columns) < 2 or columns[0].at >= columns[-1].at:
        return Markup("")
    frame = Frame(columns[0].at, columns[-1].at, 46.0, 268.0, nice_ceiling(max(tick.pps for tick in columns)))
    runs = _runs([tick for tick in columns if not any(gap.since < tick.at <= gap.until for gap in missing)])
    shapes = [
        *_bands(frame, spans),
        *(_shade("unstored", frame, gap.since, gap.until) for gap in missing),
        _grid(frame, _axis_label, "packets/s"),
        *(
            _area(frame, run, _edge(place + 1), _edge(place), name)  # one upon the other
            for run in runs
            for place, name in enumerate(_STACKED)
        ),
        *(_line(frame, run, lambda tick: tick.pps, "arrived") for run in runs),
        *_marks(frame, effects),
        *_bars(frame, spans),
        _time_axis(frame),
    ]
    return _drawing(296, "Packets a second over the session: arrived, delivered and dropped", shapes)


def attack_chart(ticks: Sequence[Tick], spans: Sequence[AttackSpan]) -> Markup:
    """Draw a strip an attack, all to one scale, so that it shows which one was on when and how strong."""
    drawn = [span for span in spans if span.points and span.kind != FULL_TABLE]
    if not drawn or len(ticks) < 2 or ticks[0].at >= ticks[-1].at:
        return Markup("")
    most = nice_ceiling(max(pps for span in drawn for _, pps in span.points))
    shapes: list[Markup] = []
    for row, span in enumerate(drawn):
        top = row * _STRIP + 18.0
        frame = Frame(ticks[0].at, ticks[-1].at, top, top + _STRIP - 24.0, most)
        size = span.holding or f"at most {si(span.peak_pps, 'pps')}"
        words = f"{span.title} · {size}"
        shapes.append(tag("text", words, class_="series-name", x=_LEFT, y=top - 5))
        shapes.append(_strip(frame, span, ticks))
        shapes.append(_level("axis", frame.bottom))
        shapes.append(tag("text", _axis_label(most), class_="tick-y", x=_LEFT - 8, y=top + 8))
    height = len(drawn) * _STRIP + 18.0
    shapes.append(_time_axis(Frame(ticks[0].at, ticks[-1].at, 0.0, height - 24.0, most)))
    return _drawing(height, "Packets a second of each attack", shapes)


def _strip(frame: Frame, span: AttackSpan, ticks: Sequence[Tick]) -> Markup:
    """Draw one attack: 0 at the ticks that did not show it."""
    by_time = dict(span.points)
    columns: dict[int, float] = {}
    for tick in ticks:
        if span.began <= tick.at <= span.until:
            slot = round(frame.x(tick.at))
            columns[slot] = max(columns.get(slot, 0.0), by_time.get(tick.at, 0.0))
    if not columns:
        return Markup("")
    low = f"{frame.bottom:.1f}"
    tops = [f"{slot} {frame.y(pps):.1f}" for slot, pps in sorted(columns.items())]
    first, last = min(columns), max(columns)
    shape = " L".join([f"{first} {low}", *tops, f"{max(last, first + 1)} {low}"])
    return tag("path", class_="series", d=Markup(f"M{shape} Z"))


def rate_chart(
    ticks: Sequence[Tick],
    spans: Sequence[AttackSpan],
    take: Callable[[Tick], float | None],
    label: str,
    *,
    usual: float | None = None,
    is_share: bool = False,
) -> Markup:
    """Draw one rate, or a share of 0 to 1, over the same time, with a dashed line at what is usual.

    Empty where it was never measured.
    """
    columns = [tick for tick in resample(ticks, _COLUMNS) if take(tick) is not None]
    if len(columns) < 2 or ticks[0].at >= ticks[-1].at:
        return Markup("")

    def value(tick: Tick) -> float:
        return take(tick) or 0.0

    most = 1.0 if is_share else nice_ceiling(max(*map(value, columns), usual or 0.0))
    frame = Frame(ticks[0].at, ticks[-1].at, 14.0, 84.0, most)
    write = (lambda share: f"{share * 100:.0f} %") if is_share else _axis_label
    shapes = [*_bands(frame, spans), _grid(frame, write, "", steps=2)]
    for run in _runs(columns):
        shapes += [_area(frame, run, value, lambda _: 0.0, "gauge"), _line(frame, run, value, "gauge-line")]
    if usual:
        shapes.append(_level("usual", frame.y(usual)))
    return _drawing(112, label, [*shapes, _time_axis(frame)])


def bars(values: Sequence[float | None], label: str) -> Markup:
    """Draw averages as bars side by side; a gap where nothing was observed."""
    cells = averaged(values, _BARS)
    top = max((value for value in cells if value is not None), default=0.0)
    width = _BARS_WIDTH / max(len(cells), 1)
    drawn = []
    for place, value in enumerate(cells):
        if value and top > 0:
            height = max(value / top * _BARS_HEIGHT, 0.6)
            drawn.append(
                f"M{place * width:.1f} {_BARS_HEIGHT:.0f} v{-height:.1f} h{width:.1f} v{height:.1f} Z"
            )
    return tag(
        "svg",
        tag("line", class_="grid", x1=0.0, x2=_BARS_WIDTH, y1=_BARS_HEIGHT, y2=_BARS_HEIGHT),
        tag("path", class_="delivered", d=Markup(" ".join(drawn))) if drawn else None,
        viewBox=f"0 0 {_BARS_WIDTH:.0f} {_BARS_HEIGHT:.0f}",
        style=f"width:{_BARS_WIDTH:.0f}px;max-width:100%",
        role="img",
        aria_label=f"{label}, at most {si(top, 'pps')}",
    )


def _drawing(height: float, label: str, shapes: Iterable[Markup]) -> Markup:
    return tag("svg", *shapes, viewBox=f"0 0 {WIDTH:.0f} {height:.0f}", role="img", aria_label=label)


def _level(look: str, y: float) -> Markup:
    return tag("line", class_=look, x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y)


def nice_ceiling(value: float) -> float:
    """Return the next of 1, 2, 2.5, 4, 5, 8 × 10ⁿ: it divides into four round steps."""
    if value <= 0:
        return 1.0
    size = 10.0 ** floor(log10(value))
    return next(step * size for step in (1, 2, 2.5, 4, 5, 8, 10) if step * size >= value * 0.999)


def _axis_label(value: float) -> str:
    return re.sub(r"\.?0+( |$)", r"\1", si(value)) if "." in si(value) else si(value)


def _edge(count: int) -> _Take:
    """Return what the first so many parts add up to, not above what arrived."""
    names = tuple(_STACKED.values())[:count]
    return lambda tick: min(sum(getattr(tick, name) for name in names), max(tick.pps, tick.accepted_pps))


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


def _area(frame: Frame, run: Sequence[Tick], upper: _Take, lower: _Take, name: str) -> Markup:
    there = [f"{frame.x(tick.at):.1f} {frame.y(upper(tick)):.1f}" for tick in run]
    back = [f"{frame.x(tick.at):.1f} {frame.y(lower(tick)):.1f}" for tick in reversed(run)]
    return tag("path", class_=name, d=Markup(f"M{' L'.join(there + back)} Z"))


def _line(frame: Frame, run: Sequence[Tick], take: _Take, name: str) -> Markup:
    points = [f"{frame.x(tick.at):.1f} {frame.y(take(tick)):.1f}" for tick in run]
    return tag("path", class_=name, d=Markup(f"M{' L'.join(points)}"))


def _bands(frame: Frame, spans: Sequence[AttackSpan]) -> list[Markup]:
    """Shade the time of attacks, once where several were on."""
    times: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda item: item.began):
        if times and span.began <= times[-1][1]:
            times[-1] = times[-1][0], max(times[-1][1], span.until)
        else:
            times.append((span.began, span.until))
    return [_shade("attack", frame, began, until) for began, until in times]


def _shade(look: str, frame: Frame, since: float, until: float) -> Markup:
    left, height = frame.x(since), frame.bottom - frame.top
    width = max(frame.x(until) - left, 1.5)
    return tag("rect", class_=look, x=left, y=frame.top, width=width, height=height)


def _bars(frame: Frame, spans: Sequence[AttackSpan]) -> list[Markup]:
    """Mark above the plot when attacks were on."""
    edges = [(frame.x(span.began), frame.x(span.until)) for span in spans]
    return [
        tag("line", class_="attack-bar", x1=left, x2=max(right, left + 1.5), y1=46.0, y2=46.0)
        for left, right in edges
    ]


class _Marker(Struct):
    """A rule that begins or ends, and where its pill is: beside the pills of others at that time."""

    at: float
    number: str
    look: str  # "rule" or "rule-over"
    x: float

    @property
    def width(self) -> float:
        """As wide as its number: a circle for up to two digits."""
        return max(20.0, len(self.number) * _DIGIT_WIDTH + 8.0)

    def drawn(self, frame: Frame) -> Markup:
        """Draw the line at its time, the pill and the number in it."""
        dot, line = ("rule-dot", "rule") if self.look == "rule" else ("rule-over", "rule-end")
        left, x = self.x - self.width / 2, frame.x(self.at)
        return join([
            tag("line", class_=line, x1=x, x2=x, y1=22.0, y2=frame.bottom),
            tag("rect", class_=dot, x=left, y=2.0, width=self.width, height=20.0, rx=10.0),
            tag("text", self.number, class_=f"{self.look}-number", x=self.x, y=16.0),
        ])  # fmt: skip


def _marks(frame: Frame, effects: Sequence[RuleEffect]) -> list[Markup]:
    """Draw the markers of rules; pills that would overlap stand side by side."""
    told = [
        (at, effect.rule.id[:8] or "?", look)
        for effect in effects
        for at, look in ((effect.applied, "rule"), (effect.ended, "rule-over"))
        if at is not None and effect.applied is not None
    ]
    markers = [_Marker(at, number, look, frame.x(at)) for at, number, look in sorted(told)]
    for one, after in pairwise(markers):
        after.x = max(after.x, one.x + (one.width + after.width) / 2)
    edge = frame.x(frame.last)
    for one in reversed(markers):  # back from the right edge
        one.x = min(one.x, edge)
        edge = one.x - one.width
    return [one.drawn(frame) for one in markers]


def _grid(frame: Frame, write: Callable[[float], str], unit: str, *, steps: int = 4) -> Markup:
    shapes = []
    for step in range(steps + 1):
        value = frame.maximum * step / steps
        y = frame.y(value)
        shapes.append(_level("axis" if step == 0 else "grid", y))
        shapes.append(tag("text", write(value), class_="tick-y", x=_LEFT - 8, y=y + 4))
    if unit:
        shapes.append(tag("text", unit, class_="unit", x=0, y=frame.top - 14))
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
