"""The traffic in eight views: by source, destination, port, payload and signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fwtop.model.rule import Match
from fwtop.model.traffic.flow import flow_of
from fwtop.model.traffic.protocols import flag_names, spoken_protocol
from fwtop.model.traffic.snapshot import Destination, PacketSignature, Payload, Port, Snapshot, Source
from fwtop.rules.words import bytes_text, describe, range_text
from fwtop.ui.drawing.format import percent
from fwtop.ui.drawing.style import BAD, DIM, GOOD, STRONG, TEXT, WARN, Line
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.rows import Ordering
from fwtop.ui.lists.table import CellContext, Column, View, share_columns
from fwtop.ui.state.packet_row import PacketRow

SOURCES = ("address", "prefix", "asn", "country")  # views that list sources
ATTACK, CLIENT = "attack", "client"
_WHO = {"resolver": "dns", "time server": "ntp", "this host": "own", "ssh client": "ssh"}
_NOTICED = 0.005
_MOST = 0.5  # of its packets


def spared(item: object) -> bool:
    """Whether a row is a client or a peer that b must not block by mistake."""
    return isinstance(item, Source | PacketRow) and item.who not in ("", ATTACK)


_UNSURE = 0.3  # width of the 95 % interval: from here on, only the interval is shown
_UNKNOWN = 0.9


def _dropped(item: Source | Destination | PacketSignature, context: CellContext) -> Line:
    if context.snapshot is not None and flow_of(context.snapshot) is None:
        return [("–", DIM)]  # a capture doesn't tell
    if isinstance(item, Source) and item.dropped_high - item.dropped_low > _UNSURE:
        return [(dropped_interval(item), DIM)]
    return [(percent(item.dropped_share), GOOD if item.dropped_share >= _NOTICED else DIM)]


def dropped_interval(item: Source) -> str:
    """Write the dropped share of a source with few samples: "40–95 %", or "?" if nothing is known."""
    if item.dropped_high - item.dropped_low > _UNKNOWN:
        return "?"
    return f"{100 * item.dropped_low:.0f}–{100 * item.dropped_high:.0f} %"


def _who(item: Source, context: CellContext) -> Line:
    """Say who a source is; of an attacker with a rule, which one."""
    if spared(item):
        return [(_WHO.get(item.who, item.who), WARN if item.who == "you" else GOOD)]
    if item.active_rule:
        return [(f"▪{item.active_rule}", GOOD)]
    if item.who == ATTACK:
        return [(ATTACK, _alarm(item.dropped_share, context))]
    return [("unknown", DIM)] if context.attack else []


def _alarm(dropped: float, context: CellContext) -> Any:  # noqa: ANN401 - rich's Style
    """Red is for attacks that reach services; a capture doesn't tell."""
    known = context.snapshot is not None and flow_of(context.snapshot) is not None
    return BAD if known and dropped < _MOST else STRONG


def _as_name(item: Source, _: CellContext) -> Line:
    if item.asn is None:
        return [("–", DIM)]
    if item.key == f"AS{item.asn}":
        return [(item.as_name or "–", DIM)]
    return [(f"AS{item.asn} {item.as_name or ''}".rstrip(), DIM)]


def _heading() -> str:
    return f"clients and known peers: {KEY_MAP.label('block_spared')} blocks one"


def source_search(item: Source) -> str:
    """Return what `/` looks through."""
    return f"{item.key} {item.who} {item.country or ''} AS{item.asn or ''} {item.as_name or ''}"


_SOURCE_ORDER = Ordering(
    key=lambda item: item.key,
    search=source_search,
    sorts=(
        ("dropped", lambda item: item.dropped_share),
        ("bytes", lambda item: item.share.bytes),
        ("name", lambda item: tuple(-ord(char) for char in item.key)),
        ("who", lambda item: tuple(-ord(char) for char in item.who)),
    ),
    group=lambda item: _heading() if spared(item) else "",
)


