"""A policy with long lists under a flood: put in, switched, rolled back, exported, restored.

An access list is open to the ports that the lab's clients use, and two block lists are in, of which the first
holds the flood's sources. Beside fwtop's rows is what `ipset restore` and `nft -f` need for the lists of the
same operation. For each operation a row says which share of the clients' requests succeeded meanwhile.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from msgspec.structs import replace

from benches.tables.bulk import seconds_of
from fwtop.bench.frame import Document, Options, Result, Row, measure
from fwtop.bench.programs import run_fwtop
from fwtop.bench.testbed import SOURCES, Testbed
from fwtop.client import discovery
from fwtop.client.discovery import GuardianClient
from fwtop.lab.traffic.pools import LegitimateClients
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.paths import GUARDIAN_DIRECTORY
from fwtop.model.protocol import ListChange, Status, Undo
from fwtop.model.rule import Kind, Level, Match, Protection, Rule

_WHOLE, _QUICK = (460_000, 5_000_000), (20_000, 50_000)  # entries of the access list, and of a block list
_PPS = 300_000
_PORT = 8443  # of the rule whose level is switched: no client uses it
_TRIES = 100  # switches of a level, of which a row has the median
_WATCHED_SECONDS = 5.0
_NFT_MOST = 1_000_000  # entries: 5 million took more than 23 GB, and the kernel killed others for it
_IPSET_LOAD, _NFT_LOAD = "ipset restore: the three lists", "nft -f: the three lists"
_IPSET_SWITCH, _NFT_SWITCH = (
    "ipset restore: fill one set, empty another",
    "nft -f: the same, beside the lists",
)
_SAVE = "ipset save: the three lists"


def run(options: Options) -> Document:
    """Measure the table."""
    access, blocked = _QUICK if options.quick else _WHOLE
    rounds = options.choose(3, 1)
    with ExitStack() as open_:
        testbed = open_.enter_context(Testbed())
        directory = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="fwtop-bench-")))
        files = PolicyFiles(directory, testbed.lab.legitimate)
        files.write(access, blocked)
        client = open_.enter_context(discovery.connect(netns=testbed.victim))
        open_.callback(client.demand, Undo(all=True))
        open_.callback(
            shutil.rmtree, GUARDIAN_DIRECTORY / f"policy/netns-{testbed.victim}", ignore_errors=True
        )
        operations = _Operations(testbed, files, client)
        bare = _BareLists(testbed, files)
        notes = [
            f"an access list of {access:,} prefixes on three ports, two block lists of {blocked:,}, four "
            f"limits and three signatures, under {_PPS:,} packets/s from a prefix of a block list"
        ]
        served = _Served(testbed)
        with testbed.flooded(_PPS):
            rows = [*bare.rows(notes), *operations.rows()]
            results = measure([served.watched(row) for row in rows], rounds)
        notes.append(f"clients made {served.fewest:,} requests or more while a row was measured")
    return Document("policy", rounds, tuple(served.beside(results)), tuple(notes))


class _Served:
    """Counts, for each row, which share of the clients' requests succeeded while it was measured."""

    def __init__(self, testbed: Testbed) -> None:
        self._lab = testbed.lab
        self._shares: dict[str, list[float]] = {}
        self._tried: list[int] = []

    @property
    def fewest(self) -> int:
        """The fewest requests that were made during a measurement."""
        return min(self._tried, default=0)

    def watched(self, row: Row) -> Row:
        """Return a row that counts the clients' requests, too."""
        return replace(row, measure=partial(self._measure, row)) if row.unit == "s" else row

    def _measure(self, row: Row) -> float:
        shares = self._shares.setdefault(row.name, [])
        phase = f"{row.name}, round {len(shares) + 1}"
        self._lab.phase(phase)
        try:
            return row.measure()
        finally:
            self._lab.pause_clients()
            work = self._lab.results_by_client().get(phase, [])
            tried = sum(item["tried"] for item in work)
            self._tried.append(tried)
            shares.append(sum(item["succeeded"] for item in work) / max(tried, 1))

    def beside(self, results: tuple[Result, ...]) -> Iterator[Result]:
        """Yield the results, each with the clients' row behind it."""
        for result in results:
            yield result
            if shares := self._shares.get(result.name):
                yield Result("  clients' requests that succeeded", "share", tuple(shares))


