"""Shares in words: never all of something when it is not, never nothing."""

import pytest

from fwtop.model.percent import percent


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0.0, 0, "0 %"), (1.0, 0, "100 %"), (1.0, 2, "100 %"), (0.87, 0, "87 %"), (0.874, 1, "87.4 %"),
        (0.994, 0, "99 %"), (0.996, 0, "99.6 %"), (0.99999, 0, ">99.9 %"), (0.99999, 2, ">99.99 %"),
        (0.004, 0, "0.4 %"), (0.0001, 0, "<0.1 %"), (0.0001, 2, "0.01 %"), (0.00001, 2, "<0.01 %"),
        (1.2, 0, "120 %"),
    ],
)  # fmt: skip
def test_share_is_never_rounded_to_all_or_nothing(share: float, digits: int, text: str) -> None:
    assert percent(share, digits) == text
