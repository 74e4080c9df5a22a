"""Loading long lists into the kernel (P8), next to Akamai's figures (netdev 0.1, 2015): seconds per list.

The published rows load addresses; the others load prefixes of mixed lengths, as block lists have them. Rows
that start one process per entry are measured on fewer entries and scaled up; their names say so.

Where `fwtop block @file --via xdp` spends its time, from system call times (strace -f -ttt, compiled code
cached): starting the client and reading the file 18 %, starting the guardian 18 %, receiving and checking the
list 15 %, a journal on disk (gone since) 12 %, starting the loader 8 %, building the tables 19 %, loading and
attaching 7 %.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from fwtop.bench import drop_methods
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import run_fwtop
from fwtop.bench.testbed import Testbed
from fwtop.lab.network import VICTIM_INTERFACE
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import prefix_text

_WHOLE, _QUICK = 1_000_000, 50_000
_ONE_BY_ONE, _BATCH = 1000, 4096
_FEW, _ADDED = 10_000, 200  # 10,000 addresses are all that xdp-filter's map takes
_FEW_FILE = f"{_FEW:,}: nft -f"
_RESTORE, _PREFIXES = "ipset restore, addresses", "ipset restore, prefixes"
_PUBLISHED_RESTORE_SECONDS = 1.91
_MIXED = "ipset restore, IPv4 and IPv6"
_SET, _SET6 = "bench", "bench6"
_TABLE, _NFT_SET = "bench", "entries"  # "list" is a word of nft's
_NFT = f"add table inet {_TABLE}\nadd set inet {_TABLE} {_NFT_SET} {{ type ipv4_addr; }}\n"


def run(options: Options) -> Document:
    """Measure the table."""
    count, rounds = (_QUICK if options.quick else _WHOLE), options.choose(3, 1)
    with Testbed() as testbed, tempfile.TemporaryDirectory(prefix="fwtop-bench-") as directory:
        lists = _Rows(testbed, Path(directory), count)
        rows = [*lists.published(), *lists.prefixes()]
        if shutil.which("xdp-filter"):
            rows.append(lists.by_xdp_filter())
        notes: list[str] = []
        if has_xdp(testbed, notes):
            rows.append(lists.own("fwtop block @file --via xdp", ["--via", "xdp"]))
        notes.insert(0, f"{count:,} entries")
        return Document("bulk", rounds, measure(rows, rounds), tuple(notes))


class Lists:
    """Files of long lists, and how they are loaded on the victim."""

    def __init__(self, testbed: Testbed, directory: Path) -> None:
        self._testbed, self._directory = testbed, directory

    def _write(self, name: str, *parts: Iterable[str]) -> Path:
        path = self._directory / name
        with path.open("w") as file:
            file.writelines(f"{line}\n" for lines in parts for line in lines)
        return path

    def _restore(self, path: Path) -> float:
        taken = seconds_of(partial(self._testbed.run, "ipset", "restore", "-f", str(path)))
        self._testbed.run("ipset", "destroy")
        return taken


class _Rows(Lists):
    """The lists in each tool's format, and the rows that load them."""

    def __init__(self, testbed: Testbed, directory: Path, count: int) -> None:
        super().__init__(testbed, directory)
        self._count = count
        chance = random.Random(20261121)  # noqa: S311
        self._addresses = [text_of(value) for value in chance.sample(range(1 << 24, 200 << 24), count)]
        nets = list(_mixed_prefixes(chance, count))
        self._file = self._write("list", nets)
        mixed = [*nets[: count * 4 // 5], *_prefixes_of_ipv6(chance, count // 5)]
        chance.shuffle(mixed)
        self._mixed = self._write("mixed", mixed)
        create = f"create {_SET} hash:{{}} family inet maxelem 1048576"
        self._by_address = self._write("addresses", [create.format("ip")], self._adding(self._addresses))
        self._by_prefix = self._write("prefixes", [create.format("net")], self._adding(nets))
        both = [create.format("net"), create.format("net").replace(_SET, _SET6).replace("inet ", "inet6 ")]
        lines = [f"add {_SET6 if ':' in entry else _SET} {entry}" for entry in mixed]
        self._by_mixed = self._write("both", both, lines)
        self._empty = create.format("ip").split()

    @staticmethod
    def _adding(entries: list[str]) -> list[str]:
        return [f"add {_SET} {entry}" for entry in entries]

    def published(self) -> list[Row]:
        """Return Akamai's rows."""
        scaled = f"({_ONE_BY_ONE:,} measured, scaled)"
        few = f"({_ADDED:,} measured, scaled)"
        return [
            self._row(_RESTORE, 1.91, partial(self._restore, self._by_address)),
            self._row(
                f"ipset add, one by one {scaled}", 336.5, partial(self._ipset_each, _ONE_BY_ONE, self._count)
            ),
            self._row(
                f"nft add element in batches of {_BATCH:,}", 12.0, partial(self._nft, _BATCH, self._count)
            ),
            self._row("nft -f", 1.65, partial(self._nft, self._count, self._count)),
            self._row("ipset save", 0.85, self._save),
            Row(_FEW_FILE, "s", partial(self._nft, _FEW, _FEW)),
            Row(
                f"{_FEW:,}: ipset add, one by one {few}",
                "s",
                partial(self._ipset_each, _ADDED, _FEW),
                _FEW_FILE,
                20.4 / 0.10,
            ),
            Row(f"{_FEW:,}: nft add element, one by one {few}", "s", self._few_by_nft, _FEW_FILE, 214 / 0.10),
        ]

    def prefixes(self) -> list[Row]:
        """Return the rows that load prefixes: ipset restore and fwtop."""
        return [
            Row(_PREFIXES, "s", partial(self._restore, self._by_prefix)),
            self.own("fwtop block @file", []),
            Row(_MIXED, "s", partial(self._restore, self._by_mixed)),
            Row("fwtop block @file, IPv4 and IPv6", "s", partial(self._own, [], self._mixed), _MIXED),
        ]

    def own(self, name: str, words: list[str]) -> Row:
        """Return the row of a `fwtop block`."""
        return Row(name, "s", partial(self._own, words, self._file), _PREFIXES)

    def by_xdp_filter(self) -> Row:
        """Return the row of xdp-filter, which starts a process for each address."""
        name = f"{_FEW:,}: xdp-filter ip, one by one ({_ADDED:,} measured, scaled)"
        return Row(name, "s", self._few_by_xdp_filter, _FEW_FILE)

    def _row(self, name: str, published: float, value: Callable[[], float]) -> Row:
        ratio = published / _PUBLISHED_RESTORE_SECONDS
        return Row(name, "s", value, None if name == _RESTORE else _RESTORE, ratio)

    def _ipset_each(self, count: int, of: int) -> float:
        """Add `count` entries, one ipset process each; return the seconds for `of`."""
        self._testbed.run("ipset", *self._empty)
        lines = ["ipset " + line for line in self._adding(self._addresses[:count])]
        taken = seconds_of(partial(self._testbed.run, "sh", str(self._write("script", ["set -e"], lines))))
        self._testbed.run("ipset", "destroy", _SET)
        return taken * of / count

    def _few_by_nft(self) -> float:
        """Add to a half-full set: nft reads the whole set each time, so its size sets the cost."""
        half = self._addresses[: _FEW // 2]
        more = self._addresses[_FEW // 2 : _FEW // 2 + _ADDED]
        self._testbed.run("nft", "-f", "-", text=_NFT + self._elements(half))
        lines = [f"nft add element inet {_TABLE} {_NFT_SET} '{{ {address} }}'" for address in more]
        taken = seconds_of(partial(self._testbed.run, "sh", str(self._write("script", ["set -e"], lines))))
        self._testbed.run("nft", "delete", "table", "inet", _TABLE)
        return taken * _FEW / _ADDED

    def _few_by_xdp_filter(self) -> float:
        """Time the additions on the victim: the maps' pins are in the mount namespace of one shell."""
        head = ["set -e", "mount -t bpf bpf /sys/fs/bpf", f"xdp-filter load {VICTIM_INTERFACE} -p allow"]
        adds = [f"xdp-filter ip {address} -m src" for address in self._addresses[:_ADDED]]
        script = self._write("script", [*head, "date +%s.%N"], [*adds, "date +%s.%N"])
        try:
            started, ended = map(float, self._testbed.run("sh", str(script)).split())
        finally:
            self._testbed.run("ip", "link", "set", VICTIM_INTERFACE, "xdp", "off")
        return (ended - started) * _FEW / _ADDED

    @staticmethod
    def _elements(addresses: list[str]) -> str:
        return f"add element inet {_TABLE} {_NFT_SET} {{ {','.join(addresses)} }}"

    def _nft(self, batch: int, count: int) -> float:
        starts = range(0, count, batch)
        scripts = [self._elements(self._addresses[start : min(start + batch, count)]) for start in starts]
        files = [self._write(f"nft-{number}", [text]) for number, text in enumerate(scripts)]
        loading = self._write("load", ["set -e"], [f"nft -f {path}" for path in files])
        self._testbed.run("nft", "-f", "-", text=_NFT)
        taken = seconds_of(partial(self._testbed.run, "sh", str(loading)))
        self._testbed.run("nft", "delete", "table", "inet", _TABLE)
        return taken

    def _save(self) -> float:
        self._testbed.run("ipset", "restore", "-f", str(self._by_address))
        saved = str(self._directory / "saved")
        taken = seconds_of(partial(self._testbed.run, "ipset", "save", _SET, "-f", saved))
        self._testbed.run("ipset", "destroy", _SET)
        return taken

    def _own(self, words: list[str], file: Path) -> float:
        netns = self._testbed.victim
        taken = seconds_of(partial(run_fwtop, "block", f"@{file}", "--yes", *words, "--netns", netns))
        run_fwtop("undo", "--all", "--netns", netns)
        return taken


def _mixed_prefixes(chance: random.Random, count: int) -> Iterator[str]:
    """Draw distinct prefixes of /20 to /32, some nested in others, as in real lists."""
    seen: set[tuple[int, int]] = set()
    while len(seen) < count:
        length = chance.choice((20, 22, 24, 24, 24, 28, 32, 32, 32, 32))
        value = chance.randrange(1 << 24, 200 << 24) >> (32 - length) << (32 - length)
        if value >> 24 not in (10, 127) and (value, length) not in seen:
            seen.add((value, length))
            yield str(Prefix(4, value, length))


def _prefixes_of_ipv6(chance: random.Random, count: int) -> Iterator[str]:
    """Draw distinct prefixes of /36 to /128 of global unicast addresses."""
    seen: set[tuple[int, int]] = set()
    while len(seen) < count:
        length = chance.choice((36, 40, 44, 48, 48, 48, 56, 64, 64, 128))
        value = (1 << 125 | chance.getrandbits(125)) >> 128 - length << 128 - length
        if (value, length) not in seen:
            seen.add((value, length))
            yield str(Prefix(6, value, length))


def has_xdp(testbed: Testbed, notes: list[str]) -> bool:
    """Return whether compiled rules work here; a note says why they don't."""
    words = ["block", "192.0.2.0/24", "--via", "xdp"]
    return bool(drop_methods.installable(testbed, {"fwtop block --via xdp": words}, notes))


def text_of(value: int) -> str:
    """Return an IPv4 address."""
    return prefix_text(Prefix(4, value, 32))


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long work takes."""
    started = time.monotonic()
    work()
    return time.monotonic() - started