def _source_view(
    name: str, title: str, width: int, *, origin: bool, country: bool, empty: str = "nothing yet"
) -> View:
    columns = [Column(title, width, lambda item, _: [(item.key, TEXT)], grow=1, whole=True, sort="name")]
    columns.append(Column("who", 7, _who, keep=4))
    if country:
        columns.append(Column("from", 4, lambda item, _: [(item.country or "–", DIM)], keep=15))
    if origin:
        columns.append(Column("network", 14, _as_name, grow=3, keep=30))
    columns += share_columns(bar_width=12, keep=5)
    columns.append(Column("dropped", 8, _dropped, right=True, keep=10))
    return View(
        name, tuple(columns), _SOURCE_ORDER, share=lambda item: item.share.share, whole=True, empty=empty
    )


SOURCE_VIEWS = (
    _source_view("address", "address", 15, origin=True, country=True),
    _source_view(
        "prefix",
        "prefix",
        18,
        origin=True,
        country=True,
        empty="no prefix stands out: the sources are spread",
    ),
    _source_view("asn", "AS", 10, origin=True, country=False),
    _source_view("country", "country", 7, origin=False, country=False),
)


def part_text(item: Destination) -> str:
    """Say who is at an address: the services that answer, dark where nobody does."""
    return " ".join(item.serves) or item.part


def _destination(item: Destination, _: CellContext) -> Line:
    part = part_text(item)
    return [(item.key, TEXT), *([(f" {part}", DIM)] if part else [])]


DESTINATION_VIEW = View(
    "destination",
    (
        Column("destination", 15, _destination, grow=1, whole=True),
        *share_columns(bar_width=12, keep=5),
        Column("dropped", 8, _dropped, right=True, keep=10),
    ),
    Ordering(
        key=lambda item: item.key,
        search=lambda item: f"{item.key} {part_text(item)}",
        sorts=(
            ("dropped", lambda item: item.dropped_share),
            ("bytes", lambda item: item.share.bytes),
        ),
    ),
    share=lambda item: item.share.share,
    whole=True,
)


def port_name(item: Port) -> str:
    """Write a port as `udp dst 53`."""
    return f"{item.protocol} {item.side} {item.port}"


PORT_VIEW = View(
    "port",
    (
        Column("port", 13, lambda item, _: [(port_name(item), TEXT)], sort="number"),
        Column("service", 8, lambda item, _: [(item.service or "–", DIM)], grow=1, keep=10),
        *share_columns(bar_width=10, keep=5),
    ),
    Ordering(
        key=port_name,
        search=lambda item: f"{port_name(item)} {item.service or ''}",
        sorts=(("number", lambda item: -item.port), ("bytes", lambda item: item.share.bytes)),
    ),
    share=lambda item: item.share.share,
)


def payload_key(item: Payload) -> str:
    """Identify a byte string by its place and its exact bytes."""
    return f"{item.offset}:{item.data.hex()}"


def payload_name(item: Payload) -> str:
    """Show the DNS name where there is one, else the bytes as text."""
    return item.dns_name if item.dns_name is not None else item.text


def _payload(item: Payload, _: CellContext) -> Line:
    if item.dns_name is not None:
        return [("DNS ", DIM), (item.dns_name, TEXT)]
    return [(item.text, TEXT)]


def _normal(item: Payload | PacketSignature, _: CellContext) -> Line:
    return [(percent(item.baseline_share), DIM if item.baseline_share < _NOTICED else WARN)]


PAYLOAD_VIEW = View(
    "payload",
    (
        Column("bytes in common", 20, _payload, grow=1),
        Column("at", 4, lambda i, _: [("any" if i.offset is None else f"+{i.offset}", DIM)], keep=20),
        *share_columns(bar_width=12, keep=5),
        Column("normal", 8, _normal, right=True, keep=10),
    ),
    Ordering(
        key=payload_key,
        search=lambda item: f"{payload_name(item)} {item.data.hex()}",
        sorts=(
            ("rare in normal", lambda item: -item.baseline_share),
            ("length", lambda item: len(item.data)),
        ),
    ),
    share=lambda item: item.share.share,
    empty="payloads have no bytes in common",
)


