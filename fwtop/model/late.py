"""Put off what a process rarely needs: modules, and the methods that `dataclasses` writes.

Every process that imports fwtop does both, before its first dataclass. Together they spare the start of a
screen 0.17 s of CPU time in console, guardian, launcher and loaders, a quarter of what their imports took.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

# The standard library imports these for what occurs in few processes: docstrings of dataclasses that have
# none, text without a named encoding. They would be a tenth of the guardian's memory, which is locked.
_SELDOM_USED = ("inspect", "locale")
_MAKER = (
    "_create_fn"  # of dataclasses in Python 3.11 and 3.12; later ones compile all methods of a class at once
)


def put_off() -> None:
    """Load some modules, and compile methods of dataclasses that are made from now on, when they are used."""
    for name in _SELDOM_USED:
        if name not in sys.modules:
            import_at_first_use(name)
    import dataclasses  # now: it imports inspect

    make = vars(dataclasses).get(_MAKER)
    if make is not None:
        vars(dataclasses)[_MAKER] = _late(make)


def import_at_first_use(name: str) -> None:
    """Register a stand-in that loads the module when somebody reads an attribute of it (PEP 562).

    importlib.util.LazyLoader would load it with the second `import` statement.
    """
    stand_in = ModuleType(name)

    def load(attribute: str) -> object:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
        loaded = importlib.import_module(name)
        stand_in.__dict__.update(loaded.__dict__)
        return getattr(loaded, attribute)

    stand_in.__dict__["__getattr__"] = load
    sys.modules[name] = stand_in


def _late(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return `make` with its result replaced by a method that makes it at its first call, and hands over.

    `dataclasses` writes the text of up to six methods a class and compiles each. A console has 350 such
    classes and calls few of these methods: compiling them was a fifth of the CPU time of its imports and of
    the guardian's. `__init__` is compiled at once all the same: others read its signature.
    """

    def later(name: str, args: Sequence[str], body: Sequence[str], **scope: object) -> Callable[..., Any]:
        if name == "__init__":
            return make(name, args, body, **scope)  # type: ignore[no-any-return]
        made: Callable[..., Any] | None = None

        def method(instance: object, /, *values: object) -> object:
            nonlocal made
            if made is None:
                made = make(name, args, body, **scope)
                made.__qualname__ = method.__qualname__
                for owner in type(instance).__mro__:
                    if owner.__dict__.get(name) is method:
                        setattr(owner, name, made)
            return made(instance, *values)

        method.__name__ = name
        return method

    return later
