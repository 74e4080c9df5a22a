"""Every rule and set on the machine, whoever made it: as read at one moment, and what changed."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

NOTIFIED, COMPARED = "notified", "compared"  # by the kernel at once; found by comparing two readings
OURS, OTHERS = "fwtop", "other"
IPTABLES_LEGACY, IPTABLES_NFT, NFT = "iptables-legacy", "iptables-nft", "nft"
IPSET, TC, XDP, ROUTE = "ipset", "tc", "xdp", "route"
# Of rules, in the order that packets meet them
SOURCES = (XDP, TC, IPTABLES_LEGACY, IPTABLES_NFT, NFT, ROUTE)
NEARLY_FULL = 0.9  # of a set's size


class ListedRule(Struct, frozen=True):
    """A rule, a chain's policy, a program or a route that discards packets. Its texts are sanitised."""

    key: str  # identifies it as long as it exists
    source: str  # one of SOURCES
    family: str  # ip, ip6, inet, netdev, arp, bridge; "" where there is none
    place: str  # table and chain, or interface and hook
    text: str
    ours: bool  # fwtop's
    packets: int | None = None  # since it exists; None: not counted
    bytes: int | None = None


class ListedSet(Struct, frozen=True):
    """A set of ipset or nft. Its texts are sanitised."""

    key: str
    source: str  # IPSET or NFT
    family: str
    name: str  # in nft with its table
    type: str
    ours: bool
    entries: int | None  # None: not counted
    size: int | None  # how many it may hold; None: as many as there is memory for

    @property
    def fill(self) -> float | None:
        """The share of its size in use, None where it has none."""
        return self.entries / self.size if self.size and self.entries is not None else None

    @property
    def nearly_full(self) -> bool:
        """Whether it is about to refuse further entries."""
        return self.fill is not None and self.fill >= NEARLY_FULL


class Ruleset(Struct, frozen=True):
    """All that was found at one moment, in the order that the kernel lists it."""

    taken: float = 0.0  # Unix seconds
    rules: tuple[ListedRule, ...] = ()
    sets: tuple[ListedSet, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be read, or was cut
    rules_total: int = 0  # with those that were cut


class RuleEvent(Struct, frozen=True):
    """One change of a rule or set, by fwtop or by anybody else. Its texts are sanitised."""

    at: float  # Unix seconds; of what is compared, when it was found
    event: str  # rule_added, set_changed, …
    how: str  # NOTIFIED, COMPARED
    by: str = OTHERS  # whose the object is, by its name: OURS, OTHERS
    source: str = ""  # nft, iptables-legacy, ipset, …
    about: dict[str, Any] = field(default_factory=dict)  # what is known of it
