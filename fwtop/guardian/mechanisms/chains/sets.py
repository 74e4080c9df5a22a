"""fwtop's ipsets: filled in one batch, swapped when rebuilt, and compared with what was put there.

hash:net refuses /0 (linux/net/netfilter/ipset/ip_set_hash_net.c); `ipset restore` stops at the first
bad line, so everything is checked before it is sent.

The kernel says neither when a set changes nor what its contents amount to. A short set is read whole. Of a
long one the kernel is asked for some thousand elements after another: with the right number of elements it is
whole once all of them were found."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.guardian.mechanisms.mechanism import each
from fwtop.model.addresses.address import Prefix, of_pairs, of_ports
from fwtop.netfilter import ipset
from fwtop.rules.kind import SetSpec
from fwtop.rules.xtables import create_line, fill_text, set_line

PREFIX = "fwtop-"
_ASIDE = "-new"
NEXT = "-next"  # behind the name of a copy that lines ask while a rule is changed
_LEARNED_SECONDS = 180  # as nf_conntrack_udp_timeout_stream
_LEARNED = 65_536  # a random one makes room for a further one
_LIST = re.compile(r"fwtop-(new|list)-(.+)-[46]")
SHORT = 4096  # elements of a set that is read whole, and of a longer one that are asked for in one look
PER_LOOK = 16_384  # elements in one look, over all sets: 15 ms


def fill(spec: SetSpec, timeout_seconds: int) -> None:
    """Create and fill a rule's set, or complete an existing one; raises FwtopError."""
    if spec.timed:
        ipset.restore(fill_text(spec, timeout_seconds))
    else:
        fill_long(spec, timeout_seconds)


def fill_long(spec: SetSpec, timeout_seconds: int, serve_urgent: Callable[[], None] = lambda: None) -> None:
    """Do the same for a set without timeouts, in batches between which it calls `serve_urgent`."""
    ipset.restore(set_line(spec, timeout_seconds) + "\n")
    # Imported here: a guardian without a long list needn't carry numpy.
    from fwtop.model.addresses.prefix_rows import PrefixRows

    ipset.add_prefixes(spec.name, spec.family, PrefixRows.of(spec.elements), serve_urgent)
    ipset.restore("".join([f"add {spec.name} {prefix} nomatch\n" for prefix in spec.exceptions]))


def is_other(spec: SetSpec, before: Sequence[SetSpec]) -> bool:
    """Return whether a rule's own set is to be made anew, as the one of its name is another or not there."""
    if spec.shared or spec.seeds is not None:
        return False
    there = next((one for one in before if one.name == spec.name), None)
    return there is None or replace(there, counted=spec.counted) != spec


def counts_of(specs: Iterable[SetSpec]) -> dict[str, tuple[int, int]]:
    """Return packets and bytes by element of a rule's sets, of those that counted some."""
    own = (spec for spec in specs if spec.counted and not spec.shared)
    found = (entry for spec in own for entry in ipset.entries(spec.name))
    return {entry.text: (entry.packets, entry.bytes) for entry in found if entry.packets}


def count_on(spec: SetSpec, timeout_seconds: int, counted: Mapping[str, tuple[int, int]]) -> None:
    """Have elements of a set that was just filled go on from these counts; raises FwtopError."""
    clock = f" timeout {timeout_seconds}" if spec.timed else ""
    kept = [(str(prefix), *counts) for prefix in spec.elements if (counts := counted.get(str(prefix)))]
    lines = [f"add {spec.name} {name}{clock} packets {packets} bytes {size}" for name, packets, size in kept]
    if spec.counted and lines:
        ipset.restore("\n".join([*lines, ""]))


def learning_text(spec: SetSpec) -> str:
    """Return the lines that create a set of addresses and UDP ports, which packets fill, with its seeds."""
    head = create_line(spec.name, spec.family, _LEARNED, _LEARNED_SECONDS, "hash:ip,port")
    seeds = spec.seeds() if spec.seeds is not None else ()
    return "\n".join([f"{head} forceadd", *(f"add {spec.name} {seed}" for seed in seeds[:_LEARNED]), ""])


def switch(specs: Iterable[SetSpec], timeout_seconds: int) -> None:
    """Fill the enable sets that have elements, then empty the others, in a single system call."""
    ipset.switch_sets([(spec.name, spec.elements, timeout_seconds) for spec in specs])


def shown_text(spec: SetSpec, timeout_seconds: int, count: int) -> list[str]:
    """Return the commands for display: `count` elements, and how many more there are."""
    if spec.seeds is not None:
        return [f"ipset {learning_text(replace(spec, seeds=tuple)).strip()}"]
    if spec.shared:
        return [f"# set {spec.name} holds the list, IPv{spec.family} prefixes: {len(spec.elements):,}"]
    cut = replace(spec, elements=spec.elements[:count], exceptions=spec.exceptions[:count])
    lines = [set_line(spec, timeout_seconds), *fill_text(cut, timeout_seconds).splitlines()[1:]]
    more = len(spec.elements) + len(spec.exceptions) - (len(lines) - 1)
    shown = [f"ipset {line}" for line in lines]
    how = "ipset restore" if spec.timed else "netlink in batches"
    return [*shown, f"# … and {more:,} more elements, by {how}"] if more else shown


