"""IP addresses and prefixes as numbers, as PacketBatch columns hold them, and what lists of them cover.

A short list is a tuple; a long one is rows (prefix_rows.py), which alone need numpy.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import total_ordering
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

if TYPE_CHECKING:
    from fwtop.model.addresses.keyed_rows import KeyedRows
    from fwtop.model.addresses.pair_rows import PairRows
    from fwtop.model.addresses.port_rows import PortRows
    from fwtop.model.addresses.prefix_rows import PrefixRows


_LOW_64 = (1 << 64) - 1
_OCTETS = {str(number): number for number in range(256)}
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
        try:  # what most are by far, in a tenth of the time
            first, second, third, fourth = map(_OCTETS.__getitem__, text.split("."))
            return Prefix(4, first << 24 | second << 16 | third << 8 | fourth, 32)
        except (KeyError, ValueError):
            pass
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise ValueError(f"{text[:60]!r} is not an address or prefix") from None
        host, slash, _ = text.partition("/")
        if slash and int(ipaddress.ip_address(host)) != int(network.network_address):
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
    def of_packed(address: bytes) -> Prefix:
        """Build from an address in network byte order."""
        return Prefix(4 if len(address) == 4 else 6, int.from_bytes(address, "big"), 8 * len(address))

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

    def __str__(self) -> str:
        """Return `a.b.c.d` for a single address, else `a.b.c.d/len`."""
        if self.is_address:
            return format_address(self.family, self.hi, self.lo)
        return str(self.network)


def format_address(family: int, hi: int, lo: int) -> str:
    """Format an address given as columns of a row."""
    if family == 4:
        return ".".join(map(str, int(lo).to_bytes(4, "big")))
    return str(ipaddress.IPv6Address((int(hi) << 64) | int(lo)))


# Of IPv6 only 2000::/3 is in use as global unicast (IANA IPv6 address space registry).
SPACE = {4: 1 << 32, 6: 1 << 125}


class Listed(Protocol):
    """A list of prefixes that can be searched; model/addresses/prefix_rows.py does that for a million."""

    def shortest(self, family: int) -> Prefix | None: ...  # noqa: D102
    def overlapping(self, other: Prefix) -> Prefix | None: ...  # noqa: D102


class _Short:
    """A short list; finding an overlap takes one lookup for each prefix length in use."""

    def __init__(self, prefixes: Sequence[Prefix]) -> None:
        self._by_length: dict[tuple[int, int], set[int]] = {}
        for prefix in prefixes:
            self._by_length.setdefault((prefix.family, prefix.length), set()).add(prefix.value)

    def shortest(self, family: int) -> Prefix | None:
        lengths = [length for kind, length in self._by_length if kind == family]
        if not lengths:
            return None
        return Prefix(family, min(self._by_length[family, min(lengths)]), min(lengths))

    def overlapping(self, other: Prefix) -> Prefix | None:
        for (family, length), values in self._by_length.items():
            if family != other.family:
                continue
            if length <= other.length:
                shift = other.bits - length
                value = other.value >> shift << shift
                if value in values:
                    return Prefix(family, value, length)
            else:
                for value in values:
                    if other.contains(Prefix(family, value, length)):
                        return Prefix(family, value, length)
        return None


def is_long(prefixes: Sequence[Prefix]) -> bool:
    """Return whether a list is kept as rows."""
    return not isinstance(prefixes, tuple)


def says_more(sources: Sequence[Prefix]) -> TypeGuard[KeyedRows[Any]]:
    """Return whether these entries say more than who sends; loads no numpy where none do."""
    return hasattr(sources, "single")


def of_ports(sources: Sequence[Prefix]) -> TypeGuard[PortRows]:
    """Return whether these are entries with ports."""
    return hasattr(sources, "meeting")


def of_pairs(sources: Sequence[Prefix]) -> TypeGuard[PairRows]:
    """Return whether these are pairs of networks."""
    return hasattr(sources, "sent_to")


def looked_up(sources: Sequence[Prefix]) -> int:
    """Return how many elements a kernel has to hold: each port of an entry is one."""
    return sources.elements if says_more(sources) else len(sources)


def _rows(prefixes: Sequence[Prefix]) -> PrefixRows:
    """Return a long list as rows: numpy is loaded already then."""
    from fwtop.model.addresses.prefix_rows import PrefixRows

    return PrefixRows.of(prefixes)


def listed(prefixes: Sequence[Prefix]) -> Listed:
    """Return a list that can be asked."""
    return cast(Listed, prefixes) if is_long(prefixes) else _Short(prefixes)


def of_family(prefixes: Sequence[Prefix], family: int, excluded: Sequence[Prefix]) -> Sequence[Prefix]:
    """Return the prefixes of a family, each once, without those that lie within any of `excluded`."""
    if is_long(prefixes):
        return _rows(prefixes).of_family(family).without(excluded)
    kept = [prefix for prefix in prefixes if prefix.family == family]
    return tuple(dict.fromkeys(p for p in kept if not any(item.contains(p) for item in excluded)))


def sizes(prefixes: Sequence[Prefix], family: int) -> int:
    """Return how many addresses a list covers at most: overlaps in a short one count twice."""
    if is_long(prefixes):
        return _rows(prefixes).covered(family)
    return sum(1 << p.bits - p.length for p in prefixes if p.family == family)


def covered(lists: Iterable[Sequence[Prefix]], family: int) -> int:
    """Return how many addresses of a family several lists cover together, each counted once."""
    given = list(lists)
    if any(is_long(item) for item in given):
        rows = _rows(given[0])
        return (rows if len(given) == 1 else rows.union(given)).covered(family)
    total, end = 0, 0
    for prefix in sorted(prefix for item in given for prefix in item if prefix.family == family):
        stop = prefix.value + (1 << prefix.bits - prefix.length)
        if stop > end:
            total += stop - max(prefix.value, end)
            end = stop
    return total


def cut_out(prefixes: Sequence[Prefix], holes: Iterable[Prefix]) -> Sequence[Prefix]:
    """Return a list that covers the same addresses but for those of `holes`."""
    for hole in holes:
        while (hit := listed(prefixes).overlapping(hole)) is not None:
            prefixes = _joined(_outside(prefixes, hit), tuple(_around(hole, hit)))
    return prefixes


def _outside(prefixes: Sequence[Prefix], excluded: Prefix) -> Sequence[Prefix]:
    """Return the prefixes that don't lie within another."""
    if is_long(prefixes):
        return _rows(prefixes).without((excluded,))
    return tuple(prefix for prefix in prefixes if not excluded.contains(prefix))


