"""The maps of compiled rules: those that all of a namespace share, and those of each rule and its long lists.

The shared ones, laid out as in bpf/xdp.h, are created when a console starts or a rule is installed, whichever
comes first, and are pinned in bpffs with the first rule, so that counters and deadlines outlive processes.

The loader numbers source prefixes, and the guardian reads their counters by number. A prefix within another
one has no number: its packets count for the wider one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from fwtop.kernel import bpf
from fwtop.kernel.descriptors import close_all, closing
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match, RateLimit
from fwtop.model.traffic.counters import TRAFFIC_CLASSES

if TYPE_CHECKING:
    import numpy as np


MAX_RULES = 256
RINGS = 8
CLASSES = len(TRAFFIC_CLASSES)
SLOT_BYTES = 16  # struct xdp_slot
AT_TC, COUNTS_ONLY = 1, 2  # its flags
VIEW_BYTES = 112  # struct view: scratch space
_CLASSES_AT = 48  # in struct xdp_counters, after 4 numbers of 8 bytes and 4 of 4
RULES_AT = _CLASSES_AT + 16 * CLASSES
PARSE_ERRORS_AT = 0
COUNTERS_BYTES = 64 * -(-(_CLASSES_AT + 16 * (CLASSES + MAX_RULES) + VIEW_BYTES) // 64)
# struct xdp_allow of bpf/xdp_allow.h, in words of 8 bytes: a bitmap of ports, then peers; the same for
# conversations of hosts behind
ALLOW_PORT_WORDS, ALLOW_PEERS, ALLOW_PROBES, PEER_WORDS = 1024, 8192, 16, 3
ALLOW_BEHIND, BEHIND_WORDS = 4096, 5
BEHIND_AT = ALLOW_PORT_WORDS + PEER_WORDS * ALLOW_PEERS
ALLOW_BYTES = 8 * (BEHIND_AT + ALLOW_PORT_WORDS + BEHIND_WORDS * ALLOW_BEHIND)
PENDING_BYTES = 64 * 16  # for each CPU: struct pending of bpf/xdp_lists.h
SHARED = ("counters", "control", "slots", "allow", "rings")
FOR_CONSOLE = ("counters", "control", "slots")  # read-only, except control
_RING_BYTES = 4096  # of the template for the rings in the map


def shared_sizes() -> dict[str, int]:
    """Return the value sizes of the shared arrays, in bytes, as this version makes them."""
    return {
        "counters": possible_cpus() * COUNTERS_BYTES,
        "control": 4,
        "slots": MAX_RULES * SLOT_BYTES,
        "allow": ALLOW_BYTES,
    }


def create_shared() -> dict[str, int]:
    """Create empty maps; returns descriptors by name. Raises OSError."""
    found: dict[str, int] = {}
    for name, size in shared_sizes().items():
        found[name] = bpf.create_map(
            bpf.MAP_ARRAY, _map_name(name), entries=1, key_size=4, value_size=size, flags=bpf.F_MMAPABLE
        )
    with closing(bpf.create_map(bpf.MAP_RINGBUF, "fwtop_xring", entries=_RING_BYTES)) as pattern:
        found["rings"] = bpf.create_map_of_maps(_map_name("rings"), RINGS, pattern)
    return found


def _map_name(name: str) -> str:
    return f"fwtop_x{name}"


def find_shared(directory: Path, name: str) -> int | None:
    """Find a shared map whose pin is gone through the attached programs in a directory of pins.

    Returns a new descriptor, or None if no program uses the map. Raises OSError.
    """
    for path in sorted(directory.glob("link-*")) + sorted(directory.glob("filter-*")):
        opened = [bpf.open_pin(path)]
        try:
            if path.name.startswith("link-"):
                opened.append(bpf.link_program(opened[0]))
            for number in bpf.program_maps(opened[-1]):
                found = bpf.open_map(number)
                if bpf.map_name(found) == _map_name(name):
                    return found
                os.close(found)
        except FileNotFoundError:  # a link that lost its interface
            continue
        finally:
            close_all(opened)
    return None


def console_descriptors(shared: dict[str, int]) -> dict[str, int]:
    """Return new descriptors for a console, which may read counters and set 1-in-N, nothing else."""
    return {
        name: os.dup(shared[name]) if name == "control" else bpf.read_only(shared[name])
        for name in FOR_CONSOLE
    }


def put_ring(shared: dict[str, int], slot: int, ring: int | None) -> None:
    """Sample dropped packets into a console's ring, or (None) stop that; raises OSError."""
    if slot >= RINGS:
        return
    key = slot.to_bytes(4, "little")
    if ring is not None:
        bpf.set_element(shared["rings"], key, ring.to_bytes(4, "little"))
        return
    try:
        bpf.delete_element(shared["rings"], key)
    except FileNotFoundError:
        return


