"""The lab's addresses, from the never routed ranges reserved for benchmarks (RFC 2544, RFC 5180)."""

from __future__ import annotations

from msgspec import Struct

from fwtop.model.addresses.address import Prefix

NETWORKS = (Prefix.parse("198.18.0.0/15"), Prefix.parse("2001:2::/48"))
VICTIM_4, GATEWAY_4, LENGTH_4 = "198.18.0.2", "198.18.0.1", 24
VICTIM_6, GATEWAY_6, LENGTH_6 = "2001:2::2", "2001:2::1", 64
WIDE_4 = Prefix.parse("198.18.64.0/22")  # more of the victim's own addresses, for carpet bombing
WIDE_6 = Prefix.parse("2001:2:0:64::/64")
VICTIM_INTERFACE, ATTACKER_INTERFACE = "eth0", "lab0"
PARKED_INTERFACES = ("parked0", "parked1")  # an unused veth pair: see Flood
PORT_HTTP, PORT_DNS, PORT_SSH, PORT_TLS = 80, 53, 22, 443


class Wire(Struct, frozen=True):
    """MAC addresses of the two ends."""

    victim: bytes
    attacker: bytes


def victim_prefix(family: int, target: str) -> Prefix:
    """Return a vector's destination: the victim's address, or its whole network."""
    if target == "network":
        return WIDE_4 if family == 4 else WIDE_6
    return Prefix.parse(VICTIM_4 if family == 4 else VICTIM_6)


def is_own(prefix: Prefix) -> bool:
    """Whether a prefix lies within the lab's networks; nothing else is ever a destination."""
    return any(network.contains(prefix) for network in NETWORKS)
