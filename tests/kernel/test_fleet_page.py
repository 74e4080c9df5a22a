"""The commands of docs/FLEET.md, in their order, on a server and two machines in namespaces."""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from fwtop.client.program import connect
from fwtop.fleet import founding
from fwtop.kernel.programs import module_argv
from fwtop.lab.fleet import HUB, NAMES, FleetLab
from fwtop.model import paths
from tests.unit.fleet_foreign import Foreign

pytestmark = pytest.mark.kernel
PAGE = Path(__file__).resolve().parents[2] / "docs/FLEET.md"
CLUSTER, FOREIGN = "Three servers", "A NATS that is there"  # chapters
CHAPTERS = {
    text.split(",")[0].strip(): re.findall(r"^sudo fwtop (.*?)(?: +#.*)?$", text, re.M)
    for text in PAGE.read_text(encoding="utf-8").split("\n## ")
}
COMMANDS = [
    one for title, commands in CHAPTERS.items() if title not in (CLUSTER, FOREIGN) for one in commands
]


class Page(FleetLab):
    """A fleet that is set up by the page's commands alone; `ran` are those that were run."""

    commands: Sequence[str] = COMMANDS
    places: Mapping[str, str] = MappingProxyType({"192.0.2.10": HUB})

    def __init__(self, machines: int) -> None:
        super().__init__(lambda _: None, names=NAMES[:machines], attacked=1)
        self.ran: list[str] = []
        self.token = ""

    def command(self, begin: str, *more: str, **words: str) -> list[str]:
        """Return the page's command that begins so, with what differs from the page's machines."""
        [found] = {command for command in self.commands if command.startswith(begin)}
        self.ran.append(found)
        words |= {**self.places, "TOKEN": self.token, "~/.ssh/id_ed25519": str(self.key)}
        for old, new in words.items():
            found = found.replace(old, new)
        return [*module_argv("fwtop", *shlex.split(found)), *more]

    def here(self, begin: str, *more: str, code: int = 0, **words: str) -> str:
        """Run a command where the server and the operator are."""
        argv = ["ip", "netns", "exec", self.hub, *self.command(begin, *more, **words)]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False
        )
        assert done.returncode == code, (argv, done.stdout, done.stderr)
        return done.stdout

    @property
    def own(self) -> tuple[str, str]:
        return "--fleet", str(self.directory / "fleet/operator")

    def _found(self, **words: str) -> founding.OperatorFile:
        places = ("--directory", str(self.directory / "fleet"), "--store", str(self.directory / "store"))
        told = self.here("fleet init", *places, **words)
        assert "fleet token" in told
        return founding.read_operator(self.directory / "fleet/operator")

    def _join(self) -> None:
        self.token = self.here("fleet token", *self.own).strip()
        joining = []
        for one in self.machines:
            # Over its own interface, as root of that machine would
            argv = self.command("fleet join", "--name", one.name, "--netns", one.victim)
            with (self.directory / f"{one.name}.log").open("wb") as log:
                inside = ["ip", "netns", "exec", one.victim]
                joining.append(
                    subprocess.Popen([*inside, *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )
        listed = ["ip", "netns", "exec", self.hub, *module_argv("fwtop", "fleet", "nodes", *self.own)]
        end = time.monotonic() + 60
        while subprocess.check_output(listed, text=True).count(" waits") < len(joining):
            assert time.monotonic() < end, [path.read_text() for path in self.directory.glob("web-*.log")]
        assert self.here("fleet nodes --approve", *self.own).count("admitted") == len(joining)
        for process in joining:
            assert process.wait(60) == 0
        for one in self.machines:
            directory = paths.fleet_directory(one.victim)
            signers = (self.directory / "fleet/operator/signers").read_text()
            assert (directory / "signers").read_text() == signers
            assert os.stat(directory / "node.json").st_mode & 0o777 == 0o640


class OnForeign(Page):
    """The same on a NATS that is there."""

    commands = (
        *CHAPTERS[FOREIGN],
        *(one for one in COMMANDS if not one.startswith(("fleet init", "fleet join"))),
    )

    def _found(self) -> founding.OperatorFile:
        self.nats = Foreign(self.directory / "nats", host=HUB, port=4222)
        with self.nats.running(self.hub):
            account = {"ca.pem": str(self.nats.ca), "fwtop.nk": str(self.nats.seed)}
            return super()._found(**account, ACCOUNT=self.nats.account.public)

    def start_broker(self) -> None:
        self.broker = self.nats.start(self.hub)


def _list_and_policy(lab: Page) -> None:
    """Roll lists and policies out; each newer one takes the former's place on both machines."""
    listed, policy = lab.directory / "drop.txt", lab.directory / "web.toml"
    how = ("--yes", "--measure", "1s", *lab.own)
    for entries in (6_001, 12):  # the first one does not fit into a document
        listed.write_text("".join(f"44.{n >> 16}.{n >> 8 & 255}.{n & 255}\n" for n in range(entries)))
        assert "kept on 2 of 2" in lab.here("fleet list", *how, **{"drop.txt": str(listed)})
        assert [[row["sources_total"] for row in rows] for rows in rules(lab)] == [[entries]] * 2
    head = 'schema = 1\n[list.bad]\nentries = ["45.9.20.0/24"]\n[[block]]\nlist = "bad"\ngroup = "scan"\n'
    for more in ("", '[[limit]]\nproto = "udp"\nper = 24\nrate = "100/s"\n'):
        policy.write_text(head + more)
        assert "kept on 2 of 2" in lab.here("fleet policy", *how, **{"web.toml": str(policy)})
        kinds = [sorted(row["rule"]["kind"] for row in rows) for rows in rules(lab)]
        assert kinds == [sorted(["ipset", *(["hashlimit"] if more else []), "ipset"])] * 2
    said = lab.here("fleet group", *how)
    assert "kept on 2 of 2" in said
    assert modes(lab) == [["count"]] * 2
    lab.here("fleet undo", *lab.own, ID=re.findall(r"roll-out (\w+): kept", said)[0])
    assert modes(lab) == [["drop"]] * 2


def modes(lab: FleetLab) -> list[list[str]]:
    """Return the modes of each machine's rules of the policy's group."""
    return [[row["rule"]["mode"] for row in rows if row["rule"]["group"] == "scan"] for rows in rules(lab)]


def rules(lab: FleetLab) -> list[list[dict]]:
    """Return the status of each machine's rules."""
    found = []
    for one in lab.machines:
        with connect(one.victim) as guardian:
            found.append(guardian.status()["rules"])
    return found


def test_a_server_and_two_machines_by_the_page():
    with Page(2) as lab:
        lab.here("fleet status", *lab.own)
        assert "BAD" not in lab.here("fleet doctor", *lab.own)
        lab.machines[0].lab.ask(do="flood", on=True, pps=2_000, seconds=300)
        end = time.monotonic() + 60
        while not any(one.attacked for one in lab.heard().values()):
            assert time.monotonic() < end
        stops = []
        while not stops:  # a recorder that is held up tells too late
            said = lab.here("fleet block", "--preview", *lab.own)
            stops = re.findall(r"web-1: attacked, .* arrive; the rule stops >?(\d+)", said)
            assert time.monotonic() < end + 60, said
        assert 50 < int(stops[0]) <= 100
        said = lab.here("fleet block", "--yes", "--measure", "1s", *lab.own)
        assert "kept on 1 of 1 machines" in said
        [rollout] = re.findall(r"roll-out (\w+): kept", said)
        assert "web-1: undone" in lab.here("fleet undo", *lab.own, ID=rollout)
        _list_and_policy(lab)
        one = lab.machines[1]
        leaving = lab.command("fleet leave", "--netns", one.victim)
        assert "web-2 left prod" in subprocess.check_output(leaving, text=True)
        assert not (paths.fleet_directory(one.victim) / "machine.toml").exists()
        assert "web-2" not in lab.here("fleet revoke", *lab.own)
        fleet_ones = [command for command in COMMANDS if command.startswith("fleet ")]
        assert set(lab.ran) == set(fleet_ones) - {"fleet nodes"}


@pytest.mark.matrix
def test_a_nats_that_is_there_by_the_page():
    with OnForeign(2) as lab:
        doctor = lab.here("fleet doctor", *lab.own)
        assert "BAD" not in doctor
        assert "no machine speaks in another's name" in doctor
        lab.machines[0].lab.ask(do="flood", on=True, pps=2_000, seconds=300)
        end = time.monotonic() + 60
        while not any(one.attacked for one in lab.heard().values()):
            assert time.monotonic() < end
        assert "kept on 1 of 1 machines" in lab.here("fleet block", "--yes", "--measure", "1s", *lab.own)
        assert set(lab.ran) >= set(CHAPTERS[FOREIGN])
