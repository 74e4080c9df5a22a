"""A world that changes behind the screen: attacks, rules, a guardian that goes, answers that are late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from screen_factory import SCENES
from screen_fakes import STATE, FakeControls, FakePlayer
from screen_hostile import HOSTILE, hostile
from screen_packets import flood
from screen_parts import NOW, SECONDS, attack
from screen_vectors import AMPLIFICATION, SYN_FLOOD, UDP_FLOOD, table_attack, vector_proposals
from screen_world import machine
from traffic_scene import part_of, spoofed_syns

from fwtop.dissect.client import Dissection, Layer
from fwtop.model.errors import FwtopError
from fwtop.model.rule import PlanView, Preview, Rule, RuleStatus, State
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.snapshot import (
    Incident,
    Judgement,
    Origin,
    PartTraffic,
    Sampling,
    Snapshot,
    Tables,
    Totals,
    TrafficPart,
)
from fwtop.ui.feed import PlayerState


class Mode(Struct, frozen=True):
    """How the screen was started."""

    kind: str = "live"
    slow: bool = False
    readonly: str = ""


MODES = {
    "live": Mode(),
    "replay": Mode("session", readonly="a stored session"),
    "slow": Mode(slow=True),
    "read-only": Mode(readonly="started with --readonly"),
    "capture": Mode("capture", readonly="a capture"),
}
_FULL = ConntrackSample(262_144, 262_144, 83_700.0, seconds_to_full=0.0, drop=12_400, early_drop=251_100)
_TABLES = (None, ConntrackSample(0, 0), ConntrackSample(9_000, 262_144, 12.0), _FULL)
_ATTACKS = (
    SYN_FLOOD,
    UDP_FLOOD,
    AMPLIFICATION,
    table_attack(_FULL, SYN_FLOOD),
    *(attack(kind=f"kind {n}", title=f"attack {n}", target=f"udp/{n}", share=0.01 * n) for n in range(30)),
)
_LISTED = tuple(
    replace(one, id=n, letter=chr(64 + n) if n <= 26 else "+") for n, one in enumerate(_ATTACKS, 1)
)
_SPAN = 400.0  # seconds of a recording


def nothing() -> Snapshot:
    """A window without a packet."""
    tables = Tables(Totals(0, 0, 0.0, 0.0, 0, 0), Sampling(1.0, 0, 0))
    return Snapshot("web1", Origin("live", ("eth0",)), NOW - SECONDS, SECONDS, tables)


@cache
def _scenes() -> tuple[Snapshot, ...]:
    return (*(make() for make in SCENES.values()), spoofed_syns(), hostile(), nothing())


class World(Struct):
    """What is observed; `change` lets something else begin, change or end."""

    mode: Mode
    seed: int = 0
    now: float = NOW
    scene: int = 0
    active: list[Incident] = field(default_factory=list)
    rules: list[RuleStatus] = field(default_factory=list)
    guardian: str = "ready"
    notes: tuple[str, ...] = ()
    table: ConntrackSample | None = None
    not_judged: str = ""
    made: int = 0

    def __post_init__(self) -> None:
        self.scene = self.seed % len(_scenes())
        for number in range(self.seed % 4):
            self.change("begin", number)

    def change(self, what: str, number: int) -> None:
        """Change one thing; the number says which and how."""
        getattr(self, f"_{what}")(number)

    def _scene(self, number: int) -> None:
        self.scene = number % len(_scenes())

    def _begin(self, number: int) -> None:
        found = _LISTED[number % len(_LISTED)]
        if all(other.id != found.id for other in self.active):
            self.active.append(
                replace(found, since=self.now - number % 300, pps=found.pps * (1 + number % 3))
            )

    def _end(self, number: int) -> None:
        if self.active:
            self.active.pop(number % len(self.active))

    def _letters(self, number: int) -> None:
        """Attacks trade places, titles and rates."""
        random.Random(number).shuffle(self.active)
        self.active = [replace(item, title=f"{item.title[:20]} {number % 3}") for item in self.active]

    def _quiet(self, _: int) -> None:
        self.active, self.rules = [], []

    def _rule(self, number: int) -> None:
        offers = [offer.rule for offer in vector_proposals() if offer.rule is not None]
        self.install(offers[number % len(offers)])

    def install(self, rule: Rule) -> RuleStatus:
        """Put a rule in, unconfirmed."""
        self.made += 1
        made = replace(rule, id=str(self.made), created=self.now)
        status = RuleStatus(made, State.PROVISIONAL, pps=9.0, expires=self.now + 32, confirm_by=self.now + 30)
        self.rules = [*self.rules[-20:], status]
        return status

    def _state(self, number: int) -> None:
        """One rule is confirmed, ends, or acts no more."""
        if not self.rules:
            return
        place = number // 16 % len(self.rules)
        old = self.rules[place]
        changes: tuple[dict[str, Any], ...] = (
            {"state": State.CONFIRMED, "confirm_by": None, "expires": self.now + 600},
            {"state": State.CONFIRMED, "confirm_by": None, "expires": None},
            {"state": State.EXPIRED},
            {"state": State.REVERTED, "note": "not confirmed"},
            {"state": State.INTENT},
            {"acting": False, "not_acting": "its set is gone"},
            {"pps": 260_000.0, "packets": old.packets + 7, "entries": {"203.0.113.1": 5}},
        )
        self.rules[place] = replace(old, **changes[number % len(changes)])

    def _gone(self, number: int) -> None:
        if self.rules:
            self.rules.pop(number % len(self.rules))

    def _guardian(self, number: int) -> None:
        self.guardian = ("ready", "lost: it does not answer", "")[number % 3]

    def _note(self, number: int) -> None:
        self.notes = (f"note {number}", HOSTILE)[: number % 3]

    def _table(self, number: int) -> None:
        self.table = _TABLES[number % len(_TABLES)]

    def _judged(self, number: int) -> None:
        self.not_judged = "judging failed (ValueError: empty)" if number % 2 else ""

    def snapshot(self) -> Snapshot:
        """Return what is seen now."""
        base = _scenes()[self.scene]
        titles = {item.title for item in self.active}
        offers = tuple(offer for offer in vector_proposals() if offer.attack in titles)
        judgement: Judgement = replace(
            base.judgement, attacks=tuple(self.active), proposals=offers, not_judged=self.not_judged
        )
        file = None if self.mode.kind == "live" else "2026-09-21T14-13-20-eth0"
        return replace(
            base,
            origin=Origin(self.mode.kind, ("eth0",), None, file),
            started=self.now - base.seconds,
            judgement=judgement,
            mitigations=tuple(self.rules) if self.mode.kind != "capture" else (),
            guardian=self.guardian if self.mode.kind == "live" else "",
            notes=self.notes,
            conntrack=self.table,
        )


class MonkeyControls(FakeControls):
    """Answers at once, late, or not at all; what it installs is seen in the world."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.recent = flood(80)
        self.machine = machine()
        self.dissection = Dissection((Layer("IP", (("ttl", "53"),)),), "")
        self.late: asyncio.Event | None = None
        self._readonly_at_first = ""

    def change(self, mood: str, number: int) -> None:
        """Be in another mood; "answer" lets late answers come."""
        if mood == "answer":
            self.answer()
        elif mood == "slow":
            self.late = self.late or asyncio.Event()
        elif mood == "failing":
            self.failure = FwtopError(f"it failed for the {number}th time") if number % 2 else None
        elif mood == "empty":
            self.recent = None if number % 2 else flood(80, first=number % 1000)
            self.dissection, self.why_answer = None, ()
            self.preview_answer = Preview(0.0, 0.0, 0.0, 0.0, 0.0)
        elif mood == "machine":
            self.machine = machine(self.world.now, number % 5000) if number % 3 else None
            self.parts = {} if number % 2 else _Parts()
        elif mood == "readonly":
            self.readonly = self.world.mode.readonly or ("started with --readonly" if number % 2 else "")
        else:
            self._numbers(mood, number)

    def _numbers(self, mood: str, number: int) -> None:
        harm = 0.4 if mood == "harm" else 0.001
        self.preview_answer = Preview(
            0.9, 250_000.0, harm, 90.0, 251_000.0, ("a client",), ("careful",), bool(number % 2), "UDP flood"
        )
        commands = tuple(f"ipset add fwtop-4 198.51.100.{n} timeout 632" for n in range(number % 300))
        refused = "it would cut you off" if mood == "refused" else ""
        force = "it drops everybody" if mood == "force" else ""
        self.plan_answer = PlanView(commands, ("a warning",) * (number % 3), refused, force)
        if mood == "fine":
            self.failure = None
            self.answer()

    def answer(self) -> None:
        """Let all late answers come."""
        if self.late is not None:
            self.late.set()
            self.late = None

    async def apply(self, rule: Rule, *, force: bool = False) -> RuleStatus:
        await super().apply(rule, force=force)
        return self.world.install(rule)


