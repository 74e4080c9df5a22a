"""Several named lists in one sealed memory file, beside a policy's text (docs/API.md).

For each list: the length of its name (one byte), its name, the size of what follows (8 bytes, little endian),
and its entries as in a list that goes alone (`pack_prefixes`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import SEALS, map_sealed, pack_prefixes, unpack_prefixes

_SIZE_BYTES = 8


def bundle(lists: Mapping[str, Sequence[Prefix]]) -> int:
    """Write lists into a memory file that nobody can change any more; its descriptor is the caller's."""
    descriptor = os.memfd_create("fwtop-lists", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        for name, entries in lists.items():
            own, packed = name.encode(), pack_prefixes(entries)
            file.write(bytes([len(own)]) + own + len(packed).to_bytes(_SIZE_BYTES, "little"))
            file.write(packed)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


def read_bundle(descriptor: int) -> dict[str, Sequence[Prefix]]:
    """Read a client's lists by name; raises ValueError where it is no such file."""
    mapped, found, at = map_sealed(descriptor), {}, 0
    while at < len(mapped):
        start = at + 1 + mapped[at]
        name = mapped[at + 1 : start].decode()
        end = start + _SIZE_BYTES
        at = end + int.from_bytes(mapped[start:end], "little")
        if at > len(mapped) or name in found:
            raise ValueError("not a bundle of lists")
        found[name] = unpack_prefixes(mapped[end:at])
    return found
