"""IP addresses and prefixes as numbers, as PacketBatch columns hold them."""

from __future__ import annotations

import ipaddress
from functools import total_ordering

_LOW_64 = (1 << 64) - 1
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class HostBitsError(ValueError):
    """A prefix with host bits: whoever wrote it meant the network or the host, and must say which."""

    def __init__(self, text: str, network: IPNetwork, host: str) -> None:
        super().__init__(f"{text[:60]!r} has host bits: the network is {network}, the host {host}")
        self.network = network
        self.host = host


@total_ordering
class Prefix:
    """An IPv4 or IPv6 prefix; `value` is the whole address as a number, host bits zero. Never changed.

    Not a Struct: msgspec would write its fields, and no format has numbers of 128 bits (model/wire.py).
    """

    __slots__ = ("family", "length", "value")
    __match_args__ = ("family", "value", "length")

    def __init__(self, family: int, value: int, length: int) -> None:
        self.family = family  # 4 or 6
        self.value = value
        self.length = length

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prefix):
            return NotImplemented
        return self.value == other.value and self.length == other.length and self.family == other.family

    def __lt__(self, other: Prefix) -> bool:
        return (self.family, self.value, self.length) < (other.family, other.value, other.length)

    def __hash__(self) -> int:
        return hash((self.family, self.value, self.length))

    def __repr__(self) -> str:
        return f"Prefix({self.family}, {self.value}, {self.length})"

    @staticmethod
    def parse(text: str) -> Prefix:
        """Parse an address or prefix; IPv4-mapped IPv6 (::ffff:a.b.c.d) becomes IPv4.

        Raises ValueError with a message for the user, HostBitsError where a prefix has host bits.
        """
        text = text.strip()
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise ValueError(f"{text[:60]!r} is not an address or prefix") from None
        host = text.partition("/")[0]
        if "/" in text and int(ipaddress.ip_address(host)) != int(network.network_address):
            raise HostBitsError(text, network, host)
        if isinstance(network, ipaddress.IPv6Network):
            mapped = network.network_address.ipv4_mapped
            if mapped is not None and network.prefixlen >= 96:
                return Prefix(4, int(mapped), network.prefixlen - 96)
        return Prefix.of(network)

    @staticmethod
    def of(network: IPNetwork) -> Prefix:
        """Convert a network of the standard library."""
        return Prefix(network.version, int(network.network_address), network.prefixlen)

    @staticmethod
    def of_columns(family: int, hi: int, lo: int, length: int | None = None) -> Prefix:
        """Build from the columns of a row: the address, or the prefix of that length around it."""
        bits = 32 if family == 4 else 128
        size = bits if length is None else length
        value = ((hi << 64) | lo) >> (bits - size) << (bits - size)
        return Prefix(family, value, size)

    @property
    def bits(self) -> int:
        """Width of an address of this family: 32 or 128."""
        return 32 if self.family == 4 else 128

    @property
    def hi(self) -> int:
        """Upper 64 bits (0 for IPv4)."""
        return self.value >> 64

    @property
    def lo(self) -> int:
        """Lower 64 bits (the whole IPv4 address)."""
        return self.value & _LOW_64

    @property
    def packed(self) -> bytes:
        """The first address in network byte order, as netlink messages carry it."""
        return self.value.to_bytes(self.bits // 8, "big")

    @property
    def is_address(self) -> bool:
        """Whether it is a single address."""
        return self.length == self.bits

    @property
    def network(self) -> IPNetwork:
        """The same as a network of the standard library."""
        if self.family == 4:
            return ipaddress.IPv4Network((self.value, self.length))
        return ipaddress.IPv6Network((self.value, self.length))

    def contains(self, other: Prefix) -> bool:
        """Whether `other` lies within this prefix (or equals it)."""
        if self.family != other.family or other.length < self.length:
            return False
        shift = self.bits - self.length
        return self.value >> shift == other.value >> shift

    def overlaps(self, other: Prefix) -> bool:
        """Whether they have an address in common."""
        return self.contains(other) or other.contains(self)

    def __str__(self) -> str:
        """Return `a.b.c.d` for a single address, else `a.b.c.d/len`."""
        if self.is_address:
            return format_address(self.family, self.hi, self.lo)
        return str(self.network)


def format_address(family: int, hi: int, lo: int) -> str:
    """Format an address given as columns of a row."""
    if family == 4:
        return str(ipaddress.IPv4Address(int(lo)))
    return str(ipaddress.IPv6Address((int(hi) << 64) | int(lo)))