class _BareLists:
    """The same lists by ipset(8) and nft(8) alone."""

    def __init__(self, testbed: Testbed, files: PolicyFiles) -> None:
        self._testbed, self._files = testbed, files
        text = "create bench-on hash:net timeout 3600\ncreate bench-shut hash:net timeout 3600\n"
        testbed.run("ipset", "restore", text=text)

    def rows(self, notes: list[str]) -> Iterator[Row]:
        """Yield the rows; without nft's where the lists are too long for it, which a note says."""
        yield Row(
            "nothing is changed, nothing blocked",
            "s",
            partial(seconds_of, partial(time.sleep, _WATCHED_SECONDS)),
        )
        yield Row(_IPSET_SWITCH, "s", self._switch)
        yield Row(_IPSET_LOAD, "s", self._load)
        yield Row(_SAVE, "s", self._save)
        if self._files.entries > _NFT_MOST:
            notes.append(f"nft -f is left out: it needs too much memory for more than {_NFT_MOST:,}")
            return
        load = partial(self._testbed.run, "nft", "-f", str(self._files.nft_script))
        yield Row(_NFT_LOAD, "s", partial(seconds_of, load), _IPSET_LOAD)
        yield Row(_NFT_SWITCH, "s", self._nft_switch, _IPSET_SWITCH)

    def _switch(self) -> float:
        halves = ("0.0.0.0/1", "128.0.0.0/1")
        text = "".join([f"add bench-on {half}\n" for half in halves]) + "flush bench-shut\n"
        taken = seconds_of(partial(self._testbed.run, "ipset", "-exist", "restore", text=text))
        self._testbed.run("ipset", "flush", "bench-on")
        return taken

    def _load(self) -> float:
        def load() -> None:
            for name in LISTS:
                self._testbed.run("ipset", "restore", "-f", str(self._files.ipset_script(name)))

        return seconds_of(load)

    def _save(self) -> float:
        """Write the sets that the row before loaded to files, then destroy them."""

        def save() -> None:
            for name in LISTS:
                saved = str(self._files.path(f"{name}.saved"))
                self._testbed.run("ipset", "save", f"bench-{name}", "-f", saved)

        taken = seconds_of(save)
        for name in LISTS:
            self._testbed.run("ipset", "destroy", f"bench-{name}")
        return taken

    def _nft_switch(self) -> float:
        """Change two small sets in the table that the row before loaded, then delete it."""
        text = "add element inet bench on { 0.0.0.0/1, 128.0.0.0/1 }\nflush set inet bench shut\n"
        taken = seconds_of(partial(self._testbed.run, "nft", "-f", "-", text=text))
        self._testbed.run("nft", "delete", "table", "inet", "bench")
        return taken


class _Operations:
    """What fwtop does, in the victim's namespace."""

    def __init__(self, testbed: Testbed, files: PolicyFiles, client: GuardianClient) -> None:
        """Protect a port, whose level is switched, by a list of its own."""
        self._netns, self._files, self._client = testbed.victim, files, client
        self._levels = cycle((Level.CLOSED, Level.PROTECTED))
        self._slowest = 0.0
        entries = [Prefix.parse(line) for line in files.path("access").read_text().split()]
        client.change_list(ListChange("own", "create"), entries)
        rule = Rule(
            "", Kind.PROTECT, Match(protocol=6, dport=_PORT), "bench", 3600,
            protection=Protection(Level.PROTECTED, ("own",)),
        )  # fmt: skip
        status = client.apply(rule, 0).data["status"]
        self._rule = replace(rule, replaces=status["rule"]["id"])

    def rows(self) -> list[Row]:
        """Return the rows."""
        connected = f"switch a level, connected client, median of {_TRIES}"
        return [
            Row(connected, "s", self._switch, _IPSET_SWITCH),
            Row("  the slowest of them", "s ", lambda: self._slowest, _IPSET_SWITCH),
            Row("switch a level, fwtop protect --yes", "s", self._command, _IPSET_SWITCH),
            Row("put the policy in", "s", self._put_in, _IPSET_LOAD),
            Row(
                "put in another with three signatures more",
                "s",
                partial(self._policy, "apply", SECOND),
                _IPSET_LOAD,
            ),
            Row("export it for ipset and iptables", "s", self._export, _SAVE),
            Row("go back", "s", partial(self._policy, "rollback", FIRST), _IPSET_LOAD),
            Row("restore after a restart", "s", self._restore, _IPSET_LOAD),
        ]

    def _switch(self) -> float:
        def once(level: Level) -> None:
            self._client.apply(replace(self._rule, protection=Protection(level, ("own",))), 0)

        taken = [seconds_of(partial(once, level)) for level in islice(self._levels, _TRIES)]
        self._slowest = max(taken)
        return statistics.median(taken)

    def _command(self) -> float:
        words = ("protect", f"{_PORT}/tcp", "--priority", "0", "--level", next(self._levels).value)
        return seconds_of(partial(run_fwtop, *words, "--yes", "--netns", self._netns))

    def _put_in(self) -> float:
        self._policy("apply", NOTHING)
        return self._policy("apply", FIRST)

    def _restore(self) -> float:
        self._forget()
        return self._policy("boot", FIRST)

    def _forget(self) -> None:
        found = self._client.demand(Status(allow=False)).data["rules"]
        for rule_id in (item["rule"]["id"] for item in found):
            if rule_id != self._rule.replaces:
                with contextlib.suppress(FwtopError):  # over already: a status may be some seconds old
                    self._client.demand(Undo((rule_id,)))
        for name in LISTS:
            self._client.change_list(ListChange(name, "delete"))

    def _export(self) -> float:
        directory = str(self._files.path("exported"))
        words = ("policy", "export", "--file", str(self._files.path(SECOND)), "--format", "iptables")
        return seconds_of(partial(run_fwtop, *words, "-o", directory))

    def _policy(self, action: str, name: str) -> float:
        words = ("policy", action, "--file", str(self._files.path(name)), "--yes", "--force")
        return seconds_of(partial(run_fwtop, *words, "--netns", self._netns))


