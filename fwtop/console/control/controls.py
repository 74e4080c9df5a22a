"""Implementation of the screen's actions: requests to the guardian, previews, reports, dissection."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fwtop.analysis.packets.recent import PacketList
from fwtop.console.control.guardian_link import GuardianLink
from fwtop.console.control.ruleset import read_ruleset
from fwtop.console.packets.packet_file import write_packets
from fwtop.console.packets.packet_lists import PacketLists
from fwtop.console.packets.samples import SamplePackets
from fwtop.console.traffic_parts import TrafficParts
from fwtop.dissect.wire import Dissection
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import DEFAULT_CONFIRM_SECONDS, Apply, Keep, Plan, Repair, Undo, Why
from fwtop.model.rule import PlanView, Preview, Rule, RuleStatus
from fwtop.model.ruleset import Ruleset
from fwtop.model.traffic.history import Trends
from fwtop.model.traffic.snapshot import PartTraffic, Payload, Source, TrafficPart

_Words = ParamSpec("_Words")
_Answer = TypeVar("_Answer")


async def _in_thread(work: Callable[_Words, _Answer], *args: _Words.args, **kwargs: _Words.kwargs) -> _Answer:
    """Run slow work in a thread: asyncio.to_thread(), but a recorder does without these 5 MB."""
    import asyncio

    return await asyncio.to_thread(work, *args, **kwargs)


EXPORT_FORMATS = ("html", "md", "json")


class LiveControls:
    """Actions on a running guardian. Every request runs in a thread, so the screen never blocks."""

    def __init__(
        self,
        link: GuardianLink,
        *,
        quick: GuardianLink,
        preview: Callable[[Rule], Preview],
        expand: Callable[[Rule], Rule],
        samples: SamplePackets,
        packets: PacketLists,
        parts: TrafficParts,
        trends: Callable[[float], Trends],
        export: Callable[[str], str],
        changed: Callable[[], None],
        readonly: str = "",
    ) -> None:
        self._link = link  # slow requests
        self._quick = quick  # keep and undo, which must not wait for slow requests
        self._preview = preview
        self._expand = expand
        self._samples = samples
        self._packets = packets
        self._parts = parts
        self._trends = trends
        self._export = export
        self._on_change = changed
        self.readonly = readonly
        self.confirm_seconds = DEFAULT_CONFIRM_SECONDS
        self.export_formats = EXPORT_FORMATS

    async def expand(self, rule: Rule) -> Rule:
        """Expand an AS or a country to its prefixes."""
        return await _in_thread(self._expand, rule)

    async def preview(self, rule: Rule) -> Preview:
        """Replay the rule on the latest window."""
        return await _in_thread(self._preview, rule)

    async def plan(self, rule: Rule, *, follows: bool = False) -> PlanView:
        """Ask the guardian which commands it would run."""
        answer = await _in_thread(self._link.demand_for_rule, Plan({}, follows=follows), rule)
        data = answer.data
        return PlanView(
            commands=tuple(data["commands"]),
            warnings=tuple(data["warnings"]),
            refused=data["refused"] or "",
            needs_force=data["needs_force"] or "",
        )

    async def apply(self, rule: Rule, *, force: bool = False) -> RuleStatus:
        """Install a rule provisionally."""
        self._writable()
        request = Apply({}, confirm_seconds=self.confirm_seconds, force=force)
        answer = await _in_thread(self._link.demand_for_rule, request, rule)
        self._on_change()
        return RuleStatus.from_dict(answer.data["status"])

    async def keep(self, rule_id: str, *, ttl_seconds: int | None = None) -> RuleStatus:
        """Confirm or renew a rule."""
        self._writable()
        answer = await _in_thread(self._quick.demand, Keep(rule_id, ttl_seconds))
        self._on_change()
        return RuleStatus.from_dict(answer.data["status"])

    async def repair(self, rule_id: str) -> RuleStatus:
        """Reinstall the parts of a rule that are missing from the kernel."""
        self._writable()
        answer = await _in_thread(self._link.demand, Repair(rule_id))
        self._on_change()
        return RuleStatus.from_dict(answer.data["status"])

    async def undo(self, rule_id: str) -> RuleStatus:
        """Remove a rule."""
        self._writable()
        answer = await _in_thread(self._quick.demand, Undo((rule_id,)))
        self._on_change()
        return RuleStatus.from_dict(answer.data["rules"][0])

    async def whole(self, status: RuleStatus) -> Rule:
        """Ask the guardian for the sources that the screen does not know."""
        if not status.sources_left or status.rule.list_name is not None:
            return status.rule
        return await _in_thread(self._link.whole_rule, status.rule.id)

    async def why(self, rule_id: str) -> tuple[str, ...]:
        """Ask the guardian what the rule matches, or what prevents it from matching."""
        answer = await _in_thread(self._link.ask, Why(rule_id))
        if not answer.ok:
            raise FwtopError(answer.error, answer.code or 1)
        return tuple(answer.data["sentences"])

    async def dissect(self, row: Source | Payload) -> Dissection | None:
        """Decode one packet of this row."""
        return await _in_thread(self._samples.dissect, row)

    async def packets(self) -> PacketList | None:
        """Return the newest sampled packets."""
        return await _in_thread(self._packets.packets)

    async def dissect_packet(self, shown: PacketList, row: int) -> Dissection | None:
        """Decode a packet of a list."""
        return await _in_thread(self._samples.dissect_row, shown.packets, row)

    async def write_packets(self, shown: PacketList) -> str:
        """Write packets as a pcap file; return its path."""
        return await _in_thread(write_packets, shown)

    async def traffic(self, part: TrafficPart) -> PartTraffic | None:
        """Make the tables of a part of the newest window."""
        return await _in_thread(self._parts.of, part)

    async def ruleset(self) -> Ruleset | None:
        """Return every rule and set on the machine, as the guardian last read them."""
        return await _in_thread(read_ruleset, self._link)

    async def trends(self, at: float) -> Trends:
        """Read the history."""
        return await _in_thread(self._trends, at)

    async def export(self, format_name: str) -> str:
        """Write a report on the session so far; return its path."""
        return await _in_thread(self._export, format_name)

    def close(self) -> None:
        """End the dissector, and with it a request that is waiting for it."""
        self._samples.close()

    def _writable(self) -> None:
        if self.readonly:
            raise FwtopError(f"nothing was changed: {self.readonly}")


class ReadOnlyControls:
    """Actions on a capture or stored session, where nothing can be changed."""

    def __init__(
        self,
        why: str,
        *,
        preview: Callable[[Rule], Preview] | None,
        samples: SamplePackets | None = None,
        packets: PacketLists | None = None,
        parts: TrafficParts | None = None,
        trends: Callable[[float], Trends] | None = None,
        export: Callable[[str], str],
        export_formats: tuple[str, ...],
    ) -> None:
        self.readonly = why
        self.confirm_seconds = DEFAULT_CONFIRM_SECONDS
        self.export_formats = export_formats
        self._preview = preview
        self._samples = samples
        self._packets = packets
        self._parts = parts
        self._trends = trends
        self._export = export

    async def expand(self, rule: Rule) -> Rule:
        """Return the rule unchanged."""
        return rule

    async def preview(self, rule: Rule) -> Preview:
        """Replay the rule on the capture's packets."""
        if self._preview is None:
            raise FwtopError("a stored session has no packets to preview a rule on")
        return await _in_thread(self._preview, rule)

    async def plan(self, rule: Rule, *, follows: bool = False) -> PlanView:  # noqa: ARG002
        """Refuse, with the reason."""
        return PlanView(refused=self.readonly)

    async def apply(self, rule: Rule, *, force: bool = False) -> RuleStatus:  # noqa: ARG002
        """Refuse."""
        raise self._refusal()

    async def keep(self, rule_id: str, *, ttl_seconds: int | None = None) -> RuleStatus:  # noqa: ARG002
        """Refuse."""
        raise self._refusal()

    async def repair(self, rule_id: str) -> RuleStatus:  # noqa: ARG002
        """Refuse."""
        raise self._refusal()

    async def undo(self, rule_id: str) -> RuleStatus:  # noqa: ARG002
        """Refuse."""
        raise self._refusal()

    async def whole(self, status: RuleStatus) -> Rule:
        """Return the rule as it is known."""
        return status.rule

    async def why(self, rule_id: str) -> tuple[str, ...]:
        """Refuse: a stored session's rule is not in this kernel."""
        raise FwtopError(f"rule {rule_id} is not in this kernel: {self.readonly}")

    async def dissect(self, row: Source | Payload) -> Dissection | None:
        """Decode one packet of this row, if there are packets."""
        return None if self._samples is None else await _in_thread(self._samples.dissect, row)

    async def packets(self) -> PacketList | None:
        """Return the packets of the window that is shown; a stored session has none."""
        return None if self._packets is None else await _in_thread(self._packets.packets)

    async def dissect_packet(self, shown: PacketList, row: int) -> Dissection | None:
        """Decode a packet of a list."""
        if self._samples is None:
            return None
        return await _in_thread(self._samples.dissect_row, shown.packets, row)

    async def write_packets(self, shown: PacketList) -> str:
        """Write packets as a pcap file; return its path."""
        return await _in_thread(write_packets, shown)

    async def traffic(self, part: TrafficPart) -> PartTraffic | None:
        """Make the tables of a part, if there are packets."""
        return None if self._parts is None else await _in_thread(self._parts.of, part)

    async def ruleset(self) -> Ruleset | None:
        """Return nothing: these are not this machine's rules."""
        return None

    async def trends(self, at: float) -> Trends:
        """Read the history of a session; a capture has none."""
        if self._trends is None:
            raise FwtopError("a capture is no part of the history")
        return await _in_thread(self._trends, at)

    async def export(self, format_name: str) -> str:
        """Write the current snapshot; return its path."""
        return await _in_thread(self._export, format_name)

    def close(self) -> None:
        """End the dissector, and with it a request that is waiting for it."""
        if self._samples is not None:
            self._samples.close()

    def _refusal(self) -> FwtopError:
        return FwtopError(f"nothing was changed: {self.readonly}")
