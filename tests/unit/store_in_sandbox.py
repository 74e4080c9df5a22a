"""Everything that the store does, inside the console's sandbox: a program for test_store_sandbox.py.

`store_in_sandbox.py DIRECTORY STEP`: DIRECTORY holds `long.db`, a session with many rows. It prints one JSON
document: what a recorder and a screen beside it said while the clock ran through every age that the store
knows, what could be read afterwards, and which statements were made.
"""

from __future__ import annotations

import itertools
import json
import resource
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace
from stored_samples import START, evidence, session_ticks

import fwtop.report  # imported late otherwise: by an export
import fwtop.report.html  # noqa: F401 - as above
from fwtop.console.playback.replay import find_earlier
from fwtop.console.recorder import Recorder
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.session import AttackEvidence, HistorySample
from fwtop.model.traffic.snapshot import Origin, Snapshot
from fwtop.report.summary import digest
from fwtop.sandbox.confine import Profile, confine
from fwtop.store.baselines import BaselineStore
from fwtop.store.history import DAY, HOUR, KEPT, Bucket, HistoryWriter
from fwtop.store.reader import list_sessions, load_session, playback, replay
from fwtop.store.thinning import TIERS
from fwtop.store.trends import session_trends
from fwtop.store.writer import SessionWriter

ORIGIN = Origin("live", ("eth0",))
MADE: set[tuple[str, int]] = set()  # file and line of the statements that were made
TARGETS = tuple(f"192.0.2.{number}" for number in range(8))
_LOCKS: list[sqlite3.Connection] = []


def noted(connect=sqlite3.connect):  # type: ignore[no-untyped-def]
    """Make all connections tell where their statements come from."""

    def note(_statement: str) -> None:
        frame = sys._getframe(1)
        while frame is not None and "/fwtop/store/" not in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None:
            MADE.add((frame.f_code.co_filename, frame.f_lineno))

    def connected(*arguments, **options):  # type: ignore[no-untyped-def]
        database = connect(*arguments, **options)
        database.set_trace_callback(note)
        return database

    return connected


def moments(step: float) -> Iterator[float]:
    """Yield seconds from 0 past the greatest age: `step` at first, then coarser, with each tier."""
    at = 0.0
    ages = sorted({age for age, _ in TIERS} | {7_200.0} | {float(kept) for kept in KEPT.values()})
    while at < ages[0] + 100:
        yield at
        at += step
    for before, age in itertools.pairwise(ages):
        width = (age * 1.05 - before) / 30
        while at < age * 1.05:
            yield at
            at += width


