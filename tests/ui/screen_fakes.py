"""A feed and controls that a test drives by hand: they remember what they were asked."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from screen_parts import NOW, block_rule

from fwtop.analysis.packets.recent import PacketList
from fwtop.dissect.client import Dissection
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Mode, PlanView, Preview, Rule, RuleStatus, State
from fwtop.model.ruleset import Ruleset
from fwtop.model.traffic.session import Event, EventKind, Mark, PastAttack, Trends
from fwtop.model.traffic.snapshot import PartTraffic, Payload, Snapshot, Source, TrafficPart
from fwtop.rules.words import with_mode
from fwtop.ui.feed import Player, PlayerState
from fwtop.ui.lists.history import Past

COMMANDS = (
    "ipset create fwtop-4 hash:net family inet timeout 32",
    "ipset add fwtop-4 203.0.113.1 timeout 32",
    "iptables -w -t raw -A FWTOP -m set --match-set fwtop-4 src -m comment --comment fwtop:8 -j DROP",
)


class FakeControls:
    def __init__(self) -> None:
        self.readonly = ""
        self.confirm_seconds = 30
        self.export_formats: tuple[str, ...] = ("html", "md", "json")
        self.calls: list[tuple[str, object]] = []
        self.preview_answer = Preview(
            0.121, 37_440.0, 0.002, 2.0, 37_442.0, ("1 of 460 HTTPS clients, 203.0.113.1",)
        )
        self.plan_answer = PlanView(COMMANDS)
        self.packets_asked = 0
        self.why_answer: tuple[str, ...] = ("rule 5 stands above it and takes the same packets.",)
        self.dissection: Dissection | None = None
        self.recent: PacketList | None = None
        self.machine: Ruleset | None = None
        self.parts: dict[TrafficPart, PartTraffic] = {}
        self.history: Trends | None = None
        self.failure: FwtopError | None = None
        self.rules: dict[str, RuleStatus] = {}

    def _note(self, verb: str, value: object) -> None:
        self.calls.append((verb, value))
        if self.failure is not None:
            raise self.failure

    async def expand(self, rule: Rule) -> Rule:
        self._note("expand", rule)
        return rule

    async def preview(self, rule: Rule) -> Preview:
        self._note("preview", rule)
        return self.preview_answer

    async def plan(self, rule: Rule, *, follows: bool = False) -> PlanView:
        self._note("plan", rule)
        return self.plan_answer

    async def apply(self, rule: Rule, *, force: bool = False) -> RuleStatus:
        self._note("apply", (rule, force))
        status = RuleStatus(
            replace(rule, id="8"), State.PROVISIONAL, expires=NOW + 32, confirm_by=NOW + self.confirm_seconds
        )
        self.rules["8"] = status
        return status

    async def keep(self, rule_id: str, *, ttl_seconds: int | None = None) -> RuleStatus:
        self._note("keep", rule_id if ttl_seconds is None else (rule_id, ttl_seconds))
        status = self.rules.get(rule_id) or RuleStatus(block_rule(rule_id), State.PROVISIONAL)
        return replace(status, state=State.CONFIRMED, confirm_by=None, expires=NOW + (ttl_seconds or 600))

    async def whole(self, status: RuleStatus) -> Rule:
        if status.sources_left:
            self._note("whole", status.rule.id)
            sources = tuple(Prefix(4, (11 << 24) + number, 32) for number in range(status.sources_total))
            return replace(status.rule, match=replace(status.rule.match, sources=sources))
        return status.rule

    async def why(self, rule_id: str) -> tuple[str, ...]:
        self._note("why", rule_id)
        return self.why_answer

    async def repair(self, rule_id: str) -> RuleStatus:
        self._note("repair", rule_id)
        return self.rules.get(rule_id) or RuleStatus(block_rule(rule_id), State.PROVISIONAL)

    async def change(self, rule: Rule, stamp: int, *, force: bool = False) -> RuleStatus:
        self._note("change", (rule, stamp))
        return RuleStatus(rule, State.PROVISIONAL, stamp=stamp + 1)

    async def mode(self, rule_id: str, mode: Mode) -> RuleStatus:
        self._note("mode", (rule_id, mode))
        status = self.rules.get(rule_id) or RuleStatus(block_rule(rule_id), State.CONFIRMED)
        state = State.PROVISIONAL if mode is Mode.DROP else State.CONFIRMED
        return replace(status, state=state, rule=with_mode(status.rule, mode))

    async def undo(self, rule_id: str) -> RuleStatus:
        self._note("undo", rule_id)
        status = self.rules.get(rule_id) or RuleStatus(block_rule(rule_id), State.PROVISIONAL)
        return replace(status, state=State.REVERTED, confirm_by=None, note="undone")

    async def teach(self, said: str, attack: object) -> str:
        self._note("teach", (said, attack))
        return f"{said} was heard"

    async def dissect(self, row: Source | Payload) -> Dissection | None:
        self._note("dissect", row)
        return self.dissection

    async def packets(self) -> PacketList | None:
        self.packets_asked += 1
        return self.recent

    async def dissect_packet(self, shown: PacketList, row: int) -> Dissection | None:
        self._note("dissect_packet", int(shown.numbers[row]))
        return self.dissection

    async def write_packets(self, shown: PacketList) -> str:
        self._note("write_packets", shown)
        return "/var/lib/fwtop/sessions/fwtop-2026-09-21T14-13-20.pcap"

    async def traffic(self, part: TrafficPart) -> PartTraffic | None:
        self._note("traffic", part)
        return self.parts.get(part)

    async def ruleset(self) -> Ruleset | None:
        return self.machine

    async def trends(self, at: float) -> Trends:
        self._note("trends", at)
        if self.history is None:
            raise FwtopError("no history is stored in /var/lib/fwtop/history.db yet")
        return self.history

    async def export(self, format_name: str) -> str:
        self._note("export", format_name)
        return f"/var/lib/fwtop/report.{format_name}"

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.calls]


class FakeFeed:
    def __init__(self, first: Snapshot | None = None) -> None:
        self.controls = FakeControls()
        self.first = first
        self.before: tuple[Past, ...] = ()
        self.over: tuple[PastAttack, ...] = ()
        self.stopped = 0
        self.is_new = False
        self.session = "2026-09-21T14-13-20-web1"
        self.player: Player | None = None
        self.send: Callable[[Snapshot], None] = lambda _: None
        self.fail: Callable[[Exception], None] = lambda _: None

    def past(self) -> tuple[Past, ...]:
        return self.before

    def past_attacks(self) -> tuple[PastAttack, ...]:
        return self.over

    def welcomed(self) -> None:
        self.is_new = False

    def start(self, on_snapshot: Callable[[Snapshot], None], on_error: Callable[[Exception], None]) -> None:
        self.send, self.fail = on_snapshot, on_error
        if self.first is not None:
            on_snapshot(self.first)

    def stop(self) -> None:
        self.stopped += 1


def mark(at: float, kind: EventKind) -> Mark:
    return Mark(at, Event(at, kind, "x", "y"))


STATE = PlayerState(
    NOW,
    NOW + 300,
    NOW + 150,
    playing=True,
    speed=4.0,
    marks=(mark(NOW + 30, EventKind.ATTACK_BEGAN), mark(NOW + 270, EventKind.ATTACK_ENDED)),
)


class FakePlayer:
    def __init__(self, state: PlayerState | None = STATE) -> None:
        self.state = state
        self.calls: list[tuple[str, float]] = []

    def past(self) -> tuple[Past, ...]:
        return ()

    def play(self, playing: bool) -> None:
        self.calls.append(("play", playing))
        if self.state is not None:
            self.state = replace(self.state, playing=playing)

    def set_speed(self, speed: float) -> None:
        self.calls.append(("speed", speed))

    def seek(self, at: float) -> None:
        self.calls.append(("seek", round(at - NOW)))

    def step(self, count: int) -> None:
        self.calls.append(("step", count))

    def skip(self, count: int) -> None:
        self.calls.append(("skip", count))
