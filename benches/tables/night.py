"""Attacks while nobody is there: what a recorder with a policy stops of them, and how clients fare meanwhile.

The victim has no firewall. A recorder learns what is normal, then the attack runs; all that the lab sent
from its first packet on counts, also what arrived before the first rule.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from fwtop.bench.frame import Document, Options, Result
from fwtop.bench.measured_harm import forget_session
from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.lab.processes import Program
from fwtop.lab.run import Lab
from fwtop.lab.scenario import DIRECTORY, load
from fwtop.model.errors import FwtopError

_SCENARIOS = ("pulse_wave", "mixed_vectors")
_PPS = 30_000
_LEARN_SECONDS = 30.0
_SECONDS, _QUICK_SECONDS = 180.0, 40.0
_POLICY = "enabled = true\n"
_STOPPED, _SERVED = 0.95, 0.99
_NIGHT = "night"


def run(options: Options) -> Document:
    """Run each attack once."""
    seconds = _QUICK_SECONDS if options.quick else _SECONDS
    rows: list[Result] = []
    notes = [f"{_PPS:,} packets/s for {seconds:.0f} s, policy: the defaults of docs/automatic.toml, enabled"]
    for name in options.captures or _SCENARIOS:
        stopped, served, rules = _night(name, seconds)
        rows += [
            Result(f"{name}: attack packets stopped", "share", (stopped,)),
            Result(f"{name}: clients' requests that succeeded", "share", (served,)),
            Result(f"{name}: rules installed", "rules", (float(rules),)),
        ]
        if stopped < _STOPPED or served < _SERVED:
            notes.append(f"{name}: below {_STOPPED:.0%} stopped and {_SERVED:.0%} of the requests")
    return Document("night", 1, tuple(rows), tuple(notes))


def _night(name: str, seconds: float) -> tuple[float, float, int]:
    """Return the shares of the attack that was stopped and of requests that succeeded, and how many rules."""
    if name not in {path.stem for path in DIRECTORY.glob("*.toml")}:
        raise FwtopError(f"there is no scenario {name!r}; 'fwtop lab list' names them", 2)
    scenario = replace(load(name), firewall="none")
    with tempfile.TemporaryDirectory() as directory, Lab(scenario) as lab:
        policy = Path(directory) / "automatic.toml"
        policy.write_text(_POLICY, encoding="ascii")
        argv = fwtop_argv("record", "--netns", lab.victim, "--no-alarms", "--automatic", str(policy))
        try:
            with Program(argv):
                time.sleep(_LEARN_SECONDS)
                lab.start_flood(_PPS)
                lab.phase(_NIGHT)
                time.sleep(seconds)
                lab.stop()
                lab.pause_clients()
                rules = list(_rules(lab))
        finally:
            run_fwtop("undo", "--all", "--netns", lab.victim)
            forget_session(lab)
        sent = lab.truth()["attack"]["packets"]
        work = lab.results_by_client()[_NIGHT]
    tried, succeeded = sum(row["tried"] for row in work), sum(row["succeeded"] for row in work)
    return sum(rules) / max(sent, 1), succeeded / max(tried, 1), len(rules)


def _rules(lab: Lab) -> Iterator[int]:
    """Yield what each rule has dropped, also of those that have ended."""
    answer = json.loads(run_fwtop("status", "--all", "--json", "--netns", lab.victim))
    for mitigation in answer["mitigations"]:
        yield int(mitigation["packets"])
