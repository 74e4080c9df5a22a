"""Numbers, shares and lengths of time as text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fwtop.render.numbers import duration, duration_words, number, percent, si
from fwtop.rules.kinds import ttl_option
from fwtop.ui.format import bits, octets


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
        (-5, "0 s", "0 s", "0 s", None), (0.2, "0 s", "0 s", "less than a second", None),
        (5, "5 s", "5 s", "5 s", "5s"), (60, "1m", "1m00s", "1 min", "1m"),
        (90, "1m30s", "1m30s", "1 min 30 s", "90s"), (7500, "2h05m", "2h05m", "2 h 5 min", "125m"),
        (7201, "2h", "2h00m", "2 h", "7201s"), (97200, "1d03h", "1d03h", "1 d 3 h", "27h"),
        (172_800, "2d", "2d00h", "2 d", "2d"),
    ],
)  # fmt: skip
def test_durations_in_every_form(
    seconds: float, short: str, fixed: str, words: str, option: str | None
) -> None:
    assert duration(seconds) == short
    assert duration(seconds, fixed_width=True) == fixed
    assert duration_words(seconds) == words
    if option is not None:
        assert ttl_option(seconds) == option


PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
AMOUNTS = st.one_of(st.floats(0, 1e12), st.integers(0, 10**12).map(float), st.floats(0, 2000))


def read(text: str) -> float:
    digits = text.removeprefix("<").rstrip("kMGTP")
    return float(digits) * PREFIXES[text.removeprefix("<").removeprefix(digits)]


@pytest.mark.parametrize(
    ("value", "short", "long"),
    [
        (0, "0", "0 bit/s"), (0.01, "<0.1", "<0.1 bit/s"), (1, "1", "1 bit/s"), (9.96, "10", "10 bit/s"),
        (999.4, "999", "999 bit/s"), (999.7, "1.00k", "1.00 kbit/s"), (9_999, "10.0k", "10.0 kbit/s"),
        (999_700, "1.00M", "1.00 Mbit/s"), (1.49e9, "1.49G", "1.49 Gbit/s"), (1e12, "1.00T", "1.00 Tbit/s"),
        (-1500, "-1.50k", "-1.50 kbit/s"),
    ],
)  # fmt: skip
def test_units_are_scaled(value: float, short: str, long: str) -> None:
    assert number(value) == short
    assert si(value, "bit/s") == bits(value) == long
    assert octets(value) == long.replace("bit/s", "B")


@given(AMOUNTS)
def test_numbers_fit_five_cells_and_keep_three_digits(value: float) -> None:
    text = number(value)
    assert len(text) <= 5
    assert len(text.strip("<kMGTP").replace(".", "")) <= 3
    assert abs(read(text) - value) <= max(0.005 * value, 0.5 if value >= 9.95 else 0.1)
    assert (read(text) == 0) == (value == 0), "something is never nothing"
    assert len(bits(value)) <= 11
    assert len(octets(value)) <= 7


@given(st.lists(AMOUNTS, min_size=2, max_size=20))
def test_greater_numbers_are_never_written_as_smaller(values: list[float]) -> None:
    shown = [read(number(value)) for value in sorted(values)]
    assert all(one <= other or one == other == 0.1 for one, other in pairwise(shown))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.sampled_from([0, 1, 2, None]))
def test_shares_fit_their_column_and_rise(shares: list[float], digits: int | None) -> None:
    texts = [percent(share, digits) for share in sorted(shares)]
    assert all(len(text) <= (8 if digits == 2 or digits is None else 7) for text in texts)
    values = [float(text.strip("<> %")) for text in texts]
    assert all(one <= other for one, other in pairwise(values))
