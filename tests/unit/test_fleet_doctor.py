"""`fwtop fleet doctor`: each check of the servers is broken, and said with what mends it."""

import argparse
import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from test_fleet_transport import Real

from fwtop.cli.fleet import setup, watch
from fwtop.fleet.broker import Broker
from fwtop.fleet.identity import NatsKey, Scope, account


@pytest.fixture
def real(tmp_path):
    made = Real(tmp_path)
    yield made
    made.kill()


def told(real: Real, capsys) -> list[str]:
    """Return what is BAD."""
    parser = argparse.ArgumentParser()
    watch.ACTIONS["doctor"].arguments(parser)
    args = parser.parse_args(["--fleet", str(real.directory / "fleet/operator")])
    code = watch.ACTIONS["doctor"].run(args)
    bad = [line for line in capsys.readouterr().out.splitlines() if line.startswith("BAD")]
    assert code == bool(bad)
    return bad


def test_a_sound_fleet_and_one_without_a_stream_or_with_other_rights(real, capsys):
    asyncio.run(real.start())
    assert told(real, capsys) == []

    async def spoil() -> None:
        async with await real.controller() as broker:
            await broker._answered("$JS.API.STREAM.DELETE.FLEET_SOURCES", b"")
        keys = {name: NatsKey.of_seed(seed) for name, seed in real.file.seeds.items()}
        scopes = [Scope(keys[name], name, [">"], [">"]) for name in ("node", "controller", "join")]
        async with await Broker.connect(real.file.system_access()) as system:
            await system.renew_account(account(keys["accounts"], keys["fleet"], "FLEET", scopes))

    asyncio.run(spoil())
    rights, missing = told(real, capsys)
    assert "stream of sources: 0 of 1 replicas; 'fwtop fleet token' makes what is missing" in missing
    assert "'fwtop fleet token' renews them" in rights
    asyncio.run(setup._prepared(real.file))  # what 'fleet token' does first
    assert told(real, capsys) == []


def test_a_server_that_may_lose_what_it_acknowledged(real, capsys):
    path = real.directory / "fleet/server/nats.conf"
    about = json.loads(path.read_text())
    del about["jetstream"]["sync_interval"]
    path.write_text(json.dumps(about))
    asyncio.run(real.start())
    [line] = told(real, capsys)
    assert "server prod-1: what it acknowledged may be lost with power: sync_interval: always" in line


def of_server(**change: object) -> list[str]:
    now = datetime.now(UTC)
    sound = {
        "version": "2.11.0",
        "now": now.isoformat(),
        "jetstream": {"config": {"sync_always": True}},
        "tls_cert_not_after": (now + timedelta(days=100)).isoformat(),
    }
    return [line for good, line in watch._of_server("prod-1", {**sound, **change}) if not good]


def test_versions_clocks_and_certificates_of_servers():
    assert of_server() == of_server(tls_cert_not_after=None) == of_server(version="2.15.1-beta.1") == []
    assert of_server(version="2.10.24") == [
        "server prod-1: nats-server 2.10.24; fwtop needs 2.11.0: upgrade it"
    ]
    [line] = of_server(tls_cert_not_after=(datetime.now(UTC) + timedelta(days=20, hours=2)).isoformat())
    assert line.startswith("server prod-1: its certificate ends in 20d01h: 'fwtop fleet init'")
    [line] = of_server(now=(datetime.now(UTC) - timedelta(hours=1)).isoformat())
    assert "its clock is off by -3600 s: what is sent expires by it; set it" in line
