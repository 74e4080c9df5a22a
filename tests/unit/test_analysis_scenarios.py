"""Every scenario in tests/scenarios/analysis: the right names, shares and verdicts."""

from __future__ import annotations

import tomllib
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from analysis_commands import check_commands
from analysis_factory import make_batch, make_frames, make_tables, make_window

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.found import Session
from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import PacketBatch
from fwtop.model.traffic.snapshot import Judgement
from fwtop.rehearsal.breadth import why_broad
from fwtop.rehearsal.host import Host

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios/analysis").glob("*.toml"))
SEEN = {"capture": (216, False), "snap96": (96, False), "live": (216, True)}  # snap length, live
HOST = Host(AllowList((Session(Prefix.parse("233.252.0.9"), 40000, 2222).allowed("logged in"),)))
STATE = ("carpet_bombing", "conntrack_exhaustion")


def load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def judge(
    scenario: dict[str, Any], *, snap: int, live: bool, scale: float = 1.0
) -> tuple[Judgement, PacketBatch]:
    batch = make_batch(make_frames(scenario["traffic"], scenario["seconds"]), snap=snap, weight=scale)
    window = make_window(batch, scenario["seconds"], live=live)
    return Advisor().judge(window, make_tables(window)), batch


@pytest.mark.one_each(*map("{0.stem}-{1}".format, SCENARIOS, cycle(SEEN)))
@pytest.mark.parametrize(("snap", "live"), SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_is_judged_rightly(path: Path, snap: int, live: bool) -> None:
    scenario = load(path)
    # Live, the same packets stand for 40 times as many: a rate that is an attack
    judgement, _ = judge(scenario, snap=snap, live=live, scale=40.0 if live and scenario["expect"] else 1.0)
    found = {attack.kind: attack for attack in judgement.attacks}
    told = [(a.kind, a.share, a.evidence) for a in judgement.attacks]
    assert set(found) == set(scenario["expect"]), told
    for kind, share in scenario["expect"].items():
        assert found[kind].share == pytest.approx(share, abs=0.12), told
        assert 0.5 < found[kind].confidence < 1.0
    for kind in scenario.get("spoofed", {}).get("kinds", []):
        assert found[kind].spoofed, told
    for kind in scenario.get("not_spoofed", {}).get("kinds", []):
        assert not found[kind].spoofed, told
    for proposal in judgement.proposals:
        check_commands(proposal)
        assert proposal.rule is None or why_broad(proposal.rule, HOST) is None
    vectors = [attack for attack in judgement.attacks if attack.kind not in STATE]
    assert len(judgement.proposals) >= len(vectors)
    if "signature" in scenario:
        best = max((p.attack_share for p in judgement.proposals if p.kind == "string"), default=0.0)
        assert best >= scenario["signature"]["at_least"]
