"""What arrives: sources, ports and payloads, as views."""

from __future__ import annotations

from fwtop.model.snapshot import Payload, Port, Source
from fwtop.ui.cells import Line
from fwtop.ui.columns import Column, Scene, View, share_columns
from fwtop.ui.format import percent
from fwtop.ui.palette import DIM, GOOD, TEXT, WARN
from fwtop.ui.table import Ordering


def _dropped(item: Source, _: Scene) -> Line:
    return [(percent(item.dropped_share), GOOD if item.dropped_share >= 0.005 else DIM)]


def _rule_mark(item: Source, _: Scene) -> Line:
    return [(f"▪{item.active_rule}", GOOD)] if item.active_rule else []


def _as_name(item: Source, _: Scene) -> Line:
    if item.asn is None:
        return [("–", DIM)]
    if item.key == f"AS{item.asn}":
        return [(item.as_name or "–", DIM)]
    return [(f"AS{item.asn} {item.as_name or ''}".rstrip(), DIM)]


def source_search(item: Source) -> str:
    """Return what `/` looks through."""
    return f"{item.key} {item.country or ''} AS{item.asn or ''} {item.as_name or ''}"


_SOURCE_ORDER = Ordering(
    key=lambda item: item.key,
    search=source_search,
    sorts=(
        ("dropped", lambda item: item.dropped_share),
        ("bytes", lambda item: item.share.bytes),
        ("name", lambda item: tuple(-ord(char) for char in item.key)),
    ),
)


def _source_view(name: str, title: str, width: int, *, origin: bool, country: bool) -> View:
    columns = [Column(title, width, lambda item, _: [(item.key, TEXT)], grow=1)]
    columns.append(Column("rule", 4, _rule_mark, keep=20))
    if country:
        columns.append(Column("from", 4, lambda item, _: [(item.country or "–", DIM)], keep=15))
    if origin:
        columns.append(Column("network", 14, _as_name, grow=3, keep=30))
    columns += share_columns(bar_width=12, keep=5)
    columns.append(Column("dropped", 8, _dropped, right=True, keep=10))
    return View(name, tuple(columns), _SOURCE_ORDER, share=lambda item: item.share.share)


SOURCE_VIEWS = (
    _source_view("address", "address", 15, origin=True, country=True),
    _source_view("prefix", "prefix", 18, origin=True, country=True),
    _source_view("asn", "AS", 10, origin=True, country=True),
    _source_view("country", "country", 7, origin=False, country=False),
)


def port_name(item: Port) -> str:
    """Write a port as `udp dst 53`."""
    return f"{item.protocol} {item.side} {item.port}"


PORT_VIEW = View(
    "",
    (
        Column("port", 13, lambda item, _: [(port_name(item), TEXT)]),
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


def _payload(item: Payload, _: Scene) -> Line:
    if item.dns_name is not None:
        return [("DNS ", DIM), (item.dns_name, TEXT)]
    return [(item.text, TEXT)]


def _normal(item: Payload, _: Scene) -> Line:
    return [(percent(item.baseline_share), DIM if item.baseline_share < 0.005 else WARN)]


PAYLOAD_VIEW = View(
    "",
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
)
