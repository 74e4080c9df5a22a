"""A lab day: calm, a pulse wave, mixed vectors, calm, recorded live; then once more by a faster clock.

One rule only counts, all day: what would it have dropped, from whom, and of which clients?
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fwtop.bench.frame import until
from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.console.history_sampler import HistorySampler
from fwtop.lab.processes import Program
from fwtop.lab.run import Lab
from fwtop.lab.scenario import parse
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.session import AttackEvidence, SessionRecord
from fwtop.model.traffic.snapshot import Incident, Snapshot
from fwtop.store.history import HistoryWriter
from fwtop.store.reader import list_sessions, load_session, replay, session_info
from fwtop.store.writer import SessionWriter

_COUNTED = ("--proto", "tcp", "--dport", "80", "--via", "nftables")  # the pages, and one of the pulses
_READY_SECONDS = 30.0
_DRAIN_SECONDS = 4.5  # until the last packet has left the recorder's window, and one more tick
_HELD_SECONDS = 60.0  # a session takes a longer gap between two observations for time that nobody observed
_HELD_IN_HISTORY = 5.0  # the history does so earlier
_OFTEN_SECONDS = 1_000.0  # by the faster clock, past the age at which thinning begins
_OFTEN_STEP_SECONDS = 1.0
_EVIDENCE_SECONDS = 4.0  # before an observation, from which its packets are
_PULSES = (
    (
        "udp", "udp_flood",
        'protocol = "udp"\nsource = { count = 300 }\ndport = 27015\npayload = { text = "pulse pulse" }',
    ),
    ("syn", "syn_flood", 'protocol = "tcp"\nflags = "SYN"\nsource = "random"\ndport = 80'),
    (
        "ntp", "ntp_amplification",
        'protocol = "udp"\nsource = { count = 300, skew = 0.3 }\nsport = 123\ndport = "random"\n'
        'payload = { make = "ntp_monlist" }\nvariants = 8\nttl = [40, 120]',
    ),
)  # fmt: skip
_MIXED = (
    ("mixed syn", "syn_flood", 'weight = 3\nprotocol = "tcp"\nflags = "SYN"\nsource = "random"\ndport = 443'),
    (
        "mixed dns", "dns_amplification",
        'weight = 2\nprotocol = "udp"\nsource = { count = 400, skew = 0.3 }\nsport = 53\ndport = "random"\n'
        'payload = { make = "dns_response", name = "defcon.example.org", type = "ANY", size = 1200 }\n'
        "variants = 8\nttl = [40, 120]",
    ),
    (
        "mixed udp", "udp_flood",
        'weight = 2\nprotocol = "udp"\nsource = "random"\ndport = 27015\n'
        'payload = [{ text = "XXXXXXXXXXXXXXXX" }, { random = 64 }]',
    ),
)  # fmt: skip


class Plan(Struct, frozen=True):
    """How long each part lasts, in seconds, and how fast the attacks are."""

    calm: float
    pulse: float  # each
    pulses: int
    mixed: float
    pps: int

    @property
    def seconds(self) -> float:
        """Length of the whole."""
        return 2 * self.calm + self.pulse * self.pulses + self.mixed


FULL = Plan(calm=100.0, pulse=10.0, pulses=15, mixed=250.0, pps=5_000)  # ten minutes
QUICK = Plan(calm=5.0, pulse=4.0, pulses=2, mixed=12.0, pps=3_000)


class Day(Struct, frozen=True):
    """What was recorded, and what the lab knows about it."""

    path: Path  # of the session
    lines: tuple[dict[str, Any], ...]  # what was observed live, an observation a tick
    truth: dict[str, Any]
    clients: frozenset[str]  # that fetched pages
    rules: tuple[dict[str, Any], ...]  # with the kernel's counters


def scenario_text(plan: Plan) -> str:
    """Write the scenario of the two attacked parts, one after the other."""
    whole = plan.pulse * plan.pulses + plan.mixed
    parts = [f'title = "a lab day"\nseed = 76\npps = {plan.pps}\ncycle = {whole}\n']
    for number in range(plan.pulses):
        name, kind, fields = _PULSES[number % len(_PULSES)]
        active = (number * plan.pulse / whole, (number + 1) * plan.pulse / whole)
        parts.append(_vector(f"{name} pulse {number + 1}", kind, fields, active))
    parts += [_vector(*vector, (plan.pulse * plan.pulses / whole, 1.0)) for vector in _MIXED]
    return "\n".join(parts)


def _vector(name: str, kind: str, fields: str, active: tuple[float, float]) -> str:
    low, high = active
    return f'[[vector]]\nname = "{name}"\nkind = "{kind}"\nactive = [{low:.6f}, {high:.6f}]\n{fields}\n'


def record_day(plan: Plan) -> Day:
    """Play the day in a lab with a recorder on its victim, and apply the best proposal to the mixed vectors.

    Raises FwtopError.
    """
    text = scenario_text(plan)
    with Lab(parse(text, "day"), source=text) as lab, tempfile.TemporaryDirectory(prefix="fwtop-") as folder:
        lines = Path(folder) / "lines"
        with _recorder(lab, lines):
            lab.mark()
            lab.phase("watched")
            run_fwtop("drop", *_COUNTED, "--count", "--ttl", "1h", "--yes", "--netns", lab.victim)
            time.sleep(plan.calm)
            lab.start_flood()
            time.sleep(plan.pulse * plan.pulses + plan.mixed * 0.3)
            ends = time.monotonic() + plan.mixed * 0.7
            _protect(lab)
            time.sleep(max(ends - time.monotonic(), 0.0))
            lab.stop()
            time.sleep(plan.calm)
            lab.pause_clients()
            truth, fared = lab.truth(), lab.results_by_client()
            time.sleep(_DRAIN_SECONDS)
        rules = json.loads(_fwtop(lab, "status", "--json") or "{}").get("mitigations", ())
        _fwtop(lab, "undo", "--all")
        observed = tuple(json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines())
        sessions = [info for info in list_sessions() if info.netns == lab.victim]
        if not sessions:
            raise FwtopError("the recorder stored no session; the lab was taken down")
        fetched = (row for row in fared["watched"] if row["work"] == "http" and row["succeeded"])
        clients = frozenset(row["client"] for row in fetched)
        return Day(sessions[-1].path, observed, truth, clients, tuple(rules))


@contextlib.contextmanager
def _recorder(lab: Lab, lines: Path) -> Iterator[None]:
    """Record until the block ends; it begins once the recorder has observed something."""
    argv = fwtop_argv("record", "--netns", lab.victim, "--no-alarms", "--jsonl", str(lines))
    lab.pause_clients()
    with Program(argv, environment={"SSH_CONNECTION": lab.ssh_connection}) as recorder:

        def observed() -> bool:
            return lines.exists() and lines.stat().st_size > 0

        ended = recorder.process.poll
        until(lambda: observed() or ended() is not None, _READY_SECONDS, every=0.1)
        if not observed() or ended() is not None:
            raise FwtopError("the recorder did not start; the lab is taken down")
        yield


def _protect(lab: Lab) -> None:
    _fwtop(lab, "apply", "1", "--yes")
    for rule in json.loads(_fwtop(lab, "status", "--json") or "{}").get("mitigations", ()):
        _fwtop(lab, "keep", str(rule["id"]))


def _fwtop(lab: Lab, *words: str) -> str:
    """Run a verb on the victim; what it says is the only answer, as a rule may have become needless."""
    with contextlib.suppress(FwtopError):
        return run_fwtop(*words, "--netns", lab.victim)
    return ""


class Clock(Struct, frozen=True):
    """A clock that runs `factor` times as fast since `start`, both in Unix seconds."""

    start: float
    factor: float

    def at(self, moment: float) -> float:
        """Return what the clock shows at a moment."""
        return self.start + (moment - self.start) * self.factor

    def snapshot(self, of: Snapshot, end: float) -> Snapshot:
        """Return a snapshot as if this clock had shown `end` at its end: its window and rates remain."""
        attacks = tuple(self._attack(attack, end) for attack in of.judgement.attacks)
        rules = tuple(
            replace(
                status,
                rule=replace(status.rule, created=self.at(status.rule.created)),
                expires=self._maybe(status.expires),
                confirm_by=self._maybe(status.confirm_by),
            )
            for status in of.mitigations
        )
        judgement = replace(of.judgement, attacks=attacks)
        return replace(of, started=end - of.seconds, judgement=judgement, mitigations=rules)

    def _attack(self, attack: Incident, end: float) -> Incident:
        return replace(attack, since=min(self.at(attack.since), end), ended=self._maybe(attack.ended))

    def _maybe(self, moment: float | None) -> float | None:
        return self.at(moment) if moment is not None else None


class Observed(Struct, frozen=True):
    """An observation by the faster clock."""

    snapshot: Snapshot
    evidence: tuple[AttackEvidence, ...]
    between: tuple[Snapshot, ...]  # for the history, whose steps are shorter; the last is `snapshot`


def faster(day: Path, factor: float) -> Iterator[Observed]:
    """Yield a session's observations by a clock that runs faster.

    An observation speaks for the time since the one before it; where the faster clock makes that long, it is
    observed again and again, as a recorder would: seldom, but each second for a while from the first attack
    on. Otherwise so little would come together between two thinnings that these are never put to the test.
    """
    record = load_session(day)
    clock = Clock(record.info.started, factor)
    before, attacked = record.info.started, float("inf")
    for live in replay(day):
        end = clock.at(live.started + live.seconds)
        if live.judgement.attacks:
            attacked = min(attacked, before)
        found = _evidence(record, live, clock, end)
        often = attacked <= before < attacked + _OFTEN_SECONDS
        for step in _steps(before, end, _OFTEN_STEP_SECONDS if often else _HELD_SECONDS):
            between = tuple(clock.snapshot(live, one) for one in _steps(before, step, _HELD_IN_HISTORY))
            yield Observed(clock.snapshot(live, step), found if step == end else (), between)
            before = step


def accelerate(day: Path, state: Path, factor: float) -> Path:
    """Record a session once more into `state`, with its history, by a clock that runs faster.

    Returns the new session's path; raises FwtopError if anything could not be stored.
    """
    info = session_info(day)
    now = [info.started]
    session = SessionWriter(
        state / "sessions", host=info.host, interfaces=info.interfaces, netns=info.netns, clock=lambda: now[0]
    )
    history = HistoryWriter(state, interfaces=info.interfaces, netns=info.netns)
    sampler = HistorySampler()
    problems: list[str] = []
    for one in faster(day, factor):
        now[0] = one.snapshot.started + one.snapshot.seconds
        for part in one.between:
            sample = sampler.sample(part, None)
            if sample is not None:
                history.add(sample)
        session.write(one.snapshot, evidence=one.evidence)
        problems += filter(None, (session.problem, session.warning, history.problem))
        if problems:
            break
    history.close()
    session.close()
    if session.path is None or problems:
        raise FwtopError(f"the day was not stored: {problems[0] if problems else 'it is empty'}")
    return session.path


def _steps(before: float, end: float, longest: float) -> Iterator[float]:
    """Yield the ends of equal parts of a time, none longer than `longest`; at least `end` itself."""
    count = max(math.ceil((end - before) / longest), 1)
    for number in range(1, count):
        yield before + (end - before) * number / count
    yield end


def _evidence(record: SessionRecord, live: Snapshot, clock: Clock, end: float) -> tuple[AttackEvidence, ...]:
    """Return what was kept of an attack at an observation, with its packets, by the faster clock."""
    at = live.started + live.seconds
    for item in record.evidence:
        if item.at == at:
            packets = tuple(
                replace(one, at=clock.at(one.at))
                for one in record.packets
                if item.kind == one.kind and at - _EVIDENCE_SECONDS <= one.at <= at
            )
            return (replace(item, at=end, packets=packets),)
    return ()
