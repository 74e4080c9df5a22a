"""Which proposals are listed and under which numbers, and what a key that is a number means.

A number belongs to its proposal while that is listed, from 1 on and without holes. One that is better than
the first is marked; it gets its place when the operator next moves, or when the list is drawn anew: at once
while nobody sees the list, or where the first is folded, or would harm clients and the better one would not.
Nothing moves within two seconds of a key, nor under a dialog.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.model.rule import Rule
from fwtop.model.traffic.session import FULL_TABLE, NOTICED, flow_of
from fwtop.model.traffic.session import STOPPED as ENOUGH
from fwtop.model.traffic.snapshot import NOTHING, Incident, Proposal, Snapshot
from fwtop.rules.kinds import drops_nothing
from fwtop.rules.overlap import covering_rule, includes, same_effect
from fwtop.ui.lists.rows import Fold

QUIET_SECONDS = 2.0  # after a key, in which no number changes
RECENT_SECONDS = 1.0  # within which a key still means what was shown before
_ASIDE_SECONDS = 2.5  # for which a listed attack must have been out of the way before it makes room
_SETTLING_SECONDS = 3.0  # of an attack's first proposals, while its first packets are being counted
# Why one waits
RELIEF, STOPPED, PAUSED, LESSER, OTHERS, HARMED = "relief", "stopped", "paused", "lesser", "others", "harmed"
HARM_LIMIT = 0.01  # collateral from which a dialog preselects Cancel
_HARMED_SECONDS = 600.0  # as automatic rules aren't tried again for so long either
_FOLDS = (RELIEF, STOPPED, PAUSED, LESSER, OTHERS, HARMED)
ATTACKS = "attacks"  # and of their own list, those that are stopped


class Numbers(Struct):
    """The order of proposals by number, given their keys; all times are seconds of one clock."""

    order: tuple[str, ...] = ()
    better: str = ""  # the one that would be first if the list were drawn anew
    first: frozenset[str] = frozenset()  # those that do not stand aside, or can't make room yet
    _began: float = -math.inf  # when something was listed again
    _pressed: float = -math.inf
    _was_quiet: bool = True  # before the last key
    _shown: deque[tuple[float, tuple[str, ...]]] = field(default_factory=deque)  # in the last second

    def press(self, now: float) -> None:
        """Take note of a key, before it acts."""
        self._was_quiet = self._is_quiet(now)
        self._pressed = now

    def _is_quiet(self, now: float) -> bool:
        return not 0 <= now - self._pressed < QUIET_SECONDS

    def take(
        self,
        first: Sequence[str],
        aside: Sequence[str],
        now: float,
        *,
        anew: bool = False,
        due: bool = False,
        held: bool = False,
    ) -> None:
        """Number those listed, the best first, and behind them those that stand aside.

        `anew`: the operator has moved, or looks at the list again; `due`: only a key keeps numbers as they
        are; `held`: a dialog lies over it.
        """
        wanted = (*first, *aside)
        if not self.order:
            self._began = now
        if held:  # its keys are keys, too
            self.press(now)
        may_move = self._is_quiet(now) or (anew and self._was_quiet and not held)
        settling = 0 <= now - self._began < _SETTLING_SECONDS
        if not wanted or (may_move and (anew or settling)) or (due and self._is_quiet(now)):
            kept: tuple[str, ...] = ()
        elif may_move:
            stays = {*first, *(key for key in aside if key not in self.first)}
            kept = tuple(key for key in self.order if key in stays)
        else:
            kept = self.order
        self.order = (*kept, *(key for key in wanted if key not in kept))
        waiting = self.first.intersection(kept).difference(first)
        self.first = waiting.union(first)
        is_worse = bool(first) and self.order[0] in wanted and self.order[0] != first[0]
        self.better = first[0] if is_worse else ""
        self._remember(now)

    def _remember(self, now: float) -> None:
        if not self._shown or self._shown[-1][1] != self.order:
            self._shown.append((now, self.order))
        # Of those replaced more than a second ago none is meant
        while len(self._shown) > 1 and not 0 <= now - self._shown[1][0] < RECENT_SECONDS:
            self._shown.popleft()

    def meant(self, number: int, now: float) -> str | None:
        """Return the key of the proposal that was shown longest under a number in the last second."""
        recent = list(self._shown)
        while len(recent) > 1 and not 0 <= now - recent[1][0] < RECENT_SECONDS:
            del recent[0]
        return next((order[number - 1] for _, order in recent if 0 < number <= len(order)), None)


def covered_by(proposal: Proposal, snapshot: Snapshot) -> str:
    """Return the id of an active rule that does what a proposal would; "" if none does."""
    return covering_rule(proposal.rule, snapshot.mitigations) if proposal.rule is not None else ""


def _is_shared(one: Proposal, other: Proposal) -> bool:
    """Whether two proposals have one rule, against two attacks."""
    if one.rule is None or other.rule is None or one.incident == other.incident:
        return False
    return same_effect(one.rule, other.rule)


class ProposalList:
    """What is listed of a snapshot's proposals, which come best first, and of its attacks."""

    def __init__(self) -> None:
        self.numbers = Numbers()
        self.listed: tuple[Proposal, ...] = ()  # by number, also what has gone and keeps its number for now
        self.covered: dict[str, str] = {}  # by an attack's letter: the rule that does a proposal already
        self.shared: dict[str, str] = {}  # by proposal: letters of others that its rule is against
        self.stopped_by_rules: frozenset[str] = frozenset()  # letters of attacks
        self.gone: frozenset[str] = frozenset()
        self.moved = False  # the operator moved in the list
        self._compared: tuple[Snapshot, list[str]] = NOTHING, []  # with active rules
        self._aside: dict[str, str] = {}  # proposals by what they are folded into
        self._ranked: dict[str, int] = {}  # the best first, as now judged, whatever their numbers
        self._letters: dict[int, str] = {}  # of the incidents
        self._since: dict[int, float] = {}  # when incidents were out of the way from
        self._stopped: frozenset[int] = frozenset()
        self._open: set[str] = set()
        self._harmed: dict[str, tuple[Rule, float]] = {}  # rules that cost clients something, and when last

    def take(
        self, snapshot: Snapshot, scope: int, now: float, *,
        anew: bool = False, seen: bool = True, held: bool = False,
    ) -> None:  # fmt: skip
        """List the proposals of a snapshot, those against the scope's incident (0: all) before others.

        `seen`: the list is on the screen; `anew` and `held` are as in `Numbers.take`.
        """
        ways = self._ways(snapshot, scope, now)
        self._note_harm(snapshot, now)
        attacks = snapshot.judgement.attacks
        self._letters = {attack.id: attack.letter for attack in attacks}
        self.stopped_by_rules = frozenset(one.letter for one in attacks if one.mine_share >= ENOUGH)
        self.covered, self.shared = {}, {}
        aside: dict[str, str] = {}
        given: dict[str, Proposal] = {}
        if snapshot is not self._compared[0]:  # long lists take a while to compare
            self._compared = snapshot, [covered_by(one, snapshot) for one in snapshot.judgement.proposals]
        for one, by in zip(snapshot.judgement.proposals, self._compared[1], strict=True):
            key, rule = one.key or f"{one.number} {one.kind}", one.rule
            letter = self._letters.get(one.incident, "")
            alike = next((name for name, other in given.items() if _is_shared(other, one)), "")
            if by:
                self.covered.setdefault(letter, by)
            elif alike and not aside[alike]:  # one rule against several attacks
                self.shared[alike] = self.shared.get(alike, "") + letter
            else:
                given[key] = one
                relief = RELIEF if rule and drops_nothing(rule) else ""
                aside[key] = ways.get(one.incident) or (HARMED if self._did_harm(rule) else relief)
        last = sorted((key for key, way in aside.items() if way), key=lambda key: _FOLDS.index(aside[key]))
        self._ranked = {key: place for place, key in enumerate(given)}
        best = [key for key in given if not aside[key]]
        now_first = next((key for key in self.numbers.order if key in given), "")
        harms = now_first in given and given[now_first].harm >= HARM_LIMIT
        spares = harms and bool(best) and given[best[0]].harm < HARM_LIMIT
        due = not seen or spares or (bool(best) and now_first in last)
        self.numbers.take(best, last, now, anew=anew, due=due, held=held)
        before = {one.key: one for one in self.listed}
        order, first = self.numbers.order, self.numbers.first
        self.listed = tuple(
            replace(given.get(key) or before[key], key=key, number=number)
            for number, key in enumerate(order, 1)
        )
        self._aside = {key: "" if key in first else aside.get(key, self._aside.get(key, "")) for key in order}
        self.gone = frozenset(key for key in order if key not in given)

    def _ways(self, snapshot: Snapshot, scope: int, now: float) -> Mapping[int, str]:
        """Return which incidents stand aside, and why; those listed only after a while."""
        ways, new = _out_of_the_way(snapshot, scope), -math.inf
        # Also while nothing else is on: the next attack's proposals have the first numbers at once
        still = {one.id for one in snapshot.judgement.attacks if not _reaches(snapshot, one)}
        self._since = {
            one: self._since.get(one, now if one in self._letters else new) for one in still.union(ways)
        }
        ways = {
            one: way
            for one, way in ways.items()
            if way in (LESSER, OTHERS) or now - self._since[one] >= _ASIDE_SECONDS
        }
        self._stopped = frozenset(one for one, way in ways.items() if way == STOPPED)
        return ways

    def _note_harm(self, snapshot: Snapshot, now: float) -> None:
        """Remember what did harm: by then the trial has ended, and it may still be what stops most."""
        harmful = {loss.rule for loss in snapshot.losses if loss.is_harm}
        rules = (status.rule for status in snapshot.mitigations if status.rule.id in harmful)
        self._harmed |= {rule.id: (rule, now) for rule in rules}
        self._harmed = {name: one for name, one in self._harmed.items() if now - one[1] < _HARMED_SECONDS}

    def _did_harm(self, rule: Rule | None) -> bool:
        """Whether a rule would drop all that one dropped that did harm a while ago."""
        return rule is not None and any(includes(rule, harmed) for harmed, _ in self._harmed.values())

    def attacks(self, attacks: Sequence[Incident]) -> list[Incident | Fold]:
        """Return the lines of the list of attacks: several that don't reach you share one."""
        inside = tuple(one for one in attacks if one.id in self._stopped)
        if len(inside) < 2:
            return list(attacks)
        fold = Fold(ATTACKS, inside, tuple(one.letter for one in inside), is_open=ATTACKS in self._open)
        rows: list[Incident | Fold] = [one for one in attacks if one not in inside]
        return [*rows, fold, *(inside if fold.is_open else ())]

    def rows(self) -> list[Proposal | Fold]:
        """Return the lines of the list: proposals, then what is folded, and what of that is unfolded."""
        rows: list[Proposal | Fold] = [one for one in self.listed if not self._aside[one.key]]
        for name in _FOLDS:
            inside = tuple(one for one in self.listed if self._aside[one.key] == name)
            if inside:
                letters = sorted({self._letters.get(one.incident, "") for one in inside})
                rows.append(Fold(name, inside, tuple(letters), is_open=name in self._open))
                rows += inside if name in self._open else ()
        return rows

    def helpful(self) -> list[Proposal]:
        """Return those that are not folded and drop something, the best first, if there are any without harm.

        The first needn't have the lowest number: that may belong to what was best against an earlier attack.
        """
        shown = [one for one in self.listed if not self._aside[one.key] and one.key not in self.gone]
        shown.sort(key=lambda one: self._ranked[one.key])
        shown = [one for one in shown if one.rule and not drops_nothing(one.rule) and not one.is_last_resort]
        return [one for one in shown if one.harm < HARM_LIMIT] or shown

    def turn(self, name: str) -> None:
        """Unfold, or fold again."""
        self._open ^= {name}

    def letters(self) -> list[str]:
        """Return the letters of the attacks whose proposals are not folded."""
        shown = [one for one in self.listed if self._aside[one.key] in ("", RELIEF)]
        own = {self._letters[one.incident] for one in shown if one.incident in self._letters}
        return sorted(own.union(*(self.shared.get(one.key, "") for one in shown)))


