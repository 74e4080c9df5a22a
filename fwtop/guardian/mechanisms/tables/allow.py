"""The allow-list's sets in nftables tables of our own: whether they still hold what was put there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import ANY_PORT, Passes
from fwtop.netfilter import nf_tables
from fwtop.rules.nft_objects import Layout, outermost

_MAX_COMPARED = 4096  # elements; a longer set is only found emptied


def difference(layout: Layout, filled: Passes) -> str:
    """Name a set of a family that differs from what it was filled with, "" if none does.

    Raises FwtopError.
    """
    for role, wanted in _elements(filled).items():
        name = f"{role}{filled.family}"
        found = nf_tables.set_elements(layout.table, name)
        if len(wanted) > _MAX_COMPARED:
            is_whole = next(found, None) is not None
        else:
            is_whole = _bounds(set(islice(found, 2 * _MAX_COMPARED + 2))) == _bounds(wanted)
        if not is_whole:
            return f"set {name} of the allow-list in table {layout.table} was changed"
    return ""


def _elements(passes: Passes) -> dict[str, set[tuple[bytes, bool]]]:
    """Return the keys of each set; an interval has one where it begins and one behind its end."""
    peers = (
        address.packed + bytes((protocol, 0, 0, 0)) + port.to_bytes(2, "big") + bytes(2)
        for address, protocol, port in passes.peers
    )
    behind, routers = set(), set()
    for item in passes.behind:
        first, last = item.peer.packed + bytes((item.protocol, 0, 0, 0)), item.host.packed
        if item.port == ANY_PORT:
            routers.add((first + last, False))
        else:
            behind.add((first + item.port.to_bytes(2, "big") + bytes(2) + last, False))
    return {
        "allow": _intervals(passes.networks),
        "peers": {(key, False) for key in peers},
        "logins": {
            (address.packed + port.to_bytes(2, "big") + bytes(2), False) for address, port in passes.logins
        },
        "gateways": {(item.packed, False) for item in passes.gateways},
        "behind": behind,
        "routers": routers,
        "hosts": {(item.packed, False) for item in passes.known_hosts},
        "nets": _intervals(passes.known_networks),
    }


def _intervals(prefixes: Sequence[Prefix]) -> set[tuple[bytes, bool]]:
    found: set[tuple[bytes, bool]] = set()
    for item in outermost(prefixes):
        found.add((item.packed, False))
        end = item.value + (1 << item.bits - item.length)
        if not end >> item.bits:
            found.add((end.to_bytes(item.bits // 8, "big"), True))
    return found


def _bounds(keys: set[tuple[bytes, bool]]) -> set[tuple[bytes, bool]]:
    """Leave out the ends that say nothing: where the next interval begins, and at the first address."""
    starts = {key for key, is_end in keys if not is_end}
    return {(key, is_end) for key, is_end in keys if not is_end or (key not in starts and any(key))}
