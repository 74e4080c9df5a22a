"""A fleet on a NATS that others run: what is given to init, what doctor says, what keeps machines apart."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import pytest
from fleet_foreign import Foreign

from fwtop.cli.fleet import setup, watch
from fwtop.fleet import founding, joining, register
from fwtop.fleet.broker import Access, Broker
from fwtop.fleet.founding import Token
from fwtop.fleet.identity import NatsKey
from fwtop.fleet.keys import MachineKey
from fwtop.fleet.register import Register
from fwtop.fleet.transport import ADMITTED, JOINING, WANTED
from fwtop.model.errors import FwtopError


def asked(action: str, *arguments: str) -> int:
    verb = (watch if action == "doctor" else setup).ACTIONS[action]
    parser = argparse.ArgumentParser()
    verb.arguments(parser)
    return verb.run(parser.parse_args(arguments))


def init(nats: Foreign, *more: str, url: str = "") -> Path:
    """Run `fwtop fleet init` as an operator would; return the operators' directory."""
    signer = nats.directory / "ops.pub"
    signer.write_text("ssh-ed25519 AAAA ops\n")
    given = ("--nats", url or nats.url, "--account-seed", str(nats.seed), "--account", nats.account.public)
    rest = ("--ca", str(nats.ca), "--signer", str(signer), "--directory", str(nats.directory / "fleet"))
    assert asked("init", "prod", *given, *rest, *more) == 0
    return nats.directory / "fleet/operator"


def test_a_fleet_on_a_nats_of_others(tmp_path, capsys):
    nats = Foreign(tmp_path / "nats")
    with nats.running():
        operators = init(nats)
        assert "machines join with this address" in capsys.readouterr().out
        assert sorted(path.name for path in operators.iterdir()) == ["operator.json", "signers"]
        file = founding.read_operator(operators)
        assert asked("token", "--machines", "2", "--fleet", str(operators)) == 0
        token = Token.of(capsys.readouterr().out)
        assert asyncio.run(_joined(nats, file, token)) == ["web-1", "web-2"]
        assert asked("doctor", "--fleet", str(operators), "--json") == 1  # no machine has a node
        checks = json.loads(capsys.readouterr().out)["checks"]
        bad = [one["text"] for one in checks if not one["ok"]]
        assert [line.partition(" is silent")[0] for line in bad[1:]] == ["web-1", "web-2"], bad
        assert "0 of 2 machines answer" in bad[0]
        said = "\n".join(one["text"] for one in checks if one["ok"])
        for words in ("nats-server 2.", "certificate ends", "no machine speaks in another", "sync_interval"):
            assert words in said
        assert asked("revoke", "web-2", "--fleet", str(operators)) == 0
        assert "nsc revocations add-user" in capsys.readouterr().err


async def _joined(nats: Foreign, file: founding.OperatorFile, token: Token) -> list[str]:
    """Have two machines ask and be admitted; return who is in the register."""
    nodes = [joining.new_node(token, (nats.url,), name, ("web",)) for name in ("web-1", "web-2")]
    async with await Broker.connect(joining.access(token, nodes[0])) as asking:
        for node in nodes:
            assert await joining.ask(asking, token, node, 0) is None
        with pytest.raises(FwtopError, match=r"[Pp]ermissions"):  # a token lets ask, and no more
            await asking.read(WANTED)
    async with await Broker.connect(file.access) as broker:
        assert await joining.admit(broker, file, []) == ["web-1", "web-2"]
        known: Register = await register.read(broker, "prod", MachineKey(file.registrar))
        jwt = (await broker.read(ADMITTED))[f"{token.id}.{known.machines['web-1'].user}"].document.decode()
    access = Access((nats.url,), token.authority, jwt, nodes[0].seed, "web-1")
    async with await Broker.connect(access) as machine:
        assert not await machine.may_publish("web-2")
        assert await machine.may_publish("web-1")
        assert await machine.read(WANTED)
        with pytest.raises(FwtopError):
            await machine.read(JOINING)
    return sorted(known.machines)


def test_what_an_operator_gives_wrongly_is_said_and_writes_nothing(tmp_path, capsys):
    nats = Foreign(tmp_path / "nats")
    other = NatsKey("A").public
    with nats.running():
        for more, said in (
            (("--account", other), "Authorization Violation"),
            (("--ca", str(Foreign(tmp_path / "others").ca)), "certificate verify failed"),
            (("--nats", "example.com"), "nats://HOST:PORT"),
            (("--account-seed", str(nats.ca)), "no nkey seed"),
        ):
            with pytest.raises(FwtopError, match=said):
                init(nats, *more)
        with pytest.raises(FwtopError, match="can't be used"):
            init(nats, url=nats.url.replace("nats:", "tls:"))
        assert not (nats.directory / "fleet").exists()


def test_a_server_without_tls_gets_no_paper(tmp_path):
    nats = Foreign(tmp_path / "nats", tls=False)
    with nats.running(), pytest.raises(FwtopError, match="without TLS"):
        init(nats)
