from __future__ import annotations

import io
import json
import platform
import stat
from pathlib import Path

import pytest
from capture_files import pcap

from fwtop.bench.frame import Document, Result
from fwtop.bench.tables.calibrate import keep
from fwtop.console import judging
from fwtop.console.playback import capture
from fwtop.lab import network, scenario
from fwtop.lab.traffic.plan import build_plan
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind
from fwtop.model.traffic.packets import NoOrigin
from fwtop.rules.costs import DEFAULT_COST_NS, Costs, load_costs, machine_name, save_costs

_HERE = Costs(machine_name(), platform.release(), "2026-11-21T10:00:00Z", {"ipset": 812.5, "xdp": 90.0})


def test_every_kind_that_is_proposed_and_drops_has_a_default() -> None:
    assert set(DEFAULT_COST_NS) == {kind.value for kind in Kind} - {"sysctl", "protect", "harden"}


def test_measured_costs_replace_defaults(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    save_costs(_HERE, path)
    known = load_costs(path)
    assert known.costs == _HERE
    assert (known.measured, known.stale) == ({"ipset", "xdp"}, False)
    assert known.cost_ns == {**DEFAULT_COST_NS, "ipset": 812.5, "xdp": 90.0}
    assert "measured here on 2026-11-21" in known.note
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["costs.json"]


def test_a_calibration_keeps_the_lowest_of_its_rounds(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    results = (Result("xdp", "ns a packet", (120.0, 101.0, 109.0)),)
    assert "xdp 101" in keep(Document("calibrate", 3, results), path)
    assert load_costs(path).cost_ns["xdp"] == 101.0


def test_without_a_file_the_defaults_apply(tmp_path: Path) -> None:
    known = load_costs(tmp_path / "none.json")
    assert (known.costs, known.stale, known.cost_ns) == (None, False, dict(DEFAULT_COST_NS))
    assert "fwtop bench --calibrate" in known.note


@pytest.mark.parametrize(("field", "value"), [("machine", "another \x1b[31m CPU"), ("kernel", "4.19.0-1")])
def test_costs_of_another_machine_are_ignored(tmp_path: Path, field: str, value: str) -> None:
    path = tmp_path / "costs.json"
    save_costs(_HERE, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    known = load_costs(path)
    assert (known.costs, known.stale) == (None, True)
    assert "\x1b" not in known.note
    assert "defaults" in known.note


def test_costs_apply_to_all_patch_levels_of_a_kernel(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    major, minor = platform.release().split(".")[:2]
    save_costs(Costs(_HERE.machine, f"{major}.{minor}.999-later", _HERE.measured, _HERE.cost_ns), path)
    assert load_costs(path).costs is not None


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\xff", b"[]", b"{}", b"[" * 60_000, b'{"schema": 2, "cost_ns": {}}',
        b'{"schema": 1, "machine": "m", "kernel": "k", "measured": "d", "cost_ns": {"xdp": NaN}}',
        b'{"schema": 1, "machine": "m", "kernel": "k", "measured": "d", "cost_ns": {"xdp": -1}}',
        b'{"schema": 1, "machine": "m", "kernel": "k", "measured": "d", "cost_ns": {"magic": 1}}',
        b'{"schema": 1, "machine": "m", "kernel": "k", "measured": "d", "cost_ns": {"xdp": "x"}}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_noted(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(text)
    known = load_costs(path)
    assert (known.costs, known.stale) == (None, True)
    assert "can't be read" in known.note


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    with pytest.raises(FwtopError, match="the old costs still apply"):
        save_costs(_HERE, tmp_path / "nowhere" / "costs.json")


def test_proposals_carry_the_measured_costs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    save_costs(Costs(_HERE.machine, _HERE.kernel, _HERE.measured, {"xdp": 33.0}), path)
    monkeypatch.setattr(judging, "load_costs", lambda: load_costs(path))
    plan = build_plan(scenario.load("ntp_amplification"), network.Wire(bytes(6), bytes(6)))
    frame = plan.templates[0].data
    records = [(number * 10**6, frame, len(frame)) for number in range(500)]
    result = capture.observe_capture(io.BytesIO(pcap(records)), "a capture", top=5, lookup=NoOrigin())
    costs = {item.kind: (item.cost_ns, item.cost_measured) for item in result.snapshot.judgement.proposals}
    assert costs.pop("xdp") == (33.0, True)
    assert costs
    assert {measured for _, measured in costs.values()} == {False}
