"""Hypotheses compete for groups of packets, attacks claim theirs, and `fwtop read --explain` prints why.

The shares of exp(log-odds) are the probabilities of a group's explanations. Cuts take their turn by what
proves their attacks. Within a turn all groups are cut from the same packets; the likeliest attack takes what
it explains first. What lost packets to it is cut and judged again when no attack is left that lost none: once
for all attacks beside it, not once for each.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import TextIO

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, Trait, count
from fwtop.analysis.engine.entries import (
    FEATURES,
    Cut,
    Feature,
    Group,
    Hypothesis,
    Needs,
    Proof,
    in_words,
    own_rows,
)
from fwtop.analysis.window.counting import among, distinct_values, marked
from fwtop.analysis.window.traffic import Rows, mix
from fwtop.model.traffic.packets import U64, Mask
from fwtop.render.numbers import percent

_CLEAR = 0.99  # from which the more specific of two explanations takes the packets


class Explained(Struct, frozen=True, eq=False, dict=True):
    """A group with the probabilities of its explanations, likeliest first; empty if no attack is possible."""

    group: Group
    ranked: tuple[tuple[Hypothesis, float], ...]
    rows: Rows  # the packets that the likeliest explanation takes
    ruled_out: tuple[tuple[Hypothesis, Needs], ...] = ()  # with the first need that isn't met

    @cached_property
    def attack(self) -> float:
        """Probability that any attack explains it."""
        return sum(share for one, share in self.ranked if one.kind)

    @cached_property
    def is_attack(self) -> bool:
        """Whether an attack explains it better than all that is ordinary."""
        return self.attack > self.group.sure

    @cached_property
    def best(self) -> Hypothesis:
        """The likeliest attack."""
        return next(one for one, _ in self.ranked if one.kind)

    @property
    def settled(self) -> bool:
        """Whether a use is known that weaker proof may not deny."""
        uses = (one.settles for one, _ in self.ranked if one.settles is not None)
        return not self.is_attack and any(all(need.met(self.group) for need in needs) for needs in uses)

    def lost(self, winner: Explained, claimed: Mask) -> bool:
        """Whether an attack that was named took some of its packets, or the sources of most connections."""
        if self.group.held is not None and winner.group.held is not None:
            return self.group.held.belongs_to(winner.group.held)
        own = self.group.packets.rows
        return bool(marked(claimed.take(own)) or (self.rows is not own and marked(claimed.take(self.rows))))

    @cached_property
    def rank(self) -> tuple[tuple[float, ...], float, int, str, str, int]:
        """Orders attacks that contest packets: by probability, and of certain ones by how much they need.

        What is left is repeatable, whatever the order in which groups were cut.
        """
        certain = min(self.attack, _CLEAR)
        first = int(self.group.packets.rows[0]) if self.group.packets.n else 0
        return self.group.order, certain, len(self.best.needs), self.best.name, self.group.cut, first

    def finding(self) -> Finding:
        """Return the attack, its evidence strongest first."""
        best, group = self.best, self.group
        return Finding(
            said(best.kind, group),
            said(best.title or best.name, group),
            self.rows,
            round(min(self.attack, 0.99), 3),
            evidence(best, group),
            group.spoof,
            best.match(group),
            state=group.held is not None,
            held=group.held,
            settings=best.settings,
            traits=best.traits,
            dns_name=group.notes.get("dns_name"),
            exhausts=best.exhausts,
            otherwise=best.otherwise,
            asked=group.packets.pps,
            bearable=best.bearable is not None and bool(group[best.bearable]),
            connections=group[best.holds] if best.holds is not None else 0.0,
        )


def compete(group: Group, entries: Sequence[Hypothesis]) -> Explained:
    """Let the entries for its cut explain a group."""
    possible = [one for one in entries if one.possible(group)]
    if not (group.context.explains or any(one.kind or one.settles is not None for one in possible)):
        return Explained(group, (), group.packets.rows)
    scored = sorted(
        ((one.odds(group), one.name, one) for one in possible), key=lambda item: (-item[0], item[1])
    )
    odds = [math.exp(score - scored[0][0]) for score, _, _ in scored]
    ranked = tuple((one, share / sum(odds)) for (_, _, one), share in zip(scored, odds, strict=True))
    made = Explained(group, ranked, group.packets.rows, _ruled_out(group, entries))
    if made.is_attack and made.best.rows is not own_rows:
        return replace(made, rows=made.best.rows(group))
    return made


def _ruled_out(group: Group, entries: Sequence[Hypothesis]) -> tuple[tuple[Hypothesis, Needs], ...]:
    """Return the explanations that are impossible, and why, where that is asked for."""
    if not group.context.explains:
        return ()
    every = sorted(entries, key=lambda one: one.name)
    failed = ((one, next((need for need in one.needs if not need.met(group)), None)) for one in every)
    return tuple((one, need) for one, need in failed if need is not None)


def evidence(one: Hypothesis, group: Group) -> tuple[str, ...]:
    """Return the sentences of an explanation: what it is about, what speaks for it, what parsers add."""
    signs = [said(says.sentence, group) for says in one.carried(group) if says.sentence]
    lead = (one.lead,) if isinstance(one.lead, str) else one.lead
    return (
        *(said(line, group) for line in lead),
        *signs,
        *(line for detail in one.details for line in detail(group)),
    )


_MOST_ATTACKS = 64  # attacks of one turn: a bound on its cost


@lru_cache(maxsize=4)
def entries_by_turn(entries: tuple[Hypothesis, ...]) -> dict[Proof, dict[Cut, list[Hypothesis]]]:
    """Return the explanations of each cut's groups: the turns in their order, in them cuts by their names."""
    every = [one for one in entries if one.of is None]
    cuts = sorted({one.of for one in entries if one.of is not None}, key=lambda cut: cut.name)
    about = {
        cut: [*(one for one in entries if one.of is cut), *(() if cut.complete else every)] for cut in cuts
    }
    return {proof: {cut: about[cut] for cut in cuts if cut.proof == proof} for proof in Proof}


