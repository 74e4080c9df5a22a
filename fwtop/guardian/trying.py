"""Work on several things of which each is to be tried whatever the others say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from fwtop.model.errors import FwtopError

_T = TypeVar("_T")


def each(work: Callable[[_T], object], items: Iterable[_T]) -> None:
    """Work on each item; raises FwtopError afterwards, with what was said of all that failed."""
    errors: list[FwtopError] = []
    for item in items:
        try:
            work(item)
        except Exception as error:
            errors.append(FwtopError.of(error))
    if errors:
        raise FwtopError("; ".join(dict.fromkeys(map(str, errors))), errors[0].code)
