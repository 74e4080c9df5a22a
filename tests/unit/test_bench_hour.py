"""False alarms beside real programs: what the recorder's lines say, and what is started."""

from __future__ import annotations

import json

import pytest

from benches.tables import hour
from benches.tables.hour import Watched


def line(pps: float, *attacks: dict[str, object]) -> str:
    return json.dumps({"totals": {"pps": pps}, "attacks": attacks})


def test_an_alarm_counts_once_and_each_window_while_it_lasts() -> None:
    attack = {
        "kind": "udp_flood",
        "since": "2026-11-23T10:00:00.000Z",
        "ended": None,
        "confidence": 0.8,
        "pps": 1234.0,
        "share": 0.5,
        "evidence": ["identical payloads", "one length", "more"],
    }
    ended = {**attack, "ended": "2026-11-23T10:00:09.000Z"}
    watched = Watched.of([line(10.0), line(2000.0, attack), line(1500.0, attack), line(10.0, ended)])
    assert (watched.windows, watched.alarmed, watched.packets) == (4, 2, 2000.0)
    assert watched.alarms == (
        "2026-11-23T10:00:00.000Z: udp_flood, 80% sure, 1,234 packets/s, 50% of the traffic: "
        "identical payloads; one length",
    )


def test_every_use_has_its_server_and_can_be_written_out() -> None:
    served = {server.port for server in hour.SERVERS} | {0}
    assert {use.port for use in hour.USES} <= served
    lab = hour.EverydayLab(1)
    for use in hour.USES:
        words = lab.filled(use.command)
        assert "{" not in words
        assert (
            use.own or any(peer in words for peer in hour.PEERS) or use.program in ("wrk", "h2load", "siege")
        )


def test_programs_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hour.shutil, "which", lambda name: None if "sshd" in name else f"/usr/bin/{name}")
    assert hour.EverydayLab(1).missing == ["sshd"]
