"""The proposals against each incident, which last while it doesn't change, best first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.proposals.effect import Remainder, Remaining
from fwtop.analysis.proposals.normal import Normal, normal_traffic, with_unexplained
from fwtop.analysis.proposals.propose import Offer, offers
from fwtop.analysis.proposals.signatures import Signature, matches, signatures
from fwtop.analysis.proposals.upstream import pressure
from fwtop.incidents.tracked import Tracked
from fwtop.model.rule import Rule
from fwtop.model.traffic.snapshot import Proposal
from fwtop.rules.kinds import command_line

_KEEP_SECONDS = 2.5
_AT_ONCE = 8  # unchanged incidents whose proposals are renewed in one judgement: the rest waits for the next
_SHARE = 0.05  # of all packets: a larger change renews the proposals
_FACTOR = 1.25  # a larger change of the rate renews the proposals


class Premises(Struct, frozen=True):
    """What the proposals against an incident depend on, coarsely."""

    share: float
    pps: float
    spoofed: bool
    guess: bool
    overloaded: bool  # packets are lost before any rule, or the link is full
    rules: frozenset[str]  # ids of the active ones

    def still_hold(self, now: Premises) -> bool:
        """Test whether the same proposals apply."""
        same = ("spoofed", "guess", "overloaded", "rules")
        low, high = sorted((self.pps, now.pps))
        near = abs(self.share - now.share) <= _SHARE and high <= _FACTOR * low + 1.0
        return near and all(getattr(self, name) == getattr(now, name) for name in same)


class Advice(Struct, frozen=True):
    """The proposals against an incident, made at a time (Unix seconds)."""

    premises: Premises
    made: float
    signatures: Sequence[Signature]
    offers: Sequence[Offer]


class Advices:
    """Keeps and renews the advice on each incident. One per observation; not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[int, Advice] = {}  # by the incident's id

    def renew(
        self,
        context: AnalysisContext,
        active: Sequence[Rule],
        named: Sequence[tuple[Tracked, Finding]],
        now: float,
    ) -> Normal:
        """Make proposals anew where an incident changed or they are old; return the normal traffic."""
        normal, overloaded = normal_traffic(context), bool(pressure(context))
        rules = frozenset(rule.id for rule in active)
        premises = {
            one.id: Premises(
                context.traffic.share(finding.rows),
                context.traffic.pps(finding.rows),
                finding.spoof.probability > context.config.spoof_threshold,
                normal.guess,
                overloaded,
                rules,
            )
            for one, finding in named
        }
        due = set(self._due(premises, now))
        remaining = Remaining.of(context, active, only_driver=overloaded) if due else Remaining((), ())
        left = {
            one.id: remainder
            for one, finding in named
            for remainder in remaining.attacks
            if one.id in due and remainder.whole is finding
        }
        found = {number: _signatures(context, one, normal) for number, one in left.items()}
        known = {one.id: found.get(one.id) or self._found(one.id) for one, _ in named}
        normal = with_unexplained(context, normal, matches({f.key: known[one.id] for one, f in named}))
        for number, one in left.items():
            before = tuple(offer.key for offer in self._held[number].offers) if number in self._held else ()
            made = offers(context, one, normal, found[number], before=before, remaining=remaining)
            self._held[number] = Advice(premises[number], now, found[number], made)
        return normal

    def _due(self, premises: Mapping[int, Premises], now: float) -> Iterator[int]:
        old = []
        for number, present in premises.items():
            held = self._held.get(number)
            if held is None or not held.premises.still_hold(present) or now < held.made:
                yield number
            elif now - held.made >= _KEEP_SECONDS:
                old.append((held.made, number))
        yield from (number for _, number in sorted(old)[:_AT_ONCE])

    def _found(self, number: int) -> Sequence[Signature]:
        return self._held[number].signatures if number in self._held else ()

    def signatures(self) -> Iterator[Signature]:
        """Yield the signatures of all incidents."""
        return chain.from_iterable(held.signatures for held in self._held.values())

    def proposals(self, incidents: Sequence[Tracked]) -> tuple[Proposal, ...]:
        """Return the proposals against incidents, given the worst first: best of each first.

        A paused attack's come last while another is on.
        """
        self._held = {one.id: self._held[one.id] for one in incidents if one.id in self._held}
        vectors: list[list[tuple[str, Proposal]]] = []
        state: list[list[tuple[str, Proposal]]] = []
        paused: list[tuple[str, Proposal]] = []
        some_are_on = any(one.paused is None and not one.state for one in incidents)
        for one in incidents:
            if one.id in self._held:
                made = [
                    (f"{one.id} {offer.key}", replace(offer.proposal, incident=one.id))
                    for offer in self._held[one.id].offers
                ]
                if one.paused is not None and some_are_on:
                    paused += made
                else:
                    (state if one.state else vectors).append(made)
        first = [made[0] for made in vectors if made]
        rest = [item for made in vectors for item in made[1:]]
        offered = dict([*first, *rest, *chain.from_iterable(state), *paused])
        return tuple(_numbered(one, key, number) for number, (key, one) in enumerate(offered.items(), 1))


def _signatures(context: AnalysisContext, left: Remainder, normal: Normal) -> Sequence[Signature]:
    return signatures(context, left.finding if left.is_worth_a_rule else left.whole, normal)


def _numbered(proposal: Proposal, key: str, number: int) -> Proposal:
    proposal = replace(proposal, number=number, key=key)
    if proposal.rule is None:
        return proposal
    rule = replace(proposal.rule, created_by=f"proposal {number}")
    return replace(proposal, fwtop=command_line(rule) or f"fwtop apply {number}", rule=rule)
