"""Shares, moments, lengths of time and numbers of things as people read them; the same in every text."""

from __future__ import annotations

import time
from itertools import pairwise

_SUFFIXES = ("k", "M", "G", "T", "P")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_UNIT_WORDS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def percent(share: float, digits: int | None = 0) -> str:
    """Format a share of 0 to 1 as a percentage; None: more digits the smaller it is.

    Never rounds up to 100 % or down to 0 %: near either end at least one digit follows the point.
    """
    value = share * 100
    if value <= 0:
        return "0 %"
    if value >= 100:
        return f"{value:.0f} %"
    if digits is None:
        digits = 0 if value >= 10 else 1 if value >= 1 else 2
    if value < 0.5 or value >= 99.5:
        digits = max(digits, 1)
    least = 10.0**-digits
    if value < least:
        return f"<{least:g} %"
    if digits and value > 100 - least:
        return f">{100 - least:g} %"
    return f"{value:.{digits}f} %"


def number(value: float) -> str:
    """Write a count or rate with three significant digits: 843, 1.23k, 312k, 9.84M (5 cells at most).

    Something is never written as nothing.
    """
    size = abs(value)
    if size < 999.5:
        if 0 < size < 0.05:
            return "<0.1"
        return f"{value:.0f}" if size >= 9.95 or value == round(value) else f"{value:.1f}"
    suffixes = iter(_SUFFIXES)
    suffix = ""
    while abs(value) >= 999.5 and (following := next(suffixes, None)) is not None:
        value, suffix = value / 1000, following
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}{suffix}"


def si(value: float, unit: str = "") -> str:
    """Write a number apart from its prefix and unit: "1.23 M", "178 kpps", "5 pps"."""
    text = number(value)
    return (f"{text[:-1]} {text[-1]}{unit}" if text[-1].isalpha() else f"{text} {unit}").rstrip()


CLOCK, DAY_AND_TIME = "%H:%M:%S", "%Y-%m-%d %H:%M:%SZ"


def utc(at: float, form: str = "%H:%M:%SZ") -> str:
    """Write a moment; one beyond the calendar as the last or the first that it has."""
    return time.strftime(form, time.gmtime(min(max(at, 0.0), 253_402_300_799.0)))


def duration(seconds: float, *, fixed_width: bool = False) -> str:
    """Format a length of time with at most two units, rounded down: 45 s, 10m, 2h05m, 1d03h.

    `fixed_width` keeps a zero in the second unit (10m00s), so that a countdown doesn't jump.
    """
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    for (size, unit), (part, smaller) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{unit}" + (f"{rest:02}{smaller}" if rest or fixed_width else "")
    raise AssertionError


def duration_words(seconds: float) -> str:
    """Format a length of time for a sentence, by its two largest units: 1 min 20 s, 2 h."""
    if 0 < seconds < 0.5:
        return "less than a second"
    whole = max(round(seconds), 0)
    for (size, unit), (part, smaller) in pairwise(_UNIT_WORDS):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def span_words(seconds: float, *, after: str = "", once: str = "seen once") -> str:
    """Say how long something was seen; a state that only one judgement saw has no length that is known."""
    return f"{after}{duration_words(seconds)}" if seconds > 0 else once


def plural(number: int, noun: str) -> str:
    """Format a number of things whose plural ends with s: 1 source, 2,000 sources."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
