"""An attack: what it targets, who drops it, and how much of it reaches services."""

from __future__ import annotations

from fwtop.model.traffic.snapshot import Attack
from fwtop.render.rows.field import Field, RowType, Unit


def reaching_share(attack: Attack) -> float:
    """Return the share of an attack's own packets that nothing drops, 0 to 1."""
    return min(max(1.0 - attack.mine_share - attack.other_share - attack.kernel_share, 0.0), 1.0)


ATTACK = RowType(
    key=lambda item: item.key,
    search=lambda item: f"{item.title} {item.target} {item.sources}",
    fields=(
        Field("kind"),
        Field("title", heading="attack", width=17, grow=3),
        Field("share", Unit.SHARE),
        Field("pps", Unit.PPS, heading="pps", width=5, keep=1),
        Field("confidence", digits=3),
        Field("spoofed"),
        Field("uncertain"),
        Field("evidence"),
        Field("since", Unit.MOMENT, heading="age", width=6, keep=22),
        Field("peak_pps", Unit.PPS),
        Field("ended", Unit.MOMENT),
        Field("bps", Unit.BPS, heading="Mb/s", width=5, keep=7),
        Field("target", heading="target", width=9, grow=1, keep=8, spills=True),
        Field("sources", heading="sources", width=14, grow=1, keep=25),
        Field("mine_share", Unit.SHARE, heading="my rules", width=8, keep=3),
        Field("other_share", Unit.SHARE, heading="other", width=7, keep=20),
        Field("kernel_share", Unit.SHARE),
        Field("effect_of"),
        Field("letter", json=False, width=1),
        Field("reaches", Unit.SHARE, reaching_share, json=False, heading="reaches you", width=11, keep=2),
        Field("trend", Unit.PPS, json=False, heading="trend 5m", width=8, keep=10),
    ),
    columns="letter title target pps bps mine_share other_share reaches sources since trend",
    sorts=(
        ("pps", lambda item: item.pps),
        ("reaches you", lambda item: item.pps * reaching_share(item)),
    ),
)
