"""A rule that fwtop proposes: what it stops, whom it hits, what a packet costs."""

from __future__ import annotations

import math

from fwtop.render.rows.field import Field, RowType, Unit

PROPOSAL = RowType(
    key=lambda item: f"{item.number} {item.kind}",  # the summary quotes figures that change
    search=lambda item: f"{item.kind} {item.summary}",
    fields=(
        Field("n", Unit.COUNT, "number", width=2),
        Field("kind"),
        Field("summary", heading="proposal", width=24, grow=1, whole=True),
        Field("attack", width=1, keep=8),
        Field("attack_share", Unit.SHARE, heading="stops", width=7, keep=1),
        Field("already_share", Unit.SHARE),
        Field("collateral_share", Unit.SHARE, heading="clients hit", width=14, keep=2, sort="least harm"),
        Field("collateral_examples"),
        Field("collateral_is_guess", value="guess"),
        Field("cost_ns", Unit.NANOSECONDS, heading="CPU/pkt", width=7, keep=9, sort="cheapest"),
        Field("cost_measured"),
        Field("commands"),
        Field("fwtop"),
    ),
    columns="n attack summary attack_share collateral_share cost_ns",
    sorts=(
        ("least harm", lambda item: -item.collateral_share),
        ("stops", lambda item: item.attack_share - item.already_share),
        ("cheapest", lambda item: -math.inf if item.cost_ns is None else -item.cost_ns),
    ),
    copied=lambda item: item.fwtop or item.summary,
)
