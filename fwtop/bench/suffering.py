"""How legitimate clients fare under a rule, beside what fwtop foretold.

The rule goes in as an operator would put it in, by a fwtop command line, and `--preview` foretells its harm
under the attack twice: when fwtop has seen nothing but the attack yet, and when it has learnt before what is
normal. What clients suffer is the share of their usual traffic that belongs to attempts which fail with the
rule and didn't before: each client's packets of each kind of work count by how much more often that fails.
"""

from __future__ import annotations

import glob
import json
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fwtop.bench.programs import Program, fwtop_argv, run_fwtop
from fwtop.bench.trials import Trial
from fwtop.lab import scenario
from fwtop.lab.namespaces import run as run_tool
from fwtop.lab.run import Lab
from fwtop.model.errors import FwtopError

KINDS = ("ipset", "string", "hashlimit", "xdp", "tc", "nftables")
_PROPOSAL_PPS = 40_000  # little enough that nothing fails for want of processor time
_SETTLE_SECONDS = 1.0  # a limit's burst is used up by then
_PATIENCE_SECONDS = 1.1  # longer than any client's
_LEARN_SECONDS = 14.0  # what is normal is settled after 3 s and believed after 5 s of it
_PROTOCOLS = {"http": "tcp", "operator": "tcp", "dns": "udp"}  # of each kind of work
_QUIET, _ATTACKED, _RULED = PHASES = ("before", "under attack", "with the rule")
BASELINE, GUESS = "from a baseline", "by guess"

Usual = Mapping[tuple[str, str], float]  # (client, work) → packets in quiet times
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Harm:
    """One rule; shares from 0 to 1. `foretold` by what was known: "by guess", "from a baseline"."""

    name: str
    title: str
    foretold: Mapping[str, float]
    suffered: float
    tried: int
    success: tuple[float, ...] = ()  # of all attempts, by PHASES
    latency_ms: tuple[float, ...] = ()  # median

    @property
    def points(self) -> float:
        """The difference in percentage points, of what was foretold from a baseline where there is one."""
        return abs(self.foretold.get(BASELINE, self.foretold.get(GUESS, 0.0)) - self.suffered) * 100


def try_trial(trial: Trial, seconds: float, *, learn: bool = True) -> Harm:
    """Set a lab up for a trial and run it: attacked, at rest, attacked with the rule.

    Without `learn` harm is foretold by guess only, which saves the time that a baseline takes.
    """
    with Lab(scenario.parse(trial.scenario, trial.name), source=trial.scenario) as lab:
        for argv in trial.before:
            run_tool("ip", "netns", "exec", lab.victim, *argv)
        lab.start_flood(trial.pps)
        time.sleep(_SETTLE_SECONDS)
        lab.phase(_ATTACKED)
        guessed = _foretold(lab, trial.rule, known=False)
        lab.phase("over")
        lab.stop()
        time.sleep(_SETTLE_SECONDS)
        usual = _learnt(lab) if learn else _quiet(lab, _QUIET, seconds)
        lab.start_flood(trial.pps)
        foretold = {GUESS: guessed}
        if learn:
            time.sleep(_SETTLE_SECONDS)
            foretold = {BASELINE: _foretold(lab, trial.rule, known=True), **foretold}
        _install(lab, trial.rule)
        _ruled(lab, _RULED, seconds)
        each, works = lab.each(), lab.fare()["phases"]
        return Harm(
            trial.name, trial.title, foretold,
            suffered(usual, each[_QUIET], each[_RULED]),
            sum(row["tried"] for row in each[_RULED]),
            tuple(_success(each[phase]) for phase in PHASES),
            tuple(_latency_ms(works[phase]) for phase in PHASES),
        )  # fmt: skip


def try_proposals(lab: Lab, observation: dict[str, Any], seconds: float) -> Iterator[Harm]:
    """Install the first proposal of each kind in turn, in a lab that has been watched already."""
    proposals: dict[str, dict[str, Any]] = {}
    for proposal in observation["proposals"]:
        # `fwtop apply N` needs a stored session, and these observations are not stored.
        if proposal["kind"] in KINDS and not proposal["fwtop"].startswith("fwtop apply"):
            proposals.setdefault(proposal["kind"], proposal)
    for kind, proposal in proposals.items():
        usual = _quiet(lab, f"quiet {kind}", seconds)
        _install(lab, shlex.split(proposal["fwtop"])[1:])
        lab.start_flood(_PROPOSAL_PPS)
        _ruled(lab, f"ruled {kind}", seconds)
        each = lab.each()
        harm = suffered(usual, each[f"quiet {kind}"], each[f"ruled {kind}"])
        tried = sum(row["tried"] for row in each[f"ruled {kind}"])
        name = f"{lab.scenario.name}, {kind} proposed"
        yield Harm(name, proposal["summary"], {BASELINE: proposal["collateral_share"]}, harm, tried)


