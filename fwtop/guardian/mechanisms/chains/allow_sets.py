"""The ipsets of the allow-list, which the first lines of our chains ask.

Anybody with root may flush or change them while rules are active. So what they hold is compared with what was
put there, each time before they are relied on.
"""

from __future__ import annotations

from collections.abc import Iterable

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.mechanisms.chains import sets
from fwtop.guardian.mechanisms.chains.sets import Contents
from fwtop.guardian.mechanisms.chains.table_raw import (
    ALLOW_SETS,
    BEHIND_SETS,
    GATEWAY_SETS,
    KNOWN_SETS,
    LOGIN_SETS,
    PEER_SETS,
)
from fwtop.guardian.mechanisms.mechanism import each
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import Passes
from fwtop.model.traffic.protocols import TCP
from fwtop.netfilter import ipset
from fwtop.netfilter.ipset import Element

_MAX_COMPARED = 4096  # elements; of longer lists only the number is compared
_TABLES = (ALLOW_SETS, PEER_SETS, LOGIN_SETS, GATEWAY_SETS, BEHIND_SETS, KNOWN_SETS)


def names_of(family: int) -> set[str]:
    """Return the names of a family's sets."""
    return {table[family] for table in _TABLES}


class AllowSets:
    """The sets of one namespace, and what each family's were filled with."""

    def __init__(self) -> None:
        self._filled: dict[int, Passes] = {}

    def fill(self, allow: AllowList, families: Iterable[int]) -> None:
        """Bring families' sets up to date where they are not; tries each before it raises FwtopError."""
        each(lambda family: self.fill_with("", allow, family), families)

    def fill_with(self, first: str, allow: AllowList, family: int) -> None:
        """Run lines of `ipset restore`, and bring a family's sets up to date in the same process.

        Raises FwtopError.
        """
        wanted = allow.passes(family)
        sizes = ipset.sizes_of(names_of(family))
        if self._filled.get(family) == wanted and not self.shortfall(family, sizes):
            ipset.restore(first)
            return
        self.forget(family)  # half done, they are filled again next time
        ipset.restore(first + _replacement(wanted))
        self._filled[family] = wanted

    def refresh(self, allow: AllowList) -> None:
        """Do the same in the families that have rules; raises FwtopError."""
        have = ipset.names()
        self.fill(allow, [family for family in ALLOW_SETS if ALLOW_SETS[family] in have])

    def shortfall(self, family: int, sizes: dict[str, int]) -> str:
        """Name a set that differs from what was put there, "" if none does or nothing was; raises FwtopError.

        `sizes` are those of the family's sets, as just read; of others they don't matter.
        """
        filled = self._filled.get(family)
        if filled is None:
            return ""
        for name, wanted in _elements(filled).items():
            size = sizes.get(name)
            if size is None:
                return f"set {name} of the allow-list is gone"
            if size != len(wanted):
                return f"set {name} of the allow-list holds {size:,} elements instead of {len(wanted):,}"
            if size <= _MAX_COMPARED and ipset.elements(name) != wanted:
                return f"set {name} of the allow-list holds other elements than it should"
        return ""

    def forget(self, family: int) -> None:
        """Take a family's sets for destroyed."""
        self._filled.pop(family, None)


def _replacement(wanted: Passes) -> str:
    family = wanted.family
    peers = [
        f"{address},{'tcp' if protocol == TCP else 'udp'}:{port}" for address, protocol, port in wanted.peers
    ]
    logins = [f"{address},tcp:{port}" for address, port in wanted.logins]
    behind = [f"{item.peer},{item.protocol}:{item.port},{item.host}" for item in wanted.behind]
    return sets.replacement(
        Contents(ALLOW_SETS[family], family, wanted.networks),
        Contents(PEER_SETS[family], family, peers, "hash:ip,port"),
        Contents(LOGIN_SETS[family], family, logins, "hash:ip,port"),
        Contents(GATEWAY_SETS[family], family, wanted.gateways, "hash:ip"),
        Contents(BEHIND_SETS[family], family, behind, "hash:ip,port,ip"),
        Contents(KNOWN_SETS[family], family, wanted.known),  # last: it leads to the others
    )


def _elements(passes: Passes) -> dict[str, set[Element]]:
    """Return the elements of each set of a family as the kernel lists them."""
    family = passes.family
    return {
        ALLOW_SETS[family]: _networks(passes.networks),
        PEER_SETS[family]: {
            Element(address.packed, 0, protocol, port) for address, protocol, port in passes.peers
        },
        LOGIN_SETS[family]: {Element(address.packed, 0, TCP, port) for address, port in passes.logins},
        GATEWAY_SETS[family]: {Element(item.packed) for item in passes.gateways},
        BEHIND_SETS[family]: {
            Element(item.peer.packed, 0, item.protocol, item.port, second=item.host.packed)
            for item in passes.behind
        },
        KNOWN_SETS[family]: _networks(passes.known),
    }


def _networks(prefixes: Iterable[Prefix]) -> set[Element]:
    return {Element(item.packed, item.length) for item in prefixes}
