"""The keys of a screen on a capture or stored session, where nothing can be changed."""

from __future__ import annotations

from fwtop.console.control.looking import Looking
from fwtop.model.errors import FwtopError
from fwtop.model.rule import PlanView, Rule, RuleStatus
from fwtop.model.ruleset import Ruleset


class ReadOnlyControls(Looking):
    """Answers what can be looked at, and refuses the rest."""

    async def expand(self, rule: Rule) -> Rule:
        """Return the rule unchanged."""
        return rule

    async def plan(self, rule: Rule, *, follows: bool = False) -> PlanView:  # noqa: ARG002
        """Refuse, with the reason."""
        return PlanView(refused=self.readonly)

    async def _refuse(self, *_: object, **__: object) -> RuleStatus:
        raise FwtopError(f"nothing was changed: {self.readonly}")

    apply = keep = repair = undo = _refuse

    async def whole(self, status: RuleStatus) -> Rule:
        """Return the rule as it is known."""
        return status.rule

    async def why(self, rule_id: str) -> tuple[str, ...]:
        """Refuse: a stored session's rule is not in this kernel."""
        raise FwtopError(f"rule {rule_id} is not in this kernel: {self.readonly}")

    async def ruleset(self) -> Ruleset | None:
        """Return nothing: these are not this machine's rules."""
        return None
