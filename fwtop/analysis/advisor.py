"""The advisor: turns windows of packets into attacks, signatures and proposals, with state in between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec.structs import replace

from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import AnalysisContext, make_context
from fwtop.analysis.engine.compete import Explained
from fwtop.analysis.engine.weights import calibrated
from fwtop.analysis.fate import fates
from fwtop.analysis.learning import Learner
from fwtop.analysis.memory import Baseline, Memory
from fwtop.analysis.packet_signatures import SignatureSearch, packet_signatures
from fwtop.analysis.proposals.effect import Remaining
from fwtop.analysis.proposals.normal import normal_traffic, with_unexplained
from fwtop.analysis.proposals.propose import Advice, Fingerprint, StableNumbers, numbered, offers
from fwtop.analysis.proposals.signatures import matches, signatures
from fwtop.analysis.proposals.upstream import pressure
from fwtop.analysis.shown import JudgedTraffic, shown_payloads
from fwtop.analysis.snapshot_attacks import Known, Life, Timeline, activity, attacks_of, pps_of
from fwtop.analysis.standing import Standing
from fwtop.model.rule import Rule
from fwtop.model.traffic.packets import NoOrigin, OriginLookup, Window
from fwtop.model.traffic.snapshot import Judgement, Tables
from fwtop.rehearsal.host import KnownPeers


class Advisor:
    """Judges consecutive windows. One per observation; not thread-safe."""

    def __init__(
        self,
        config: AdviseConfig | None = None,
        baseline: Baseline | None = None,
        lookup: OriginLookup | None = None,
        known: tuple[Known, ...] = (),
        *,
        explains: bool = False,
    ) -> None:
        """`known` are attacks that another observation has seen before this one began."""
        self.config = config or AdviseConfig()
        self.standing = Standing.unknown()  # of the sources, as of the last judgement
        self.judged: JudgedTraffic | None = None  # the last window
        self.known = KnownPeers()  # rules are rehearsed on them
        self.explained: tuple[Explained, ...] = ()  # the groups of the last window, if asked to explain
        self._explains = explains
        self._lookup = lookup or NoOrigin()
        self.baseline = baseline or Baseline(self.config.baseline_rows)
        self.learner = Learner(self.baseline, self.config)
        self._timeline = Timeline(self.config.linger_seconds, known=known)
        self._memory = Memory()
        self._advice: Advice | None = None
        self._numbers = StableNumbers()
        self._search = SignatureSearch()

    def judge(self, window: Window, tables: Tables, active: Sequence[Rule] = ()) -> Judgement:
        """Return the attacks of a window, and proposals against what `active` rules leave of them.

        Learn from quiet windows.
        """
        context = make_context(window, self.config, self.baseline, self._memory)
        context.explains, context.known = self._explains, self.known
        findings = context.findings[:] = calibrated(context, find_attacks(context))
        if context.sockets is not None:
            self._memory.connections.learn(quiet=all(finding.held is None for finding in findings))
        self.explained = tuple(context.explained) if self._explains else ()
        self._timeline.observe(window.intervals)
        lives = [
            Life(finding, activity(context, finding, pps_of(context, finding)), fate)
            for finding, fate in zip(findings, fates(context, window), strict=True)
        ]
        lives.sort(key=lambda life: life.onset)  # a later vector may replace an earlier one
        named = attacks_of(context, lives, self._timeline)
        self._timeline.follow(context)
        attacks = tuple(attack for attack, _ in named)
        claims = {attack.key: finding for attack, finding in named}
        self.learner.obey(context, named)
        self.learner.take(context, window, quiet=not any(one.severity.is_harmful for one in attacks))
        now = window.started + window.seconds
        self.standing = Standing.of(context, self._lookup)
        advice = self._advice = self._advise(context, active, now)
        self.judged = JudgedTraffic.of(window, context, advice.normal, claims)
        numbers = self._numbers.assign([offer.key for offer in advice.offered], now)
        made = [numbered(offer, number) for offer, number in zip(advice.offered, numbers, strict=True)]
        found = chain.from_iterable(advice.found.values())
        made_now = Judgement(
            attacks=attacks,
            proposals=tuple(sorted(made, key=lambda proposal: proposal.number)),
            payloads=shown_payloads(tables, context.traffic, found, advice.normal),
            baseline=self.learner.sentence(advice.normal.sentence),
            learning=self.learner.told,
            baseline_packets=len(advice.normal.packets),
            signatures=packet_signatures(window, context, advice.normal, self._search),
        )
        return at_most(made_now, tables.totals.pps)

    def _advise(self, context: AnalysisContext, active: Sequence[Rule], now: float) -> Advice:
        """Return cached proposals if neither attacks nor rules have changed, else new ones."""
        normal = normal_traffic(context)
        fingerprint = Fingerprint.of(context, normal, active, overloaded=bool(pressure(context)))
        before = self._advice
        if before is not None and context.findings and before.holds(fingerprint, now):
            return before
        order = tuple(offer.key for offer in before.offered) if before is not None else ()
        left = Remaining.of(context, active, only_driver=bool(pressure(context)))
        aims = [one.finding if one.is_worth_a_rule else one.whole for one in left.attacks]
        found = {finding.key: signatures(context, finding, normal) for finding in aims}
        normal = with_unexplained(context, normal, matches(found))
        return Advice(fingerprint, now, normal, found, offers(context, normal, found, order, left))


def at_most(judgement: Judgement, total_pps: float) -> Judgement:
    """Limit the attacks' rates to the total of the window that they are shown with.

    A judgement may be older than the tables, and connection tracking also counts outbound connections.
    """
    if all(attack.pps <= total_pps for attack in judgement.attacks):
        return judgement
    attacks = tuple(replace(attack, pps=min(attack.pps, total_pps)) for attack in judgement.attacks)
    return replace(judgement, attacks=attacks)
