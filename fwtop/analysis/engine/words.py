"""Sentences from templates: `{senders}`, `{amount:SYNs}`, `{completed:percent}`, `{ports:count}`.

A name is a note of the group, one of the words below, or a feature. Formats besides Python's: `percent`,
`percent1` with one decimal, `count` with thousands separators, and for `amount` what is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fwtop.analysis.engine.group import FEATURES, Group
from fwtop.render.numbers import percent


class _Number(float):
    """A feature as sentences write it."""

    def __format__(self, spec: str) -> str:
        if spec.startswith("percent"):
            return percent(self, int(spec[7:] or 0))
        return format(float(self), ",.0f" if spec == "count" else spec)


class _Amount:
    """The packets of the group with the length of the window."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __format__(self, spec: str) -> str:
        return self._group.packets.amount(spec)


class _Words(Mapping[str, object]):
    def __init__(self, group: Group) -> None:
        self._group = group

    def __getitem__(self, name: str) -> object:
        group = self._group
        if name in group.notes:
            value = group.notes[name]
            return _Number(value) if isinstance(value, int | float) else value
        if name == "amount":
            return _Amount(group)
        if name == "senders":
            return group.packets.senders
        return _Number(group[FEATURES[name]])

    def __iter__(self) -> Iterator[str]:
        return iter((*self._group.notes, *FEATURES, "amount", "senders"))

    def __len__(self) -> int:
        return len(self._group.notes) + len(FEATURES) + 2


def said(template: str, group: Group) -> str:
    """Fill a template with what was measured."""
    return template.format_map(_Words(group)) if "{" in template else template
