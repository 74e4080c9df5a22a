"""Long lists of prefixes as maps with constant lookup cost, however long they are.

IPv4 prefixes become a table of two bits for every /24 (4 MiB: nothing, everything or a part of it is listed)
and, for partly listed /24s, 256 bits each, found by rank (2 MiB hold the number of such /24s before each word
of the table). For unlisted sources, most lookups take one load of the table; none takes more than three. An
LPM trie would walk up to 24 nodes. IPv6: see ipv6_lists.py. Many millions of IPv4 prefixes: see blocks.py.
A list of addresses with ports is a trie whose key begins with family, protocol and port (bpf/xdp_lists.h), so
one lookup finds the prefixes of a port alone; ranges come as single ports.

Each prefix has a counter of dropped packets, which is touched only when a packet is dropped. It is found by
the prefix's number, which is a rank, too: of the /24 in which the prefix begins, or of its first address
within it.

Lookups in 1,000,000 prefixes of mixed lengths, in nanoseconds a packet more than the same program without:
for one unlisted source, for random ones (all cache misses), for IPv6 sources near listed ones (in the same
/32s), and for listed ones; scripts/measure_lists.py on 2 cores of an AMD EPYC, Linux 6.18. Memory is that of
the list and of its counters:

| IPv4              | one | random |        | listed | MiB      | seconds to fill |
|-------------------|-----|--------|--------|--------|----------|-----------------|
| LPM trie          | 178 |  1,600 |        |  1,700 | 30       |             1.6 |
| a hash, by length | 246 |    940 |        |  1,000 | 80       |             0.9 |
| table, by rank    |   4 |     60 |        |     91 | 19       |                 |
| the same, counted |   4 |    102 |        |    222 | 24 + 7   |             0.4 |
| **IPv6**          |     |        | **near** |      |          |                 |
| LPM trie          | 141 |    332 |  1,600 |  1,700 | 41       |             1.2 |
| a hash, by length | 238 |  1,170 |  1,000 |    900 | 96       |             0.6 |
| own hash, filter  |   7 |     31 |    208 |    145 | 37       |                 |
| the same, counted |   7 |     57 |    409 |    470 | 37 + 8   |             0.4 |

(Of the random IPv4 sources one in eight is listed, and is counted.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fwtop.kernel import bpf
from fwtop.kernel.descriptors import close_all
from fwtop.model.rule import Match, families_of
from fwtop.xdp.conditions import Headers
from fwtop.xdp.ipv6_lists import build_list6
from fwtop.xdp.maps import (
    BUCKETS,
    COUNTED_PREFIXES,
    PENDING_BYTES,
    PORTS,
    AnyList,
    List4,
    List6,
    ListPorts,
    Lists,
    possible_cpus,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fwtop.model.addresses.port_rows import PortRows
    from fwtop.model.addresses.prefix_rows import PrefixRows


_ALL_FIRST, _PART, _ALL_NEXT = 1, 2, 3  # of a /24, as in bpf/xdp_lists.h


def build_lists(match: Match, limit: int, families: Sequence[int] = ()) -> tuple[Lists, int]:
    """Create and fill maps for each side and family with more than `limit` prefixes; raises OSError.

    Sources of `families` get them even if there are none. Also returns how many source prefixes have a
    number: none of more than COUNTED_PREFIXES, and none with ports.
    """
    from fwtop.model.addresses.port_rows import PortRows
    from fwtop.model.addresses.prefix_rows import PrefixRows
    from fwtop.xdp.blocks import build_uncounted4, create_array

    if isinstance(match.sources, PortRows):
        ports: Lists = {PORTS: build_ports(match.sources)}
        _freeze(ports)
        return ports, 0
    found: dict[tuple[str, int], AnyList] = {}
    numbers = 0
    try:
        for side, prefixes in (("dst", match.destinations), ("src", match.sources)):
            rows = PrefixRows.of(prefixes)
            counted = rows.counter_rows() if len(rows) <= COUNTED_PREFIXES else None
            numbers = len(counted) if counted is not None else 0
            for family in families_of(prefixes) | (set(families) if side == "src" else set()):
                mine = rows.of_family(family)
                if len(mine) <= limit and not (side == "src" and family in families):
                    continue
                if family == 4:
                    found[side, family] = (
                        _build4(mine, counted) if counted is not None else build_uncounted4(mine)
                    )
                else:
                    pieces, tables = build_list6(mine, max(numbers - len(mine), 0))
                    found[side, family] = List6(create_array("fwtop_list6", *pieces), tables)
        _freeze(found)
    except OSError:
        close_lists(found)
        raise
    return found, numbers


def _freeze(lists: Lists) -> None:
    """Make lists unchangeable, so that what a rule has on its list needn't be compared again and again."""
    for maps in lists.values():
        for descriptor in maps.descriptors.values():
            bpf.freeze(descriptor)


