"""Consoles without a screen: one snapshot, recording until stopped, dry runs of rules."""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fwtop.alarms.message import Alarm
from fwtop.console.bootstrap import WINDOW_SECONDS, LiveConsole
from fwtop.console.handoff import Handoff, Options
from fwtop.console.judging import failure_line
from fwtop.console.live import WITHOUT_GUARDIAN
from fwtop.console.publish.outputs import Outputs
from fwtop.console.recorder import Recorder
from fwtop.model.rule import Rule
from fwtop.model.text import aligned
from fwtop.model.traffic.severity import Threshold
from fwtop.model.traffic.snapshot import LedgerRow, Share, Snapshot
from fwtop.model.wire import of_plain, plain
from fwtop.render.harm import hit_words
from fwtop.render.numbers import percent, si
from fwtop.render.observation import observation_json, rfc3339
from fwtop.render.rows.defence import holding, severity_words
from fwtop.rules.words import describe

if TYPE_CHECKING:
    from fwtop.console.automatic.agent import Agent
    from fwtop.console.publish.alarms import RuleWatch


_POLL_SECONDS = 0.1  # interval of draining the ring buffer; judgement comes at the end
_SATURATED_POLL_SECONDS = 0.5  # while every CPU is saturated, with fewer samples


def run_snapshot(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Observe for `options.seconds`, judge the whole interval, print the result."""
    with _observed(options, handoff, descriptors) as console:
        console.session.rules_changed()
        snapshot = console.take(console.session.tick())
    return show(snapshot, as_json=options.json, top=options.top, fail_on=options.fail_on)


@contextmanager
def _observed(options: Options, handoff: Handoff, descriptors: list[int]) -> Iterator[LiveConsole]:
    """Open a console that has observed for `options.seconds`."""
    console = LiveConsole(options, handoff, descriptors, window_seconds=None)
    try:
        console.session.start()
        if options.ready_fd is not None:
            os.write(options.ready_fd, b"ready\n")
            os.close(options.ready_fd)
        deadline = time.monotonic() + options.seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_SATURATED_POLL_SECONDS if console.source.cpu_saturated else _POLL_SECONDS, left))
            console.session.observe()
        yield console
    finally:
        console.close()


_FOUND = 4  # exit status


def show(snapshot: Snapshot, *, as_json: bool, top: int, fail_on: Threshold | None) -> int:
    """Print a snapshot as one JSON document or as text.

    Return the exit status: 1 if it was not judged, 4 if something is as severe as `fail_on`.
    """
    if as_json:
        json.dump(observation_json(snapshot, top=top), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(render(snapshot, top=top))
    sys.stdout.flush()
    judged = snapshot.judgement
    found = fail_on is not None and any(fail_on.reached(attack.severity) for attack in judged.attacks)
    return 1 if judged.not_judged else _FOUND if found else 0


_TICK_SECONDS, _AUTOMATIC_TICK_SECONDS = 1.0, 0.5
_LOST_SECONDS = 5.0
_REPEAT_SECONDS = 60.0  # until a line that still holds is printed again


def run_record(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Record until SIGTERM, SIGHUP or SIGINT."""
    stop = threading.Event()
    # Not from the handler itself: a second signal could arrive while the first one holds the event's lock.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: _thread.start_new_thread(stop.set, ()))
    outputs = Outputs(options, stop.set)
    console = LiveConsole(options, handoff, descriptors, window_seconds=WINDOW_SECONDS)
    console.session.taps += outputs.taps
    status = StatusLine(console.recorder)

    lost = _GuardianLost()
    parent = os.getppid()
    agent, watch = _automatic(options, console), _rule_watch(options, console, outputs)

    def act(snapshot: Snapshot) -> None:
        for subject, sentence in agent.take(snapshot) if agent is not None else ():
            outputs.tell(Alarm("automatic", rfc3339(snapshot.at), snapshot.host, subject, sentence))
            print(f"fwtop: {sentence}", file=sys.stderr)
        if agent is not None and agent.due is not None:
            console.session.tick_by(agent.due)

    def deliver(snapshot: Snapshot) -> None:
        failed = [snapshot.judgement.not_judged] if snapshot.judgement.not_judged else []
        failed += [WITHOUT_GUARDIAN] if WITHOUT_GUARDIAN in snapshot.notes else []
        try:
            act(snapshot)
        except Exception as failure:
            failed.append(failure_line("deciding on rules", failure))
        snapshot = console.take(snapshot)  # an attack is stopped first
        try:
            recorder = console.recorder
            outputs.take(snapshot, session="" if recorder is None or recorder.problem else recorder.name)
        except Exception as failure:
            failed.append(failure_line("an output", failure))
        status.update([*outputs.problems(), *failed])
        console.session.forget_window()
        if options.service_fd is not None and lost.for_good(snapshot):
            stop.set()

    try:
        seconds = _TICK_SECONDS if agent is None else _AUTOMATIC_TICK_SECONDS
        console.session.run(stop, seconds, deliver)
    finally:
        for helper in (agent, watch):
            if helper is not None:
                helper.close()
        console.close(clean=os.getppid() == parent)  # whose end by force ended this one, too
        outputs.close()
        status.update(outputs.problems())
    if lost.line:
        print(f"fwtop: {lost.line}", file=sys.stderr)
    return int(bool(lost.line))


def _automatic(options: Options, console: LiveConsole) -> Agent | None:
    """Start what installs rules by itself, if the operator has allowed that."""
    if not options.automatic:
        return None
    from fwtop.console.automatic import Policy
    from fwtop.console.automatic.agent import Agent  # late: 1 MB that few recorders need

    link = console.links[0].another()
    return Agent(of_plain(Policy, options.automatic), link, console.session.rules_changed)


def _rule_watch(options: Options, console: LiveConsole, outputs: Outputs) -> RuleWatch | None:
    """Start what raises alarms of the machine's rules, if alarms are on."""
    if options.alarms_fd is None:
        return None
    from fwtop.console.publish.alarms import RuleWatch
    from fwtop.console.rules import read_ruleset

    session, link = console.session, console.links[0]  # which a recorder needs for nothing else
    return RuleWatch(console.host, lambda: read_ruleset(link), lambda: session.rules.statuses, outputs.tell)


class _GuardianLost:
    """Decides when a service should end, to be started again with the guardian that only root can start."""

    def __init__(self) -> None:
        self._since: float | None = None
        self.line = ""  # why, once it should

    def for_good(self, snapshot: Snapshot) -> bool:
        """Return whether the guardian has been gone for long."""
        if not snapshot.guardian.startswith("lost"):
            self._since = None
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= _LOST_SECONDS:
            self.line = "the guardian has ended, and only root can start one: the recording ends, too"
        return bool(self.line)


class StatusLine:
    """Reports on standard error where the session is stored, what was set aside, and what fails.

    Each line at most once a minute.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._recording = ""
        self._printed: dict[str, float] = {}  # line → monotonic time

    def update(self, problems: Iterable[str]) -> None:
        """Print what has changed."""
        lines, recording = list(problems), self._recording
        if self._recorder is not None:
            session = f"recording session {self._recorder.name}; stop with Ctrl-C or SIGTERM"
            recording = self._recorder.problem or session
            if recording != self._recording:
                lines.insert(0, recording)
            lines += self._recorder.notes()
        now = time.monotonic()
        self._printed = {line: at for line, at in self._printed.items() if now - at < _REPEAT_SECONDS}
        for line in lines:
            if line not in self._printed:
                self._printed[line] = now
                print(f"fwtop: {line}", file=sys.stderr)
                if line == recording:  # only now: one that came too early is told when its minute is over
                    self._recording = line


def run_dry_run(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Observe for `options.seconds`; read rules from standard input, print their previews, both as JSON."""
    rules = [Rule.from_dict(item) for item in json.load(sys.stdin)]
    with _observed(options, handoff, descriptors) as console:
        console.session.tick()
        previews = [plain(console.preview(rule)) for rule in rules]
    json.dump(previews, sys.stdout)
    sys.stdout.flush()
    return 0


_TEXT_ROWS = 10


def render(snapshot: Snapshot, *, top: int = _TEXT_ROWS) -> str:
    """Render a snapshot for a terminal or an e-mail; all text in it is sanitised already."""
    tables, totals = snapshot.tables, snapshot.tables.totals
    sampling, estimated = tables.sampling, ""
    if sampling.watched < 1:
        estimated = f"; drops are estimated from {percent(sampling.watched, 1)} of the packets"
    where = snapshot.origin.file or ", ".join(snapshot.origin.interfaces) or "no interface"
    lines = [
        f"{snapshot.host}  {where}  {snapshot.seconds:.1f} s",
        f"{totals.packets:,} packets  {si(totals.pps, 'pps')}  {si(totals.bps, 'bit/s')}  "
        f"dropped {totals.dropped:,}  accepted {totals.accepted:,}",
        f"sampled 1 in {sampling.one_in:.0f}: {sampling.samples:,} samples, "
        f"{sampling.lost:,} lost{estimated}",
        "",
    ]
    lines += _attacks(snapshot)
    rows, judged, sources = min(top, _TEXT_ROWS), snapshot.judgement, tables.sources
    shown: dict[str, list[tuple[str, ...]]] = {
        "signatures": [
            (_share(one.share), f"normal {percent(one.baseline_share)}", describe(one.match))
            for one in judged.signatures[:rows]
        ]
    }
    for title, entries in (("sources", sources.address), ("prefixes", sources.prefix), ("AS", sources.asn)):
        shown[title] = [
            (entry.key, _share(entry.share), entry.who, entry.country or "", (entry.as_name or "")[:40])
            for entry in entries[:rows]
        ]
    shown["to those behind"] = [
        (target.key, _share(target.share), " ".join(target.serves) or target.part)
        for target in [one for one in tables.destinations if one.part][:rows]
    ]
    shown["ports"] = [
        (f"{port.protocol} {port.side} {port.port}", _share(port.share), port.service or "")
        for port in tables.ports[:rows]
    ]
    shown["payloads"] = [
        (payload.dns_name or payload.text or payload.data.hex()[:32], _share(payload.share))
        for payload in (judged.payloads or tables.payloads)[:rows]
    ]
    shown["where packets ended"] = [
        (f"{row.layer} {row.reason}", f"{row.packets:,}", _ends_there(row)) for row in tables.ledger
    ]
    for title, cells in shown.items():
        lines += _table(title, cells)
    lines += _proposals(snapshot)
    lines += [f"note: {note}" for note in snapshot.notes]
    return "\n".join(lines).rstrip() + "\n"


def _ends_there(row: LedgerRow) -> str:
    if row.rule:
        return f"rule {row.rule}"
    return f"{percent(row.mostly_share)} {describe(row.mostly)}" if row.mostly is not None else ""


def _attacks(snapshot: Snapshot) -> list[str]:
    missing = snapshot.judgement.not_judged
    if not snapshot.judgement.attacks:
        return ["not judged: it is not known whether there is an attack" if missing else "no attack seen", ""]
    lines = ["not judged: what follows is older"] if missing else []
    for attack in snapshot.judgement.attacks:
        forged = ", forged sources" if attack.spoofed else ""
        size = f"{percent(attack.share, 1)} of packets, {si(attack.pps, 'pps')}"
        lines.append(
            f"{attack.title}: {holding(attack) or size}{forged} "
            f"(confidence {percent(attack.confidence)}), since {rfc3339(attack.since)}"
        )
        lines.append(f"    {severity_words(attack.severity)}")
        lines += [f"    {sentence}" for sentence in attack.evidence]
    return [*lines, ""]


def _proposals(snapshot: Snapshot) -> list[str]:
    lines = []
    for proposal in snapshot.judgement.proposals:
        already = proposal.already_share
        beyond = f" ({percent(already, 1)} of which active rules stop)" if already else ""
        lines.append(
            f"{proposal.number}. {proposal.summary}: "
            f"stops {percent(proposal.attack_share, 1)} of the attack{beyond}; "
            f"{hit_words(proposal.collateral_share, proposal.clients, guess=proposal.guess)}"
        )
        if proposal.needs_force:
            lines.append(f"       needs force: {proposal.needs_force}")
        if proposal.fwtop:
            lines.append(f"       {proposal.fwtop}")
    return ["proposals", *lines, ""] if lines else []


def _share(share: Share) -> str:
    return f"{percent(share.share, 1):>7}  {si(share.pps, 'pps')}"


def _table(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    return [title, *(f"  {line}" for line in aligned(rows)), ""]
