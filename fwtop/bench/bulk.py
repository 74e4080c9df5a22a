"""Long lists into the kernel (P8), beside Akamai's figures (netdev 0.1, 2015): seconds for so many entries.

The published rows are of addresses, the rest of prefixes of mixed lengths, as block lists are. What is slow
by nature (one program a line) is measured on fewer entries and scaled up: the name says so.

Where `fwtop block @file --via xdp` spends its time, by the times of system calls (strace -f -ttt, code in the
cache as in every round but the first): start of the client and reading the file 18 %, start of the guardian
18 %, list received, checked and weighed against the other rules 15 %, journal 12 %, start of the loader 8 %,
tables built 19 %, program loaded and attached 7 %. Gone are a plan that nobody reads with --yes (12 % of
before) and the compiler (14 %), which runs beside the building of the tables, and once a boot.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fwtop.bench import ways
from fwtop.bench.arena import Arena
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import run_fwtop
from fwtop.model.address import Prefix

_WHOLE, _QUICK = 1_000_000, 50_000
_ONE_BY_ONE, _BATCH = 1000, 4096
_FEW, _ADDED = 10_000, 200
_FEW_FILE = f"{_FEW:,}: nft -f"
_RESTORE, _PREFIXES = "ipset restore, addresses", "ipset restore, prefixes"
_PUBLISHED_RESTORE_SECONDS = 1.91
_SET = "bench"
_TABLE, _NFT_SET = "bench", "entries"  # "list" is a word of nft's
_NFT = f"add table inet {_TABLE}\nadd set inet {_TABLE} {_NFT_SET} {{ type ipv4_addr; }}\n"


def run(options: Options) -> Document:
    """Measure the table."""
    count, rounds = (_QUICK if options.quick else _WHOLE), options.choose(3, 1)
    with Arena() as arena, tempfile.TemporaryDirectory(prefix="fwtop-bench-") as directory:
        lists = _Lists(arena, Path(directory), count)
        rows = [*lists.published(), *lists.prefixes()]
        notes: list[str] = []
        if ways.usable(arena, {"fwtop block --via xdp": ["block", "192.0.2.0/24", "--via", "xdp"]}, notes):
            rows.append(lists.own("fwtop block @file --via xdp", ["--via", "xdp"]))
        notes.insert(0, f"{count:,} entries")
        return Document("bulk", rounds, measure(rows, rounds), tuple(notes))


class _Lists:
    """The lists, as each tool wants them, and the ways into the kernel."""

    def __init__(self, arena: Arena, directory: Path, count: int) -> None:
        self._arena, self._directory, self._count = arena, directory, count
        chance = random.Random(20261121)  # noqa: S311
        self._addresses = [_text(value) for value in chance.sample(range(1 << 24, 200 << 24), count)]
        nets = list(_mixed_prefixes(chance, count))
        self._file = self._write("list", [""], nets)
        create = f"create {_SET} hash:{{}} family inet maxelem 1048576"
        self._by_address = self._write("addresses", [create.format("ip")], self._adding(self._addresses))
        self._by_prefix = self._write("prefixes", [create.format("net")], self._adding(nets))
        self._empty = create.format("ip").split()

    @staticmethod
    def _adding(entries: list[str]) -> list[str]:
        return [f"add {_SET} {entry}" for entry in entries]

    def _write(self, name: str, head: list[str], lines: list[str]) -> Path:
        path = self._directory / name
        path.write_text("\n".join([*head, *lines]).lstrip("\n") + "\n")
        return path

    def published(self) -> list[Row]:
        """Return Akamai's rows."""
        scaled = f"({_ONE_BY_ONE:,} measured, scaled)"
        few = f"({_ADDED:,} measured, scaled)"
        return [
            self._row(_RESTORE, 1.91, partial(self._restore, self._by_address)),
            self._row(f"ipset add, one by one {scaled}", 336.5, self._add_one_by_one),
            self._row(
                f"nft add element in batches of {_BATCH:,}", 12.0, partial(self._nft, _BATCH, self._count)
            ),
            self._row("nft -f", 1.65, partial(self._nft, self._count, self._count)),
            self._row("ipset save", 0.85, self._save),
            Row(_FEW_FILE, "s", partial(self._nft, _FEW, _FEW)),
            Row(f"{_FEW:,}: ipset add, one by one {few}", "s", self._few_by_ipset, _FEW_FILE, 20.4 / 0.10),
            Row(f"{_FEW:,}: nft add element, one by one {few}", "s", self._few_by_nft, _FEW_FILE, 214 / 0.10),
        ]

    def prefixes(self) -> list[Row]:
        """Return the rows of prefixes: the reference and fwtop."""
        return [
            Row(_PREFIXES, "s", partial(self._restore, self._by_prefix)),
            self.own("fwtop block @file", []),
        ]

    def own(self, name: str, words: list[str]) -> Row:
        """Return a row of fwtop's."""
        return Row(name, "s", partial(self._own, words), _PREFIXES)

    def _row(self, name: str, published: float, value: Callable[[], float]) -> Row:
        ratio = published / _PUBLISHED_RESTORE_SECONDS
        return Row(name, "s", value, None if name == _RESTORE else _RESTORE, ratio)

    def _restore(self, path: Path) -> float:
        taken = _seconds(partial(self._arena.run, "ipset", "restore", "-f", str(path)))
        self._arena.run("ipset", "destroy", _SET)
        return taken

    def _add_one_by_one(self) -> float:
        return self._ipset_each(_ONE_BY_ONE) * self._count / _ONE_BY_ONE

    def _few_by_ipset(self) -> float:
        return self._ipset_each(_ADDED) * _FEW / _ADDED

    def _ipset_each(self, count: int) -> float:
        """Return the seconds that so many entries take, one program each."""
        self._arena.run("ipset", *self._empty)
        lines = ["ipset " + line for line in self._adding(self._addresses[:count])]
        taken = _seconds(partial(self._arena.run, "sh", str(self._write("script", ["set -e"], lines))))
        self._arena.run("ipset", "destroy", _SET)
        return taken

    def _few_by_nft(self) -> float:
        """Add to a set that is half full: nft reads it whole each time, so its size is the price."""
        half = self._addresses[: _FEW // 2]
        more = self._addresses[_FEW // 2 : _FEW // 2 + _ADDED]
        self._arena.run("nft", "-f", "-", text=_NFT + self._elements(half))
        lines = [f"nft add element inet {_TABLE} {_NFT_SET} '{{ {address} }}'" for address in more]
        taken = _seconds(partial(self._arena.run, "sh", str(self._write("script", ["set -e"], lines))))
        self._arena.run("nft", "delete", "table", "inet", _TABLE)
        return taken * _FEW / _ADDED

    @staticmethod
    def _elements(addresses: list[str]) -> str:
        return f"add element inet {_TABLE} {_NFT_SET} {{ {','.join(addresses)} }}\n"

    def _nft(self, batch: int, count: int) -> float:
        starts = range(0, count, batch)
        scripts = [self._elements(self._addresses[start : min(start + batch, count)]) for start in starts]
        files = [self._write(f"nft-{number}", [""], [text]) for number, text in enumerate(scripts)]
        loading = self._write("load", ["set -e"], [f"nft -f {path}" for path in files])
        self._arena.run("nft", "-f", "-", text=_NFT)
        taken = _seconds(partial(self._arena.run, "sh", str(loading)))
        self._arena.run("nft", "delete", "table", "inet", _TABLE)
        return taken

    def _save(self) -> float:
        self._arena.run("ipset", "restore", "-f", str(self._by_address))
        saved = str(self._directory / "saved")
        taken = _seconds(partial(self._arena.run, "ipset", "save", _SET, "-f", saved))
        self._arena.run("ipset", "destroy", _SET)
        return taken

    def _own(self, words: list[str]) -> float:
        netns = self._arena.victim
        taken = _seconds(partial(run_fwtop, "block", f"@{self._file}", "--yes", *words, "--netns", netns))
        run_fwtop("undo", "--all", "--netns", netns)
        return taken


def _mixed_prefixes(chance: random.Random, count: int) -> Iterator[str]:
    """Draw distinct prefixes from /20 to /32; some lie within others, as in real lists."""
    seen: set[tuple[int, int]] = set()
    while len(seen) < count:
        length = chance.choice((20, 22, 24, 24, 24, 28, 32, 32, 32, 32))
        value = chance.randrange(1 << 24, 200 << 24) >> (32 - length) << (32 - length)
        if value >> 24 not in (10, 127) and (value, length) not in seen:
            seen.add((value, length))
            yield str(Prefix(4, value, length))


def _text(value: int) -> str:
    return f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started
