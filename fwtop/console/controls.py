"""The requests behind the screen's keys, carried to the guardian, the preview and the report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fwtop.console.guardian_link import GuardianLink
from fwtop.model.errors import FwtopError
from fwtop.model.preview import PlanView, Preview
from fwtop.model.protocol import DEFAULT_CONFIRM_SECONDS, Apply, Keep, Plan, Status, Undo, Why
from fwtop.model.rule import Rule, RuleStatus, rule_status_from_dict

EXPORT_FORMATS = ("html", "md", "json")


class LiveControls:
    """Controls on a running guardian. Every request goes to a thread: the screen never waits."""

    def __init__(
        self,
        link: GuardianLink,
        *,
        preview: Callable[[Rule], Preview],
        expand: Callable[[Rule], Rule],
        export: Callable[[str], str],
        changed: Callable[[], None],
        readonly: str = "",
    ) -> None:
        self._link = link
        self._preview = preview
        self._expand = expand
        self._export = export
        self._changed = changed
        self.readonly = readonly
        self.confirm_seconds = DEFAULT_CONFIRM_SECONDS
        self.export_formats = EXPORT_FORMATS

    async def expand(self, rule: Rule) -> Rule:
        """Fill in the sources of an AS or a country."""
        return await asyncio.to_thread(self._expand, rule)

    async def preview(self, rule: Rule) -> Preview:
        """Replay the rule on the present window."""
        return await asyncio.to_thread(self._preview, rule)

    async def plan(self, rule: Rule) -> PlanView:
        """Ask the guardian what it would run."""
        answer = await asyncio.to_thread(self._link.demand_for_rule, Plan({}), rule)
        data = answer.data
        return PlanView(
            commands=tuple(data["commands"]),
            warnings=tuple(data["warnings"]),
            refused=data["refused"] or "",
            needs_force=data["needs_force"] or "",
        )

    async def apply(self, rule: Rule, *, force: bool = False) -> RuleStatus:
        """Install a rule, provisionally."""
        self._writable()
        request = Apply({}, confirm_seconds=self.confirm_seconds, force=force)
        answer = await asyncio.to_thread(self._link.demand_for_rule, request, rule)
        self._changed()
        return rule_status_from_dict(answer.data["status"])

    async def keep(self, rule_id: str, *, ttl_seconds: int | None = None) -> RuleStatus:
        """Confirm or renew a rule."""
        self._writable()
        await asyncio.to_thread(self._link.demand, Keep(rule_id, ttl_seconds))
        return await self._status_of(rule_id)

    async def undo(self, rule_id: str) -> RuleStatus:
        """Take a rule back."""
        self._writable()
        await asyncio.to_thread(self._link.demand, Undo((rule_id,)))
        return await self._status_of(rule_id)

    async def why(self, rule_id: str) -> tuple[str, ...]:
        """Ask the guardian what the rule matches, or what keeps it from matching."""
        answer = await asyncio.to_thread(self._link.ask, Why(rule_id))
        if not answer.ok and answer.error == "unknown verb":  # a guardian of an older build
            raise FwtopError(f"this guardian can't say why; look at: fwtop status, rule {rule_id}")
        if not answer.ok:
            raise FwtopError(answer.error, answer.code or 1)
        return tuple(answer.data["sentences"])

    async def export(self, format_name: str) -> str:
        """Write a report of the session so far and return its path."""
        return await asyncio.to_thread(self._export, format_name)

    async def _status_of(self, rule_id: str) -> RuleStatus:
        self._changed()
        answer = await asyncio.to_thread(self._link.demand, Status(finished=True))
        for item in answer.data["rules"]:
            status = rule_status_from_dict(item)
            if status.rule.id == rule_id:
                return status
        raise FwtopError(f"the guardian does not know a rule {rule_id}")

    def _writable(self) -> None:
        if self.readonly:
            raise FwtopError(f"nothing was changed: {self.readonly}")


class ReadOnlyControls:
    """Controls where there is nothing to change: a capture or a stored session."""

    def __init__(
        self,
        why: str,
        *,
        preview: Callable[[Rule], Preview] | None,
        export: Callable[[str], str],
        export_formats: tuple[str, ...],
    ) -> None:
        self.readonly = why
        self.confirm_seconds = DEFAULT_CONFIRM_SECONDS
        self.export_formats = export_formats
        self._preview = preview
        self._export = export

    async def expand(self, rule: Rule) -> Rule:
        """Return the rule as it is."""
        return rule

    async def preview(self, rule: Rule) -> Preview:
        """Replay the rule on the packets at hand."""
        if self._preview is None:
            raise FwtopError("a stored session has no packets left to try a rule on")
        return await asyncio.to_thread(self._preview, rule)

    async def plan(self, rule: Rule) -> PlanView:  # noqa: ARG002
        """Say why nothing will be run."""
        return PlanView(refused=self.readonly)

    async def apply(self, rule: Rule, *, force: bool = False) -> RuleStatus:  # noqa: ARG002
        """Refuse."""
        raise self._refusal()

    async def keep(self, rule_id: str, *, ttl_seconds: int | None = None) -> RuleStatus:  # noqa: ARG002
        """Refuse."""
        raise self._refusal()

    async def undo(self, rule_id: str) -> RuleStatus:  # noqa: ARG002
        """Refuse."""
        raise self._refusal()

    async def why(self, rule_id: str) -> tuple[str, ...]:
        """Say that a rule of the past can't be looked into."""
        raise FwtopError(f"rule {rule_id} is not in this kernel: {self.readonly}")

    async def export(self, format_name: str) -> str:
        """Write what is shown and return its path."""
        return await asyncio.to_thread(self._export, format_name)

    def _refusal(self) -> FwtopError:
        return FwtopError(f"nothing was changed: {self.readonly}")
