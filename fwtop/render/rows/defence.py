"""Rows of what attacks and what stops it: attacks, proposals, fwtop's rules, and where packets ended."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from fwtop.model.rule import Rule, RuleStatus
from fwtop.model.traffic.session import STOPPED
from fwtop.model.traffic.severity import Harm, Severity
from fwtop.model.traffic.snapshot import Incident, LedgerRow, Proposal
from fwtop.render.numbers import percent
from fwtop.render.rows.field import Field, RowType, Unit, alphabetical
from fwtop.rules.words import describe


def taken(severity: Severity, name: str = "") -> str:
    """Return which resource is exhausted how far, "connection table 52 %", or "" if that wasn't measured."""
    if severity.exhausts is None or severity.nearness is None or severity.assumed:
        return ""
    return f"{name or severity.exhausts} {percent(severity.nearness)}"


def severity_words(severity: Severity) -> str:
    """Say which class something has, and why."""
    why = taken(severity) or (f"of {severity.exhausts}" if severity.exhausts else "")
    if severity.assumed and severity.nearness is not None:
        why = f"{percent(severity.nearness)} of a modest host's {severity.exhausts}"
    if severity.harm is not Harm.ATTACK:
        return f"{severity.harm}: exhausts nothing"
    return f"{severity.harm}: {why}" if why else str(severity.harm)


def kernel_words(attack: Incident) -> str:
    """Say that the kernel drops all of an attack, as nothing here takes it; "" if it does not."""
    return "the kernel drops it: nothing here takes it" if attack.undeliverable_share >= STOPPED else ""


def holding(attack: Incident) -> str:
    """Say how many connections a slow attack holds, which is its size; "" of one that sends packets."""
    if not attack.holds:
        return ""
    protocol, _, port = attack.target.partition("/")
    verb = "holds" if attack.is_on else "held"
    return f"{verb} {attack.holds:,} of {attack.holds_of:,} connections of {port}/{protocol}"


ATTACK = RowType(
    of=Incident,
    key=lambda item: str(item.id),
    search=lambda item: f"{item.title} {item.target} {item.sources}",
    fields=(
        Field("kind"),
        Field("title", heading="attack", width=17, grow=3, spills=True),
        Field("class", value="severity.harm.value"),
        Field("exhausts", value="severity.exhausts", heading="severity", width=8, grow=1, keep=6),
        Field("nearness", value="severity.nearness", digits=3),
        Field("nearness_is_assumed", value="severity.assumed"),
        Field("share", Unit.SHARE),
        Field("pps", Unit.PPS, heading="pps", width=5, keep=1, spills=True),
        Field("confidence", digits=3),
        Field("spoofed"),
        Field("uncertain"),
        Field("evidence"),
        Field("since", Unit.MOMENT, heading="age", width=6, keep=22),
        Field("peak_pps", Unit.PPS),
        Field("ended", Unit.MOMENT),
        Field("bps", Unit.BPS, heading="bit/s", width=5, keep=7, column="mb/s"),
        Field("target", heading="target", width=9, grow=1, keep=8, spills=True),
        Field("sources", heading="sources", width=14, grow=1, keep=25),
        Field("mine_share", Unit.SHARE, heading="my rules", width=8, keep=3),
        Field("other_share", Unit.SHARE, heading="other", width=7, keep=20),
        Field("kernel_share", Unit.SHARE),
        Field("undeliverable_share", Unit.SHARE),
        Field("effect_of"),
        Field("id"),
        Field("letter", width=1),
        Field("paused", Unit.MOMENT),
        Field("held_pps", Unit.PPS),
        Field("holds"),
        Field("holds_of"),
        Field("reaches", Unit.SHARE, "reaching_share", json=False, heading="reaches you", width=11, keep=2),
        Field("trend", Unit.PPS, json=False, heading="trend 5m", width=8, keep=10),
    ),
    columns="letter title target exhausts pps bps mine_share other_share reaches sources since trend",
    sorts=(
        ("severity", lambda item: tuple(-part for part in item.severity.order)),
        ("pps", lambda item: item.pps),
        ("reaches you", lambda item: item.pps * item.reaching_share),
    ),
)


_MOST_SOURCES = 5_000  # of a rule in JSON
_GUARDIANS = frozenset(("id", "created", "created_by"))  # what the guardian says of a rule


def _for_apply(rule: Rule) -> dict[str, Any] | None:
    """Return a rule as a program's `apply` takes it, without what it need not say; None if it is too long."""
    if len(rule.match.sources) > _MOST_SOURCES:
        return None
    made = _stated({name: value for name, value in rule.to_dict().items() if name not in _GUARDIANS})
    return {"match": {}, **{name: value for name, value in made.items() if value is not False}}


def _stated(value: dict[str, Any]) -> dict[str, Any]:
    """Leave out what has its default in any rule; a number and "no" say something."""
    inner = {name: _stated(item) if isinstance(item, dict) else item for name, item in value.items()}
    return {name: item for name, item in inner.items() if item is not None and item not in ("", [], {})}


