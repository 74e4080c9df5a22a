"""What keys do on any screen that looks: previews, packets, parts of the traffic, the history, reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fwtop.analysis.packets.recent import PacketList
from fwtop.console.samples import SamplePackets, TrafficParts, write_packets
from fwtop.dissect.client import Dissection
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import DEFAULT_CONFIRM_SECONDS
from fwtop.model.rule import PlanView, Preview, Rule, RuleStatus
from fwtop.model.ruleset import Ruleset
from fwtop.model.traffic.history import Trends
from fwtop.model.traffic.snapshot import PartTraffic, Payload, Source, TrafficPart

_Words = ParamSpec("_Words")
_Answer = TypeVar("_Answer")


async def in_thread(work: Callable[_Words, _Answer], *args: _Words.args, **kwargs: _Words.kwargs) -> _Answer:
    """Run slow work in a thread: asyncio.to_thread(), but a recorder does without these 5 MB."""
    import asyncio

    return await asyncio.to_thread(work, *args, **kwargs)


class Looking:
    """The requests that change nothing. Each runs in a thread, so the screen never blocks."""

    def __init__(
        self,
        readonly: str,
        *,
        preview: Callable[[Rule], Preview] | None,
        samples: SamplePackets | None = None,
        packets: Callable[[], PacketList] | None = None,
        parts: TrafficParts | None = None,
        trends: Callable[[float], Trends] | None = None,
        export: Callable[[str], str],
        export_formats: tuple[str, ...],
    ) -> None:
        """`readonly` says why nothing can be changed, "" if it can; this screen lacks what is None."""
        self.readonly = readonly
        self.confirm_seconds = DEFAULT_CONFIRM_SECONDS
        self.export_formats = export_formats
        self._preview = preview
        self._samples = samples
        self._packets = packets
        self._parts = parts
        self._trends = trends
        self._export = export

    async def preview(self, rule: Rule) -> Preview:
        """Replay the rule on the packets that are shown."""
        if self._preview is None:
            raise FwtopError("a stored session has no packets to preview a rule on")
        return await in_thread(self._preview, rule)

    async def dissect(self, row: Source | Payload) -> Dissection | None:
        """Decode one packet of this row, if there are packets."""
        return None if self._samples is None else await in_thread(self._samples.dissect, row)

    async def packets(self) -> PacketList | None:
        """Return the newest sampled packets, or those of the window that is shown."""
        return None if self._packets is None else await in_thread(self._packets)

    async def dissect_packet(self, shown: PacketList, row: int) -> Dissection | None:
        """Decode a packet of a list."""
        if self._samples is None:
            return None
        return await in_thread(self._samples.dissect_row, shown.packets, row)

    async def write_packets(self, shown: PacketList) -> str:
        """Write packets as a pcap file; return its path."""
        return await in_thread(write_packets, shown)

    async def traffic(self, part: TrafficPart) -> PartTraffic | None:
        """Make the tables of a part of the window that is shown, if there are packets."""
        return None if self._parts is None else await in_thread(self._parts.of, part)

    async def trends(self, at: float) -> Trends:
        """Read the history; a capture has none."""
        if self._trends is None:
            raise FwtopError("a capture is no part of the history")
        return await in_thread(self._trends, at)

    async def export(self, format_name: str) -> str:
        """Write a report or what is shown; return its path."""
        return await in_thread(self._export, format_name)

    def close(self) -> None:
        """End the dissector, and with it a request that is waiting for it."""
        if self._samples is not None:
            self._samples.close()


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
