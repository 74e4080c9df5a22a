"""A rule: what the operator asks the kernel to do, as a value that can be stored, shown and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from fwtop.model.address import Prefix

RANGES = ("ip_length", "ttl", "ip_id", "tcp_seq", "tcp_window", "tcp_header")  # fields of Match


class Kind(StrEnum):
    """The mechanism that carries a rule out."""

    IPSET = "ipset"  # block sources
    HASHLIMIT = "hashlimit"  # rate per source prefix
    STRING = "string"  # payload match
    XDP = "xdp"  # drop in the driver
    NOTRACK = "notrack"  # keep out of conntrack
    SYSCTL = "sysctl"  # kernel settings, given back at the end
    SYNPROXY = "synproxy"  # answer handshakes with cookies, let only finished ones through
    NFTABLES = "nftables"  # drop at netdev ingress, where there is no XDP
    TC = "tc"  # the compiled rules at tc ingress


class State(StrEnum):
    """A rule's life."""

    INTENT = "intent"  # journalled, the kernel may or may not have it yet
    PROVISIONAL = "provisional"  # active until confirmed or its confirmation time is over
    CONFIRMED = "confirmed"  # active until it expires
    EXPIRED = "expired"
    REVERTED = "reverted"  # taken back: undone, not confirmed, or half installed before a crash


ACTIVE_STATES = frozenset({State.PROVISIONAL, State.CONFIRMED})


@dataclass(frozen=True, slots=True)
class Range:
    """An inclusive range of numbers."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class PayloadMatch:
    """Bytes in the transport payload: at `offset` from its start, or anywhere when None.

    `mask` has the length of `data`: bits that are 0 are ignored (None: all count).
    `dns_name` is the readable form when the bytes are a DNS name in wire form.
    """

    data: bytes
    offset: int | None = None
    mask: bytes | None = None
    dns_name: str | None = None

    @property
    def care(self) -> bytes:
        """Which bits count: the mask's; and the letters of a DNS name in either case (RFC 4343, 4.1)."""
        mask = self.mask if self.mask is not None else b"\xff" * len(self.data)
        if self.dns_name is None:
            return mask
        name = self.data.partition(b"\0")[0]  # a type behind it has no case
        folded = (
            bits & 0xDF if chr(byte).isascii() and chr(byte).isalpha() else bits
            for byte, bits in zip(name, mask[: len(name)], strict=True)
        )
        return bytes(folded) + mask[len(name) :]


@dataclass(frozen=True, slots=True)
class Match:
    """Which packets: all given conditions must hold; None or empty means any."""

    sources: Sequence[Prefix] = ()  # a tuple, or the rows of a long list (model/bulk_rows.py)
    destinations: tuple[Prefix, ...] = ()
    family: int | None = None  # 4 or 6
    protocol: int | None = None
    sport: int | None = None
    dport: int | None = None
    ip_length: Range | None = None  # IP total length, bytes
    ttl: Range | None = None
    tcp_flags: tuple[int, int] | None = None  # mask, value
    fragment: bool | None = None  # True: any fragment (first or later)
    icmp_type: int | None = None
    payload: tuple[PayloadMatch, ...] = ()
    ip_id: Range | None = None  # identification, of IPv4 only
    tcp_seq: Range | None = None  # sequence number
    tcp_window: Range | None = None  # as in the header: not scaled
    tcp_header: Range | None = None  # length of the TCP header, bytes; 20: no options

    @property
    def families(self) -> tuple[int, ...]:
        """The address families that this can match."""
        if self.family is not None:
            return (self.family,)
        if self.ip_id is not None:
            return (4,)
        given = families_of(self.sources) | families_of(self.destinations)
        return tuple(sorted(given)) if given else (4, 6)

    @property
    def reads_tcp(self) -> bool:
        """Whether it asks for what only TCP headers have."""
        fields = (self.tcp_flags, self.tcp_seq, self.tcp_window, self.tcp_header)
        return any(item is not None for item in fields)