def tick_at(place: int, at: float) -> Snapshot:
    """Return a snapshot of floods with rules, one after the other, of which each drops the most of them."""
    samples = session_ticks()
    sample = samples[place % len(samples)]
    number = str(1 + place // len(samples))
    rules = tuple(replace(item, rule=replace(item.rule, id=number)) for item in sample.mitigations)
    first = 1 + place // len(samples) * len(TARGETS)
    attacks = tuple(
        replace(item, since=START + at, target=target, id=first + number_of)
        for item in sample.judgement.attacks
        for number_of, target in enumerate(TARGETS)
    )
    judgement = replace(sample.judgement, attacks=attacks)
    return replace(sample, started=START + at - sample.seconds, judgement=judgement, mitigations=rules)


def evidence_of(tick: Snapshot) -> tuple[AttackEvidence, ...]:
    """Return what is kept of one attack, now and then."""
    return evidence(tick)[:1] if int(tick.started) % 7 == 0 else ()


def record(state: Path, step: float) -> tuple[Recorder, set[str]]:
    """Record with a screen beside it, which has a recorder of its own, reads the other's, and exports."""
    clock = [0.0]
    recorder = Recorder("web-1", ORIGIN, state, evidence=evidence_of, clock=lambda: clock[0])
    screen = Recorder("web-1", ORIGIN, state, evidence=evidence_of, clock=lambda: clock[0])
    recorder.baseline = lambda: bytes(300_000)
    said: set[str] = set()
    for place, at in enumerate(moments(step)):
        clock[0] = at
        tick = tick_at(place, at)
        for one in (recorder, screen):
            said.update(one.write(tick).notes)
        if place % 200 == 199:
            found = find_earlier(ORIGIN, state / "sessions")
            said.update(() if found.path is None else ["a recorder of the past was taken for a running one"])
            screen.export("html")
    screen.wait()
    screen.close(clean=True)
    recorder.wait()
    recorder.close(clean=False)
    return recorder, said


def read_all(path: Path) -> dict[str, object]:
    """Read a session by all ways there are."""
    stored = load_session(path)
    told = digest(stored, trends=session_trends(stored.info))
    with playback(path) as played:
        first, last = played.span() or (0.0, 0.0)
        there = [played.snapshot(at) is not None for at in (first, played.locate(last))]
        there += [played.beside(first, 1) is not None, played.beside(last, -1) is not None]
        marks, series = len(played.marks()), len(played.series(first, last))
    return {
        "attacks": sum(1 for span in told.spans if span.kind == "dns_amplification"),
        "rules": [effect.rule.id for effect in told.effects],
        "ticks": len(stored.ticks), "replayed": sum(1 for _ in replay(path)), "there": all(there),
        "marks": marks > 0, "series": series, "trends": told.trends is not None,
    }  # fmt: skip


def keep_history(state: Path) -> str:
    """Add whole hours, more scopes than are kept, and a minute of a recording that was killed."""
    for number in range(20):
        writer = HistoryWriter(state, interfaces=(f"eth{number}",), netns="lab")
        writer.add_span(HOUR, Bucket(int(START) // HOUR * HOUR + number * HOUR, 3_600.0))
        if number == 0:
            writer.add(HistorySample(START, 1.0, (1.0,) * 5, 0.0, ()))  # and never closed
            _LOCKS.append(writer)  # type: ignore[arg-type]
            continue
        writer.add(HistorySample(START + 500 * DAY + number, 1.0, (1.0,) * 5, 0.0, (), ("192.0.2.1",)))
        writer.close()
        if writer.problem or writer.answered() != ["192.0.2.1"]:
            return writer.problem or "who answered is forgotten"
    return ""


def main() -> None:
    """Enter the sandbox, and do what is asked."""
    state, what = Path(sys.argv[1]), sys.argv[2]
    sqlite3.connect = noted()
    confine(Profile.CONSOLE, write=(state,))
    try:
        open("/var/tmp/fwtop-outside", "wb").close()  # noqa: S108 - that it is refused is the point
    except PermissionError:
        pass
    else:
        raise SystemExit("this is no sandbox")
    does = {"full": fill_disk, "replaced": wait_for_another}
    answer = does[what](state) if what in does else cross_ages(state, float(what))
    json.dump(answer, sys.stdout)


def wait_for_another(state: Path) -> dict[str, object]:
    """Begin to record once the directory is another one."""
    print("ready", flush=True)
    sys.stdin.readline()
    session = SessionWriter(state / "sessions", host="web-1", interfaces=("eth0",))
    session.write(session_ticks()[0])
    return {"problem": session.problem}


def fill_disk(state: Path) -> dict[str, object]:
    """Record while the disk is full; to the end of the session, or for a while."""
    from test_store_gaps import MISSED, STORED, tick  # which also starts this program

    clock = [0.0]
    recorder = Recorder("web-1", ORIGIN, state, evidence=evidence, clock=lambda: clock[0])
    ballast = state / "ballast"
    said: dict[str, list[str]] = {"before": [], "meanwhile": [], "after": []}
    for second in range(60):
        clock[0] = float(second)
        if second == STORED:
            fill(ballast)
        if second == STORED + MISSED and len(sys.argv) < 4:
            ballast.unlink()
            clock[0] += 60.0
        when = "before" if second < STORED else "meanwhile" if ballast.exists() else "after"
        said[when] += [note for note in recorder.write(tick(second)).notes if note not in said[when]]
    path = recorder.path
    ballast.unlink(missing_ok=True)
    recorder.close(clean=True)
    return {**said, "path": str(path)}


def fill(ballast: Path) -> None:
    """Leave no room on the disk."""
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def cross_ages(state: Path, step: float) -> dict[str, object]:
    """Let the clock run through all ages, and read what was recorded."""
    answer: dict[str, object] = {}
    (state / "sessions").mkdir(exist_ok=True)
    long = state / "sessions" / "2026-01-01T00-00-00Z-long.db"
    shutil.move(state / "long.db", long)
    Path(f"{long}-wal").touch()  # as if it had crashed
    recorder, said = record(state, step)
    assert recorder.path is not None
    answer["said"] = sorted(said)
    answer["baseline"] = BaselineStore(state).get("web-1") == bytes(300_000)
    answer["sessions"] = {info.id: info.state for info in list_sessions(state / "sessions")}
    answer["read"] = read_all(recorder.path)
    answer["history"] = keep_history(state)
    answer["long"] = read_all(long)["ticks"]
    answer["limited"] = crowd(state)
    answer["made"] = sorted((Path(name).name, line) for name, line in MADE)
    return answer


def crowd(state: Path) -> str:
    """Record more than fits, so that more is thinned out; fail twice, and go on; return what was said."""
    clock = [0.0]
    session = SessionWriter(
        state / "crowded", host="h", interfaces=("eth1",), max_bytes=1_400_000, clock=lambda: clock[0]
    )
    long = tuple(Prefix.parse(f"10.0.{at // 256}.{at % 256}") for at in range(300))
    for place in range(100):
        clock[0] = place * 10.0
        tick = tick_at(place, clock[0])
        offers = tuple(
            replace(one, rule=replace(one.rule, match=replace(one.rule.match, sources=long)))
            for one in tick.judgement.proposals
            if one.rule is not None
        )
        tick = replace(tick, judgement=replace(tick.judgement, proposals=offers))
        session.write(tick, evidence=evidence_of(tick))
        assert session.problem == session.warning == "", (session.problem, session.warning)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    session.write(replace(tick, started=tick.started + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    problem = session.problem
    clock[0] += 60
    with suppress(TypeError):  # rolled back
        session.write(replace(tick, started=tick.started + 2, host=object()))  # type: ignore[arg-type]
    session.write(replace(tick, started=tick.started + 3))
    assert session.problem == "", session.problem
    session.close()
    return problem


if __name__ == "__main__":
    main()
