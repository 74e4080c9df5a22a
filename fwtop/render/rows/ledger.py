"""Where packets ended: delivered, or dropped at a layer for a reason."""

from __future__ import annotations

from fwtop.model.traffic.snapshot import LedgerRow
from fwtop.render.rows.field import Field, RowType, Unit, alphabetical
from fwtop.rules.words import describe


def _reported(item: LedgerRow) -> tuple[str, str]:
    reason = f"{item.layer} · {item.reason}" if item.reason else item.layer
    return f"rule {item.rule} · {reason}" if item.rule else reason, ""


LEDGER = RowType(
    key=lambda item: f"{item.layer}/{item.reason}/{item.rule}",
    search=lambda item: f"{item.layer} {item.reason} rule {item.rule}",
    fields=(
        Field("layer", heading="where", width=11, sort="layer", label="layer"),
        Field("reason", heading="why", width=15, grow=2, keep=5, label="reason"),
        Field("packets", Unit.COUNT, heading="packets", width=7, keep=10, label="packets"),
        Field("pps", Unit.PPS, heading="pps", width=5, keep=1, label="rate", words="{pps} packets a second"),
        Field("rule", label="rule", words="fwtop rule {rule}", unknown="not one of fwtop's"),
        Field(
            "mostly",
            value=lambda item: describe(item.mostly) if item.mostly is not None else None,
            heading="mostly",
            width=24,
            grow=1,
            keep=9,
            label="mostly",
            words="{mostly}: {mostly_share} of the samples",
        ),
        Field("mostly_share", Unit.SHARE, digits=3),
        Field("behind_routing", value="filtered"),
        Field("share", Unit.SHARE, json=False, heading="share", width=7, keep=8),
    ),
    columns="layer reason mostly packets share pps",
    details="layer reason rule mostly packets pps",
    sorts=(("layer", lambda item: alphabetical(item.layer)),),
    reported=_reported,
    title=lambda item: f"{item.layer}: {item.reason}",
)
