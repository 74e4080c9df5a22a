"""Keep packets out of connection tracking, both ways: CT --notrack in raw PREROUTING and raw OUTPUT."""

from __future__ import annotations

from msgspec.structs import replace

from fwtop.model.rule import Kind, Rule
from fwtop.rules.fields import has_more, scope_words
from fwtop.rules.kind import BESIDE, OUTPUT, ChainLine, KernelObjects, Layer, RuleKind, SetSpec, Surroundings
from fwtop.rules.kinds.common import base
from fwtop.rules.xtables import field_args, halves, set_name

_TARGET = ("-j", "CT", "--notrack")


def build(rule: Rule, around: Surroundings) -> KernelObjects:
    """Return the lines that exempt the matched packets and the answers to them.

    An answer that was tracked would create the entry that the request was spared.
    """
    incoming, outgoing = base(rule, around.exceptions), base(rule, around.exceptions, side="dst")
    answer = replace(rule.match, sport=rule.match.dport, dport=rule.match.sport)
    lines = [
        ChainLine(family, (*field_args(rule.match, family), *asks), _TARGET)
        for family, asks in incoming.asks.items()
    ]
    lines += [
        ChainLine(family, (*field_args(answer, family), *asks), _TARGET, OUTPUT)
        for family, asks in outgoing.asks.items()
    ]
    if not rule.stateless:
        return KernelObjects(incoming.sets, tuple(lines))
    beside = tuple(
        SetSpec(set_name(rule.id, family, BESIDE), family, halves(family)) for family in incoming.asks
    )
    return KernelObjects(incoming.sets + beside, tuple(lines), untracked=(rule.match,))


def _words(rule: Rule) -> list[str] | None:
    match = rule.match
    if match.payload or has_more(match):
        return None
    return ["notrack", *scope_words(match)]


KIND = RuleKind(
    Kind.NOTRACK, Layer.RAW, build, _words,
    optional=("stateless", "forget"), phrase=lambda _, what: f"do not track {what}",
    uncounted=lambda _: "a notrack rule drops nothing that could be counted",
    fixed="a connection is tracked, or not, by what it matched as it began",
    brief=lambda _, what: f"don't track {what}", drops_nothing=True,
    untracks=True, is_part=True, not_measured="it drops nothing",
    evaded="stateful rules don't see these packets",
    probes={"CT --notrack": "-j CT --notrack"}, verbs=("notrack",), cost_ns=100.0, bench="notrack {port}",
)  # fmt: skip
