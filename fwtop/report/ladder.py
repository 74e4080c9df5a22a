"""The machine's own ladder: how many packets a second one core gets rid of, by the kind of rule."""

from __future__ import annotations

from collections.abc import Collection

from fwtop.model.costs import Costs
from fwtop.model.rule import Kind
from fwtop.report.markup import Markup, tag
from fwtop.report.wording import si

_PLACES = {
    Kind.XDP: "in the driver (XDP)",
    Kind.TC: "at tc ingress",
    Kind.NFTABLES: "at netdev ingress (nftables)",
    Kind.IPSET: "by source (ipset)",
    Kind.HASHLIMIT: "by rate (hashlimit)",
    Kind.STRING: "by payload (string)",
    Kind.SYNPROXY: "half-open connections (SYNPROXY)",
}  # of the packet's way, first to last; notrack ends nothing


def cost_ladder(costs: Costs | None, used: Collection[Kind]) -> Markup:
    """Draw a bar a kind, those that the session used filled; empty where nothing was measured here."""
    rates = {
        kind: 1e9 / costs.cost_ns[kind.value] for kind in _PLACES if costs and kind.value in costs.cost_ns
    }
    if costs is None or not rates:
        return Markup("")
    fastest = max(rates.values())
    rows: list[Markup] = []
    for kind, pps in rates.items():
        look = "meter" if kind in used else "meter expected"
        bar = tag("span", class_=look, style=f"width:{pps / fastest * 100:.1f}%")
        rows += [tag("span", _PLACES[kind]), tag("span", bar), tag("span", si(pps, "pps"))]
    filled = " Filled: what this session used." if any(kind in used for kind in rates) else ""
    words = (
        f"Packets a second that one core gets rid of, measured on {costs.measured[:10]} with "
        f"{costs.machine}, kernel {costs.kernel}.{filled}"
    )
    return tag(
        "section",
        tag("h2", "What this machine can drop"),
        tag("p", words, class_="hint"),
        tag("div", *rows, class_="pair ladder"),
    )
