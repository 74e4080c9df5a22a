"""What applying a policy would do: what differs, and of each new rule what the guard's rehearsal says."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Level, Preview, Rule
from fwtop.model.text import safe_text
from fwtop.model.wire import plain
from fwtop.policy.document import Policy
from fwtop.policy.live import Difference, Live
from fwtop.policy.transaction import difference_document, difference_lines
from fwtop.rehearsal.rehearse import clients_words
from fwtop.render.harm import hit_words

_TOLD = (
    "refused",
    "needs_force",
    "losses",
    "clients",
    "warnings",
)  # of the guard's plan; commands are the trial's


class Planned(Struct, frozen=True):
    """A difference, with the guard's plan of each rule that it adds."""

    change: Difference
    plans: tuple[dict[str, Any], ...]

    @staticmethod
    def of(live: Live, policy: Policy, old_lists: set[str]) -> Planned:
        """Ask the guard about every rule that would be new; raises FwtopError."""
        change = live.difference(policy, old_lists)
        fresh = {*change.new_lists, *(item.name for item in change.lists)}
        asked = [_with_entries(policy, one) if one.list_name in fresh else one for one in change.added]
        return Planned(change, tuple(_plan(live, rule) for rule in asked))

    def document(self) -> dict[str, Any]:
        """Return it as one document."""
        named = zip(self.change.added, self.plans, strict=True)
        return {
            **difference_document(self.change),
            "plans": [{"summary": rule.summary, **plan} for rule, plan in named],
        }

    def lines(self, whole: Preview | None) -> list[str]:
        """Return what would change and who would lose something, a line each; `whole` is of all new rules."""
        lines = difference_lines(self.change)
        if whole is not None:
            hit = hit_words(whole.collateral_share, whole.clients, guess=whole.guess)
            lines.append(f"  of what was seen in two seconds: {hit}")
        for rule, plan in zip(self.change.added, self.plans, strict=True):
            told = [f"refused: {plan['refused']}"] if plan["refused"] else []
            told += [f"needs --force: {plan['needs_force']}"] if plan["needs_force"] else []
            told += [f"warning: {one}" for one in plan["warnings"]]
            lines += [f"  {safe_text(rule.summary)}: {safe_text(one, limit=1000)}" for one in told]
        return lines


def measurable(policy: Policy, change: Difference) -> list[Rule]:
    """Return the new rules that packets can be tried on: whom a protected port lets in, only root knows."""
    filled = (_with_entries(policy, rule) for rule in change.added if not rule.counts_only)
    known = (rule for rule in filled if rule.protection is None or rule.protection.level is Level.CLOSED)
    return [rule for rule in known if rule.match.sources or rule.origin is None]


def _with_entries(policy: Policy, rule: Rule) -> Rule:
    """Return a rule on a list with what the policy puts there as its own sources."""
    name = rule.list_name
    if name is None:
        return rule
    return replace(rule, origin=f"@{name}", match=replace(rule.match, sources=policy.lists[name]))


def _plan(live: Live, rule: Rule) -> dict[str, Any]:
    try:
        data = live.plan(rule)
    except FwtopError as error:  # such as an access list that is not there yet
        told = [f"not judged: {error}"]
        return dict(zip(_TOLD, (None, "", [], clients_words(rule), told), strict=True))
    return {name: plain(data[name]) for name in _TOLD}
