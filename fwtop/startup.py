"""What every process of fwtop does before it imports the rest, so that importing costs less."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

_Method = Callable[..., object]
# The standard library imports these for what doesn't occur here: docstrings of dataclasses that have none,
# text without a named encoding. They would be a tenth of the guardian's memory, which is locked.
_UNUSED = ("inspect", "locale")


def prepare() -> None:
    """Make the imports that follow cheaper; to be called before any other of fwtop's modules is imported."""
    if "dataclasses" in sys.modules:  # too late, or done already
        return
    for name in _UNUSED:
        _import_at_first_use(name)
    # From Python 3.13 on, dataclasses asks it for every class, which would load it, and ast with it
    sys.modules["inspect"].__dict__["get_annotations"] = _annotations
    compile_methods_at_first_call()


def _import_at_first_use(name: str) -> None:
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


def _annotations(of: type) -> dict[str, object]:
    """Return a class's own annotations, as inspect.get_annotations does where it evaluates nothing."""
    return dict(vars(of).get("__annotations__", {}))


def compile_methods_at_first_call() -> None:
    """Make dataclasses compile the methods that they generate when these are first called.

    They compile five or six for each class when it is defined, 1,800 for the console's 340 classes. That was
    a third of the CPU time of its imports, which call 32 of them.
    """
    import dataclasses  # looks for `inspect`

    compile_method: Callable[..., _Method] | None = getattr(dataclasses, "_create_fn", None)
    if compile_method is None:  # Python 3.13 has no such function: it compiles a class's methods all together
        return

    def create(name: str, *text: object, **variables: object) -> _Method:
        compiled: _Method | None = None

        def method(self: object, /, *arguments: object, **named: object) -> object:
            nonlocal compiled
            if compiled is None:
                compiled = compile_method(name, *text, **variables)
                compiled.__qualname__ = method.__qualname__  # what errors call it
                for owner in type(self).__mro__:
                    if vars(owner).get(name) is method:
                        setattr(owner, name, compiled)
            return compiled(self, *arguments, **named)

        method.__name__ = name
        return method

    dataclasses._create_fn = create  # type: ignore[attr-defined]
