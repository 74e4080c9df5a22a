"""The table of panels: their titles, their views, and what each takes from a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fwtop.model.snapshot import Snapshot
from fwtop.ui.columns import View
from fwtop.ui.items import conntrack_figures, ledger_lines
from fwtop.ui.traffic_panels import PAYLOAD_VIEW, PORT_VIEW, SOURCE_VIEWS
from fwtop.ui.verdict_panels import (
    CONNTRACK_VIEW,
    LEDGER_VIEW,
    PROPOSAL_VIEW,
    RULES_VIEW,
)


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """A panel: `items` lists what a view of it shows."""

    name: str
    title: str
    views: tuple[View, ...]
    items: Callable[[Snapshot, str], Sequence[Any]]
    counted: bool = False  # the title says how many there are
    low: bool = False  # belongs to the lower slot of the compact layout


def _payloads(snapshot: Snapshot, _: str) -> Sequence[Any]:
    return snapshot.judgement.payloads or snapshot.tables.payloads


PANELS = (
    PanelSpec("sources", "Sources", SOURCE_VIEWS, lambda shot, view: getattr(shot.tables.sources, view)),
    PanelSpec("ports", "Ports", (PORT_VIEW,), lambda shot, _: shot.tables.ports),
    PanelSpec("payloads", "Payloads", (PAYLOAD_VIEW,), _payloads),
    PanelSpec("ledger", "Drops", (LEDGER_VIEW,), lambda shot, _: ledger_lines(shot)),
    PanelSpec("conntrack", "Conntrack", (CONNTRACK_VIEW,), lambda shot, _: conntrack_figures(shot.conntrack)),
    PanelSpec(
        "proposals",
        "Proposals",
        (PROPOSAL_VIEW,),
        lambda shot, _: shot.judgement.proposals,
        counted=True,
        low=True,
    ),
    PanelSpec("rules", "Rules", (RULES_VIEW,), lambda shot, _: shot.mitigations, counted=True, low=True),
)
PANEL = {spec.name: spec for spec in PANELS}