class _Parts(dict[TrafficPart, PartTraffic]):
    """Has each part."""

    def get(self, part: TrafficPart, default: Any = None) -> Any:
        return part_of(part, "203.0.113.7")


def _late(name: str) -> Callable[..., Any]:
    async def answer(self: MonkeyControls, *given: Any, **named: Any) -> Any:
        if self.late is not None:
            await self.late.wait()
        return await base(self, *given, **named)

    base = getattr(MonkeyControls, name)
    return answer


for _name in ("expand", "preview", "plan", "apply", "keep", "why", "repair", "undo", "dissect", "packets"):
    setattr(MonkeyControls, _name, _late(_name))
for _name in ("dissect_packet", "write_packets", "traffic", "ruleset", "trends", "export"):
    setattr(MonkeyControls, _name, _late(_name))


_OPEN = replace(STATE, begins=NOW - _SPAN, ends=NOW + _SPAN, position=NOW)


class MonkeyPlayer(FakePlayer):
    """Goes where it is told to, between the ends of the recording."""

    def __init__(self) -> None:
        super().__init__(_OPEN)

    def change(self, number: int) -> None:
        """Be not open yet, at an end, showing all, or of no length."""
        states = (
            None,
            replace(_OPEN, position=_OPEN.ends, playing=False),
            replace(_OPEN, whole=True, playing=False, note="window 3 s"),
            replace(_OPEN, ends=_OPEN.begins, position=_OPEN.begins),
            replace(_OPEN, marks=(), speed=64.0),
            _OPEN,
        )
        self.state = states[number % len(states)]

    def _go(self, at: float) -> None:
        state: PlayerState | None = self.state
        if state is not None:
            self.state = replace(state, position=min(max(at, state.begins), state.ends), whole=False)

    def set_speed(self, speed: float) -> None:
        super().set_speed(speed)
        self.state = replace(self.state, speed=speed) if self.state is not None else None

    def seek(self, at: float) -> None:
        super().seek(at)
        self._go(at)

    def step(self, count: int) -> None:
        super().step(count)
        self._go((self.state or STATE).position + count)

    def skip(self, count: int) -> None:
        super().skip(count)
        self._go((self.state or STATE).position + 60 * count)
