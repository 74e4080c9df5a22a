"""What active rules leave of attacks, so that proposals are about the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.proposals.effect import share_of, stopped_by
from fwtop.model.rule import Level, Rule
from fwtop.model.traffic.packets import F64
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import drops_nothing, of
from fwtop.rules.overlap import includes

_MOST_RULES = 16  # each is replayed on all packets
_LONG_LIST = 10_000  # sources: searching longer lists takes too long
_HARDLY = 0.05  # of an attack: no rule is worth it for so little
_STOPPED = 0.5  # of a packet's like, by a limit: what it leaves counts as left
_MAIN = 0.5  # of what is left of an attack: the packets that are mostly let pass must be that much of it


class Remainder(Struct, frozen=True):
    """What is left of an attack: `finding` without the packets that active rules stop."""

    whole: Finding
    finding: Finding
    share: float  # of the attack's packets, 0 to 1
    stopped: F64 | None = None  # of each arrived packet the share (0 to 1) that active rules stop

    @property
    def is_worth_a_rule(self) -> bool:
        """Whether more is left than rules let pass anyway."""
        return self.share > _HARDLY and len(self.finding.rows) > 0


def replayable(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the rules that samples can be replayed on: they drop, and their sources are known here.

    The guardian keeps derived lists for itself, and whom a protected port lets in.
    """
    known = [rule for rule in rules if rule.origin is None and not drops_nothing(rule)]
    known = [rule for rule in known if rule.protection is None or rule.protection.level is Level.CLOSED]
    return tuple(rule for rule in known if len(rule.match.sources) <= _LONG_LIST)[:_MOST_RULES]


def stopped_by_all(rules: Sequence[Rule], context: AnalysisContext) -> F64:
    """Return for each arrived row the share (0 to 1) that the rules drop together."""
    traffic = context.traffic
    each = [stopped_by(rule, context, traffic) for rule in rules]
    return np.asarray(np.max(each, axis=0)) if each else np.zeros(len(traffic))


class Remaining(Struct, frozen=True):
    """The active rules, and what they leave of each attack of a window."""

    rules: tuple[Rule, ...]
    attacks: tuple[Remainder, ...]

    @staticmethod
    def of(context: AnalysisContext, rules: Sequence[Rule], *, only_driver: bool = False) -> Remaining:
        """Replay `rules` on a judged window.

        What shows in sockets or in the connection table is never reduced: rules against it are no filters.
        With `only_driver` only rules in the driver count: if packets are lost before it, others are too late.
        """
        chosen = [
            rule for rule in replayable(rules) if of(rule.kind).layer is Layer.DRIVER or not only_driver
        ]
        if chosen:
            stopped = stopped_by_all(chosen, context)
            left = tuple(_remainder(context, finding, stopped) for finding in context.findings)
        else:
            left = tuple(Remainder(finding, finding, 1.0) for finding in context.findings)
        return Remaining(tuple(rules), left)

    def does(self, rule: Rule | None) -> bool:
        """Tell whether an active rule does what another would."""
        return rule is not None and any(includes(active, rule) for active in self.rules)


def _remainder(context: AnalysisContext, finding: Finding, stopped: F64) -> Remainder:
    rows = finding.rows
    if finding.state or finding.held is not None or len(rows) == 0:
        return Remainder(finding, finding, 1.0)
    share = 1.0 - share_of(stopped, context.traffic, rows)
    passes = stopped[rows] < _STOPPED
    through = context.traffic.weight[rows] * (1.0 - stopped[rows])
    if float(through[passes].sum()) < _MAIN * float(through.sum()):
        passes = stopped[rows] < 1.0  # a limit lets a part of each source pass
    if passes.all() and share == 1.0:
        return Remainder(finding, finding, 1.0)
    return Remainder(finding, replace(finding, rows=rows[passes]), share, stopped)
