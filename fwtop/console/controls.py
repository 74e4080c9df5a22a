"""What keys do on any screen that looks: previews, packets, parts of the traffic, the history, reports."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

from fwtop.analysis.packets.recent import PacketList
from fwtop.console.samples import SamplePackets, TrafficParts, write_packets
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import DEFAULT_CONFIRM_SECONDS
from fwtop.model.rule import PlanView, Preview, Rule, RuleStatus
from fwtop.model.ruleset import Ruleset
from fwtop.model.traffic.session import Trends

_Words = ParamSpec("_Words")
_Answer = TypeVar("_Answer")


async def in_thread(work: Callable[_Words, _Answer], *args: _Words.args, **kwargs: _Words.kwargs) -> _Answer:
    """Run slow work in a thread: asyncio.to_thread(), but a recorder does without these 5 MB."""
    import asyncio

    return await asyncio.to_thread(work, *args, **kwargs)


class Looking:
    """The requests that change nothing (ui/feed.py). Each runs in a thread, so the screen never blocks."""

    def __init__(
        self,
        readonly: str,
        *,
        preview: Callable[[Rule], Preview] | None,
        samples: SamplePackets | None = None,
        packets: Callable[[], PacketList] | None = None,
        parts: TrafficParts | None = None,
        trends: Callable[[float], Trends] | None = None,
        teach: Callable[[str, object], str] | None = None,
        export: Callable[[str], str],
        export_formats: tuple[str, ...],
    ) -> None:
        """`readonly` says why nothing can be changed, "" if it can; this screen lacks what is None."""
        self.readonly = readonly
        self.confirm_seconds = DEFAULT_CONFIRM_SECONDS
        self.export_formats = export_formats
        self._samples = samples
        self.preview = _threaded(preview or _no_preview)
        self.packets = _threaded(packets or _nothing)
        self.dissect = _threaded(samples.dissect if samples is not None else _nothing)
        self.dissect_packet = _threaded(samples.dissect_row if samples is not None else _nothing)
        self.write_packets = _threaded(write_packets)
        self.traffic = _threaded(parts.of if parts is not None else _nothing)
        self.trends = _threaded(trends or _no_trends)
        self.teach = _threaded(teach or _no_teaching)
        self.export = _threaded(export)

    def close(self) -> None:
        """End the dissector, and with it a request that is waiting for it."""
        if self._samples is not None:
            self._samples.close()


def _threaded(work: Callable[_Words, _Answer]) -> Callable[_Words, Coroutine[Any, Any, _Answer]]:
    return partial(in_thread, work)


def _refusing(why: str) -> Callable[..., Any]:
    def refuse(*_: object) -> None:
        raise FwtopError(why)

    return refuse


_no_preview = _refusing("a stored session has no packets to preview a rule on")
_no_trends = _refusing("a capture is no part of the history")
_no_teaching = _refusing("only from live traffic fwtop learns what is normal")


def _nothing(*_: object) -> None:
    """Answer for a screen without packets."""


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

    apply = change = keep = repair = mode = undo = _refuse

    async def whole(self, status: RuleStatus) -> Rule:
        """Return the rule as it is known."""
        return status.rule

    async def why(self, rule_id: str) -> tuple[str, ...]:
        """Refuse: a stored session's rule is not in this kernel."""
        raise FwtopError(f"rule {rule_id} is not in this kernel: {self.readonly}")

    async def ruleset(self) -> Ruleset | None:
        """Return nothing: these are not this machine's rules."""
        return None
