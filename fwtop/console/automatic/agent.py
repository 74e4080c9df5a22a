"""Carries decisions out in a thread of its own, so that a slow guardian delays no observation."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from fwtop.console.automatic import Policy
from fwtop.console.automatic.decisions import CONFIRM_SLACK_SECONDS, Decider, Decision
from fwtop.console.guardian_link import GuardianLink
from fwtop.console.judging import failure_line
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer
from fwtop.model.protocol import Apply, Keep, Plan, Undo
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Snapshot

_MOST_WAITING = 64


# What was done, as a sentence for the journal, alarms and standard error; before it the rule's id, or the
# kind of attack that nothing is done against, "" if refused.
Action = tuple[str, str]


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
        self.due: float | None = None  # Unix seconds: when a new attack may be stopped, if it goes on
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
        self.due = self._decider.due(snapshot.judgement.attacks)
        actions += [_action(kind, line) for kind, line in self._decider.unable]
        self._decider.unable.clear()
        return actions

    def close(self) -> None:
        """End the thread once it has done what was decided."""
        self._decisions.put(None)
        self._thread.join(self._policy.trial_seconds)

    def _work(self) -> None:
        while (decision := self._decisions.get()) is not None:
            rule_id, verb = decision.rule.id, decision.verb
            if verb == "plan":
                with suppress(FwtopError):  # the installation says why
                    self._link.demand_for_rule(Plan({}), decision.rule)
                continue
            try:
                rule_id = self._carry_out(decision)
                action = _action(rule_id, f"Rule {rule_id} {decision.why} ({decision.rule.summary})")
                self._done.put((action, decision, False))
            except Exception as error:
                what = "not installed" if verb == "install" else f"still there ({verb} failed)"
                why = error if isinstance(error, FwtopError) else failure_line("the request", error)
                action = _action(rule_id, f"Rule {rule_id or 'of the policy'} is {what}: {why}")
                self._done.put((action, decision, True))
            self._changed()

    def _carry_out(self, decision: Decision) -> str:
        """Return the rule's id."""
        rule = decision.rule
        if decision.verb == "install":
            confirm = int(self._policy.trial_seconds + CONFIRM_SLACK_SECONDS)
            answer: Answer = self._link.demand_for_rule(Apply({}, confirm_seconds=confirm), rule)
            return safe_text(answer.data["status"]["rule"]["id"], limit=20)
        if decision.verb == "tell":
            return rule.id
        is_kept = decision.verb == "keep"
        self._link.demand(Keep(rule.id, self._policy.ttl_seconds) if is_kept else Undo((rule.id,)))
        return rule.id


def _action(subject: str, sentence: str) -> Action:
    return subject, safe_text(sentence, limit=390)
