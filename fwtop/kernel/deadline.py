"""Time limits of programs: their own, or what is left of the request that runs them.

Deadlines are nested: a program's is before the worker's, and that before the client's, so that whoever
times out can still report what was left untouched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

RESERVE_SECONDS = 5.0  # to roll back and to answer
_LEAST_SECONDS = 0.5
_end: ContextVar[float | None] = ContextVar("end", default=None)

_P = ParamSpec("_P")
_R = TypeVar("_R")


@contextmanager
def until(end: float | None) -> Iterator[None]:
    """Limit programs to RESERVE_SECONDS before `end` (CLOCK_MONOTONIC); None: to their own limits."""
    token = _end.set(end)
    try:
        yield
    finally:
        _end.reset(token)


def limited(seconds: float) -> float:
    """Return how long a program may run whose own limit is `seconds`."""
    end = _end.get()
    if end is None:
        return seconds
    return max(_LEAST_SECONDS, min(seconds, end - RESERVE_SECONDS - time.monotonic()))


def unlimited(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Exempt a function from the deadline: removing a rule is completed however late it is."""

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with until(None):
            return function(*args, **kwargs)

    return run
