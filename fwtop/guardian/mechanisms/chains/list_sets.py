"""The ipsets of named lists, one for each family, which the lines of many rules share.

A small change goes into the set in one system call. For a large one, and where the set is full or much too
large for what is left, a copy is built aside and swapped in; what stays keeps its counters either way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec import Struct

from fwtop.guardian.mechanisms.chains import sets
from fwtop.guardian.mechanisms.chains.sets import is_whole
from fwtop.model.addresses.keyed_rows import KeyedRows
from fwtop.model.addresses.list_rows import Rows, parse_entries, positions, rows_of, texts_of
from fwtop.model.errors import FwtopError
from fwtop.netfilter import ipset
from fwtop.netfilter.ipset import Edit, Header
from fwtop.rules.kind import SetSpec
from fwtop.rules.xtables import COUNTED_ELEMENTS, list_set_name

_FAMILIES = (4, 6)
_MOST_EDITED = 4096  # elements of one call; the kernel holds the set for as long as it takes
_LEAST_ROOM = 65_536
_SHRINK_ABOVE = 4096  # elements: smaller sets are not worth it
_SHRINK_TO = 4  # rebuild a set that held so many times more


class ListDelta(Struct, frozen=True):
    """A list before and after a change, and what differs."""

    name: str
    before: Rows
    after: Rows
    added: Rows
    removed: Rows


class Prepared:
    """A change that can be made, and unmade as long as it was not concluded."""

    def __init__(self, edits: list[Edit], asides: dict[str, str], peaks: dict[str, int]) -> None:
        self._edits = edits
        self._asides = asides  # the copy of each set
        self._peaks = peaks  # those of the copies; to be forgotten with them
        self._edited = self._swapped = False

    def commit(self) -> None:
        """Make the change; raises FwtopError, and `revert` unmakes what was done of it."""
        if self._edits:
            self._edited = True
            ipset.change_sets(self._edits)
        if self._asides:
            ipset.swap_sets(list(self._asides.items()))
            self._swapped = True

    def revert(self) -> None:
        """Unmake the change, as far as it was made, and drop what was built; raises FwtopError."""
        if self._swapped:
            ipset.swap_sets(list(self._asides.items()))
        if self._edited:
            ipset.change_sets([Edit(one.name, one.family, one.removed, one.added) for one in self._edits])
        for name in self._asides:
            self._peaks.pop(name, None)
        self.conclude()

    def conclude(self) -> None:
        """Drop what is not needed any more: the old contents, or copies that were not swapped in."""
        for aside in self._asides.values():
            ipset.destroy_set(aside)


class ListSets:
    """The sets of one namespace."""

    def __init__(self, serve_urgent: Callable[[], None] = lambda: None) -> None:
        """Take what is to be called between the batches of a long list."""
        self._serve_urgent = serve_urgent
        self._peaks: dict[str, int] = {}  # by set: the most elements that it held since it was built

    def ensure(self, spec: SetSpec, *, by_contents: bool = False) -> None:
        """Create and fill a list's set unless it is there, and as large as it should be; raises FwtopError.

        `by_contents`: and holds what it should.
        """
        size = ipset.sizes_of([spec.name]).get(spec.name)
        if size == len(spec.elements) and (not by_contents or is_whole(spec)):
            return
        rows = rows_of(spec.elements)
        if size is None:
            self._build(spec.name, spec.name, spec.family, rows)
            return
        aside = self._build_aside(spec.name, spec.family, rows)
        self._put_in({spec.name: aside})

    def prepare(self, delta: ListDelta) -> Prepared:
        """Build what a change of a list needs, where no packet sees it; raises FwtopError."""
        have = {header.name: header for header in ipset.headers()}
        edits: list[Edit] = []
        asides: dict[str, str] = {}
        few = len(delta.added) + len(delta.removed) <= _MOST_EDITED
        try:
            for family in _FAMILIES:
                name, after = list_set_name(delta.name, family), delta.after.of_family(family)
                added, removed = delta.added.of_family(family), delta.removed.of_family(family)
                if name not in have or not (len(added) or len(removed)):
                    continue
                if few and self._fits(have[name], delta.before.count(family) + len(added), len(after)):
                    edits.append(Edit(name, family, added, removed))
                else:
                    asides[name] = self._build_aside(name, family, after)
        except Exception:
            Prepared([], asides, self._peaks).revert()
            raise
        return Prepared(edits, asides, self._peaks)

    def rebuild(self, name: str, rows: Rows) -> None:
        """Put exactly these prefixes into a list's sets, whatever is in them; raises FwtopError."""
        have = sets.names()
        wanted = {family: list_set_name(name, family) for family in _FAMILIES}
        asides = {
            target: self._build_aside(target, family, rows.of_family(family))
            for family, target in wanted.items()
            if target in have
        }
        self._put_in(asides)

    def _put_in(self, asides: dict[str, str]) -> None:
        prepared = Prepared([], asides, self._peaks)
        prepared.commit()
        prepared.conclude()

    def tidy(self, used: Collection[str]) -> None:
        """Destroy the sets of lists that no rule uses, and copies that were left; raises FwtopError."""
        for name in sets.destroy_lists(used):
            self._peaks.pop(name, None)

    def bytes_of(self, name: str) -> int:
        """Return the kernel memory that a list's sets take; 0 where it has none. Raises FwtopError."""
        headers = (ipset.header(list_set_name(name, family)) for family in _FAMILIES)
        return sum(found.memory for found in headers if found is not None)

    def _fits(self, header: Header, most: int, after: int) -> bool:
        """Return whether a set can hold so many, and is not much too large for those `after` the change.

        Most are in it when all additions are made and no removal yet.
        """
        if most > (header.size or 0):
            return False
        peak = self._peaks[header.name] = max(self._peaks.get(header.name, header.entries), most)
        return peak <= _SHRINK_ABOVE or after * _SHRINK_TO > peak

    def _build_aside(self, name: str, family: int, rows: Rows) -> str:
        """Build a copy with these prefixes and the counters of those that are in the set now."""
        aside = name.replace("fwtop-list-", "fwtop-new-", 1)
        ipset.destroy_set(aside)  # a guardian died over it
        try:
            self._build(aside, name, family, rows)
            self._copy_counters(name, aside, rows)
        except Exception:
            ipset.destroy_set(aside)
            self._peaks.pop(name, None)
            raise
        return aside

    def _build(self, name: str, target: str, family: int, rows: Rows) -> None:
        room = max(_LEAST_ROOM, 2 * len(rows))
        hash_size = 1 << max(6, (len(rows) - 1).bit_length() - 1)
        inet, counters = (
            "inet" if family == 4 else "inet6",
            " counters" if len(rows) <= COUNTED_ELEMENTS else "",
        )
        kind = rows.set_type if isinstance(rows, KeyedRows) else "hash:net"
        head = f"create {name} {kind} family {inet} hashsize {hash_size} maxelem {room}{counters}\n"
        try:
            ipset.restore(head)
        except FwtopError as error:
            if "set type not supported" not in str(error):
                raise
            line = f"this kernel has no ipsets of type {kind}: use --via nftables; nothing was installed"
            raise FwtopError(line) from None
        try:
            ipset.add_prefixes(name, family, rows.of_family(family), self._serve_urgent)
        except Exception:
            ipset.destroy_set(name)
            raise
        self._peaks[target] = len(rows)

    def _copy_counters(self, name: str, aside: str, rows: Rows) -> None:
        headers = [ipset.header(one) for one in (name, aside)]
        if not all(found is not None and found.counted for found in headers):
            return
        found = [entry for entry in ipset.entries(name) if entry.packets]
        lines = [
            f"add {aside} {entry.text} packets {entry.packets} bytes {entry.bytes}\n"
            for entry, stays in zip(found, _are_in(rows, found), strict=True)
            if stays
        ]
        ipset.restore("".join(lines))


def _are_in(rows: Rows, found: list[ipset.Entry]) -> list[bool]:
    wanted = rows_of(parse_entries(entry.listed for entry in found))
    at = positions(rows, wanted)
    kept = {text for text, place in zip(texts_of(wanted), at, strict=True) if place >= 0}
    return [entry.listed in kept for entry in found]