def _out_of_the_way(snapshot: Snapshot, scope: int) -> Mapping[int, str]:
    """Return which incidents' proposals stand aside, and why: there is another that matters more now."""
    attacks = snapshot.judgement.attacks
    on = {one.id for one in attacks if _is_on(snapshot, one)}
    reaching = {one.id for one in attacks if _reaches(snapshot, one)}
    inside = [one for one in attacks if scope in (0, one.id)]
    ways = {one.id: OTHERS for one in attacks if one not in inside}
    floods = [one for one in inside if one.kind != FULL_TABLE]
    if any(one.id in reaching for one in floods):
        ways |= {one.id: STOPPED if one.id in on else PAUSED for one in floods if one.id not in reaching}
    elif any(
        one.id in on and one.mine_share < ENOUGH for one in floods
    ):  # others stop it, a rule may be worth it
        ways |= {one.id: PAUSED for one in floods if one.id not in on}
    if any(one.id in reaching and one.severity.is_harmful for one in floods):  # leftovers wait
        ways |= {one.id: LESSER for one in floods if not one.severity.is_harmful and one.id not in ways}
    return ways


def _is_on(snapshot: Snapshot, one: Incident) -> bool:
    return one.is_on or (snapshot.origin.kind == "capture" and one.ended is not None)  # all of it is over


def _reaches(snapshot: Snapshot, one: Incident) -> bool:
    """Whether an attack goes on and reaches services, as far as that is known."""
    return _is_on(snapshot, one) and (flow_of(snapshot) is None or one.reaching_share >= NOTICED)
