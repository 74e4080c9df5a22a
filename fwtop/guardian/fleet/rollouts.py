"""Roll-outs on this machine: their rules put in on trial, kept, undone and followed, and all of it recorded.

What is done to rules is the life cycle's, as for any request. What was done is recorded afterwards, since
the end of a rule waits for no disk; only that a document was taken is written down before it acts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fwtop.fleet.document import Action, Calm, Document, Refusal, RolloutTold, Stage
from fwtop.guardian.fleet.permission import Newest
from fwtop.guardian.fleet.record import OPEN, Recorder, Rollout
from fwtop.guardian.ownership import single_threaded
from fwtop.guardian.rules.lifecycle import Lifecycle
from fwtop.guardian.rules.state import GuardianState
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import FLEET, Mode, Rule, State
from fwtop.rules.overlap import is_double
from fwtop.rules.words import with_mode

_DIGITS = 32  # of a document's digest, in the keys of its rules


class Order(Struct, frozen=True):
    """A document that was verified, as it is to be carried out here."""

    document: Document
    digest: str
    signers: tuple[str, ...]
    calm: bool = False  # this machine is not attacked
    sources: Mapping[str, Sequence[Prefix]] = {}  # by rule, in digits

    @property
    def counts(self) -> bool:
        """Whether its rules only count here."""
        return self.document.count_only or (self.calm and self.document.calm is Calm.COUNT)

    @property
    def newest(self) -> Newest:
        """What is remembered of it to refuse older ones."""
        return Newest(self.document.revision, self.digest)

    def sources_of(self, number: int) -> Sequence[Prefix]:
        """Return the sources of a rule that came beside the document."""
        return self.sources.get(str(number), ())

    def about(self) -> dict[str, object]:
        """Return what the log says of it."""
        return {
            "document": self.digest,
            "rollout": self.document.rollout,
            "revision": self.document.revision,
            "signers": list(self.signers),
        }

    def rules(self, until: float = 0.0) -> list[dict[str, Any]]:
        """Return its rules as requests, which end by `until` (Unix seconds) if that is given.

        Raises FwtopError for what no document may say.
        """
        given = []
        for number, rule in enumerate(self.document.rules):
            if local := [name for name in ("id", "replaces") if rule.get(name)]:
                line = f"a rule's {local[0]} is of one machine: a document has none; nothing was changed"
                raise FwtopError(line, 2, field=f"rules[{number}].{local[0]}")
            labels = rule.get("labels")
            own = {"fleet": self.document.fleet, "rollout": self.document.rollout}
            made = {
                **rule,
                "key": f"fleet.{self.digest[:_DIGITS]}.{number}",
                "created_by": FLEET + self.signers[0],
                "labels": {**(labels if isinstance(labels, dict) else {}), **own},
            }
            if self.counts:
                made["mode"] = Mode.COUNT.value
            if until and type(made.get("ttl_seconds")) is int:
                made["ttl_seconds"] = min(made["ttl_seconds"], int(until - time.time()))
            given.append(made)
        return given


@single_threaded
class Rollouts:
    """Owned by the worker's thread."""

    def __init__(self, lifecycle: Lifecycle, state: GuardianState, recorder: Recorder, boot: str) -> None:
        """Take what carries rules out, what is known of them, what remembers, and the name of this boot."""
        self._lifecycle = lifecycle
        self._state = state
        self._recorder = recorder
        self._boot = boot
        self._installing: set[str] = set()

    def is_of_now(self, one: Rollout) -> bool:
        """Return whether a roll-out began in this boot, and has not ended since."""
        return one.stage in OPEN and one.boot == self._boot

    def is_installed(self, one: Rollout) -> bool:
        """Return whether its rules were installed, too."""
        return self.is_of_now(one) and bool(one.rules)

    def rules_of_fleet(self, but: Sequence[str] = ()) -> list[Rule]:
        """Return the active rules that documents installed, except some."""
        rules = [entry.rule for entry in self._state.active.values()]
        return [rule for rule in rules if rule.created_by.startswith(FLEET) and rule.id not in but]

    def read(self, order: Order, given: Sequence[dict[str, Any]]) -> list[Rule]:
        """Return rules of requests, checked; raises FwtopError."""
        return [self._state.rule_of(rule, order.sources_of(number)) for number, rule in enumerate(given)]

    def named(self, order: Order) -> list[Rollout]:
        """Return the other roll-outs of a document's name, which it takes the place of once it is kept."""
        fleet, name = order.document.fleet, order.document.name
        known = self._recorder.known.rollouts.values() if isinstance(name, str) else ()
        return [
            one
            for one in known
            if (one.fleet, one.name) == (fleet, name)
            and one.rollout != order.document.rollout
            and one.stage in OPEN
        ]

    def dropping(self, one: Rollout) -> list[Rule]:
        """Return the rules of one that only counts as they would be if they dropped; raises FwtopError."""
        return [with_mode(self._state.active_rule(rule_id).rule, Mode.DROP) for rule_id in one.rules]

    def install(
        self, order: Order, given: Sequence[dict[str, Any]], former: Rollout | None
    ) -> tuple[Rollout, list[str]]:
        """Install all rules of a document on trial, or none; returns warnings, too. Raises FwtopError.

        `former` is the same roll-out before a reboot, or before a crash came in between.
        """
        document = order.document
        one = self._taken(order, len(given), former)
        ids: list[str] = []
        warnings: list[str] = []
        self._installing.add(one.rollout)
        try:
            for number, rule in enumerate(given):
                sources, seconds = order.sources_of(number), document.trial_seconds
                done = self._lifecycle.apply(rule, sources, seconds, force=False, owner=None)
                ids.append(done["status"]["rule"]["id"])
                warnings += done["warnings"]
        except Exception as error:
            self._end(one, ids, Stage.REVERTED, f"not installed: {FwtopError.of(error)}")
            if isinstance(error, FwtopError) and error.reason == "needs_force":
                said = str(error).partition(";")[0]
                line = f"{said}; nothing was changed; no document can force that, only root on the machine"
                raise FwtopError(line, reason=error.reason) from None
            raise
        finally:
            self._installing.discard(one.rollout)
        return self._installed(one, ids), warnings

    def _taken(
        self, order: Order, size: int, former: Rollout | None, before: Mapping[str, Mode] | None = None
    ) -> Rollout:
        """Record that a document is carried out from now on, before it acts; raises FwtopError."""
        document, before = order.document, before or {}
        one = Rollout(
            document.fleet, document.rollout, document.revision, order.digest, Stage.TRIAL, order.signers,
            document.trial_seconds, self._boot, size, document.confirm_key, tuple(before),
            until=former.until if former is not None else 0.0,
            name=document.name if isinstance(document.name, str) else "",
            mode=document.mode if isinstance(document.mode, Mode) else None, before=before,
        )  # fmt: skip
        known = self._recorder.known.with_rollout(one)
        if former is None:
            known = known.with_newest(document.fleet, order.newest)
        self._recorder.write(known, {"event": "taken", **order.about()})
        return one

    def of_group(self, document: Document) -> list[Rule]:
        """Return the rules of the group that a document switches; raises FwtopError where there is none."""
        mine = [rule for rule in self.rules_of_fleet() if rule.labels.get("fleet") == document.fleet]
        found = [rule for rule in mine if rule.group == document.group]
        groups = sorted({rule.group for rule in mine if rule.group})
        if not found:
            line = f"no rule of the fleet is of group {document.group} here; there are: "
            raise FwtopError(f"{line}{', '.join(groups) or 'none'}; nothing was changed", reason="unknown")
        for rule in found:
            if self._state.active[rule.id].state is not State.CONFIRMED:
                line = f"rule {rule.id} of group {document.group} is on trial: keep or undo that first"
                raise FwtopError(f"{line}; nothing was changed", reason="busy", retryable=True)
        return found

    def makers_of(self, rules: Sequence[Rule]) -> list[Rollout]:
        """Return the roll-outs that installed rules."""
        known = self._recorder.known.rollouts
        return [known[name] for rule in rules if (name := rule.labels.get("rollout", "")) in known]

    def switch(
        self, order: Order, rules: Sequence[Rule], mode: Mode, former: Rollout | None
    ) -> tuple[Rollout, list[str]]:
        """Have rules do what a document says, on trial, all at once; returns warnings. Raises FwtopError."""
        before = {rule.id: rule.mode for rule in rules if rule.mode is not mode}
        one = self._taken(order, len(rules), former, before or {rule.id: mode for rule in rules})
        seconds = order.document.trial_seconds
        self._installing.add(one.rollout)
        try:
            done = self._lifecycle.changing.set_mode(one.rules, mode, seconds, force=False, owner=None)
        except Exception as error:
            self._end(one, (), Stage.REVERTED, f"not switched: {FwtopError.of(error)}")
            raise
        finally:
            self._installing.discard(one.rollout)
        if not before:
            return self._kept(one, "nobody: they do so already"), []
        return self._log(one, "trial", rules=[f"{rule.id}: {mode.value}" for rule in rules]), done["warnings"]

    def drop(self, one: Rollout) -> Rollout:
        """Have what only counts drop, on trial: unless it is kept it counts again. Raises FwtopError."""
        self._lifecycle.changing.set_mode(one.rules, Mode.DROP, one.trial_seconds, force=False, owner=None)
        return self._log(replace(one, counting=False, stage=Stage.TRIAL), "trial")

    def decide(self, one: Rollout, action: Action, by: str) -> Rollout:
        """Keep, undo or renew a roll-out; what is so already stays so. Raises FwtopError."""
        if action is Action.UNDO:
            if one.stage not in OPEN:
                return one
            left = [rule_id for rule_id in one.rules if rule_id in self._state.active]
            return self._end(one, left if self.is_installed(one) else (), Stage.UNDONE, f"undone by {by}")
        if one.stage not in OPEN:
            raise over(one)
        if not self.is_installed(one):
            line = f"the rules of {one.rollout} are not installed yet; nothing was changed; deliver it again"
            raise FwtopError(line, reason=Refusal.OVER, retryable=True)
        if one.stage is Stage.TRIAL:
            for entry in [self._state.active_rule(rule_id) for rule_id in one.rules]:
                rule_id, ends_in = entry.rule.id, int(entry.expires - time.monotonic())
                if action is Action.KEEP:
                    self._lifecycle.keep(rule_id, None if one.mode is None else max(ends_in, 1))
                else:
                    self._lifecycle.renew(rule_id, one.trial_seconds)
            if action is Action.KEEP:
                return self._kept(one, by)
        self._recorder.note(self._recorder.known.with_rollout(one))
        return one

    def follow(self, one: Rollout) -> None:
        """Record the end of a roll-out, that it was kept here, or that it counts again after its trial.

        Also that its rules are installed, if a crash came before that was recorded.
        """
        if one.rollout in self._installing:
            return
        if not one.rules:
            key = f"fleet.{one.document[:_DIGITS]}."
            mine = [rule.id for rule in self.rules_of_fleet() if rule.key.startswith(key)]
            if len(mine) == one.size:
                self._installed(one, mine)
            return
        found = [self._state.active[rule_id] for rule_id in one.rules if rule_id in self._state.active]
        if not found:
            entry = self._state.journal.find(one.rules[0])
            expired = entry is not None and entry.state is State.EXPIRED
            ended = Stage.EXPIRED if expired else Stage.UNDONE
            stage = Stage.REVERTED if one.stage is Stage.TRIAL else ended
            self._end(one, (), stage, entry.note if entry is not None and entry.note else "its rules ended")
        elif any(entry.state is not State.CONFIRMED for entry in found):
            return
        elif one.mode is not None:
            if any(entry.rule.mode is not one.mode for entry in found):
                is_trial = one.stage is Stage.TRIAL
                why = "nobody kept it: as before" if is_trial else "somebody on this machine switched it"
                self._end(one, (), Stage.REVERTED if is_trial else Stage.UNDONE, why)
            elif one.stage is Stage.TRIAL:
                self._kept(one, "somebody on this machine")
        elif one.stage is Stage.TRIAL:
            if all(entry.rule.counts_only for entry in found):
                why = "nobody kept it: it counts again"
                self._log(replace(one, stage=Stage.KEPT, counting=True), "reverted", why=why)
            elif len(found) == len(one.rules):
                self._kept(one, "somebody on this machine")

    def told(self, one: Rollout) -> RolloutTold:
        """Return a roll-out as an answer tells of it."""
        here = one.rules if one.boot == self._boot else ()
        found = [self._state.active[rule_id] for rule_id in here if rule_id in self._state.active]
        statuses = [self._state.status_of(entry) for entry in found]
        ends = [status["confirm_by"] for status in statuses if status["confirm_by"] is not None]
        acting = len(found) == len(one.rules) > 0 and all(item["acting"] for item in statuses)
        if one.stage in OPEN and one.boot != self._boot and 0 < one.until <= time.time():
            one = replace(one, stage=Stage.EXPIRED, why="its time is over")
        return RolloutTold(
            one.rollout, one.revision, one.document, one.stage, one.signers,
            tuple(entry.rule.id for entry in found), one.counting, acting, min(ends, default=None), one.why,
        )  # fmt: skip

    def _installed(self, one: Rollout, ids: Sequence[str]) -> Rollout:
        rules = [self._state.active_rule(rule_id).rule for rule_id in ids]
        counting = all(rule.counts_only for rule in rules)
        stage = Stage.KEPT if counting else Stage.TRIAL
        one = replace(one, rules=tuple(ids), counting=counting, stage=stage)
        told = [f"{rule.id}: {rule.summary}" for rule in rules]
        if counting:
            self._end_older(one)
        return self._log(one, "counting" if counting else "trial", rules=told)

    def _kept(self, one: Rollout, by: str) -> Rollout:
        ends = max(self._state.active[rule_id].expires for rule_id in one.rules)
        until = time.time() + ends - time.monotonic()
        for older in self._older(one):  # to undo it is to have the rules as they were made
            earlier = {rule_id: mode for rule_id, mode in older.before.items() if rule_id in one.before}
            one = replace(one, before={**one.before, **earlier})
        self._end_older(one)
        return self._log(replace(one, stage=Stage.KEPT, until=until), "kept", by=by)

    def in_place(
        self, older: Sequence[Rollout], given: list[dict[str, Any]], rules: Sequence[Rule]
    ) -> list[dict[str, Any]]:
        """Return requests that take the place of the same rules of older roll-outs, once they are kept."""
        there = [
            self._state.active[rule_id].rule
            for one in older
            for rule_id in one.rules
            if rule_id in self._state.active
        ]
        same = (next((old.id for old in there if is_double(rule, old)), "") for rule in rules)
        return [made | {"replaces": old} for made, old in zip(given, same, strict=True)]

    def _end_older(self, one: Rollout) -> None:
        """End what a roll-out that is kept takes the place of."""
        for other in self._older(one):
            left = [rule_id for rule_id in other.rules if rule_id in self._state.active]
            ids = left if self.is_installed(other) and other.mode is None else ()
            self._end(other, ids, Stage.UNDONE, f"{one.rollout} took its place")

    def _older(self, one: Rollout) -> list[Rollout]:
        known = self._recorder.known.rollouts.values() if one.name else ()
        mine = [other for other in known if (other.fleet, other.name) == (one.fleet, one.name)]
        return [other for other in mine if other.revision < one.revision and other.stage in OPEN]

    def _end(self, one: Rollout, ids: Sequence[str], stage: Stage, why: str) -> Rollout:
        """End the rules of a roll-out that are left, and record why; raises FwtopError."""
        if ids and one.mode is not None:
            self._switch_back(one, ids)
        elif ids:
            self._lifecycle.undo(tuple(ids), everything=False, by="the fleet", why=why)
        return self._log(replace(one, rules=(), stage=stage, why=why), stage.value, why=why)

    def _switch_back(self, one: Rollout, ids: Sequence[str]) -> None:
        """Have rules do again what they did before; after it was kept, judged anew. Raises FwtopError."""
        changing, entries = self._lifecycle.changing, [self._state.active[rule_id] for rule_id in ids]
        tried = [entry for entry in entries if entry.state is State.PROVISIONAL]
        changing.end_unconfirmed([(entry, State.REVERTED, "") for entry in tried])
        kept = [entry.rule.id for entry in entries if entry not in tried]
        for mode in set(one.before.values()):
            if mine := [rule_id for rule_id in kept if one.before[rule_id] is mode]:
                changing.set_mode(mine, mode, 0, force=False, owner=None)

    def _log(self, one: Rollout, event: str, **about: object) -> Rollout:
        told: Mapping[str, object] = {
            "event": event, "document": one.document, "rollout": one.rollout, "revision": one.revision,
            "signers": list(one.signers), **about,
        }  # fmt: skip
        self._recorder.note(self._recorder.known.with_rollout(one), told)
        return one


def over(one: Rollout) -> FwtopError:
    """Return the refusal of what concerns a roll-out that has ended."""
    line = f"roll-out {one.rollout} has ended here, {one.stage.value}: {one.why}; nothing was changed"
    return FwtopError(f"{line}; sign a new one", reason=Refusal.OVER)
