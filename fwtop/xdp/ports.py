"""Lists of addresses with ports: a trie whose key begins with family, protocol and port.

So one lookup finds the prefixes of a port alone. Single ports, however wide the ranges that they come from:
bpf/xdp_lists.h has the key's layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fwtop.kernel import bpf
from fwtop.xdp.conditions import Headers
from fwtop.xdp.slot_rule import ListPorts

if TYPE_CHECKING:
    from fwtop.model.addresses.port_rows import PortRows

_PORTED = (6, 17)
_HEAD_BITS = 32  # of family, protocol and port
_BATCH = 1 << 16


def build_ports(entries: PortRows) -> ListPorts:
    """Create and fill the map; raises OSError."""
    import numpy as np

    addresses, fields = entries.single.columns()
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