def counters_dtype() -> np.dtype[Any]:
    """Return struct xdp_counters."""
    import numpy as np

    count = [("packets", "<u8"), ("bytes", "<u8")]
    return np.dtype(
        {
            "names": ["parse_errors", "lost", "left", "drawn", "classes", "rules"],
            "formats": ["<u8", "<u8", "<u4", "<u4", (count, (CLASSES,)), (count, (MAX_RULES,))],
            "offsets": [PARSE_ERRORS_AT, 8, 16, 20, _CLASSES_AT, RULES_AT],
            "itemsize": COUNTERS_BYTES,
        }
    )


def slot_dtype() -> np.dtype[Any]:
    """Return struct xdp_slot."""
    import numpy as np

    return np.dtype([("deadline", "<u8"), ("number", "<u4"), ("flags", "<u4")])


def map_array(descriptor: int, size: int, *, writable: bool) -> mmap.mmap:
    """Map a mappable array of one value of `size` bytes; raises OSError."""
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(descriptor, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.MAP_SHARED, access)


def possible_cpus() -> int:
    """Return the number of CPUs that have counters."""
    text = Path("/sys/devices/system/cpu/possible").read_text()
    return int(text.strip().split(",")[-1].split("-")[-1]) + 1


COMPILED_PREFIXES = 64  # of a rule become comparisons in the program; longer lists become maps
COUNTED_PREFIXES = 5_000_000  # longer lists have no counters by prefix: see blocks.py
BUCKETS = 65_536  # source prefixes of a rate limit at a time; 6 MiB of kernel memory


class ListMaps(Struct, frozen=True, tag=True):
    """A long list in maps: their descriptors, and what the code that looks it up must know."""

    MAPS: ClassVar[tuple[str, ...]] = ("map",)  # fields with descriptors
    SIZES: ClassVar[tuple[str, ...]] = ()  # fields that other lists have other values of, but the same code

    @property
    def descriptors(self) -> dict[str, int]:
        """The descriptors of its maps by field name."""
        return {name: getattr(self, name) for name in self.MAPS}


class List4(ListMaps, frozen=True):
    """A long IPv4 list."""

    MAPS = ("blocks", "parts", "numbers")
    SIZES = ("count", "several")
    blocks: int = 0
    parts: int = 0
    numbers: int = 0
    count: int = 0  # partly listed /24s
    several: int = 0  # those with several prefixes


class UncountedList4(ListMaps, frozen=True):
    """An IPv4 list of many millions."""

    MAPS = ("blocks", "parts", "small")
    SIZES = ("count", "small_count")
    blocks: int = 0
    parts: int = 0
    small: int = 0
    count: int = 0  # partly listed /24s with a bit for each address
    small_count: int = 0  # those in a word of 32 bits: up to four addresses, or /29s


class Table6(Struct, frozen=True):
    """The hash table of IPv6 prefixes of one length, within a List6's map."""

    length: int
    first: int  # offset of the keys, in words of 64 bits: one word for a prefix up to /64, else two
    numbers: int  # offset of the prefixes' numbers, in words of 32 bits
    bits: int  # of the hash
    most: int  # places to probe
    seeds: tuple[int, int]  # multipliers of the hash, for the high and the low half
    empty: tuple[int, int]  # the key of free places: high and low half


class List6(ListMaps, frozen=True):
    """A long IPv6 list: a map, and the tables in it."""

    map: int = 0
    tables: tuple[Table6, ...] = ()


class ListPorts(ListMaps, frozen=True):
    """A list of addresses with ports, of both families."""

    map: int = 0


# By side ("src", "dst") and family; a list with ports has the side "ports" and the family 0.
AnyList = List4 | UncountedList4 | List6 | ListPorts
Lists = Mapping[tuple[str, int], AnyList]
PORTS = ("ports", 0)


class SlotRule(Struct, frozen=True):
    """A rule to compile, and its slot.

    `lists` holds the maps of long lists; they replace the prefixes of that side and family in `match`.
    """

    slot: int
    match: Match
    lists: Lists
    limit: RateLimit | None = None
    buckets: int = 0  # the map of the limit's buckets
    at_tc: bool = False  # at tc ingress only
    counted: int = 0  # source prefixes with a counter
    hits: int = 0  # the map of these counters
    counts_only: bool = False  # what matches goes on to the other rules

    @property
    def flags(self) -> int:
        """What readers of the counters must know of it."""
        return AT_TC * self.at_tc | COUNTS_ONLY * self.counts_only


def disjoint(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """Return the prefixes that lie within no other one, in order of address."""
    found: list[Prefix] = []
    for prefix in sorted(prefixes, key=lambda item: (item.family, item.value, item.length)):
        if not (found and found[-1].contains(prefix)):
            found.append(prefix)
    return found


def numbered(sources: Sequence[Prefix], *, in_maps: bool = False) -> Callable[[int], Prefix]:
    """Return a function from a number to its prefix, which raises IndexError.

    `in_maps`: they are in maps however few they are, as those of a named list.
    """
    if len(sources) <= COMPILED_PREFIXES and not in_maps:
        return disjoint(sources).__getitem__
    from fwtop.model.addresses.prefix_rows import PrefixRows

    rows = PrefixRows.of(sources)
    places = rows.counter_rows()
    return lambda number: rows[int(places[number])]
