"""A rule of fwtop's, as its status tells."""

from __future__ import annotations

from fwtop.render.rows.field import Field, RowType, Unit

RULE = RowType(
    key=lambda item: item.rule.id,
    search=lambda item: f"{item.rule.id} {item.state.value} {item.rule.summary}",
    fields=(
        Field("id", value="rule.id", heading="id", width=3),
        Field("kind", value="rule.kind.value", heading="by", width=9, keep=30),
        Field("summary", value="rule.summary", heading="rule", width=20, grow=1, keep=3, whole=True),
        Field("state", value="state.value", heading="state", width=16),
        Field("packets", Unit.COUNT, heading="packets", width=7, keep=9),
        Field("bytes", Unit.BYTES, heading="bytes", width=7, keep=25),
        Field("pps", Unit.PPS, heading="pps", width=5, keep=1),
        Field("predicted_pps", Unit.COUNT, "rule.predicted_pps", heading="expected", width=8, keep=2),
        Field("expires", Unit.MOMENT, heading="ends UTC", width=8, keep=20),
        Field("confirm_by", Unit.MOMENT),
        Field("note"),
        Field("acting"),
        Field("not_acting"),
        Field("trend", Unit.PPS, json=False, heading="trend 5m", width=8, keep=10),
    ),
    columns="id state kind summary pps predicted_pps packets bytes expires",
    sorts=(("pps", lambda item: item.pps), ("packets", lambda item: item.packets)),
    copied=lambda item: item.rule.summary,
)
