"""The scope map, writable by root only: the namespace and the interfaces whose packets a console may see.

When interfaces change, the console asks the guardian, which starts a child with the map's descriptor to find
the chosen interfaces again.
"""

from __future__ import annotations

import mmap
import struct

from fwtop.kernel import namespaces
from fwtop.kernel.links import Link, list_links, watched_indexes
from fwtop.model.errors import FwtopError
from fwtop.observe.messages import BRIDGE, NO_INTERFACE, PLAIN, PORT, scope_bytes


def write(descriptor: int, watched: list[int], links: list[Link], *, bridged: bool | None = None) -> None:
    """Set the scope to this namespace and these interfaces; raises OSError.

    `bridged`: whether fwtop_bridged is attached to the ports of their bridges; None: as before.
    """
    size = -(-scope_bytes(len(watched)) // mmap.PAGESIZE) * mmap.PAGESIZE
    with mmap.mmap(descriptor, size) as scope:
        if bridged is None:
            bridged = bool(struct.unpack_from("<2I", scope)[1])
        roles = _roles(links, watched) if bridged else [PLAIN] * len(watched)
        words = (namespaces.own(), bridged, *watched, *roles)
        struct.pack_into(f"<{len(words)}I", scope, 0, *words)


def _roles(links: list[Link], watched: list[int]) -> list[int]:
    bridges = {link.index for link in links if link.kind == "bridge"}
    ports = {link.index for link in links if link.master in bridges}
    return [BRIDGE if index in bridges else PORT if index in ports else PLAIN for index in watched]


def renew(descriptor: int, chosen: list[tuple[int, str]], max_watched: int) -> None:
    """Find the chosen interfaces again, by number or else by name, and those on top of them.

    At most `max_watched` fit. Raises FwtopError, OSError.
    """
    if not 0 < max_watched < mmap.PAGESIZE // 8:
        raise FwtopError("the number of watched interfaces is out of range", 2)
    links = list_links()
    by_index, by_name = {link.index: link for link in links}, {link.name: link for link in links}
    found = [by_index.get(index) or by_name.get(name) for index, name in chosen]
    watched = watched_indexes(links, [link for link in found if link is not None])[:max_watched]
    write(descriptor, watched + [NO_INTERFACE] * (max_watched - len(watched)), links)