def signature_words(match: Match) -> list[str]:
    """Write the fields of a signature, each in a few characters."""
    protocol = spoken_protocol(match.protocol) if match.protocol is not None else "any"
    words = [protocol if match.family != 6 else f"{protocol} (IPv6)"]
    if match.fragment:
        words[0] += " fragments"
    ports = [f"{match.sport}→" if match.sport is not None else ""]
    ports.append(f"→{match.dport}" if match.dport is not None else "")
    words += ["".join(ports).replace("→→", "→")] if any(ports) else []
    if match.tcp_flags is not None:
        words.append(flag_names(match.tcp_flags[1]) or "no flags")
    if match.icmp_type is not None:
        words.append(f"type {match.icmp_type}")
    for name, span in (("len", match.ip_length), ("ttl", match.ttl), ("win", match.tcp_window)):
        words += [f"{name} {range_text(span)}"] if span is not None else []
    return [*words, *(bytes_text(item) for item in match.payload)]


def _signature(item: PacketSignature, _: CellContext) -> Line:
    first, *others = signature_words(item.match)
    return [(first, STRONG), *((f" {word}", TEXT) for word in others)]


def _whose(item: PacketSignature, context: CellContext) -> Line:
    """Say which attack most of the packets are of, or that normal packets look like this, too."""
    if item.attack_share >= _MOST:
        letter = _letter(item.attack, context)
        return [(f"{ATTACK} {letter}".rstrip(), _alarm(item.dropped_share, context))]
    if item.baseline_share >= _NOTICED:
        return [("normal", GOOD)]
    return [("unknown", DIM)] if context.attack else []


def _letter(title: str, context: CellContext) -> str:
    attacks = context.snapshot.judgement.attacks if context.snapshot is not None else ()
    found = next((attack for attack in attacks if attack.title == title), None)
    return context.scope.letter(found.key) if found is not None else ""


SIGNATURE_VIEW = View(
    "signature",
    (
        Column("signature", 24, _signature, grow=1, whole=True),
        Column("who", 8, _whose, keep=4),
        *share_columns(bar_width=12, keep=5),
        Column("normal", 8, _normal, right=True, keep=9),
        Column("dropped", 8, _dropped, right=True, keep=10),
    ),
    Ordering(
        key=lambda item: describe(item.match),
        search=lambda item: f"{' '.join(signature_words(item.match))} {item.attack}",
        sorts=(
            ("rare in normal", lambda item: -item.baseline_share),
            ("dropped", lambda item: item.dropped_share),
            ("bytes", lambda item: item.share.bytes),
        ),
    ),
    share=lambda item: item.share.share,
    empty="no combination of header fields stands out",
)

TRAFFIC_VIEWS = (*SOURCE_VIEWS, DESTINATION_VIEW, PORT_VIEW, PAYLOAD_VIEW, SIGNATURE_VIEW)


def first_view(snapshot: Snapshot) -> str:
    """Return the view to begin with: the addresses of a spoofed flood are those of its victims."""
    spoofed = any(attack.spoofed for attack in snapshot.judgement.attacks)
    return "signature" if spoofed and snapshot.judgement.signatures else "address"


def traffic_items(snapshot: Snapshot, view: str) -> Sequence[Any]:
    """Return the rows of a view."""
    tables, judgement = snapshot.tables, snapshot.judgement
    if view in SOURCES:
        return list(getattr(tables.sources, view))
    if view == "payload":
        return judgement.payloads or tables.payloads
    rows = {"destination": tables.destinations, "port": tables.ports, "signature": judgement.signatures}
    return rows[view]
