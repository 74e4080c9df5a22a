"""Rules: mitigations as values that can be stored, displayed and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import force_setattr

from fwtop.model.addresses.address import Prefix
from fwtop.model.harm import ClientHarm, Loss, Reach
from fwtop.model.traffic.protocols import NUMBERS, protocol_name
from fwtop.model.wire import FieldError, Hex, of_plain, plain

RANGES = ("ip_length", "ttl", "ip_id", "tcp_seq", "tcp_window", "tcp_header")  # fields of Match


class Kind(StrEnum):
    """The mechanism that enforces a rule."""

    IPSET = "ipset"  # block sources
    HASHLIMIT = "hashlimit"  # rate per source prefix
    STRING = "string"  # payload match
    XDP = "xdp"  # drop in the driver
    NOTRACK = "notrack"  # keep out of conntrack
    SYSCTL = "sysctl"  # kernel settings, restored at the end
    SYNPROXY = "synproxy"  # answer handshakes with SYN cookies
    NFTABLES = "nftables"  # drop at netdev ingress
    TC = "tc"  # compiled rules at tc ingress
    CONNLIMIT = "connlimit"  # open connections per source prefix
    PROTECT = "protect"  # new connections to a port from access lists only
    HARDEN = "harden"  # a playbook: several rules as one


class Mode(StrEnum):
    """What a rule does to what it matches."""

    DROP = "drop"  # what its kind does
    COUNT = "count"  # nothing: it counts what it would drop, and the packet goes on to the other rules
    OFF = "off"  # nothing: its enable sets are empty


class State(StrEnum):
    """The state of a rule."""

    INTENT = "intent"  # journalled; the kernel may or may not have it yet
    PROVISIONAL = "provisional"  # active until confirmed or its confirmation time ends
    CONFIRMED = "confirmed"  # active until it expires
    EXPIRED = "expired"
    REVERTED = "reverted"  # undone, not confirmed, or half installed at a crash


_MOST_NAMED = 5  # sources, services or clients of a rule that counts
LIST = "list:"  # how the origin of a rule on a named list begins
ACTIVE_STATES = frozenset({State.PROVISIONAL, State.CONFIRMED})
SOURCES_LEFT = "sources_left"  # of a match in JSON: how many of its sources are left out
PROTOCOL_NAME = "protocol_name"  # of a match in JSON, beside its protocol's number
POLICY = "policy"  # who made the rules that stay until another policy takes them out
POLICY_TRIAL = "policy trial"  # and those of a policy that is not kept yet
FLEET = "fleet "  # begins who made the rules of a signed document; the signer follows


class Range(Struct, frozen=True, forbid_unknown_fields=True):
    """An inclusive range of numbers."""

    low: int
    high: int


class PayloadMatch(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes of the transport payload, `offset` bytes from its start or anywhere (None).

    `mask` is as long as `data`, its 0 bits are ignored; None compares all bits.
    `dns_name` is the readable form of bytes that are a DNS name in wire form.
    """

    data: Hex
    offset: int | None = None
    mask: Hex | None = None
    dns_name: str | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "data", Hex(self.data))
        if self.mask is not None:
            force_setattr(self, "mask", Hex(self.mask))

    @property
    def compared_bits(self) -> bytes:
        """The mask; without the case bit of letters in a DNS name (RFC 4343, 4.1)."""
        mask = self.mask if self.mask is not None else b"\xff" * len(self.data)
        if self.dns_name is None:
            return mask
        name = self.data.partition(b"\0")[0]  # the type after it has no case
        folded = (
            bits & 0xDF if chr(byte).isascii() and chr(byte).isalpha() else bits
            for byte, bits in zip(name, mask[: len(name)], strict=True)
        )
        return bytes(folded) + mask[len(name) :]