PROPOSAL = RowType(
    of=Proposal,
    key=lambda item: item.key or f"{item.number} {item.kind}",  # the summary quotes figures that change
    search=lambda item: f"{item.kind} {item.summary}",
    fields=(
        Field("n", Unit.COUNT, "number", width=2),
        Field("kind"),
        Field("summary", heading="proposal", width=24, grow=1, spills=True),
        Field("attack", width=1, keep=8),
        Field("incident"),
        Field("attack_share", Unit.SHARE, heading="stops", width=7, keep=1),
        Field("already_share", Unit.SHARE),
        Field("collateral_share", Unit.SHARE, heading="clients hit", width=14, keep=2, sort="least harm"),
        Field("clients", value=lambda item: item.clients and item.clients.to_dict()),
        Field("collateral_examples"),
        Field("collateral_is_guess", value="guess"),
        Field("needs_force"),
        Field("bystanders"),
        Field("return_path"),
        Field("addresses", value="reach.addresses"),
        Field("attackers", value="reach.attackers"),
        Field("closes", value="reach.closes"),
        Field("cost_ns", Unit.NANOSECONDS, heading="CPU/pkt", width=7, keep=9, sort="cheapest"),
        Field("cost_measured"),
        Field("commands"),
        Field("fwtop"),
        Field("rule", value=lambda item: item.rule and _for_apply(item.rule)),
    ),
    columns="n attack summary attack_share collateral_share cost_ns",
    sorts=(
        ("least harm", lambda item: -item.collateral_share),
        ("stops", lambda item: item.attack_share - item.already_share),
        ("cheapest", lambda item: -math.inf if item.cost_ns is None else -item.cost_ns),
    ),
    copied=lambda item: item.fwtop or item.summary,
)


RULE = RowType(
    of=RuleStatus,
    key=lambda item: item.rule.id,
    search=lambda item: f"{item.rule.id} {item.state.value} {item.rule.summary}",
    fields=(
        Field("id", value="rule.id", heading="id", width=5),
        Field("kind", value="rule.kind.value", heading="by", width=9, keep=30),
        Field("summary", value="rule.summary", heading="rule", width=20, grow=1, keep=3, whole=True),
        Field("state", value="state.value", heading="state", width=18),
        Field("mode", value="rule.mode.value"),
        Field("packets", Unit.COUNT, heading="packets", width=7, keep=9),
        Field("bytes", Unit.BYTES, heading="bytes", width=7, keep=25),
        Field("pps", Unit.PPS, heading="pps", width=5, keep=1),
        Field("predicted_pps", Unit.COUNT, "rule.predicted_pps", heading="expected", width=8, keep=2),
        Field("expires", Unit.MOMENT, heading="ends UTC", width=8, keep=20),
        Field("confirm_by", Unit.MOMENT),
        Field("note"),
        Field("acting"),
        Field("not_acting"),
        Field("hits", value=lambda item: item.hits and item.hits.to_dict()),
        Field("hits_since", Unit.MOMENT, lambda item: item.hits and item.hits.since),
        Field("trend", Unit.PPS, json=False, heading="trend 5m", width=8, keep=10),
    ),
    columns="id state kind summary pps predicted_pps packets bytes expires",
    sorts=(("pps", lambda item: item.pps), ("packets", lambda item: item.packets)),
    copied=lambda item: item.rule.summary,
)


def _mostly(item: LedgerRow) -> str | None:
    return describe(item.mostly) if item.mostly is not None else None


def _reported_ledger(item: LedgerRow) -> tuple[str, str]:
    reason = f"{item.layer} · {item.reason}" if item.reason else item.layer
    return f"rule {item.rule} · {reason}" if item.rule else reason, ""


_SAMPLED = "{mostly}: {mostly_share} of the samples"
_MAINLY = Field("mostly", value=_mostly, heading="mainly (sampled)", label="mainly", words=_SAMPLED)
LEDGER = RowType(
    of=LedgerRow,
    key=lambda item: f"{item.layer}/{item.reason}/{item.rule}",
    search=lambda item: f"{item.layer} {item.reason} rule {item.rule}",
    fields=(
        Field("layer", heading="layer", width=11),
        Field("reason", heading="reason", width=15, grow=2, keep=5, column="why"),
        Field("packets", Unit.COUNT, heading="packets", width=7, keep=10),
        Field("pps", Unit.PPS, heading="pps", width=5, keep=1, label="rate", words="{pps} packets a second"),
        Field("rule", label="rule", words="fwtop rule {rule}", unknown="not one of fwtop's"),
        replace(_MAINLY, width=24, grow=1, keep=9, column="mostly"),
        Field("mostly_share", Unit.SHARE, digits=3),
        Field("behind_routing", value="filtered"),
        Field("share", Unit.SHARE, json=False, heading="share", width=7, keep=8),
    ),
    columns="layer reason mostly packets share pps",
    details="layer reason rule mostly packets pps",
    sorts=(("layer", lambda item: alphabetical(item.layer)),),
    reported=_reported_ledger,
    title=lambda item: f"{item.layer}: {item.reason}",
)
