"""Three servers by the page: one is killed in a wave, one parted, all killed; trials revert, rules stay."""

import asyncio
import subprocess
import time
from types import MappingProxyType

import pytest
from fleet_lab import SAID, TRIAL, Run, kept, kill, rules, stages, status, until

from fwtop.fleet import founding, server
from fwtop.fleet.broker import Broker
from fwtop.fleet.transport import WANTED
from fwtop.kernel.namespaces import inside
from fwtop.lab.fleet import SOURCES
from fwtop.lab.namespaces import add, batch, remove
from tests.kernel.test_fleet_page import CHAPTERS, CLUSTER, COMMANDS, Page

pytestmark = [pytest.mark.kernel, pytest.mark.matrix]


class Cluster(Page):
    """A machine, and three servers in namespaces of their own."""

    commands = (
        *CHAPTERS[CLUSTER],  # in the place of two:
        *(one for one in COMMANDS if not one.startswith(("fleet init", "fleet join"))),
    )
    places = MappingProxyType({f"192.0.2.{10 + number}": f"10.77.0.{11 + number}" for number in range(3)})

    def __init__(self) -> None:
        super().__init__(1)
        self.servers: dict[str, subprocess.Popen[bytes]] = {}

    def _found(self) -> founding.OperatorFile:
        for number, address in enumerate(self.places.values(), 1):
            own, port = f"{self.hub}-{number}", f"server{number}"
            add(own)
            self._opened.callback(remove, [own])
            batch(
                self.hub,
                f"link add {port} type veth peer name eth0 netns {own}",
                f"link set {port} master br0 up",
            )
            batch(own, f"address add {address}/16 dev eth0", "link set lo up", "link set eth0 up")
        return super()._found()

    def start_broker(self) -> None:
        for number in range(1, 4):
            self.start_server(number)

    def start_server(self, number: int) -> None:
        """Start one that has its directory where its own machine would: `ip netns exec` has own mounts."""
        fleet = self.directory / "fleet"
        (fleet / "server").mkdir(exist_ok=True)
        script = f'mount --bind {fleet}/server-{number} {fleet}/server && exec "$@"'
        inside = ["ip", "netns", "exec", f"{self.hub}-{number}", "sh", "-c", script, "sh"]
        with (self.directory / f"server-{number}.log").open("ab") as log:
            self.servers[f"prod-{number}"] = subprocess.Popen(
                [*inside, *server.argv(fleet / "server")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


def leading(lab: Cluster, run: Run) -> str:
    """Return the server that a coordinator is connected to."""
    found = subprocess.run(
        ["ip", "netns", "exec", lab.hub, "ss", "-Htnp", "dport", "=", ":4222"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    [line] = [one for one in found.splitlines() if f"pid={run.process.pid}," in one]
    [number] = [n for n in range(1, 4) if f"10.77.0.{10 + n}:4222" in line]
    return f"prod-{number}"


def leader(lab: Cluster) -> str:
    """Return the server that leads the others in what they store of documents."""

    async def told() -> str:
        with inside(lab.hub):
            async with await Broker.connect(lab.file.access) as broker:
                return (await broker.streams())[WANTED]["cluster"]["leader"]

    return asyncio.run(told())


def doctor(lab: Cluster) -> str:
    process = lab.coordinator("doctor", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return process.communicate(timeout=60)[0].decode()


def test_a_cluster_goes_on_without_one_server_and_ends_cleanly_without_any():
    with Cluster() as lab:
        assert lab.here("fleet doctor", *lab.own).count("3 of 3 replicas") == 4
        lab.machines[0].lab.ask(do="flood", on=True, pps=5_000, seconds=300)
        until(lambda: any(one.attacked for one in lab.heard().values()))

        run = Run(lab, "block", SOURCES, trial=60)
        until(lambda: stages(lab) == ["trial"])
        lost = leading(lab, run)
        kill(lab.servers[lost])
        assert run.ended()[0] == 0, run.said()
        assert "led through another connection" in run.said()
        assert (rules(lab), stages(lab)) == ([1], ["kept"])

        until(lambda: f"the server {lost} is gone" in status(lab)[1])
        kept(lab, "block", "192.0.2.0/24")
        lab.start_server(int(lost[-1]))
        until(lambda: "BAD" not in doctor(lab))

        run = Run(lab, "block", "203.0.113.0/24", trial=60, measure=15)
        until(lambda: "in force" in run.said())
        parted = leading(lab, run)
        batch(lab.hub, f"link set server{parted[-1]} down")
        assert run.ended()[0] == 0, run.said()
        assert "led through another connection" in run.said()
        until(lambda: f"the server {parted} is gone" in status(lab)[1])
        batch(lab.hub, f"link set server{parted[-1]} up")
        until(lambda: "BAD" not in doctor(lab))

        parted = leader(lab)
        batch(lab.hub, f"link set server{parted[-1]} down")
        began = time.monotonic()
        while time.monotonic() - began < 30:  # the others gave it questions to answer until they gave it up
            code, said, seconds = status(lab)
            assert (code, f"the server {parted} is gone" in said, seconds < SAID) == (1, True, True), said
        batch(lab.hub, f"link set server{parted[-1]} up")
        until(lambda: "BAD" not in doctor(lab))

        run = Run(lab, "block", "198.51.100.0/24")
        until(lambda: stages(lab) == ["trial"])
        for process in lab.servers.values():
            kill(process)
        code, outcome = run.ended()
        assert (code, outcome.get("rollout", outcome).get("outcome")) == (1, "reverted"), outcome
        code, said, seconds = status(lab)
        assert (code, "rules in force stay" in said, seconds < SAID) == (1, True, True), said
        until(lambda: stages(lab) != ["trial"], TRIAL + 5)
        assert rules(lab) == [3]
