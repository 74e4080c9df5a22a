"""A source or destination port."""

from __future__ import annotations

from fwtop.model.traffic.snapshot import Port
from fwtop.render.rows.field import Field, RowType, estimate


def port_name(item: Port) -> str:
    """Write a port as `udp dst 53`."""
    return f"{item.protocol} {item.side} {item.port}"


def _reported(item: Port) -> tuple[str, str]:
    return f"{item.protocol} {'from' if item.side == 'src' else 'to'} {item.port}", item.service or ""


def _packets(item: Port) -> str:
    return f"{item.protocol}.{item.side}port == {item.port}" if item.protocol in ("tcp", "udp") else ""


PORT = RowType(
    key=port_name,
    search=lambda item: f"{port_name(item)} {item.service or ''}",
    fields=(
        Field("protocol"),
        Field("side", label="port", words="{protocol} {side_word} port {port}"),
        Field("port"),
        Field("service", heading="service", width=8, grow=1, keep=10, label="service", unknown="not known"),
        *estimate(bar=10),
        Field("name", value=port_name, json=False, heading="port", width=13, sort="number"),
        Field("side_word", value=lambda item: "destination" if item.side == "dst" else "source", json=False),
    ),
    columns="name service bar share pps",
    details="side service share packets bytes",
    sorts=(("number", lambda item: -item.port), ("bytes", lambda item: item.share.bytes)),
    packets=_packets,
    reported=_reported,
)