def resolve(context: AnalysisContext, about: Mapping[Cut, Sequence[Hypothesis]]) -> None:
    """Explain all groups of the cuts of one turn; attacks become findings of the context."""
    cuts = {cut.name: cut for cut in about}
    opened: list[Explained] = []  # groups that lost no packets
    stale = set(cuts)  # cuts whose packets are to be cut again
    told: list[Explained] = []
    for _ in range(_MOST_ATTACKS):
        attacks = [one for one in opened if one.is_attack]
        if not attacks:
            opened = _cut_again(context, opened, {cuts[name]: about[cuts[name]] for name in stale})
            stale = set()
            attacks = [one for one in opened if one.is_attack]
        if not attacks:
            break
        winner = max(attacks, key=lambda one: one.rank)
        cut = winner.group.cut
        one = _joined(winner, cuts[cut], [one for one in attacks if one.group.cut == cut])
        context.findings.append(one.finding())
        context.unclaimed[one.rows] = False
        told.append(one)
        attach(context)
        claimed = ~context.unclaimed
        lost = [one for one in opened if one.lost(winner, claimed)]
        stale |= {one.group.cut for one in lost if one.group.cut != cut or cuts[cut].again}
        opened = [one for one in opened if one not in lost]
    left = _cut_again(context, opened, {cuts[name]: about[cuts[name]] for name in stale})
    for one in left:
        if one.settled:
            context.benign[one.group.packets.rows] = True
    if context.explains:  # they refer to the context: else each window waits for the garbage collector
        context.explained += (*told, *left)


def _cut_again(
    context: AnalysisContext, opened: list[Explained], stale: Mapping[Cut, Sequence[Hypothesis]]
) -> list[Explained]:
    """Return the groups, those of stale cuts cut and explained anew."""
    names = {cut.name for cut in stale}
    kept = [one for one in opened if one.group.cut not in names]
    return [*kept, *chain.from_iterable(_explained(context, cut, about) for cut, about in stale.items())]


