"""A table as a picture: one bar a row on a logarithmic scale, in SVG that needs nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fwtop.bench.frame import Document, Result
from fwtop.bench.text import number

_ROW, _HEAD, _FOOT = 26, 54, 34
_NAMES, _BARS, _FIGURES = 330, 430, 130
_OWN, _OTHER, _INK, _FAINT = "#2f81f7", "#8b949e", "#1f2328", "#d0d7de"
_STYLE = "font-family:ui-sans-serif,system-ui,sans-serif;font-size:13px"


@dataclass(frozen=True, slots=True)
class _Scale:
    """Powers of ten from `first` to `last` across the bars."""

    first: int
    last: int

    @staticmethod
    def over(rows: Sequence[Result]) -> _Scale:
        """Return the scale that holds every figure."""
        values = [value for result in rows for value in result.values] or [1.0]
        first = math.floor(math.log10(min(values)))
        return _Scale(first, max(first + 1, math.ceil(math.log10(max(values)))))

    def across(self, value: float) -> float:
        """Return where a figure lies."""
        return _NAMES + _BARS * (math.log10(value) - self.first) / (self.last - self.first)


def draw(document: Document) -> str:
    """Return the SVG; rows whose name begins with `fwtop` stand out, whiskers go from low to high."""
    rows = [result for result in document.results if min(result.values) > 0]
    scale = _Scale.over(rows)
    width, height = _NAMES + _BARS + _FIGURES, _HEAD + _ROW * len(rows) + _FOOT
    machine = f"{document.machine}, kernel {document.kernel}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="fwtop bench {escape(document.table)}" style="{_STYLE};background:#fff">',
        f'<text x="12" y="22" font-weight="600" fill="{_INK}">fwtop bench {escape(document.table)}</text>',
        f'<text x="12" y="40" fill="{_OTHER}">{escape(machine)}</text>',
    ]
    for power in range(scale.first, scale.last + 1):
        at = scale.across(10.0**power)
        parts += [
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_HEAD - 6}" y2="{height - _FOOT}" stroke="{_FAINT}"/>',
            f'<text x="{at:.1f}" y="{height - 14}" text-anchor="middle" fill="{_OTHER}">'
            f"{number(10.0**power)}</text>",
        ]
    for place, result in enumerate(rows):
        parts += _bar(result, _HEAD + place * _ROW, scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(result: Result, top: float, scale: _Scale) -> list[str]:
    figures = result.to_json()
    middle, end = top + _ROW / 2, scale.across(figures["median"])
    low, high = scale.across(figures["low"]), scale.across(figures["high"])
    colour = _OWN if result.name.startswith("fwtop") else _OTHER
    return [
        f'<text x="{_NAMES - 10}" y="{middle + 4:.1f}" text-anchor="end" fill="{_INK}">'
        f"{escape(result.name)}</text>",
        f'<rect x="{_NAMES}" y="{top + 4:.1f}" width="{max(end - _NAMES, 1):.1f}" height="{_ROW - 8}" '
        f'fill="{colour}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle:.1f}" y2="{middle:.1f}" stroke="{_INK}"/>',
        f'<text x="{max(end, high) + 8:.1f}" y="{middle + 4:.1f}" fill="{_INK}">'
        f"{number(figures['median'])}</text>",
    ]