LISTS = ("access", "block1", "block2")
NOTHING, FIRST, SECOND = "nothing", "first", "second"  # policies; the second has three signatures more
_POLICY = """
schema = 1
[list.access]
file = "access"
[list.block1]
file = "block1"
[list.block2]
file = "block2"
[[port]]
service = ["80/tcp", "443/tcp", "443/udp"]
acl = "access"
[[block]]
list = "block1"
[[block]]
list = "block2"
"""
_LIMITS = "".join(
    f'[[limit]]\nproto = "udp"\ndport = {port}\nper = 24\nrate = "{rate}/s"\n'
    for port, rate in ((53, 1000), (123, 500), (161, 10), (1900, 10))
)
_SIGNATURES = "".join(
    f'[[signature]]\nstring = "{text}"\nproto = "udp"\ndport = 443\n'
    for text in ("fwtop-one", "fwtop-two", "fwtop-three")
)
_NFT = """table inet bench {
 set on { type ipv4_addr; flags interval; }
 set shut { type ipv4_addr; flags interval; }
 set access { type ipv4_addr; flags interval; auto-merge; }
 set block1 { type ipv4_addr; }
 set block2 { type ipv4_addr; }
}
"""
_STEP = 2_654_435_769  # odd: its multiples modulo a power of two are all different
_BLOCK_BITS = 29  # each block list has an eighth of the address space of its own
_BLOCK_FIRST = {"block1": 4 << _BLOCK_BITS, "block2": 5 << _BLOCK_BITS}


class PolicyFiles:
    """Files in a directory; the clients' addresses are on the access list and on no block list."""

    def __init__(self, directory: Path, clients: LegitimateClients) -> None:
        self._directory = directory
        self._clients = clients.all
        self.entries = 0  # of all lists

    def path(self, name: str) -> Path:
        """Return the path of a list's or policy's file."""
        return self._directory / name

    def ipset_script(self, name: str) -> Path:
        """Return the file that `ipset restore` reads."""
        return self.path(f"{name}.ipset")

    @property
    def nft_script(self) -> Path:
        """The file that `nft -f` reads: all lists in one table."""
        return self.path("nft")

    def write(self, access: int, blocked: int) -> None:
        """Write lists with so many entries, and the policies."""
        lists = {
            "access": list(self._access(access)),
            "block1": [SOURCES, *self._blocked("block1", blocked - 1)],
            "block2": list(self._blocked("block2", blocked)),
        }
        self.entries = sum(map(len, lists.values()))
        for name, entries in lists.items():
            self.path(name).write_text("\n".join(entries) + "\n")
            head = f"create bench-{name} hash:net maxelem {2 * len(entries)}\n"
            adds = (f"add bench-{name} {entry}\n" for entry in _of_ipv4(entries))
            self._write_lines(self.ipset_script(name), [head], adds)
        self._write_lines(self.nft_script, [_NFT], _nft_elements(lists))
        for name, text in (
            (NOTHING, "schema = 1\n"),
            (FIRST, _POLICY + _LIMITS),
            (SECOND, _POLICY + _LIMITS + _SIGNATURES),
        ):
            self.path(name).write_text(text)

    @staticmethod
    def _write_lines(path: Path, *parts: Iterable[str]) -> None:
        with path.open("w") as file:
            for lines in parts:
                file.writelines(lines)

    def _access(self, count: int) -> Iterator[str]:
        yield from self._clients
        drawn = random.Random(20261122)  # noqa: S311
        for value in drawn.sample(range(11 << 16, 126 << 16), count - len(self._clients)):
            yield f"{value >> 16}.{value >> 8 & 255}.{value & 255}.0/24"

    def _blocked(self, name: str, count: int) -> Iterator[str]:
        first, mask = _BLOCK_FIRST[name], (1 << _BLOCK_BITS) - 1
        spared = set(self._clients)
        number = given = 0
        while given < count:
            value = first + (number * _STEP & mask)
            number += 1
            text = f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"
            if text not in spared:
                given += 1
                yield text


def _of_ipv4(entries: Iterable[str]) -> Iterator[str]:
    return (entry for entry in entries if ":" not in entry)


def _nft_elements(lists: dict[str, list[str]]) -> Iterator[str]:
    """Yield lines that fill nft's sets; those of single addresses get a prefix address by address."""
    for name, entries in lists.items():
        yield f"add element inet bench {name} {{ "
        for entry in _of_ipv4(entries):
            yield f"{entry}, " if name == "access" else _single(entry)
        yield "}\n"


def _single(entry: str) -> str:
    if "/" not in entry:
        return f"{entry}, "
    prefix = Prefix.parse(entry)
    span = range(prefix.value, prefix.value + (1 << prefix.bits - prefix.length))
    return "".join([f"{Prefix(4, value, 32)}, " for value in span])