def _explained(context: AnalysisContext, cut: Cut, entries: Sequence[Hypothesis]) -> list[Explained]:
    found = []
    for group in cut(context):
        found.append(compete(group, entries))
        if group.otherwise is not None and found[-1].ranked and not found[-1].is_attack:
            part = group.otherwise()
            part.cut = cut.name
            if part.packets.n not in (0, group.packets.n):
                found.append(compete(part, entries))
    return found


def _joined(winner: Explained, cut: Cut, attacks: Sequence[Explained]) -> Explained:
    """Join the groups of a cut that one tool makes: floods to several ports are one attack."""
    same = [one for one in attacks if one.best is winner.best]
    if cut.join is None or len(same) < 2 or not winner.best.joins:
        return winner
    rows = distinct_values(np.concatenate([one.group.packets.rows for one in same]))
    group = cut.join(winner.group.context, [one.group for one in same], rows)
    group.cut = cut.name
    return Explained(group, max(same, key=lambda one: one.rank).ranked, winner.best.rows(group))


_NEARLY_ALL = 0.9  # of the later fragments: the rest lost their first fragment
_BY_CHANCE = 0.05  # more than chance
_MOST_OF_ANSWERS = 0.6  # reflectors answer in fragments, of which routers drop some


def attach(context: AnalysisContext) -> None:
    """Add later fragments to the newest finding if its first fragments have the same sources."""
    finding = context.findings[-1]
    packets, traffic = context.traffic.packets, context.traffic
    heads = finding.rows[traffic.first.take(finding.rows)]
    if len(heads) == 0:
        return
    protocol = packets.protocol[heads[0]]
    later = traffic.rows(traffic.later & context.unclaimed & (packets.protocol == protocol))
    if len(later) == 0:
        return
    mine = among(datagrams_of(context, later), datagrams_of(context, heads))
    most = _NEARLY_ALL
    if Trait.AMPLIFIED in finding.traits:  # a thin sample misses sources (Good 1953)
        mine |= traffic.of_sources(finding.rows)[later]
        most = min(_MOST_OF_ANSWERS, max(_BY_CHANCE, 1 - context.features(finding.rows).singles))
    # A thin sample splits datagrams: there may be about as many first fragments
    as_many = float(traffic.weight[heads].sum()) > 0.1 * float(traffic.weight[later].sum())
    if mine.mean() > most or (context.sparse and (mine.mean() > 0.5 or as_many)):
        mine[:] = True  # the first fragments of the rest were not sampled
    if not mine.any():
        return
    rows = np.sort(np.concatenate([finding.rows, later[mine]]))
    sentence = f"{count(traffic.weight[later[mine]].sum())} later fragments of its datagrams are included"
    context.findings[-1] = replace(finding, rows=rows, evidence=(*finding.evidence, sentence))
    context.unclaimed[later[mine]] = False


def datagrams_of(context: AnalysisContext, rows: Rows) -> U64:
    """Return a key of each row's datagram."""
    traffic = context.traffic
    ends = traffic.source_key[rows] ^ traffic.dest_key[rows]
    return mix(ends, traffic.packets.ip_id[rows].astype(np.uint64))


class _Number(float):
    """A feature as sentences write it."""

    def __format__(self, spec: str) -> str:
        if spec.startswith("percent"):
            return percent(self, int(spec[7:] or 0))
        return format(float(self), ",.0f" if spec == "count" else spec)


class _Amount:
    """The packets of the group with the length of the window."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __format__(self, spec: str) -> str:
        return self._group.packets.amount(spec)


class _Words(dict[str, object]):
    """What sentences may name: notes of the group, two words, features."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __missing__(self, name: str) -> object:
        group = self._group
        if name in group.notes:
            value = group.notes[name]
            return _Number(value) if isinstance(value, int | float) else value
        if name in ("amount", "senders"):
            return _Amount(group) if name == "amount" else group.packets.senders
        return _Number(group[FEATURES[name]])


