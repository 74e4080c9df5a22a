"""What the screen asks of the program: snapshots in, a handful of typed requests out.

The console implements `Feed` for live traffic, captures and stored sessions alike; the screen knows
nothing else, so a test or a replay drives it as the kernel does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fwtop.model.preview import PlanView, Preview
from fwtop.model.rule import Rule, RuleStatus
from fwtop.model.snapshot import Snapshot


class Controls(Protocol):
    """The requests behind the keys. Each raises FwtopError with one line for people.

    They are awaited on the screen's event loop and must not block it: what takes time belongs in a
    thread (`asyncio.to_thread`) or on a non-blocking socket.
    """

    @property
    def readonly(self) -> str:
        """Return why nothing can be changed ("started with --readonly", "a capture"), else ""."""
        ...

    @property
    def confirm_seconds(self) -> int:
        """Return for how long a rule stays provisional."""
        ...

    @property
    def export_formats(self) -> tuple[str, ...]:
        """Return what `export` can write, the usual one first ("html", "md", "json")."""
        ...

    async def expand(self, rule: Rule) -> Rule:
        """Fill in the sources that `rule.origin` names (asn:N, country:CC); others return unchanged."""
        ...

    async def preview(self, rule: Rule) -> Preview:
        """Replay the rule on the present window."""
        ...

    async def plan(self, rule: Rule) -> PlanView:
        """Ask the guardian what it would run, and whether."""
        ...

    async def apply(self, rule: Rule, *, force: bool = False) -> RuleStatus:
        """Install it, provisional for `confirm_seconds`; returns it with its id."""
        ...

    async def keep(self, rule_id: str, *, ttl_seconds: int | None = None) -> RuleStatus:
        """Confirm a provisional rule, or renew a confirmed one; for `ttl_seconds`, else its own time."""
        ...

    async def undo(self, rule_id: str) -> RuleStatus:
        """Take a rule back."""
        ...

    async def why(self, rule_id: str) -> tuple[str, ...]:
        """Say in sentences what a rule matches, or what keeps it from matching."""
        ...

    async def export(self, format_name: str) -> str:
        """Write a report of the session so far and return its path."""
        ...


class Feed(Protocol):
    """Where snapshots come from, and the way back."""

    @property
    def controls(self) -> Controls:
        """Return the requests."""
        ...

    def start(self, on_snapshot: Callable[[Snapshot], None], on_error: Callable[[Exception], None]) -> None:
        """Begin; both callbacks may be called from any thread, and return at once.

        A snapshot a tick. After `on_error` nothing more comes: the screen closes with that line.
        """
        ...

    def pause(self, paused: bool) -> None:
        """Stop or resume taking snapshots; observers, rules and the session's record go on."""
        ...

    def stop(self) -> None:
        """End and wait for own threads (at most a second); called once, also after an error."""
        ...
