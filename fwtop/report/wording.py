"""Numbers and times as people read them; the same in every format."""

from __future__ import annotations

from fwtop.render.numbers import CLOCK, percent, utc

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def si(number: float, unit: str = "") -> str:
    """Write a number with three digits, a metric prefix and its unit: "1.23 M", "178 kpps", "5 pps"."""
    for size, prefix in _UNITS:
        if number >= size * 0.9995:
            return f"{_three(number / size)} {prefix}{unit}"
    whole = number == int(number)
    return f"{f'{number:.0f}' if whole else _three(number)} {unit}".rstrip()


def _three(number: float) -> str:
    if number >= 99.95:
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"


def clock(at: float, *, seconds: bool = True) -> str:
    """Write the time of day in UTC."""
    return utc(at, CLOCK if seconds else "%H:%M")


def day_and_time(at: float) -> str:
    """Write date and time in UTC."""
    return utc(at, "%Y-%m-%d %H:%M:%S UTC")


def about(share: float) -> str:
    """Return a share that is an estimate; a bound such as ">99.9 %" says so itself."""
    words = percent(share, None)
    return words if words.startswith(("<", ">")) else f"about {words}"
