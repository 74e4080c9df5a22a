"""Rules as `fwtop` command lines."""

from __future__ import annotations

import shlex

from fwtop.model.rule import Rule
from fwtop.rules.kinds import of

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_MAX_SOURCES = 32  # more would make the line unreadable


def command_line(rule: Rule, *, max_sources: int | None = _MAX_SOURCES) -> str | None:
    """Return the shell command that installs a rule; None if no command can, or it has too many sources.

    The line is always printable.
    """
    match = rule.match
    if max_sources is not None and rule.origin is None and len(match.sources) > max_sources:
        return None
    words = of(rule.kind).words(rule) if match.fragment is not False else None
    if words is None:
        return None
    line = shlex.join(["fwtop", *words, "--ttl", ttl_option(rule.ttl_seconds)])
    return line if line.isprintable() else None


def ttl_option(seconds: int) -> str:
    """Format a time to live as `--ttl` takes it, exactly: 90s, 10m, 2h, 1d."""
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    return f"{seconds // size}{unit}"