def _learnt(lab: Lab) -> Usual:
    """Let fwtop watch quiet times, which it keeps as what is normal, and return what clients send then."""
    with Program(fwtop_argv("record", "--netns", lab.victim)):
        usual = _quiet(lab, _QUIET, _LEARN_SECONDS)
    _forget_session(lab)
    return usual


def _quiet(lab: Lab, phase: str, seconds: float) -> Usual:
    """Return what clients send when nobody disturbs them."""
    sent = lab.clients_sent()
    lab.phase(phase)
    time.sleep(seconds)
    now = lab.clients_sent()
    keys = {
        (row["client"], row["work"]): (row["client"], _PROTOCOLS[row["work"]]) for row in lab.each()[phase]
    }
    return {work: now.get(key, 0) - sent.get(key, 0) for work, key in keys.items()}


def _forget_session(lab: Lab) -> None:
    """Remove what was recorded of the victim: nobody wants it in the list of sessions."""
    answer = json.loads(run_fwtop("sessions", "--json"))
    for session in answer["sessions"]:
        if session["netns"] == lab.victim and Path(session["id"]).name == session["id"]:
            for file in Path(answer["directory"]).glob(f"{glob.escape(session['id'])}.*"):
                file.unlink(missing_ok=True)


def _foretold(lab: Lab, rule: tuple[str, ...], *, known: bool) -> float:
    """Return the share of normal traffic that `fwtop … --preview` says a rule would hit."""
    words = (*rule, "--preview", "--json", "--netns", lab.victim)
    answer = json.loads(run_fwtop(*words, environment={"SSH_CONNECTION": lab.ssh_connection}))
    if answer["plan"]["refused"]:
        raise FwtopError(f"fwtop refuses it: {answer['plan']['refused']}")
    preview = answer["preview"]
    if preview is None:  # it drops nothing
        return 0.0
    if preview["guess"] == known:
        raise FwtopError("fwtop has not learnt what is normal" if known else "a baseline was there already")
    return float(preview["collateral_share"])


def _install(lab: Lab, rule: tuple[str, ...] | list[str]) -> None:
    environment = {"SSH_CONNECTION": lab.ssh_connection}
    run_fwtop(*rule, "--yes", "--netns", lab.victim, environment=environment)


def _ruled(lab: Lab, phase: str, seconds: float) -> None:
    """Count how clients fare under the flood with the rule that is in place, and take both away."""
    time.sleep(_SETTLE_SECONDS)
    lab.phase(phase)
    time.sleep(seconds)
    lab.phase("over")
    time.sleep(_PATIENCE_SECONDS)  # what was begun must not come right because the rule goes
    lab.stop()
    run_fwtop("undo", "--all", "--netns", lab.victim)


def suffered(usual: Usual, quiet: Rows, ruled: Rows) -> float:
    """Return the share of the usual packets whose work fails beyond the quiet times' failures."""
    before, after = _failures(quiet), _failures(ruled)
    total = sum(usual.values())
    lost = sum(
        packets * max(0.0, after.get(key, 0.0) - before.get(key, 0.0)) for key, packets in usual.items()
    )
    return lost / total if total else 0.0


def _failures(rows: Rows) -> dict[tuple[str, str], float]:
    return {(row["client"], row["work"]): 1 - row["succeeded"] / row["tried"] for row in rows if row["tried"]}


def _success(rows: Rows) -> float:
    tried = sum(row["tried"] for row in rows)
    return sum(row["succeeded"] for row in rows) / tried if tried else 0.0


def _latency_ms(works: Mapping[str, dict[str, Any]]) -> float:
    """Return the mean of the kinds of work's median latencies, weighed by how often each succeeded."""
    known = [(work["median_ms"], work["succeeded"]) for work in works.values() if work["succeeded"]]
    total = sum(count for _, count in known)
    return sum(latency * count for latency, count in known) / total if total else 0.0