def families_of(prefixes: Sequence[Prefix]) -> frozenset[int]:
    """Return the address families in a list; a long one (model/bulk_rows.py) knows its own."""
    known: frozenset[int] | None = getattr(prefixes, "families", None)
    return known if known is not None else frozenset(prefix.family for prefix in prefixes)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Above this, drop: per source prefix of the given lengths."""

    per_second: int
    burst: int
    prefix_v4: int = 32
    prefix_v6: int = 64
    in_bytes: bool = False  # bytes a second instead of packets
    by_dport: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """A sysctl by its dotted name (one of model/tunables.py) and the value that it is to have."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Rule:
    """One mitigation. `origin` says how its sources were chosen (asn:N, country:CC, @file), if so."""

    id: str  # digits: the journal's number; "" before it has one
    kind: Kind
    match: Match
    summary: str
    ttl_seconds: int
    created: float = 0.0  # Unix seconds
    created_by: str = ""  # "key", "cli", "proposal 3", …
    limit: RateLimit | None = None
    origin: str | None = None
    predicted_pps: float | None = None
    predicted_attack_share: float | None = None
    predicted_collateral_share: float | None = None
    settings: tuple[Setting, ...] = ()  # of a SYSCTL rule
    replaces: str = ""  # the id of a rule that ends when this one is confirmed

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; bytes as hex, prefixes as text."""
        return _plain(asdict(self), self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Rule:
        """Read what `to_dict` wrote; raises ValueError, KeyError or TypeError on anything else."""
        match = dict(data["match"])
        for side in ("sources", "destinations"):
            match[side] = tuple(Prefix.parse(text) for text in match[side])
        for name in RANGES:
            span = match.get(name)
            match[name] = Range(**span) if span is not None else None
        match["tcp_flags"] = tuple(match["tcp_flags"]) if match["tcp_flags"] is not None else None
        match["payload"] = tuple(_payload_of(item) for item in match["payload"])
        limit = RateLimit(**data["limit"]) if data["limit"] is not None else None
        rest = {key: value for key, value in data.items() if key not in ("match", "limit", "kind")}
        rest["settings"] = tuple(Setting(**item) for item in data.get("settings", ()))
        return Rule(kind=Kind(data["kind"]), match=Match(**match), limit=limit, **rest)


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """A rule as the guardian reports it, with what the kernel counted since it was installed."""

    rule: Rule
    state: State
    packets: int = 0
    bytes: int = 0
    pps: float = 0.0
    expires: float | None = None  # Unix seconds
    confirm_by: float | None = None  # provisional only: Unix seconds
    note: str = ""  # why it was reverted, or what is odd about it
    entries: dict[str, int] = field(default_factory=dict)  # source → packets, where counted


def rule_status_to_dict(status: RuleStatus) -> dict[str, Any]:
    """Return JSON-ready data: what the guardian answers to `status`."""
    return {**asdict(status), "rule": status.rule.to_dict(), "state": status.state.value}


def rule_status_from_dict(data: dict[str, Any]) -> RuleStatus:
    """Read what `rule_status_to_dict` wrote, other keys ignored; raises as `Rule.from_dict` does."""
    known = {item.name: data[item.name] for item in fields(RuleStatus) if item.name in data}
    return RuleStatus(**known | {"rule": Rule.from_dict(data["rule"]), "state": State(data["state"])})


def _plain(data: dict[str, Any], rule: Rule) -> dict[str, Any]:
    match = data["match"]
    match["sources"] = [str(prefix) for prefix in rule.match.sources]
    match["destinations"] = [str(prefix) for prefix in rule.match.destinations]
    match["tcp_flags"] = list(rule.match.tcp_flags) if rule.match.tcp_flags else None
    match["payload"] = [
        {
            "data": item.data.hex(),
            "offset": item.offset,
            "mask": item.mask.hex() if item.mask is not None else None,
            "dns_name": item.dns_name,
        }
        for item in rule.match.payload
    ]
    data["kind"] = rule.kind.value
    data["settings"] = [asdict(item) for item in rule.settings]
    return data


def _payload_of(item: dict[str, Any]) -> PayloadMatch:
    mask = bytes.fromhex(item["mask"]) if item["mask"] is not None else None
    return PayloadMatch(bytes.fromhex(item["data"]), item["offset"], mask, item["dns_name"])
