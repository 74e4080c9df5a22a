"""A screen opened beside a recorder: what it finds in the running session, and what it does with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from analysis_factory import make_batch, make_frames, make_tables
from msgspec.structs import replace
from stored_samples import attack, rule, snapshot, status
from stored_sessions import path_of, writer

from fwtop.console.playback import replay
from fwtop.console.playback.replay import Earlier, find_earlier
from fwtop.incidents.advisor import Advisor
from fwtop.model.rule import Match
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import NoOrigin
from fwtop.model.traffic.snapshot import Incident, Origin
from fwtop.stats.engine import Engine

NOW = 1_800_000_000.0
HERE = Origin("live", ("eth0",), None, None)
BEGAN = 1_699_999_700.0  # five minutes before the samples of `make_frames`
SECONDS = 5.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay.time, "time", lambda: NOW)


def test_history_and_onsets_come_from_the_longest_running_session_of_the_same_interfaces(
    tmp_path: Path,
) -> None:
    flood = attack(since=NOW - 100)
    sessions = writer(tmp_path), writer(tmp_path, "eth1"), writer(tmp_path)
    for second in range(40):
        at = NOW - 40 + second
        sessions[0].write(snapshot(at - 5, attacks=(flood,), dropped=80_000.0 if second < 20 else 0.0))
        sessions[1].write(snapshot(at - 5))
    sessions[2].write(snapshot(NOW - 6))
    earlier = find_earlier(HERE, tmp_path / "sessions")
    assert earlier.path == path_of(sessions[0])
    assert len(earlier.past) == 40
    assert all(moment.point.attack for moment in earlier.past)
    flows = [moment.point.flow for moment in earlier.past]  # a firewall dropped what it now lets through
    assert [(flow.other, flow.kernel) for flow in flows] == [(80_000.0, 0.0)] * 20 + [(0.0, 0.0)] * 20
    (known,) = earlier.attacks
    assert (known.kind, known.since, known.peak_pps) == (flood.kind, NOW - 100, flood.peak_pps)
    for session in sessions:
        session.close()
    assert find_earlier(HERE, tmp_path / "sessions") == Earlier()


def store_attack(
    state: Path, kind: str, since: float, *, rules: bool = False, interface: str = "eth0"
) -> None:
    session, flood = writer(state, interface), attack(kind, since=since)
    over = replace(flood, paused=since + 30, ended=since + 60, last=since + 30, peak_pps=2e5)
    done = (status(rule(7, created=since + 10), since + 12),) if rules else ()
    for at, attacks in (
        (since - 1, ()),
        (since + 5, (flood,)),
        (since + 12, (flood,)),
        (since + 60, (over,)),
    ):
        session.write(snapshot(at, attacks=attacks, mitigations=done if at > since + 10 else ()))
    session.close()


def test_the_last_attacks_of_earlier_sessions_are_known_each_once(tmp_path: Path) -> None:
    store_attack(tmp_path, "dns_amplification", NOW - 90_000, rules=True)
    store_attack(tmp_path, "dns_amplification", NOW - 90_002)  # another screen beside
    store_attack(tmp_path, "syn_flood", NOW - 5_000)
    store_attack(tmp_path, "udp_flood", NOW - 4_000, interface="eth1")
    (tmp_path / "sessions" / "1999-01-01T00-00-00Z-eth0.db").write_bytes(b"no database")
    found = find_earlier(HERE, tmp_path / "sessions").over
    assert [(one.kind, one.ended, one.rules) for one in found] == [
        ("syn_flood", NOW - 4_940, ()),
        ("dns_amplification", NOW - 89_940, ("7",)),
    ]
    assert "at most" in found[0].text


@pytest.mark.parametrize("origin", [replace(HERE, netns="lab"), replace(HERE, interfaces=("eth0", "eth1"))])
def test_sessions_of_other_traffic_or_of_a_stuck_recorder_are_left_alone(
    origin: Origin, tmp_path: Path
) -> None:
    session = writer(tmp_path)
    session.write(snapshot(NOW - 6))
    assert find_earlier(HERE, tmp_path / "sessions").path is not None
    assert find_earlier(origin, tmp_path / "sessions").path is None
    session.close()
    session = writer(tmp_path)
    session.write(snapshot(NOW - 60))
    assert find_earlier(HERE, tmp_path / "sessions").path is None
    session.close()


def onset(known: tuple[Incident, ...]) -> float:
    """Judge a window of a SYN flood; return when it is said to have begun."""
    flood = {"protocol": "tcp", "flags": "S", "dport": 80, "src": "random", "count": 20_000}
    batch = make_batch(make_frames([flood], SECONDS))
    engine = Engine(NoOrigin(), window_seconds=SECONDS, live=True)
    engine.feed(batch, Counters(SECONDS, len(batch), int(batch.length.sum())), 1_700_000_000.0 + SECONDS)
    window = engine.window()
    (found,) = Advisor(known=known).judge(window, make_tables(window)).on
    assert found.kind == "syn_flood"
    return found.since


@pytest.mark.parametrize(
    ("kind", "dport", "since", "until", "is_the_same"),
    [
        ("syn_flood", None, BEGAN, BEGAN + 301, True),
        ("udp_flood", None, BEGAN, BEGAN + 301, False),
        ("syn_flood", 443, BEGAN, BEGAN + 301, False),
        ("syn_flood", None, BEGAN - 7200, BEGAN - 7100, False),
    ],
)
def test_an_attack_that_a_recorder_knows_keeps_its_onset(
    kind: str, dport: int | None, since: float, until: float, is_the_same: bool
) -> None:
    seen = onset(())
    # make_frames' own clock begins elsewhere
    shift = seen - 1_700_000_000.0
    match = Match(protocol=6, dport=dport)
    known = Incident(kind, kind, 1.0, 1.0, 1.0, True, (), since + shift, match=match, last=until + shift)
    assert onset((known,)) == (known.since if is_the_same else seen)
