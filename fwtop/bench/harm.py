"""Harm: what a proposal said that it would do to legitimate clients, and what they then suffered (A5).

The rule goes in as an operator would put it in, by the proposal's own fwtop command line. What clients suffer
is the share of their attempts that fail under attack with the rule, beyond those that fail in quiet times.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fwtop.bench.programs import run_fwtop
from fwtop.lab.run import Lab

KINDS = ("ipset", "string", "hashlimit")
_PPS = 40_000  # little enough that nothing fails for want of processor time
_SETTLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Harm:
    """One proposal; shares from 0 to 1."""

    scenario: str
    kind: str
    summary: str
    predicted: float
    suffered: float
    tried: int

    @property
    def points(self) -> float:
        """The difference in percentage points."""
        return abs(self.predicted - self.suffered) * 100


def try_proposals(lab: Lab, observation: dict[str, Any], seconds: float) -> Iterator[Harm]:
    """Install the first proposal of each kind in turn, in a lab that has been watched already."""
    proposals: dict[str, dict[str, Any]] = {}
    for proposal in observation["proposals"]:
        # `fwtop apply N` needs a stored session, and these observations are not stored.
        if proposal["kind"] in KINDS and not proposal["fwtop"].startswith("fwtop apply"):
            proposals.setdefault(proposal["kind"], proposal)
    for kind, proposal in proposals.items():
        lab.phase(f"quiet {kind}")
        time.sleep(seconds)
        words = shlex.split(proposal["fwtop"])[1:]
        environment = {"SSH_CONNECTION": lab.ssh_connection}
        run_fwtop(*words, "--yes", "--netns", lab.victim, environment=environment)
        lab.start_flood(_PPS)
        time.sleep(_SETTLE_SECONDS)
        lab.phase(f"ruled {kind}")
        time.sleep(seconds)
        lab.phase("over")
        lab.stop()
        run_fwtop("undo", "--all", "--netns", lab.victim)
        phases = lab.fare()["phases"]
        quiet, ruled = phases[f"quiet {kind}"], phases[f"ruled {kind}"]
        yield Harm(
            lab.scenario.name, kind, proposal["summary"], proposal["collateral_share"],
            suffered(quiet, ruled), sum(work["tried"] for work in ruled.values()),
        )  # fmt: skip


def suffered(quiet: dict[str, Any], ruled: dict[str, Any]) -> float:
    """Return the share of attempts that failed beyond the quiet times' failures, 0 at least."""
    return max(0.0, _failed(ruled) - _failed(quiet))


def _failed(works: dict[str, Any]) -> float:
    tried = sum(work["tried"] for work in works.values())
    return 1 - sum(work["succeeded"] for work in works.values()) / tried if tried else 0.0
