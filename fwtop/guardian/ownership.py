"""Objects that belong to one thread: each public method asserts that this thread calls it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Concatenate, ParamSpec, TypeVar

_T = TypeVar("_T")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_OWNER = "_owner_thread"


class WrongThreadError(AssertionError):
    """A thread used what belongs to another one."""


def single_threaded(cls: type[_T]) -> type[_T]:
    """Have the public methods of a class check the calling thread, once `claim` was called."""
    for name, item in list(vars(cls).items()):
        if isinstance(item, FunctionType) and not name.startswith("_"):
            setattr(cls, name, _checked(item))
        elif isinstance(item, property) and item.fget is not None and not name.startswith("_"):
            setattr(cls, name, property(_checked(item.fget), item.fset, item.fdel, item.__doc__))
    return cls


def claim(*items: object) -> None:
    """Make the calling thread the owner of objects."""
    for item in items:
        setattr(item, _OWNER, threading.get_ident())


def release(*items: object) -> None:
    """Let any thread use objects again."""
    for item in items:
        setattr(item, _OWNER, None)


def _checked(function: Callable[Concatenate[_T, _P], _R]) -> Callable[Concatenate[_T, _P], _R]:
    @wraps(function)
    def call(self: _T, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        owner = getattr(self, _OWNER, None)
        if owner is not None and owner != threading.get_ident():
            thread = threading.current_thread().name
            raise WrongThreadError(f"{type(self).__name__}.{function.__name__} called by thread {thread}")
        return function(self, *args, **kwargs)

    return call  # type: ignore[return-value]