def renew(spec: SetSpec, timeout_seconds: int) -> None:
    """Set a new timeout for every element; expired and deleted ones are added again.

    What packets fill is seeded again only where it is empty.
    """
    if spec.seeds is not None:
        if not ipset.sizes_of([spec.name]).get(spec.name):
            ipset.restore(learning_text(spec))
    elif spec.timed:
        ipset.restore(
            fill_text(spec, timeout_seconds).partition("\n")[2]
        )  # a set's own default can't be changed
    elif ipset.sizes_of([spec.name]).get(spec.name) != len(spec.elements) + len(spec.exceptions):
        fill(spec, timeout_seconds)


def spare_others(spec: SetSpec, timeout_seconds: int) -> bool:
    """Give a set the exceptions that it should have, in one step; returns whether it had others.

    One whose elements are gone stays as it is: whoever flushed it ended its rule. Raises FwtopError.
    """
    there = ipset.elements(spec.name)
    spared = {(item.address, item.length) for item in there if item.flags}
    wanted = {(item.packed, item.length) for item in spec.exceptions}
    if spared == wanted or len(spared) == len(there):
        return False
    aside = f"{spec.name}{_ASIDE}"
    left = [f"flush {aside}", f"destroy {aside}"] if aside in names() else []
    filled = fill_text(replace(spec, name=aside), timeout_seconds)
    ipset.restore("\n".join([*left, f"{filled}swap {aside} {spec.name}", f"destroy {aside}", ""]))
    return True


def restore_missing(spec: SetSpec, timeout_seconds: int) -> None:
    """Restore a rule's set, whatever is left of it or came into it; raises FwtopError."""
    if spec.name not in names():
        if spec.seeds is not None:
            ipset.restore(learning_text(spec))
        else:
            fill(spec, timeout_seconds)
    elif spec.seeds is None and not is_whole(spec):
        aside = f"{spec.name}{_ASIDE}"
        if aside in names():
            ipset.destroy_set(aside)
        fill(replace(spec, name=aside), timeout_seconds)
        ipset.swap_sets([(aside, spec.name)])
        ipset.destroy_set(aside)
    elif spec.timed and spec.seeds is None:
        renew(spec, timeout_seconds)


def flush_of(rule_ids: set[str]) -> None:
    """Flush the sets of rules, which then match nothing, smallest first; raises FwtopError."""
    sizes = ipset.sizes_of(name for name in names() if name.split("-")[1] in rule_ids)
    for name in sorted(sizes, key=lambda name: sizes[name]):
        ipset.flush_set(name)


def destroy_lists(used: Collection[str]) -> list[str]:
    """Destroy the sets of named lists that no rule uses, and copies that were left; returns their names.

    Tries all before it raises FwtopError.
    """
    doomed = [
        name
        for name in sorted(names())
        if (ours := _LIST.fullmatch(name)) and not (ours[1] == "list" and ours[2] in used)
    ]
    each(ipset.destroy_set, doomed)
    return doomed


def names() -> set[str]:
    """Return the names of fwtop's sets in this namespace."""
    return {name for name in ipset.names() if name.startswith(PREFIX)}


class Contents(Struct, frozen=True):
    """What a set without timeouts is to hold; elements as `ipset add` reads them."""

    name: str
    family: int
    elements: Sequence[object]
    kind: str = "hash:net"


def replacement(*wanted: Contents) -> str:
    """Return the lines for `restore` that replace the contents of sets, in order.

    Each changes in one step for the kernel: build a copy, swap, destroy the old one.
    """
    have = names()
    lines: list[str] = []
    for item in wanted:
        aside = f"{item.name}{_ASIDE}"
        lines += [f"flush {aside}", f"destroy {aside}"] if aside in have else []
        # A swap gives a set the other's size as well
        made = (aside,) if item.name in have else (item.name, aside)
        lines += [create_line(name, item.family, len(item.elements), None, item.kind) for name in made]
        lines += [f"add {aside} {element}" for element in item.elements]
        lines += [f"swap {aside} {item.name}", f"destroy {aside}"]
    return "\n".join([*lines, ""])


def entry_counters(name: str, *, top: int) -> dict[str, int]:
    """Return the `top` elements that matched most, as lists write them, with packets; raises FwtopError."""
    counted = sorted(((entry.packets, entry.listed) for entry in ipset.entries(name)), reverse=True)
    return {text: packets for packets, text in counted[:top]}


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
    found = ipset.keys(spec.name, spec.family, spec.elements)
    if found == wanted:
        return None
    if not found <= wanted:
        return _other(spec)
    held = f"holds {len(found):,} of its {len(wanted):,} elements" if found else "is empty"
    return Change(f"set {spec.name} {held}: somebody deleted elements", missing_only=True)


def _other(spec: SetSpec) -> Change:
    return Change(f"set {spec.name} holds other elements than it should", missing_only=False)


def _keys(spec: SetSpec) -> set[bytes]:
    if of_ports(spec.elements):
        return {
            item.prefix.packed + item.low.to_bytes(2, "big") + bytes((item.prefix.length, item.protocol))
            for item in spec.elements.entries()
        }
    if of_pairs(spec.elements):
        return {
            item.prefix.packed + item.to.packed + bytes((item.prefix.length, item.to.length))
            for item in spec.elements.entries()
        }
    return {_key(prefix) for prefix in spec.elements} | {
        _key(item) + ipset.NOMATCH for item in spec.exceptions
    }


def _key(prefix: Prefix) -> bytes:
    return prefix.packed + bytes((prefix.length,))


def _holds(spec: SetSpec, start: int, stop: int) -> bool:
    # Imported here: a guardian without a long list needn't carry numpy.
    from fwtop.model.addresses.list_rows import rows_of

    return ipset.holds(spec.name, spec.family, rows_of(spec.elements), start, stop)
