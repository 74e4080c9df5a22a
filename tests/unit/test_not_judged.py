"""A judgement that fails: the watch goes on, says so, and judges the next window."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from analysis_factory import make_batch, make_frames
from capture_files import pcap
from msgspec import Struct
from msgspec.structs import replace
from stored_samples import START, attack, snapshot
from test_automatic import installed, seen

from fwtop.analysis.config import AdviseConfig
from fwtop.console import judging, live
from fwtop.console.automatic import Policy
from fwtop.console.automatic.decisions import Decider
from fwtop.console.frugal import RefreshRate
from fwtop.console.headless import show
from fwtop.console.live import LiveSession, RulePreviews
from fwtop.console.playback.capture import CaptureReel, observe_capture
from fwtop.incidents.advisor import Advisor
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer
from fwtop.model.protocol import Status
from fwtop.model.rule import Kind, Match, Preview, Rule, RuleStatus, State
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import NoOrigin, PacketBatch, Window
from fwtop.model.traffic.session import EventKind
from fwtop.model.traffic.snapshot import Judgement, Origin, Snapshot, Tables
from fwtop.model.wire import plain
from fwtop.sandbox.crash_log import CrashLog
from fwtop.stats.engine import Engine
from fwtop.store.events import EventLog, derive

FLOOD = [{"dport": 80, "payload": "zeros", "count": 3000}]
LIMIT = Rule("7", Kind.XDP, Match(protocol=17, dport=80), "a rule", 600)


class Link(Struct):
    """The guardian's answers."""

    lost = ""
    asked: int = 0

    def demand(self, request: object, seconds: float = 0.0) -> Answer:
        if not isinstance(request, Status):
            raise FwtopError("not asked here")
        self.asked += 1
        status = RuleStatus(LIMIT, State.CONFIRMED, packets=1_000 * self.asked)
        return Answer(ok=True, data={"rules": [plain(status)]})


class Traffic:
    """A flood that goes on."""

    notes: tuple[str, ...] = ()
    cpu_saturated = False

    def __init__(self) -> None:
        self.packets = make_batch(make_frames(FLOOD, 0.5), weight=40.0)

    def traffic_changed(self) -> bool:
        return False

    def poll(self) -> tuple[PacketBatch, Counters]:
        packets = round(float(self.packets.weight.sum()))
        size = round(float(self.packets.weight @ self.packets.length))
        return self.packets, Counters(0.5, packets, size)


class Service:
    handshakes = None  # nothing is counted here

    def sample(self) -> None:
        return None


class Breaking(Advisor):
    """An advisor that fails at chosen judgements."""

    def __init__(self, fails: Sequence[int]) -> None:
        super().__init__()
        self.fails = fails
        self.turn = 0

    def judge(self, window: Window, tables: Tables, active: Sequence[Rule] = ()) -> Judgement:
        self.turn += 1
        if self.turn in self.fails:
            raise ValueError("an array without elements")
        return super().judge(window, tables, active)


class BreakingEngine(Engine):
    """Fails to make tables, or to take packets, when told to."""

    broken = ""

    def tables(self, *words: Any) -> Tables:
        if self.broken == "tables":
            raise IndexError("index 0 is out of bounds for axis 0 with size 0")
        return super().tables(*words)

    def feed(self, *words: Any) -> None:
        if self.broken == "feed":
            raise ZeroDivisionError("division by zero")
        super().feed(*words)


