"""A table as a self-contained SVG: one dot per row on a logarithmic scale.

Dots rather than bars: a bar's length means something only on a scale that starts at zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from fwtop.bench.frame import Document, Result, number
from fwtop.report.document import Markup, tag

_ROW, _HEAD, _GAP, _FOOT = 26, 78, 12, 40
_NAMES, _PLOT, _FIGURE, _TIMES = 330, 400, 90, 76
_OWN, _OTHER, _SOFT, _INK, _FAINT = "#0969da", "#57606a", "#6e7781", "#1f2328", "#d8dee4"
_STYLE = (
    "font-family:ui-sans-serif,system-ui,-apple-system,'Segoe UI',sans-serif;font-size:13px;"
    "font-variant-numeric:tabular-nums;background:#fff"
)
_PREFIXES = ((1e9, " G"), (1e6, " M"), (1e3, " k"))


class _Scale(Struct, frozen=True):
    """Maps figures to x coordinates logarithmically; `first` and `last` are decimal logarithms."""

    first: float
    last: float

    @staticmethod
    def over(rows: Sequence[Result], published: Sequence[float]) -> _Scale:
        """Return the scale that covers every figure, with a margin at both ends."""
        values = [value for result in rows for value in result.values] + list(published) or [1.0]
        return _Scale(math.log10(min(values)) - 0.15, math.log10(max(values)) + 0.08)

    @property
    def powers(self) -> list[float]:
        """The powers of ten on the scale."""
        return [10.0**power for power in range(math.ceil(self.first), math.floor(self.last) + 1)]

    def across(self, value: float) -> float:
        """Return a figure's x coordinate."""
        return _NAMES + _PLOT * (math.log10(value) - self.first) / (self.last - self.first)


def draw(document: Document) -> str:
    """Return the SVG: a dot at each median, a thick line from low to high, fwtop's rows set apart.

    A ring marks where a row would be if its published ratio held on this machine.
    """
    rows = sorted((result for result in document.results if min(result.values) > 0), key=_is_own)
    published = {result.name: value for result in rows if (value := _published(result, rows)) is not None}
    scale = _Scale.over(rows, list(published.values()))
    has_gap = any(map(_is_own, rows)) and not all(map(_is_own, rows))
    bottom = _HEAD + _ROW * len(rows) + (_GAP if has_gap else 0)
    width = _NAMES + _PLOT + _FIGURE + _TIMES
    parts = [*_heading(document, rows, bool(published), width), *_grid(scale, bottom)]
    top = float(_HEAD)
    for place, result in enumerate(rows):
        if has_gap and _is_own(result) and (place == 0 or not _is_own(rows[place - 1])):
            top += _GAP
        parts += _row(result, top, scale, published.get(result.name))
        top += _ROW
    size = f"0 0 {width} {bottom + _FOOT}"
    return tag(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=size, role="img",
        aria_label=document.table, style=_STYLE,
    )  # fmt: skip


def _is_own(result: Result) -> bool:
    return result.name.startswith("fwtop")


def _published(result: Result, rows: Sequence[Result]) -> float | None:
    if result.published is None or result.versus is None:
        return None
    base = next((row for row in rows if row.name == result.versus), None)
    return None if base is None else result.published * base.to_json()["median"]


def _heading(document: Document, rows: Sequence[Result], has_rings: bool, width: int) -> list[Markup]:
    machine = f"{document.machine}, kernel {document.kernel}"
    unit = rows[0].unit if rows and len({row.unit for row in rows}) == 1 else ""
    bases = {row.versus for row in rows if row.ratio is not None}
    heads = "" if not bases else "× first" if len(bases) == 1 else "ratio"
    parts = [
        _text(12, 22, document.table, _INK, weight=600),
        _text(12, 41, machine, _SOFT),
        _text(_NAMES, _HEAD - 12, unit, _SOFT),
        _text(width - 12, _HEAD - 12, heads, _SOFT, anchor="end"),
    ]
    if has_rings:
        parts.append(_ring(_NAMES + 5, 36.5))
        parts.append(_text(_NAMES + 17, 41, "as published, by the ratio to the first row", _SOFT))
    return parts


def _ring(x: float, y: float) -> Markup:
    return tag("circle", cx=x, cy=y, r=4.5, fill="#fff", stroke=_SOFT, stroke_width=1.4)


def _grid(scale: _Scale, bottom: float) -> list[Markup]:
    parts = []
    for power in scale.powers:
        at = scale.across(power)
        parts.append(tag("line", x1=at, x2=at, y1=_HEAD - 4, y2=bottom + 4, stroke=_FAINT))
        parts.append(_text(at, bottom + 22, short(power), _SOFT, anchor="middle"))
    return parts


def _row(result: Result, top: float, scale: _Scale, published: float | None) -> list[Markup]:
    figures = result.to_json()
    middle, at = top + _ROW / 2, scale.across(figures["median"])
    low, high = scale.across(figures["low"]), scale.across(figures["high"])
    colour, right = _OWN if _is_own(result) else _OTHER, _NAMES + _PLOT + _FIGURE
    line = partial(tag, "line", y1=middle, y2=middle, stroke=colour)
    parts = [
        _text(_NAMES - 14, middle + 4.5, result.name, _INK, anchor="end"),
        line(x1=_NAMES, x2=at, stroke_opacity=0.35, stroke_width=2),
        line(x1=low, x2=high, stroke_width=3),
    ]
    if published is not None:
        parts.append(_ring(scale.across(published), middle))
    parts += [
        tag("circle", cx=at, cy=middle, r=5.5, fill=colour),
        _text(right, middle + 4.5, short(figures["median"]), _INK, anchor="end", weight=600),
    ]
    if result.ratio is not None:
        parts.append(_text(right + _TIMES - 12, middle + 4.5, f"{result.ratio:.2g}", _SOFT, anchor="end"))
    return parts


def _text(x: float, y: float, text: str, fill: str, *, anchor: str = "start", weight: int = 400) -> Markup:
    return tag("text", text, x=x, y=y, text_anchor=anchor, font_weight=weight, fill=fill)


def short(value: float) -> str:
    """Format a figure with three digits and an SI prefix: 1.52 M."""
    for size, prefix in _PREFIXES:
        if value >= size * 0.9995:
            scaled = value / size
            whole = scaled >= 99.95 or scaled == int(scaled)
            return f"{scaled:.0f}{prefix}" if whole else f"{scaled:.3g}{prefix}"
    return number(float(f"{value:.3g}"))
