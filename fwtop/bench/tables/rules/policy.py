"""A policy with a long access list under a flood: switching a level, putting in, going back, restoring.

The access list is open to three ports, and two black lists are in. Beside each of fwtop's rows is what the
bare tool needs for the sets of the same operation. The flood is of 300,000 packets a second.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import run_fwtop
from fwtop.bench.tables.rules.bulk import seconds_of
from fwtop.bench.testbed import Testbed
from fwtop.client import discovery
from fwtop.client.discovery import GuardianClient
from fwtop.model.addresses.address import Prefix
from fwtop.model.paths import GUARDIAN_DIRECTORY
from fwtop.model.protocol import ListChange, Undo
from fwtop.model.rule import Kind, Level, Match, Protection, Rule

_WHOLE, _QUICK = (460_000, 1_000_000), (20_000, 50_000)  # entries of the access list, and of black lists
_PPS = 300_000
_PORT = 8443
_TRIES = 20  # switches of a level, of which the row has the mean
_POLICY = """
schema = 1
[list.access]
file = "access"
[list.black1]
file = "black1"
[list.black2]
file = "black2"
[[port]]
service = ["443/tcp", "443/udp", "8080/tcp"]
acl = "access"
[[block]]
list = "black1"
[[block]]
list = "black2"
"""
_LIMITS = "".join(
    f'[[limit]]\nproto = "udp"\ndport = {port}\nper = 24\nrate = "{rate}/s"\n'
    for port, rate in ((53, 1000), (123, 500), (161, 10), (1900, 10))
)
_SIGNATURES = "".join(
    f'[[signature]]\nstring = "{text}"\nproto = "udp"\ndport = 443\n'
    for text in ("fwtop-one", "fwtop-two", "fwtop-three")
)


def run(options: Options) -> Document:
    """Measure the table."""
    access, black = _QUICK if options.quick else _WHOLE
    rounds = options.choose(3, 1)
    with ExitStack() as open_:
        testbed = open_.enter_context(Testbed())
        directory = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="fwtop-bench-")))
        client = open_.enter_context(discovery.connect(netns=testbed.victim))
        open_.callback(client.demand, Undo(all=True))
        open_.callback(
            shutil.rmtree, GUARDIAN_DIRECTORY / f"policy/netns-{testbed.victim}", ignore_errors=True
        )
        operations = _Operations(testbed, directory, client)
        operations.prepare(access, black)
        with testbed.flooded(_PPS):
            results = measure(operations.rows(), rounds)
    notes = (
        f"an access list of {access:,} prefixes on three ports, two black lists of {black:,}, four limits, "
        f"three signatures; under {_PPS:,} packets/s",
    )
    return Document("policy", rounds, results, notes)


class _Operations:
    """What the rows do, in the victim's namespace."""

    def __init__(self, testbed: Testbed, directory: Path, client: GuardianClient) -> None:
        self._testbed, self._directory, self._client = testbed, directory, client
        self._levels = cycle((Level.CLOSED, Level.PROTECTED))
        self._rule = Rule(
            "", Kind.PROTECT, Match(protocol=6, dport=_PORT), "bench", 3600,
            protection=Protection(Level.PROTECTED, ("own",)),
        )  # fmt: skip

    def prepare(self, access: int, black: int) -> None:
        """Write the lists and two policies, of which the second has other rules; protect a port."""
        drawn = random.Random(20261122)  # noqa: S311
        for name, count in (("access", access), ("black1", black), ("black2", black)):
            self._draw(name, count, drawn)
        for name, text in (
            ("nothing", "schema = 1\n"),
            ("first", _POLICY + _LIMITS),
            ("second", _POLICY + _LIMITS + _SIGNATURES),
        ):
            (self._directory / name).write_text(text)
        entries = [Prefix.parse(line) for line in (self._directory / "access").read_text().split()]
        self._client.change_list(ListChange("own", "create"), entries)
        status = self._client.apply(self._rule, 0).data["status"]
        self._rule = replace(self._rule, replaces=status["rule"]["id"])
        self._testbed.run(
            "ipset", "restore",
            text="create bench-on hash:net timeout 3600\ncreate bench-shut hash:net timeout 3600\n",
        )  # fmt: skip

    def _draw(self, name: str, count: int, drawn: random.Random) -> None:
        values = drawn.sample(range(11 << 16, 126 << 16), count)
        lines = [f"{value >> 16}.{value >> 8 & 255}.{value & 255}.0/24\n" for value in values]
        (self._directory / name).write_text("".join(lines))
        head = f"create bench-{name} hash:net maxelem {2 * count}\n"
        adds = "".join([f"add bench-{name} {line}" for line in lines])
        (self._directory / f"{name}.ipset").write_text(head + adds)

    def rows(self) -> list[Row]:
        """Return the table's rows."""
        switch, load = "ipset restore: fill one set, empty another", "ipset restore: the three lists"
        return [
            Row(switch, "s", self._bare_switch),
            Row("switch a level, connected client", "s", self._switch, switch),
            Row("switch a level, fwtop protect --yes", "s", self._command, switch),
            Row(load, "s", self._bare_load),
            Row("put the policy in", "s", self._put_in, load),
            Row(
                "put in another with three signatures more",
                "s",
                partial(self._policy, "apply", "second"),
                load,
            ),
            Row("go back", "s", partial(self._policy, "rollback", "first"), load),
            Row("restore after a restart", "s", self._restore, load),
        ]

    def _switch(self) -> float:
        def switches() -> None:
            for level in islice(self._levels, _TRIES):
                self._client.apply(replace(self._rule, protection=Protection(level, ("own",))), 0)

        return seconds_of(switches) / _TRIES

    def _command(self) -> float:
        words = ("protect", f"{_PORT}/tcp", "--priority", "0", "--level", next(self._levels).value)
        return seconds_of(partial(run_fwtop, *words, "--yes", "--netns", self._testbed.victim))

    def _bare_switch(self) -> float:
        halves = ("0.0.0.0/1", "128.0.0.0/1")
        text = "".join([f"add bench-on {half}\n" for half in halves]) + "flush bench-shut\n"
        taken = seconds_of(partial(self._testbed.run, "ipset", "-exist", "restore", text=text))
        self._testbed.run("ipset", "flush", "bench-on")
        return taken

    def _bare_load(self) -> float:
        def load() -> None:
            for name in ("access", "black1", "black2"):
                self._testbed.run("ipset", "restore", "-f", str(self._directory / f"{name}.ipset"))

        taken = seconds_of(load)
        for name in ("access", "black1", "black2"):
            self._testbed.run("ipset", "destroy", f"bench-{name}")
        return taken

    def _put_in(self) -> float:
        self._policy("apply", "nothing")
        return self._policy("apply", "first")

    def _restore(self) -> float:
        self._client.demand(Undo(all=True))
        for name in ("access", "black1", "black2"):
            self._client.change_list(ListChange(name, "delete"))
        return self._policy("boot", "first")

    def _policy(self, action: str, name: str) -> float:
        file, netns = str(self._directory / name), self._testbed.victim
        words = ("policy", action, "--file", file, "--yes", "--force", "--netns", netns)
        return seconds_of(partial(run_fwtop, *words))