def said(template: str, group: Group) -> str:
    """Fill a template with what was measured: `{senders}`, `{amount:SYNs}`, `{completed:percent}`.

    Formats besides Python's: `percent`, `percent1` with one decimal, `count` with thousands separators, and
    for `amount` what is counted.
    """
    return template.format_map(_Words(group)) if "{" in template else template


_BEST = 3
_LEAST = 1e-4  # probability
_SIGNS = 8
_WIDTH = 80  # columns
_WHOLE = 1_000  # from which decimals say nothing


def print_explanations(explained: Iterable[Explained], out: TextIO | None = None) -> None:
    """Print all groups, the largest first."""
    groups = sorted(explained, key=lambda one: (-one.group.packets.packets, one.group.cut))
    for one in groups:
        for line in lines(one):
            print(line, file=out or sys.stdout)
    if not groups:
        print("no packets that any hypothesis is about", file=out or sys.stdout)


def lines(one: Explained) -> Iterator[str]:
    """Yield the lines about one group, none wider than a terminal of 80 columns if words allow it."""
    group = one.group
    features = group.packets
    verdict = "attack" if one.is_attack else "ordinary"
    noun = "packet" if round(features.packets) == 1 else "packets"
    ends = f" from {features.senders} to {features.target}" if features.top("family").value else ""
    size = f"{features.packets:,.0f} {noun} ({percent(features.share, None)})"
    yield from _wrapped(f"{in_words(group.cut)}: {size}{ends}: {verdict}", "")
    likely = [
        (entry, share) for entry, share in one.ranked[:_BEST] if share >= _LEAST or entry is one.ranked[0][0]
    ]
    for hypothesis, share in likely:
        kind = f" [{said(hypothesis.kind, group)}]" if hypothesis.kind else ""
        yield f"  {percent(share):>6}  {hypothesis.name}{kind}"
        for line in _evidence(hypothesis, group):
            yield from _wrapped(line, " " * 10)
    # Of what is impossible, the rivals of an attack are ordinary uses and the other way round; nearest first
    rivals = sorted(
        one.ruled_out, key=lambda item: (bool(item[0].kind) == one.is_attack, -item[0].needs.index(item[1]))
    )
    for hypothesis, need in rivals[: max(_BEST - len(likely), 0 if one.is_attack else _BEST)]:
        yield from _wrapped(f"   ruled out: {hypothesis.name}; it requires {_met(need, group)}", "   ")
    yield ""


def _wrapped(line: str, margin: str) -> list[str]:
    """Break a line between words; what follows is indented by two more."""
    return textwrap.wrap(
        line.strip(),
        _WIDTH,
        initial_indent=margin,
        subsequent_indent=f"{margin}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _evidence(one: Hypothesis, group: Group) -> list[str]:
    """Return the sentences, the features with their log-odds, and the requirements that are met."""
    sentences = [line for line in (evidence(one, group) if one.kind else ()) if line]
    weighed = [(says.about(group), says.feature) for says in one.evidence]
    weighed = sorted(((odds, name) for odds, name in weighed if odds), key=lambda item: -abs(item[0]))
    signs = [f"{odds:+.1f} {_value(name, group)}" for odds, name in weighed[:_SIGNS]]
    if one.prior:
        signs.insert(0, f"{one.prior:+.1f} prior{' (proof)' if one.proven else ''}")
    met = [_met(need, group) for need in one.needs]
    return [
        *sentences,
        *([f"log-odds: {', '.join(signs)}"] if signs else []),
        *([f"required: {', '.join(met)}"] if met else []),
    ]


def _value(name: Feature, group: Group) -> str:
    """Write a feature with its value, if that is a number and not a yes or no."""
    value = group[name]
    if name.unit == "yes or no":
        return name.words if value else f"not {name.words}"
    return f"{name.words} {value:,.0f}" if value >= _WHOLE else f"{name.words} {value:.3g}"


def _met(need: Needs, group: Group) -> str:
    """Write a requirement with what was measured."""
    if need.feature.unit == "yes or no":
        return need.words
    value = group[need.feature]
    return f"{need.words} (here {value:,.0f})" if value >= _WHOLE else f"{need.words} (here {value:.3g})"
