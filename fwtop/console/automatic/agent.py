"""Carries decisions out in a thread of its own, so that a slow guardian delays no observation."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from msgspec import Struct

from fwtop.console.automatic import Policy
from fwtop.console.automatic.decisions import CONFIRM_SLACK_SECONDS, Decider, Decision
from fwtop.console.guardian_link import GuardianLink
from fwtop.console.judging import failure_line
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Answer, Apply, Keep, Undo
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Snapshot

_MOST_WAITING = 64


class Action(Struct, frozen=True):
    """What was done, as a sentence for the journal, alarms and standard error."""

    subject: str  # the rule's id, or the kind of attack that nothing is done against; "" if refused
    sentence: str


class Agent:
    """Decides on each snapshot; `link` is a connection of its own to the guardian.

    Rules on trial fall with the connection, so that a recorder that dies leaves none that nobody judges.
    """

    def __init__(
        self, policy: Policy, link: GuardianLink, changed: Callable[[], None] = lambda: None
    ) -> None:
        """`changed` is called after each change of a rule."""
        self._policy = policy
        self._decider = Decider(policy)
        self._link = link
        self._changed = changed
        self._decisions: queue.Queue[Decision | None] = queue.Queue(_MOST_WAITING)
        self._done: queue.SimpleQueue[tuple[Action, Decision, bool]] = queue.SimpleQueue()  # True: refused
        self._thread = threading.Thread(target=self._work, name="automatic", daemon=True)
        self._thread.start()

    def take(self, snapshot: Snapshot) -> list[Action]:
        """Decide on a snapshot; return what has been done since the last one."""
        actions = []
        while not self._done.empty():
            action, decision, is_refused = self._done.get()
            actions.append(action)
            self._decider.answered(decision, snapshot.at, is_refused=is_refused)
        if not snapshot.guardian.startswith("lost"):
            for decision in self._decider.next(snapshot):
                if not self._decisions.full():  # else a later snapshot leads to the same decision
                    self._decisions.put_nowait(decision)
        actions += [Action(kind, safe_text(line, limit=390)) for kind, line in self._decider.unable]
        self._decider.unable.clear()
        return actions

    def close(self) -> None:
        """End the thread once it has done what was decided."""
        self._decisions.put(None)
        self._thread.join(self._policy.trial_seconds)

    def _work(self) -> None:
        while (decision := self._decisions.get()) is not None:
            try:
                self._done.put((self._carry_out(decision), decision, False))
            except Exception as error:
                what = (
                    "not installed" if decision.verb == "install" else f"still there ({decision.verb} failed)"
                )
                why = error if isinstance(error, FwtopError) else failure_line("the request", error)
                sentence = f"Rule {decision.rule.id or 'of the policy'} is {what}: {why}"
                self._done.put((Action(decision.rule.id, safe_text(sentence, limit=390)), decision, True))
            self._changed()

    def _carry_out(self, decision: Decision) -> Action:
        rule = decision.rule
        if decision.verb == "install":
            confirm = int(self._policy.trial_seconds + CONFIRM_SLACK_SECONDS)
            answer: Answer = self._link.demand_for_rule(Apply({}, confirm_seconds=confirm), rule)
            rule_id = safe_text(answer.data["status"]["rule"]["id"], limit=20)
        else:
            request = Keep(rule.id, self._policy.ttl_seconds) if decision.verb == "keep" else Undo((rule.id,))
            self._link.demand(request)
            rule_id = rule.id
        return Action(rule_id, safe_text(f"Rule {rule_id} {decision.why} ({rule.summary})", limit=390))
