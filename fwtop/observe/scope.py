"""The scope map, writable by root only: the namespace and the interfaces whose packets a console may see.

When interfaces change, the console asks the guardian, which starts a child with the map's descriptor to find
the chosen interfaces again.
"""

from __future__ import annotations

import mmap
import os
import struct

from fwtop.kernel.links import list_links, watched_indexes
from fwtop.model.errors import FwtopError
from fwtop.observe.layout import NO_INTERFACE, SCOPE_WORDS


def write(descriptor: int, watched: list[int]) -> None:
    """Set the scope to this namespace and these interfaces; raises OSError."""
    size = 4 * (SCOPE_WORDS + len(watched))
    with mmap.mmap(descriptor, _pages(size)) as scope:
        struct.pack_into(
            f"<{SCOPE_WORDS + len(watched)}I", scope, 0, os.stat("/proc/self/ns/net").st_ino, *watched
        )


def renew(descriptor: int, chosen: list[tuple[int, str]], max_watched: int) -> None:
    """Find the chosen interfaces again, by number or else by name, and those on top of them.

    At most `max_watched` fit. Raises FwtopError, OSError.
    """
    if not 0 < max_watched < mmap.PAGESIZE // 4:
        raise FwtopError("the number of watched interfaces is out of range", 2)
    links = list_links()
    by_index, by_name = {link.index: link for link in links}, {link.name: link for link in links}
    found = [by_index.get(index) or by_name.get(name) for index, name in chosen]
    watched = watched_indexes(links, [link for link in found if link is not None])[:max_watched]
    write(descriptor, watched + [NO_INTERFACE] * (max_watched - len(watched)))


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
