"""Whether ipsets hold what was put there, element by element, at a bounded cost.

The kernel says neither when a set changes nor what its contents amount to. A short set is read whole. Of a
long one the kernel is asked for some thousand elements after another: with the right number of elements it is
whole once all of them were found.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.coverage import of_ports
from fwtop.netfilter import ipset
from fwtop.rules.objects import SetSpec

SHORT = 4096  # elements of a set that is read whole, and of a longer one that are asked for in one look
PER_LOOK = 16_384  # elements in one look, over all sets: 15 ms


class Change(Struct, frozen=True):
    """How a set differs from what was put there."""

    text: str
    missing_only: bool  # nothing is in it that should not be


class SetContents:
    """The sets of all rules, as last compared; those that were not compared for longest come first."""

    def __init__(self) -> None:
        self._order: dict[str, SetSpec] = {}  # by name, longest ago first
        self._found: dict[str, Change] = {}
        self._next: dict[str, int] = {}  # element of a long set to ask for next

    def look(self, specs: Mapping[str, SetSpec], sizes: Mapping[str, int]) -> dict[str, Change]:
        """Compare as many sets as fit; return all known to differ. Raises FwtopError.

        A set with another SetSpec than last time was written again.
        """
        for name in [name for name, spec in self._order.items() if specs.get(name) is not spec]:
            del self._order[name]
            self._found.pop(name, None)
            self._next.pop(name, None)
        names = [*self._order, *(name for name in specs if name not in self._order)]
        left = PER_LOOK
        for name in names:
            spec = specs[name]
            if left <= 0 or spec.seeds is not None:
                continue
            left -= min(max(len(spec.elements), sizes.get(name, 0)), SHORT)
            self._order.pop(name, None)
            self._order[name] = spec
            change = self._compared(spec, sizes.get(name))
            if change is not None:
                self._found[name] = change
            elif self._next.get(name, 0) == 0:  # a long one is whole once all of it was found
                self._found.pop(name, None)
        return {name: change for name, change in self._found.items() if name in specs}

    def _compared(self, spec: SetSpec, size: int | None) -> Change | None:
        whole = len(spec.elements) + len(spec.exceptions)
        if size is None:
            return Change(f"set {spec.name} is gone", missing_only=False)
        if max(size, whole) <= SHORT:
            return difference(spec)
        if size != whole:
            less = size < whole
            return Change(f"set {spec.name} holds {size:,} elements instead of {whole:,}", missing_only=less)
        start = self._next.get(spec.name, 0)
        stop = min(start + SHORT, len(spec.elements))
        if not _holds(spec, start, stop):  # and there it stays
            return _other(spec)
        self._next[spec.name] = stop if stop < len(spec.elements) else 0
        return None


def is_whole(spec: SetSpec) -> bool:
    """Return whether a set that is there holds exactly its elements; raises FwtopError."""
    size = ipset.sizes_of([spec.name]).get(spec.name, 0)
    if max(size, len(spec.elements)) <= SHORT:
        return difference(spec) is None
    if size != len(spec.elements) + len(spec.exceptions):
        return False
    return _holds(spec, 0, len(spec.elements))


def difference(spec: SetSpec) -> Change | None:
    """Compare a short set with its elements; raises FwtopError."""
    wanted = _keys(spec)
    found = ipset.keys(spec.name, spec.family, ports=of_ports(spec.elements))
    if found == wanted:
        return None
    if not found <= wanted:
        return _other(spec)
    held = f"holds {len(found):,} of its {len(wanted):,} elements" if found else "is empty"
    return Change(f"set {spec.name} {held}: somebody deleted elements", missing_only=True)


def _other(spec: SetSpec) -> Change:
    return Change(f"set {spec.name} holds other elements than it should", missing_only=False)


def _keys(spec: SetSpec) -> set[bytes]:
    """Return what `ipset.keys` should find."""
    if of_ports(spec.elements):
        return {
            item.prefix.packed + item.low.to_bytes(2, "big") + bytes((item.prefix.length, item.protocol))
            for item in spec.elements.entries()
        }
    return {_key(prefix) for prefix in spec.elements} | {
        _key(item) + ipset.NOMATCH for item in spec.exceptions
    }


def _key(prefix: Prefix) -> bytes:
    return prefix.packed + bytes((prefix.length,))


def _holds(spec: SetSpec, start: int, stop: int) -> bool:
    # Imported here: a guardian without a long list needn't carry numpy.
    from fwtop.model.addresses.prefix_rows import PrefixRows

    rows = spec.elements if of_ports(spec.elements) else PrefixRows.of(spec.elements)
    return ipset.holds(spec.name, spec.family, rows, start, stop)
