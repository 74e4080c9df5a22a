"""A byte string that many payloads have in common."""

from __future__ import annotations

from fwtop.model.traffic.snapshot import Payload
from fwtop.render.rows.field import NORMAL, Field, RowType, estimate


def payload_name(item: Payload) -> str:
    """Show the DNS name where there is one, else the bytes as text."""
    return item.dns_name if item.dns_name is not None else item.text


def _place(item: Payload) -> str:
    return "anywhere in the payload" if item.offset is None else f"at byte {item.offset} of the payload"


def _reported(item: Payload) -> tuple[str, str]:
    return payload_name(item), "anywhere" if item.offset is None else f"at byte {item.offset}"


PAYLOAD = RowType(
    key=lambda item: f"{item.offset}:{item.data.hex()}",
    search=lambda item: f"{payload_name(item)} {item.data.hex()}",
    fields=(
        Field("hex", value=lambda item: item.data.hex()),
        Field("text"),
        Field("offset"),
        Field("dns_name", label="DNS name"),
        *estimate(),
        NORMAL,
        Field("name", value=payload_name, json=False, heading="bytes in common", width=20, grow=1),
        Field(
            "at",
            value=lambda item: "any" if item.offset is None else f"+{item.offset}",
            json=False,
            heading="at",
            width=4,
            keep=20,
        ),
        Field("place", value=_place, json=False, label="place"),
        Field("length", value=lambda item: f"{len(item.data)} bytes", json=False, label="length"),
    ),
    columns="name at bar share pps baseline_share",
    details="place length dns_name share packets bytes baseline_share",
    sorts=(
        ("rare in normal", lambda item: -item.baseline_share),
        ("length", lambda item: len(item.data)),
    ),
    title=lambda item: f"payload {payload_name(item)}",
    copied=lambda item: item.data.hex(),
    reported=_reported,
)
