"""Real programs that use a host: its servers serve, and what they are asked succeeds."""

from __future__ import annotations

import pytest

from benches.tables.hour import SERVERS, USES, EverydayLab

pytestmark = pytest.mark.kernel


def test_every_server_that_is_installed_serves_its_uses() -> None:
    with EverydayLab(1) as lab:
        assert {one.port for one in SERVERS if not one.missing} | {0} == lab.ports
        for use in USES:
            if use.program == "curl" and use.program not in lab.missing and use.port in lab.ports:
                argv = lab.filled(use.command).split()
                assert lab.start(lab.victim if use.own else lab.attacker, *argv).wait(timeout=20) == 0
    assert not lab.folder.exists()
