"""What reaches an operator who looks elsewhere: the terminal's title, and its bell."""

from __future__ import annotations

import math

from msgspec import Struct, field

from fwtop.model.text import safe_text
from fwtop.model.traffic.session import flow_of
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.verdict import Badge, Verdict, verdict_of
from fwtop.ui.format import number

BELL = "\a"
_MARKS = {Badge.HARM: "✖ ", Badge.UNPROTECTED: "✖ ", Badge.PARTLY: "✖ ", Badge.PROTECTED: "✔ "}
_EVERY_SECONDS = 5.0  # between two titles that differ by a number
_SOON_SECONDS = 10.0  # before a trial ends


class Attention(Struct):
    """Remembers the title, and what the bell rang for."""

    title: bool = True
    bell: bool = True
    _shown: str = ""
    _badge: str = ""
    _at: float = -math.inf
    _attacked: bool = False
    _rung: set[str] = field(default_factory=set)  # rules whose trial ends soon or that do harm

    def forget(self) -> None:
        """Begin again with a terminal whose title is another's."""
        self._shown, self._badge = "", ""

    def take(self, snapshot: Snapshot, now: float) -> str:
        """Return what to write to the terminal: nothing, the title (OSC 2), or a bell with it."""
        verdict = verdict_of(snapshot, now)
        rings = self._rings(verdict, snapshot) and self.bell and snapshot.origin.kind == "live"
        return (self._renamed(verdict, snapshot, now) if self.title else "") + (BELL if rings else "")

    def _renamed(self, verdict: Verdict, snapshot: Snapshot, now: float) -> str:
        if verdict.badge == self._badge and 0 <= now - self._at < _EVERY_SECONDS:
            return ""
        flow = flow_of(snapshot)
        through = "" if flow is None or verdict.badge is Badge.CALM else f" {number(flow.reaches)}"
        text = safe_text(f"{_MARKS.get(verdict.badge, '')}{verdict.badge}{through} – fwtop {snapshot.host}")
        before, self._shown = self._shown, text
        self._badge, self._at = verdict.badge, now
        return "" if text == before else f"\x1b]2;{text}{BELL}"

    def _rings(self, verdict: Verdict, snapshot: Snapshot) -> bool:
        attacked = any(one.is_on for one in snapshot.judgement.harmful)
        begins, self._attacked = attacked and not self._attacked, attacked
        urgent = {f"harm {verdict.loss.rule}"} if verdict.loss is not None else set()
        if verdict.rule is not None and verdict.seconds_left <= _SOON_SECONDS:
            urgent.add(verdict.rule.rule.id)
        new, self._rung = urgent - self._rung, urgent
        return begins or bool(new)