class Match(Struct, frozen=True, forbid_unknown_fields=True):
    """Which packets a rule matches: all conditions must hold; None or empty matches any."""

    sources: Sequence[Prefix] = ()  # a tuple, or the rows of a long list (model/addresses/prefix_rows.py)
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

    def __post_init__(self) -> None:
        if isinstance(self.sources, list):  # what msgspec reads a sequence as
            force_setattr(self, "sources", tuple(self.sources))

    @property
    def families(self) -> tuple[int, ...]:
        """The address families that can match."""
        if self.family is not None:
            return (self.family,)
        if self.ip_id is not None:
            return (4,)
        given = families_of(self.sources) | families_of(self.destinations)
        return tuple(sorted(given)) if given else (4, 6)

    @property
    def reads_tcp(self) -> bool:
        """Whether it has conditions on TCP header fields."""
        fields = (self.tcp_flags, self.tcp_seq, self.tcp_window, self.tcp_header)
        return any(item is not None for item in fields)


def families_of(prefixes: Sequence[Prefix]) -> frozenset[int]:
    """Return the address families in a list."""
    known: frozenset[int] | None = getattr(prefixes, "families", None)
    return known if known is not None else frozenset(prefix.family for prefix in prefixes)


class RateLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """The rate per source prefix above which packets are dropped."""

    per_second: int
    burst: int
    prefix_v4: int = 32
    prefix_v6: int = 64
    in_bytes: bool = False  # bytes a second instead of packets
    by_dport: bool = False


class ConnectionLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """How many TCP connections a source prefix may have open; what would be one more is dropped."""

    most: int
    prefix_v4: int = 32
    prefix_v6: int = 64


class Level(StrEnum):
    """Who may open connections to a protected port."""

    OPEN = "open"  # everybody
    PROTECTED = "protected"  # the access lists
    CLOSED = "closed"  # nobody; in all levels, what the allow-list lets pass


class Protection(Struct, frozen=True, forbid_unknown_fields=True):
    """How a port is protected. Of several rules on a port, the one of the highest priority decides."""

    level: Level
    lists: tuple[str, ...] = ()  # the access lists: named lists
    priority: int = 0
    strict: bool = False  # established connections are held to the level, too


class Setting(Struct, frozen=True, forbid_unknown_fields=True):
    """A sysctl (one of model/tunables.py) by its dotted name, and its new value."""

    name: str
    value: int


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """One mitigation; `origin` is what its sources were made from (asn:N, country:CC, @file), if anything.

    The sources of a rule on a named list (list:NAME) are the list's, whatever it holds at the moment.
    """

    id: str  # decimal number in the journal; "" before it is assigned
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
    predicted_guess: bool = False  # no baseline: the collateral share is an estimate
    predicted_clients: ClientHarm | None = None
    settings: tuple[Setting, ...] = ()  # of a SYSCTL rule
    replaces: str = ""  # the id of a rule that ends when this one is confirmed
    connections: ConnectionLimit | None = None  # of a CONNLIMIT rule
    close_open: bool = False  # end the open connections that it would not have let in
    protection: Protection | None = None  # of a PROTECT rule
    mended: bool = False  # the guardian repairs it when it does not act any more
    stateless: bool = False  # of a NOTRACK rule: put the stateless equivalent beside each rule on states
    forget: bool = False  # of a NOTRACK rule: delete the entries of what is no longer tracked
    playbook: str = ""  # of a HARDEN rule: its name
    parts: tuple[Rule, ...] = ()  # of a HARDEN rule: they begin and end together
    mode: Mode = Mode.DROP  # of a HARDEN rule: of all its parts
    key: str = ""  # its maker's own name for it: of one key, a maker has one rule at a time
    labels: dict[str, str] = {}  # of its maker's; nothing of fwtop's depends on them
    group: str = ""  # whose rules are switched together

    @property
    def counts_only(self) -> bool:
        """Whether it drops nothing, and at most counts what it would."""
        return self.mode is not Mode.DROP

    @property
    def kinds(self) -> frozenset[Kind]:
        """Every mechanism at work: those of the parts of a playbook, or its own."""
        return frozenset(part.kind for part in self.parts) or frozenset({self.kind})

    @property
    def list_name(self) -> str | None:
        """The named list that the sources are, None if there is none."""
        origin = self.origin or ""
        return origin.removeprefix(LIST) if origin.startswith(LIST) else None

    @property
    def lists_used(self) -> tuple[str, ...]:
        """The named lists that it looks up."""
        if self.protection is not None:
            return self.protection.lists
        return (self.list_name,) if self.list_name is not None else ()

    def to_dict(self) -> dict[str, Any]:
        """Return data for JSON, bytes as hex and prefixes as text."""
        data: dict[str, Any] = plain(self)
        for told in (data, *data["parts"]):
            if (number := told["match"]["protocol"]) is not None:
                told["match"][PROTOCOL_NAME] = protocol_name(number)
        return data

    @staticmethod
    def from_dict(data: object) -> Rule:
        """Decode what `to_dict` returned; raises ValueError on anything else.

        Programs may leave out what has a default, and name a protocol.
        """
        return of_plain(Rule, _completed(data))


