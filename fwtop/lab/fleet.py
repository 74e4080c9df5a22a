"""A fleet in network namespaces: a server, machines with clients of their own, an attack on some of them.

Each machine is a lab of its own (machine.py) with guardian, watcher and node, and a second interface to a
switch, where the server and the coordinator are. What clients get, what arrives and what reaches the
machines' protocols is counted by the lab: by the clients, by interfaces and by the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from msgspec import Struct, field

from fwtop.client.program import connect
from fwtop.fleet import founding, joining, machine, register, server
from fwtop.fleet.broker import Broker
from fwtop.fleet.document import SIGNED_FOR
from fwtop.fleet.keys import MachineKey
from fwtop.fleet.summary import NO_GUARDIAN, NOT_WATCHED, Summary
from fwtop.fleet.view import View
from fwtop.fleet.wanted import Question
from fwtop.kernel.namespaces import NETNS, inside
from fwtop.kernel.programs import module_argv
from fwtop.lab.namespaces import PREFIX, Namespaces, add, batch, run
from fwtop.lab.processes import Child, end
from fwtop.model import paths
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

NAMES = ("web-1", "web-2", "web-3", "web-4", "db-1", "dns-1")
ATTACKED = 3  # the first ones
HUB = "10.77.0.1"  # the server's and the coordinator's address
SOURCES = "45.9.20.0/24"  # where the flood comes from
_LABELS = {"web": ("web", "eu"), "db": ("db", "eu"), "dns": ("dns",)}
_SCENARIO = f"""
title = "UDP flood from a rented network"
seed = {{seed}}
firewall = "none"