def create_buckets() -> int:
    """Create the map for a limit's buckets; a new bucket evicts the least recently used one."""
    return bpf.create_map(bpf.MAP_LRU_HASH, "fwtop_buckets", entries=BUCKETS, key_size=24, value_size=8)


def create_hits(counted: int) -> int:
    """Create the map of counters: first those pending on each CPU (bpf/xdp_lists.h), then one a prefix."""
    size = possible_cpus() * PENDING_BYTES + 8 * counted
    return bpf.create_map(
        bpf.MAP_ARRAY, "fwtop_hits", entries=1, key_size=4, value_size=size, flags=bpf.F_MMAPABLE
    )


def close_lists(lists: Lists) -> None:
    """Close the maps of lists; those in use by a program or a pin live on."""
    for maps in lists.values():
        close_all(maps.descriptors.values())


def _build4(prefixes: PrefixRows, counted: NDArray[np.int32]) -> List4:
    """Create and fill the maps of IPv4 prefixes; `counted` is PrefixRows.counted of them."""
    import numpy as np

    from fwtop.xdp.blocks import (
        BLOCKS,
        BLOCKS_A_WORD,
        PART_BYTES,
        Parts,
        create_array,
        fill_spans,
        packed,
    )

    value, length = prefixes.columns4()
    counted = counted[counted < len(prefixes)]
    value, length = value[counted], length[counted]
    wholes = int(np.count_nonzero(length <= 24))
    state = np.zeros(BLOCKS, np.uint8)
    first = (value[:wholes] >> 8).astype(np.uint32)
    fill_spans(state, first, 24 - length[:wholes].astype(np.int64), _ALL_NEXT)
    state[first] = _ALL_FIRST
    parts = Parts(value[wholes:], length[wholes:])
    state[parts.blocks] = _PART
    words = np.arange(0, BLOCKS, BLOCKS_A_WORD, dtype=np.uint32)
    ranks = [np.searchsorted(blocks, words).astype(np.uint32) for blocks in (parts.blocks, first)]
    numbers = (ranks[1], parts.numbers(wholes), parts.begins())
    count = max(len(parts.blocks), 1)
    return List4(
        create_array("fwtop_blocks", packed(state), ranks[0]),
        create_array("fwtop_parts", parts.listed(), size=count * PART_BYTES),
        create_array("fwtop_numbers", *numbers, size=4 * len(words) + 8 * count + numbers[2].nbytes),
        count,
        int(np.count_nonzero(parts.several)),
    )


_PORTED = (6, 17)
_HEAD_BITS = 32  # of family, protocol and port
_BATCH = 1 << 16


def build_ports(entries: PortRows) -> ListPorts:
    """Create and fill the map; raises OSError."""
    import numpy as np

    entries = entries.single
    addresses, fields = entries.bytes_of("address"), entries.rows
    key = np.dtype(
        [("bits", "=u4"), ("family", "u1"), ("protocol", "u1"), ("port", ">u2"), ("address", "u1", 16)]
    )
    keys = np.zeros(len(fields), key)
    four = fields["family"] == 4
    keys["bits"] = fields["length"].astype(np.uint32) + _HEAD_BITS
    keys["family"], keys["protocol"], keys["port"] = fields["family"], fields["protocol"], fields["low"]
    keys["address"] = addresses
    keys["address"][four, :4], keys["address"][four, 4:] = addresses[four, 12:], 0
    descriptor = bpf.create_map(
        bpf.MAP_LPM_TRIE,
        "fwtop_ports",
        entries=max(len(keys), 1),
        key_size=key.itemsize,
        value_size=1,
        flags=bpf.F_NO_PREALLOC,
    )
    for start in range(0, len(keys), _BATCH):
        part = keys[start : start + _BATCH]
        bpf.set_elements(descriptor, part.tobytes(), bytes(len(part)), len(part))
    return ListPorts(descriptor)


def ports_function(headers: Headers, name: str, maps: ListPorts) -> list[str]:
    """Write the function that looks source and port of a packet up; nothing if such packets have no port."""
    if headers.protocol and headers.protocol not in _PORTED:
        return []
    high, low = headers.address("src")
    lines = [f"INLINE u32 {headers.name}_{name}({headers.parameter})", "{"]
    if not headers.protocol:
        either = " && ".join(f"p->protocol != {number}" for number in _PORTED)
        lines += [f"\tif (({either}) || p->fragment == LATER_FRAGMENT)", "\t\treturn 0;"]
    family, protocol = headers.family or "p->family", headers.protocol or "p->protocol"
    lines.append(
        f"\treturn in_ports(MAP({maps.map}), {family}, {protocol}, {headers.field('dport')}, {high}, {low});"
    )
    return [*lines, "}", ""]
