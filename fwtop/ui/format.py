"""Numbers, bars and text for a narrow screen: pure functions with bounded width."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fwtop.render import numbers

number = numbers.number
_IN_BRACKETS = re.compile(r" \([^)]*\)")
_SCALES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def nanoseconds(value: float) -> str:
    """Write what a packet costs, in 6 cells at most: 945 ns, 1.4 µs, 15 µs."""
    if value < 999.5:
        return f"{value:.0f} ns"
    return f"{value / 1000:.1f} µs" if value < 9950 else f"{value / 1000:.0f} µs"


def bits(bps: float) -> str:
    """Write bits a second with its unit: 160 Mbit/s."""
    return numbers.si(bps, "bit/s")


def octets(count: float) -> str:
    """Write a number of bytes in thousands: 1.20 MB."""
    return numbers.si(count, "B")


def percent(share: float) -> str:
    """Write a share of 0 to 1 with one digit after the point, as columns need it."""
    return numbers.percent(share, 1)


def error_bar(low: float, high: float) -> str:
    """Write half the width of a 95 % interval in percentage points: ±0.6."""
    half = max(high - low, 0.0) * 50
    if half == 0:
        return "exact"
    return f"±{half:.1f}" if half >= 0.1 else "±<0.1"


def duration(seconds: float) -> str:
    """Write a time span in at most two units, without jumps in width: 42 s, 3m10s, 10m00s, 4d06h."""
    return numbers.duration(seconds, fixed_width=True)


def about(seconds: float) -> str:
    """Write a forecast, as exactly as it can be true: <10 s, ~20 s, ~3 min, ~2 h."""
    if seconds < 55:
        return f"~{round(seconds / 10) * 10} s" if seconds >= 10 else "<10 s"
    return f"~{max(round(seconds / 60), 1)} min" if seconds < 5400 else f"~{round(seconds / 3600)} h"


def scale_of(shares: Sequence[float]) -> float:
    """Choose the share that a full bar stands for, in steps, so that bars don't jump at every tick."""
    greatest = max(shares, default=0.0)
    return next((scale for scale in _SCALES if greatest <= scale), 1.0)


def bar(share: float, low: float, high: float, *, scale: float, width: int) -> tuple[str, str]:
    """Draw a share as a bar of half-cell resolution, and the 95 % interval as its dotted end.

    Returns both texts; together they are at most `width` cells. Where the interval is narrower than
    a cell the estimate itself is drawn and the second text is empty.
    """
    limit = max(scale, 1e-9)
    sure, most = (max(min(end / limit, 1.0), 0.0) * width for end in (low, high))
    if most - sure < 1:
        halves = round(max(min(share / limit, 1.0), 0.0) * width * 2)
        halves = max(halves, 1) if share > 0 else halves
        return "━" * (halves // 2) + "╸" * (halves % 2), ""
    solid = int(sure)
    return "━" * solid, "┄" * (max(round(most), solid + 1) - solid)


def cut(text: str, width: int) -> str:
    """Shorten to `width` cells with an ellipsis."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…" if width > 0 else ""


def shortened(text: str, width: int) -> str:
    """Shorten to `width` cells: without what stands in brackets, then with an ellipsis.

    That comes after a word, or inside a long one if less than a third would be left.
    """
    short = text if len(text) <= width else _IN_BRACKETS.sub("", text)
    words = short[: max(width, 0)].rpartition(" ")[0]
    return f"{words}…" if words and len(short) > width <= 3 * len(words) else cut(short, width)


def wrap(text: str, width: int) -> list[str]:
    """Break into lines at line breaks and spaces, and inside words longer than a line; at least one line."""
    limit = max(width, 1)
    return [row for line in text.splitlines() or [""] for row in _wrap_line(line, limit)]


def _wrap_line(text: str, width: int) -> list[str]:
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        rest = word
        if line and len(line) + 1 + len(rest) <= width:
            line += " " + rest
            continue
        if line:
            lines.append(line)
        while len(rest) > width:
            lines.append(rest[:width])
            rest = rest[width:]
        line = rest
    return [*lines, line]


def hex_dump(data: bytes) -> list[tuple[str, str, str]]:
    """Split bytes into rows of 16: offset, hex, printable ASCII."""
    rows = []
    for start in range(0, len(data), 16):
        chunk = data[start : start + 16]
        pairs = " ".join(f"{byte:02x}" for byte in chunk[:8]) + "  " + " ".join(f"{b:02x}" for b in chunk[8:])
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in chunk)
        rows.append((f"{start:04x}", pairs.ljust(48), text))
    return rows