[[vector]]
name = "rented"
kind = "udp_flood"
protocol = "udp"
source = {{{{ prefixes = ["{SOURCES}"] }}}}
sport = "random"
dport = 27015
payload = [{{{{ text = "flood:" }}}}, {{{{ random = 32 }}}}]
ttl = [48, 60]
"""
_THINKING_SECONDS = 0.5  # of a client
READY_SECONDS = 120.0
_ASK_SECONDS, _ASK_AGAIN_SECONDS = 1.5, 0.25
_CLOSING_SECONDS = 30.0  # a machine takes its own namespaces down


class Member(Struct):
    """A machine of the lab, and what runs on it."""

    name: str
    attacked: bool
    lab: Child
    victim: str = ""
    node: subprocess.Popen[bytes] | None = None
    watcher: subprocess.Popen[bytes] | None = None
    rules: list[str] = field(default_factory=list)
    state: str = "untouched"

    @property
    def labels(self) -> tuple[str, ...]:
        """Its labels, by its name."""
        return _LABELS[self.name.partition("-")[0]]


class FleetLab(Namespaces):
    """The fleet for the duration of the `with` block; `say` is given a line for each step."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        names: Sequence[str] = NAMES,
        attacked: int = ATTACKED,
        thinking: float = _THINKING_SECONDS,
    ) -> None:
        """Take the machines' names; the first `attacked` ones will be; clients think for so many seconds."""
        super().__init__()
        self._say = say
        self._names, self.attacked, self._thinking = names, attacked, thinking
        self._opened = contextlib.ExitStack()
        self.hub = self.attacker  # its namespace
        self.machines: list[Member] = []
        self.broker: subprocess.Popen[bytes] | None = None

    def _set_up(self) -> None:
        self.directory = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="fwtop-fleet-")))
        _remove_stale()
        self._make_hub()
        self._say("making keys, and starting a nats-server")
        key = self.directory / "operator-key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(key))
        public = " ".join(key.with_suffix(".pub").read_text(encoding="ascii").split()[:2])
        self._signers = f'lab namespaces="{SIGNED_FOR}" {public}\n'
        self.file = self._found()
        self.start_broker()
        self._say(f"building {len(self._names)} machines with services and clients")
        for number, name in enumerate(self._names):
            text = _SCENARIO.format(seed=100 + number)
            spare = [str(SOURCES.replace(".0/24", f".{10 + one}")) for one in range(12)]
            setup = {"scenario": text, "thinking": self._thinking, "elsewhere": spare}
            lab = Child(None, "fwtop.lab.machine", setup, ready=READY_SECONDS, closing=_CLOSING_SECONDS)
            self._opened.callback(lab.close)
            self.machines.append(Member(name, number < self.attacked, lab))
        for number, one in enumerate(self.machines):
            one.victim = one.lab.wait_ready()["victim"]
            self._cable(number, one)
        self._say("joining them, and starting guardians, watchers and nodes")
        self._opened.callback(_remove_empty)
        for one in self.machines:
            self._opened.callback(shutil.rmtree, paths.fleet_directory(one.victim), ignore_errors=True)
            self._opened.callback(shutil.rmtree, paths.fleet_records(one.victim), ignore_errors=True)
        self._join()
        for one in self.machines:
            self.start_watcher(one)
            self.start_node(one)
        self.await_watched()

    def start_watcher(self, one: Member) -> None:
        """Start a machine's recorder, which starts the guardian if there is none."""
        argv = module_argv("fwtop", "record", "--netns", one.victim, "--no-store", "--no-alarms")
        one.watcher = self._program(argv)

    def start_node(self, one: Member) -> None:
        """Start a machine's node."""
        one.node = self._program(module_argv("fwtop", "fleet", "node", "--netns", one.victim))

    def await_watched(self) -> None:
        """Wait until each machine is watched, and says so."""
        limit, verdicts = time.monotonic() + READY_SECONDS, dict[str, str]()
        while time.monotonic() < limit:
            with contextlib.suppress(FwtopError):  # a busy machine's server may not answer in time
                verdicts = {name: one.verdict for name, one in self.heard().items()}
            if all(verdicts.get(name, NOT_WATCHED) not in (NOT_WATCHED, NO_GUARDIAN) for name in self._names):
                return
        log = (self.directory / "programs.log").read_text(encoding="utf-8", errors="replace")
        raise FwtopError(
            f"not all machines are watched: {verdicts}; {safe_text(log[-300:])}; the lab is taken down"
        )

    def _make_hub(self) -> None:
        add(self.hub)
        batch(
            self.hub,
            "link set lo up",
            "link add br0 type bridge",
            "link set br0 up",
            f"address add {HUB}/16 dev br0",
        )

    def _cable(self, number: int, one: Member) -> None:
        """Give a machine its second interface, which no flood fills."""
        batch(
            self.hub,
            f"link add port{number} type veth peer name mgmt0 netns {one.victim}",
            f"link set port{number} master br0 up",
        )
        batch(
            one.victim,
            f"address add 10.77.{1 + number // 250}.{1 + number % 250}/16 dev mgmt0",
            "link set mgmt0 up",
        )

    def start_broker(self) -> None:
        """Start the server."""
        log = self.directory / "server.log"
        self.broker = server.start(self.directory / "fleet/server", log, self.hub)

    def _found(self) -> founding.OperatorFile:
        """Make the fleet, as `fwtop fleet init` does."""
        places, store = [founding.ServerPlace(HUB)], self.directory / "store"
        return founding.found(self.directory / "fleet", "lab", places, self._signers, store=store)

    async def _connected(self) -> Broker:
        """Connect in the hub's namespace, once the server is up."""
        limit = time.monotonic() + READY_SECONDS
        while True:
            try:
                with inside(self.hub):
                    return await Broker.connect(self.file.access)
            except FwtopError:
                if time.monotonic() > limit or self.broker is None or self.broker.poll() is not None:
                    raise
                await asyncio.sleep(0.1)

    def _join(self) -> None:
        """Have all machines ask and be admitted, as `fwtop fleet join` and `nodes --approve` do."""
        asyncio.run(self._joined())

    async def _joined(self) -> None:
        async with await self._connected() as broker:
            await broker.make_streams(1)
            token = founding.token(self.file, self._signers, len(self.machines), 600)
            nodes = [joining.new_node(token, self.file.urls, one.name, one.labels) for one in self.machines]
            for node in nodes:
                await joining.ask(broker, token, node, 0)
            await joining.admit(broker, self.file, [])
            for one, node in zip(self.machines, nodes, strict=True):
                admitted = await joining.ask(broker, token, node, 0)
                assert admitted is not None  # noqa: S101 - it was admitted a few lines above
                directory = paths.fleet_directory(one.victim)
                machine.write_identity(directory, admitted, self._signers)
                machine.write_node(directory, admitted, machine.node_group())

    def _program(self, argv: list[str]) -> subprocess.Popen[bytes]:
        log = (self.directory / "programs.log").open("ab")
        self._opened.callback(log.close)
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._opened.callback(end, process)
        return process

    def link(self, one: Member, *, up: bool) -> None:
        """Cut a machine off from the servers, or connect it again."""
        port = self.machines.index(one)
        batch(self.hub, f"link set port{port} {'up' if up else 'down'}")

    def coordinator(
        self, *arguments: str, stdout: IO[bytes] | int, stderr: IO[bytes] | int
    ) -> subprocess.Popen[bytes]:
        """Start `fwtop fleet …` where the operator is."""
        own = ["--fleet", str(self.directory / "fleet/operator")]
        argv = module_argv("fwtop", "fleet", *arguments, *own)
        return subprocess.Popen(
            ["ip", "netns", "exec", self.hub, *argv], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
        )

    @property
    def key(self) -> Path:
        """The operator's SSH key."""
        return self.directory / "operator-key"

    def heard(self) -> dict[str, Summary]:
        """Ask all machines how they fare; return what those say that answer in time."""
        return asyncio.run(self._heard())

    async def _heard(self) -> dict[str, Summary]:
        async with await self._connected() as broker:
            view = View(await register.read(broker, self.file.fleet, MachineKey(self.file.registrar)))
            found = await view.ask(broker, Question.new(), _ASK_SECONDS, view.register.machines)
        await asyncio.sleep(_ASK_AGAIN_SECONDS)
        return {name: one.summary for name, one in found.items()}

    def stages(self) -> dict[str, list[dict[str, Any]]]:
        """Return the roll-outs that each machine's guardian knows: its own word, without node and server."""
        found = {}
        for one in self.machines:
            with connect(one.victim) as guardian:
                found[one.name] = guardian.request("fleetstatus")["rollouts"]
        return found

    def machines_of(self, label: str) -> list[Member]:
        """Return the machines with a label."""
        return [one for one in self.machines if label in one.labels]

    def all_do(self, **command: object) -> list[dict[str, Any]]:
        """Have all machines' labs do something, and return their answers."""
        return [one.lab.ask(**command) for one in self.machines]

    def close(self) -> None:
        """End everything, the server last."""
        try:
            self._opened.close()
        finally:  # also where a machine did not end in time
            if self.broker is not None:
                end(self.broker)
                self.broker = None
            super().close()


def _remove_stale() -> None:
    """Remove the files of machines whose lab was killed: their namespaces are gone."""
    places = (paths.fleet_directory("any"), paths.fleet_records("any"))
    for place in places:
        for left in place.parent.glob(f"*{PREFIX}*"):
            if not (NETNS / left.name[left.name.index(PREFIX) :]).exists():
                shutil.rmtree(left, ignore_errors=True)


def _remove_empty() -> None:
    """Remove the directories that only a lab needed."""
    for place in (paths.fleet_directory("any"), paths.fleet_records("any")):
        for directory in itertools.takewhile(lambda one: one.name in {"netns", "fleet"}, place.parents):
            with contextlib.suppress(OSError):  # something of a fleet that this machine belongs to
                directory.rmdir()