class Counted(Struct, frozen=True):
    """Whom a rule that only counts would have hit, as a watch saw it in samples of the packets it matched.

    Shares are 0 to 1, of the packets since the watch began. Clients are those that were long known.
    """

    since: float  # Unix seconds
    sources: dict[str, float] = {}  # the busiest, with their shares
    services: dict[str, float] = {}  # "443/tcp"
    clients: dict[str, int] = {}  # "192.0.2.7 at 443/tcp", with their packets; the first of them
    clients_total: int = 0
    known: int = 0  # clients at all

    def to_dict(self) -> dict[str, Any]:
        """Return data for JSON, without the time."""
        data: dict[str, Any] = plain(self)
        del data["since"]
        return data

    def words(self, *, sources: bool) -> str:
        """Say from whom, to what and of which clients the packets were; `sources` False leaves those out."""
        parts = [f"from {_shares(self.sources)}"] if sources and self.sources else []
        parts += [f"to {_shares(self.services)}"] if self.services else []
        named = ", ".join(self.clients)
        more = ", …" if self.clients_total > len(self.clients) else ""
        whose = f"{self.clients_total:,} long-known client{'s' * (self.clients_total != 1)}"
        nobody = "of no long-known client" if self.known else "no client is long known yet"
        parts.append(f"of {whose} ({named}{more})" if self.clients_total else nobody)
        return ", ".join(parts)


