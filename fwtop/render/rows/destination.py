"""Where packets go to."""

from __future__ import annotations

from fwtop.model.traffic.snapshot import Destination
from fwtop.render.rows.field import DROPPED, Field, RowType, estimate


def part_text(item: Destination) -> str:
    """Say who is at an address: the services that answer, dark where nobody does."""
    return " ".join(item.serves) or item.part


DESTINATION = RowType(
    key=lambda item: item.key,
    search=lambda item: f"{item.key} {part_text(item)}",
    fields=(
        Field("key", heading="destination", width=15, grow=1, whole=True, label="address"),
        *estimate(),
        DROPPED,
        Field("part", value=lambda item: item.part or None),
        Field("serves"),
        Field("there", value=lambda item: part_text(item) if item.part else "", json=False, label="part"),
    ),
    columns="key bar share pps dropped_share",
    details="key share packets bytes dropped_share there",
    sorts=(("dropped", lambda item: item.dropped_share), ("bytes", lambda item: item.share.bytes)),
    title=lambda item: f"destination {item.key}",
    packets=lambda item: f"{'ip' if item.prefix.family == 4 else 'ipv6'}.dst == {item.prefix}",
)