class EveryTick(RefreshRate):
    """Judges each tick, as after a change."""

    def judge_now(self, *words: Any) -> bool:
        super().judge_now(*words)
        return True


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Crash logs go here."""
    directory = tmp_path / "logs"
    directory.mkdir()
    monkeypatch.setattr(judging, "CRASHES", CrashLog(lambda: (directory,)))
    return directory


def session_of(advisor: Advisor, engine: Engine | None = None) -> LiveSession:
    engine = engine or Engine(NoOrigin(), window_seconds=3.0, live=True)
    link: Any = Link()
    traffic: Any = Traffic()
    service: Any = Service()
    origin = Origin("live")
    return LiveSession(link, traffic, engine, advisor, service, host="h", origin=origin, refresh=EveryTick())


def test_counters_rules_and_known_attacks_stay_and_the_next_tick_is_judged(logs: Path) -> None:
    session = session_of(Breaking(fails=range(2, 6)))
    ticks = [session.tick() for _ in range(8)]
    assert [bool(tick.judgement.not_judged) for tick in ticks] == [False] + 4 * [True] + 3 * [False]
    assert all(tick.tables.totals.packets and tick.mitigations[0].packets for tick in ticks)
    assert ticks[-1].mitigations[0].packets > ticks[2].mitigations[0].packets
    assert {attack.kind for attack in ticks[0].judgement.attacks} == {"udp_flood"}
    assert all(tick.judgement.attacks for tick in ticks), "a failure ends no attack"
    (log,) = logs.iterdir()  # one, though it failed four times
    line = ticks[2].judgement.not_judged
    assert line == f"judging failed; details in {log} (ValueError: an array without elements)"
    assert line in ticks[2].notes
    assert "in judge" in log.read_text()
    events = EventLog()
    told = [event.kind for tick in ticks for event in events.next(tick)]
    assert told.count(EventKind.NOT_JUDGED) == told.count(EventKind.JUDGED_AGAIN) == 1
    assert EventKind.ATTACK_ENDED not in told


def test_a_session_that_was_never_judged_is_not_calm() -> None:
    tick = session_of(Breaking(fails=range(100))).tick()
    assert tick.judgement.not_judged
    assert tick.judgement.attacks == ()
    assert tick.tables.sources.address, "tables are there"


def test_without_tables_totals_and_rules_are_shown() -> None:
    engine = BreakingEngine(NoOrigin(), window_seconds=3.0, live=True)
    session = session_of(Advisor(), engine)
    before = session.tick()
    engine.broken = "tables"
    tick = session.tick()
    assert tick.judgement.not_judged.startswith("counting failed; ")
    assert tick.tables.totals.packets == 2 * before.tables.totals.packets
    assert tick.judgement.attacks == before.judgement.attacks
    engine.broken = ""
    assert not session.tick().judgement.not_judged


def test_what_fails_outside_the_judgement_is_told_with_the_last_snapshot() -> None:
    engine = BreakingEngine(NoOrigin(), window_seconds=3.0, live=True)
    session = session_of(Advisor(), engine)
    shown: list[Snapshot] = []
    stop = threading.Event()

    def take(tick: Snapshot) -> None:
        shown.append(tick)
        engine.broken = "feed" if len(shown) in {1, 2} else ""
        if len(shown) == 4:
            stop.set()

    session.run(stop, 0.01, take)
    failed = [tick.judgement.not_judged.partition(" ")[0] for tick in shown]
    assert failed == ["", "observing", "observing", ""]
    assert shown[1].tables == shown[0].tables
    assert shown[1].started + shown[1].seconds == pytest.approx(time.time(), abs=60)
    engine.broken = "feed"
    with pytest.raises(ZeroDivisionError):  # nothing is seen any more: no watch
        session.run(threading.Event(), 0.001, shown.append)


def test_a_capture_that_cannot_be_judged_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "flood.pcap"
    frames = make_frames(FLOOD, 5.0)
    file.write_bytes(pcap([(int(at * 1e9), frame, len(frame)) for at, frame in frames]))

    def fail(*_: object) -> Judgement:
        raise IndexError("index 0 is out of bounds")

    with monkeypatch.context() as broken:
        broken.setattr(Advisor, "judge", fail)
        with file.open("rb") as opened:
            result = observe_capture(opened, file.name, top=10, lookup=NoOrigin())
        frame = CaptureReel(result).frame(result.snapshot.started + 2.0)
    assert result.snapshot.tables.totals.packets == 3000
    assert frame.snapshot.judgement.not_judged
    assert show(result.snapshot, as_json=False, top=10, fail_on=None) == 1
    text = capsys.readouterr().out
    assert "not judged: it is not known whether there is an attack" in text
    assert "note: judging failed; details in " in text
    assert "(IndexError: index 0 is out of bounds)" in text
    assert show(result.snapshot, as_json=True, top=10, fail_on=None) == 1
    assert '"not_judged": "judging failed; details' in capsys.readouterr().out


def test_a_preview_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    session = session_of(Advisor())
    session.tick()
    previews = RulePreviews(lambda: session.latest, AdviseConfig())
    assert previews.preview(LIMIT).attack_share is not None

    def fail(*_: object) -> Preview:
        raise IndexError("index 0 is out of bounds")

    monkeypatch.setattr(live, "preview_on", fail)
    with pytest.raises(FwtopError) as caught:
        previews.preview(LIMIT)
    (log,) = logs.iterdir()
    line = f"the preview failed; details in {log} (IndexError: index 0 is out of bounds); nothing was changed"
    assert str(caught.value) == line


def test_no_rule_is_installed_on_an_old_judgement() -> None:
    decider = Decider(Policy(enabled=True))
    blind = seen(0.0)
    blind = replace(blind, judgement=replace(blind.judgement, not_judged="judging failed"))
    assert decider.next(blind) == []
    installed(decider, 1.0)


def test_events_tell_since_when() -> None:
    known = snapshot(START, attacks=(attack(),))
    blind = replace(known, judgement=replace(known.judgement, not_judged="judging failed (ValueError: x)"))
    (event,) = derive(known, blind)
    assert (event.kind, event.text) == (EventKind.NOT_JUDGED, "judging failed (ValueError: x)")
    assert derive(blind, blind) == []
    assert [event.kind for event in derive(blind, known)] == [EventKind.JUDGED_AGAIN]
