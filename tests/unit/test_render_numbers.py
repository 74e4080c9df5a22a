"""Shares and lengths of time as text."""

import pytest

from fwtop.render.numbers import duration, duration_words, percent
from fwtop.rules.kinds import ttl_option


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0.0, 0, "0 %"), (1.0, 0, "100 %"), (1.0, 2, "100 %"), (0.87, 0, "87 %"), (0.874, 1, "87.4 %"),
        (0.994, 0, "99 %"), (0.996, 0, "99.6 %"), (0.99999, 0, ">99.9 %"), (0.99999, 2, ">99.99 %"),
        (0.004, 0, "0.4 %"), (0.0001, 0, "<0.1 %"), (0.0001, 2, "0.01 %"), (0.00001, 2, "<0.01 %"),
        (1.2, 0, "120 %"), (0.034, None, "3.4 %"), (0.002, None, "0.20 %"), (0.00001, None, "<0.01 %"),
    ],
)  # fmt: skip
def test_share_is_never_rounded_to_all_or_nothing(share: float, digits: int | None, text: str) -> None:
    assert percent(share, digits) == text


@pytest.mark.parametrize(
    ("seconds", "short", "fixed", "words", "option"),
    [
        (-5, "0 s", "0 s", "0 s", None), (5, "5 s", "5 s", "5 s", "5s"), (60, "1m", "1m00s", "1 min", "1m"),
        (90, "1m30s", "1m30s", "1 min 30 s", "90s"), (7500, "2h05m", "2h05m", "2 h 5 min", "125m"),
        (7201, "2h", "2h00m", "2 h", "7201s"), (97200, "1d03h", "1d03h", "1 d 3 h", "27h"),
        (172_800, "2d", "2d00h", "2 d", "2d"),
    ],
)  # fmt: skip
def test_durations_in_every_form(
    seconds: int, short: str, fixed: str, words: str, option: str | None
) -> None:
    assert duration(seconds) == short
    assert duration(seconds, fixed_width=True) == fixed
    assert duration_words(seconds) == words
    if option is not None:
        assert ttl_option(seconds) == option