def _joined(prefixes: Sequence[Prefix], more: tuple[Prefix, ...]) -> Sequence[Prefix]:
    if is_long(prefixes):
        return _rows(prefixes).union((prefixes, more))
    return tuple(dict.fromkeys((*prefixes, *more)))


def _around(hole: Prefix, whole: Prefix) -> Iterator[Prefix]:
    """Yield the prefixes that make up `whole` without `hole`; none where the hole holds all of it."""
    for length in range(whole.length + 1, hole.length + 1):
        shift = hole.bits - length
        yield Prefix(hole.family, (hole.value >> shift ^ 1) << shift, length)


# What an operator names as sources: prefixes, an AS, a country

ASN, COUNTRY = "asn:", "country:"
MAX_NAME = 18  # of a list: an ipset's name has 31 characters, and ours have 13 around it
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}")


def check_name(name: str, what: str = "list", *, field: str = "name") -> str:
    """Return the name of a named list, or of something else; raises FwtopError (code 2)."""
    if not _NAME.fullmatch(name):
        raise FwtopError(
            f"{safe_text(name, limit=40)!r} is no name for a {what}: 1 to {MAX_NAME} letters, digits, "
            "'-', '_' and '.', a letter or digit first; nothing was changed",
            2,
            field=field,
        )
    return name


def prefixes_of(targets: Iterable[str]) -> tuple[Prefix, ...]:
    """Parse prefixes, each once; raises FwtopError (code 2)."""
    try:
        return tuple(dict.fromkeys(Prefix.parse(target) for target in targets))
    except ValueError as error:
        raise FwtopError(f"{safe_text(error)}; nothing was changed", 2) from None


def origin_of(target: str) -> str:
    """Check `asn:N` or `country:CC` and return it as rules name it; "" if neither; raises FwtopError."""
    kind, colon, name = target.partition(":")
    if kind + colon == ASN:
        return f"{ASN}{asn_of(name)}"
    if kind + colon == COUNTRY:
        return f"{COUNTRY}{country_of(name)}"
    return ""


def asn_of(name: str) -> int:
    """Parse the number of an AS; raises FwtopError (code 2)."""
    if not (name.isascii() and name.isdigit() and 0 < int(name[:11]) < 1 << 32):
        raise FwtopError(f"{safe_text(name, limit=20)!r} is not an AS: give its number, as in asn:64500", 2)
    return int(name)


def country_of(code: str) -> str:
    """Parse an ISO 3166-1 code; raises FwtopError (code 2)."""
    if len(code) != 2 or not (code.isascii() and code.isalpha()):
        line = f"{safe_text(code, limit=20)!r} is not a country: give two letters, as in country:NL"
        raise FwtopError(line, 2, field="name")
    return code.upper()
