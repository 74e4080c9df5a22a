"""The entry of the guardian's process: `python -I -m fwtop.guardian [--netns NAME | --netns-fd N]`."""

import importlib
import signal
import sys
from types import ModuleType

# The standard library imports these for what doesn't occur here: docstrings of dataclasses that have none,
# text without a named encoding. They would be a tenth of the guardian's memory, which is locked.
_UNUSED = ("inspect", "locale")


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


def prepare() -> None:
    """Set the process up before the guardian's own modules are imported."""
    for name in _UNUSED:
        _import_at_first_use(name)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


if __name__ == "__main__":
    prepare()
    from fwtop.guardian.main import main

    sys.exit(main())