def _shares(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {share * 100:.0f} %" for name, share in shares.items())


class RuleStatus(Struct, frozen=True):
    """A rule as the guardian reports it, with its kernel counters since installation."""

    rule: Rule
    state: State
    packets: int = 0
    bytes: int = 0
    pps: float = 0.0
    expires: float | None = None  # Unix seconds
    confirm_by: float | None = None  # provisional only: Unix seconds
    note: str = ""  # why it was reverted, or a warning
    entries: dict[str, int] = field(default_factory=dict)  # source → packets, if counted
    acting: bool = (
        True  # of an active rule: the kernel has all of it, and nothing lets packets pass before it
    )
    not_acting: str = ""  # else why
    sources_total: int = 0  # length of the list of sources, of which `rule` may hold only the first
    counted_at: float | None = None  # Unix seconds: when the counters were read; None: not yet
    packets_before: int = 0  # of `packets`: those before it was changed last
    stamp: int = 0  # another one after each change in place
    kept_per_second: int | None = None  # of a limit: the rate that the kernel keeps, which has not every rate
    hits: Counted | None = None  # of a rule that only counts, in what a screen or recorder tells

    @property
    def stops(self) -> bool:
        """Whether it is in force and does more than count."""
        return self.state in ACTIVE_STATES and self.acting and not self.rule.counts_only

    @property
    def would_have(self) -> str:
        """What a rule that only counts would have done, from whom, and to which clients; "" of others."""
        if not self.rule.counts_only:
            return ""
        if self.rule.mode is Mode.OFF:
            return "off: it neither drops nor counts"
        rate = f" ({self.pps:,.0f}/s)" if self.state in ACTIVE_STATES else ""
        counted = max(self.packets - self.packets_before, 0)
        return "; ".join(
            filter(None, (f"counts only: would have dropped {counted:,} packets{rate}", self.whom))
        )

    @property
    def whom(self) -> str:
        """From whom a rule that only counts would have dropped packets, to what, and of which clients."""
        named = ", ".join(f"{source} {packets:,}" for source, packets in self.busiest)
        hits = self.hits.words(sources=not named) if self.hits is not None and self.packets else ""
        return "; ".join(filter(None, (f"most of {named}" if named else "", hits)))

    @property
    def busiest(self) -> tuple[tuple[str, int], ...]:
        """The sources whose packets the kernel counted most of, where it counts them."""
        most = sorted(self.entries.items(), key=lambda item: -item[1])[:_MOST_NAMED]
        return tuple(item for item in most if item[1])

    @property
    def sources_left(self) -> int:
        """How many sources of the rule are not in `rule`."""
        return max(self.sources_total - len(self.rule.match.sources), 0)

    def to_dict(self) -> dict[str, Any]:
        """Return data for JSON: part of the guardian's answer to `status`."""
        data: dict[str, Any] = plain(self) | {"rule": self.rule.to_dict()}
        if self.hits is None:
            del data["hits"]  # the guardian, whose answer has all else, sees no packets
        if self.sources_left:
            data["rule"]["match"][SOURCES_LEFT] = self.sources_left
        return data

    @staticmethod
    def from_dict(data: dict[str, Any]) -> RuleStatus:
        """Decode what `to_dict` returned, ignoring other keys; raises ValueError."""
        return of_plain(RuleStatus, {**data, "rule": _completed(data.get("rule"))})


class Preview(Struct, frozen=True):
    """A rule replayed on the samples of the present window and on the baseline.

    Shares are 0 to 1: `attack_share` of the packets of one `attack` (as in proposals; the one of which the
    rule drops most), `collateral_share` of normal traffic. `examples` name normal flows that would be hit,
    sanitised; `attacks` has the share of each attack, `already` what active rules stop of it, and `together`
    what they and the rule stop.
    """

    attack_share: float
    attack_pps: float  # dropped of all attacks
    collateral_share: float
    collateral_pps: float
    total_pps: float  # all that the rule would match now
    examples: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    guess: bool = False  # True: no baseline from before the attack, collateral is estimated
    attack: str = ""  # title; empty: no attack is seen
    attacks: tuple[tuple[str, float], ...] = ()  # title and share stopped, largest first
    already: tuple[tuple[str, float], ...] = ()  # those of which active rules stop something
    together: tuple[tuple[str, float], ...] = ()  # the same attacks
    clients: ClientHarm | None = None  # None: not counted
    losses: tuple[Loss, ...] = ()  # of the rehearsal with what a console knows
    reach: Reach = Reach()  # beyond the attacks
    ends: int = 0  # of a slow attack, the connections that it ends or keeps out
    ends_of: int = 0  # of so many that the attack holds


class PlanView(Struct, frozen=True):
    """The guardian's plan for a rule, for display; nothing is installed yet."""

    commands: tuple[str, ...] = ()  # exactly as they would be run
    warnings: tuple[str, ...] = ()
    refused: str = ""  # why the guard refuses the rule; empty: it doesn't
    needs_force: str = ""  # why it requires typed confirmation; empty: it doesn't


def _completed(data: object) -> object:
    """Return a rule's data with what programs leave out or name, without what `to_dict` adds."""
    if not isinstance(data, dict):
        return data
    made = {"id": "", **data}
    match, parts = made.get("match"), made.get("parts")
    if isinstance(match, dict):
        made["match"] = {
            key: value for key, value in match.items() if key not in (SOURCES_LEFT, PROTOCOL_NAME)
        }
        protocol = match.get("protocol")
        if isinstance(protocol, str):
            if protocol.lower() not in NUMBERS:
                said = f"match.protocol must be one of {', '.join(NUMBERS)}, or a number"
                raise FieldError(said, "match.protocol")
            made["match"]["protocol"] = NUMBERS[protocol.lower()]
    if isinstance(parts, list):
        made["parts"] = [*map(_completed, parts)]
    return made
