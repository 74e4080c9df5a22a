"""Confusion matrix and reliability diagram as one self-contained SVG."""

from __future__ import annotations

from html import escape

from benches.accuracy.naming import NOTHING, ORDINARY, Scores, bins

_CELL, _LEFT, _TOP, _SIDE, _GAP = 17, 190, 200, 340, 70
_INK, _SOFT, _FAINT, _GOOD, _BAD = "#1f2328", "#6e7781", "#d8dee4", "#1a7f37", "#cf222e"
_STYLE = "font-family:ui-sans-serif,system-ui,sans-serif;font-size:11px;background:#fff"


def draw(scores: Scores) -> str:
    """Return the SVG: true kinds down, said kinds across, and beside it confidence against the truth."""
    down = [*scores.kinds, ORDINARY]
    across = [*sorted({said for _, said in scores.confusion} - {NOTHING}), NOTHING]
    right = _LEFT + _CELL * len(across) + _GAP
    width, height = right + _SIDE + 20, max(_TOP + _CELL * len(down) + 20, _TOP + _SIDE + 60)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="how attacks of the corpus are named" style="{_STYLE}">',
        _text(10, 20, f"{scores.windows:,} windows, macro F1 {scores.macro_f1:.3f}", size=15),
        _text(10, 40, "each row: what was sent; each column: what it was called", colour=_SOFT),
        *_matrix(scores, down, across),
        *_reliability(scores, right),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, *, size: int = 11, colour: str = _INK, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" {more}>{escape(text)}</text>'


def _matrix(scores: Scores, down: list[str], across: list[str]) -> list[str]:
    parts = []
    for column, said in enumerate(across):
        x = _LEFT + _CELL * (column + 0.7)
        parts.append(_text(x, _TOP - 6, said, more=f'transform="rotate(-60 {x:.1f} {_TOP - 6})"'))
    parts.append(
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_CELL * len(across)}" height="{_CELL * len(down)}" '
        f'fill="{_FAINT}" fill-opacity="0.3"/>'
    )
    for row, true in enumerate(down):
        y = _TOP + _CELL * row
        total = sum(scores.confusion[true, said] for said in across)
        parts.append(_text(_LEFT - 6, y + 12, true, more='text-anchor="end"'))
        for column, said in enumerate(across):
            if count := scores.confusion[true, said]:
                good = said == true or (true, said) == (ORDINARY, NOTHING)
                parts += _cell(_LEFT + _CELL * column, y, count, count / total, _GOOD if good else _BAD)
    return parts


def _cell(x: float, y: float, count: int, share: float, colour: str) -> list[str]:
    return [
        f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{colour}" '
        f'fill-opacity="{0.15 + 0.85 * share:.2f}"/>',
        _text(x + _CELL / 2 - 0.5, y + 12, str(count), size=9, more='text-anchor="middle"'),
    ]


def _reliability(scores: Scores, left: float) -> list[str]:
    """Draw stated confidence against the share that is right; the area of a dot is its number of findings."""
    bottom = _TOP + _SIDE
    error = scores.calibration_error
    parts = [
        f'<rect x="{left}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="{_FAINT}"/>',
        f'<line x1="{left}" y1="{bottom}" x2="{left + _SIDE}" y2="{_TOP}" stroke="{_SOFT}" '
        'stroke-dasharray="4"/>',
        _text(left, _TOP - 26, f"reliability; expected calibration error {error:.3f}", size=13),
        _text(left, _TOP - 8, "upwards: share of findings that are right", colour=_SOFT),
        _text(left, bottom + 32, "stated confidence", colour=_SOFT),
    ]
    for tenth in range(0, 11, 2):
        x, y = left + _SIDE * tenth / 10, bottom - _SIDE * tenth / 10
        parts.append(_text(x, bottom + 14, f"{tenth / 10:.1f}", more='text-anchor="middle"', colour=_SOFT))
        parts.append(_text(left - 4, y + 4, f"{tenth / 10:.1f}", more='text-anchor="end"', colour=_SOFT))
    total = max(1, len(scores.stated))
    for one in bins(scores.stated):
        x, y = left + _SIDE * one.stated, bottom - _SIDE * one.right
        radius = 4 + 16 * (one.count / total) ** 0.5
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{_GOOD}" fill-opacity="0.5"/>'
        )
        parts.append(_text(x, y + 3, str(one.count), size=9, more='text-anchor="middle"'))
    return parts
