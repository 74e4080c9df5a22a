"""The sets of named lists in nftables tables of our own: changed in one transaction, counters kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.netfilter import nft
from fwtop.rules.nft_objects import Layout

_MOST_DELETED = 8  # elements: each takes nft 60 ms in a set of 10,000, filling the set anew 0.9 s in all


class SetEdit(Struct, frozen=True):
    """A set, and the elements in it before and after a change, none within another."""

    name: str
    before: frozenset[Prefix] | frozenset[str]
    after: frozenset[Prefix] | frozenset[str]


class NftListChange:
    """A change of a named list's sets, which can be unmade."""

    def __init__(
        self, layout: Layout, edits: Iterable[SetEdit], apply: Callable[[list[SetEdit], list[str]], None]
    ) -> None:
        """Take what differs; `apply` runs commands as one transaction, and raises FwtopError."""
        self._layout = layout
        self._edits = [edit for edit in edits if edit.before != edit.after]
        self._apply = apply
        self._is_made = False

    def commit(self) -> None:
        """Make the change; raises FwtopError, and nothing is changed then."""
        self._carry_out(self._edits)
        self._is_made = True

    def revert(self) -> None:
        """Unmake the change if it was made; raises FwtopError."""
        if self._is_made:
            self._carry_out([SetEdit(edit.name, edit.after, edit.before) for edit in self._edits])

    def conclude(self) -> None:
        """Do nothing: the kernel keeps no copies."""

    def _carry_out(self, edits: list[SetEdit]) -> None:
        self._apply(edits, [line for edit in edits for line in _change_lines(self._layout, edit)])


def _change_lines(layout: Layout, edit: SetEdit) -> list[str]:
    """Return the commands of a change: what goes may overlap what comes, so it goes first."""
    gone = edit.before - edit.after
    if len(gone) > _MOST_DELETED:
        return refill_lines(layout, edit)
    return [
        *_element_lines("delete", layout, edit.name, sorted(map(str, gone))),
        *_element_lines("add", layout, edit.name, sorted(map(str, edit.after - edit.before))),
    ]


def refill_lines(layout: Layout, edit: SetEdit) -> list[str]:
    """Return the commands that fill a set anew; what stays starts with its counters. Raises FwtopError."""
    counts = element_counts(layout, edit.name)
    elements = []
    for text in sorted(map(str, edit.after)):
        packets, size = counts.get(text, (0, 0))
        elements.append(f"{text} counter packets {packets} bytes {size}" if packets else text)
    return [f"flush set {layout.table} {edit.name}", *_element_lines("add", layout, edit.name, elements)]


def element_counts(layout: Layout, name: str) -> dict[str, tuple[int, int]]:
    """Return packets and bytes of each element of a counted set; raises FwtopError."""
    elements = [item["elem"] for item in nft.elements(layout.table, name)]
    return {
        _element(item["val"]): (int(item["counter"]["packets"]), int(item["counter"]["bytes"]))
        for item in elements
    }


def _element(value: str | int | dict[str, Any]) -> str:
    if isinstance(value, dict) and "concat" in value:
        return " . ".join(map(_element, value["concat"]))
    if isinstance(value, dict):
        return f"{value['prefix']['addr']}/{value['prefix']['len']}"
    return str(value)


def _element_lines(verb: str, layout: Layout, name: str, elements: Sequence[str]) -> list[str]:
    return [f"{verb} element {layout.table} {name} {{ {', '.join(elements)} }}"] if elements else []
