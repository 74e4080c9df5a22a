"""Changing a list of a million addresses while rules use it: seconds a change, by tool.

`ipset restore` and `nft -f` change a bare set that a rule refers to, ipset entry by entry. fwtop's rows are
one command each, and the same request from a client that is connected already: what remains without starting
Python.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benches.tables.bulk import Lists, has_xdp, seconds_of, text_of
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import run_fwtop
from fwtop.bench.testbed import Testbed
from fwtop.client import discovery
from fwtop.client.discovery import GuardianClient
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.protocol import ListChange

_WHOLE, _QUICK = 1_000_000, 50_000
_SET, _TABLE, _NFT_SET = "bench", "bench", "entries"
_CREATE = f"create {_SET} hash:ip family inet maxelem 4194304\n"
_RESTORE = ["ipset", "-exist", "restore", "-f"]
_NFT = (
    f"add table inet {_TABLE}\n"
    f"add set inet {_TABLE} {_NFT_SET} {{ type ipv4_addr; }}\n"
    f"add chain inet {_TABLE} c {{ type filter hook prerouting priority 0; }}\n"
    f"add rule inet {_TABLE} c ip saddr @{_NFT_SET} drop\n"
)


def run(options: Options) -> Document:
    """Measure the table."""
    count, rounds = (_QUICK if options.quick else _WHOLE), options.choose(3, 1)
    with ExitStack() as open_:
        testbed = open_.enter_context(Testbed())
        directory = open_.enter_context(tempfile.TemporaryDirectory(prefix="fwtop-bench-"))
        notes = [
            f"a list of {count:,} IPv4 addresses that a rule uses, which gets 1, 1,000 and {count:,} more"
        ]
        via = ["ipset", *(["xdp"] if has_xdp(testbed, notes) else [])]
        client = open_.enter_context(discovery.connect(netns=testbed.victim))
        changes = _Changes(testbed, Path(directory), count, client)
        changes.prepare(via)
        rows = [row for size in (1, 1000, count) for row in changes.rows(size)]
        try:
            return Document("lists", rounds, measure(rows, rounds), tuple(notes))
        finally:
            run_fwtop("undo", "--all", "--netns", testbed.victim)


class _Changes(Lists):
    """Adds entries to live lists and takes them out again."""

    def __init__(self, testbed: Testbed, directory: Path, count: int, client: GuardianClient) -> None:
        super().__init__(testbed, directory)
        self._client = client
        drawn = random.Random(20261122).sample(range(11 << 24, 126 << 24), 2 * count)  # noqa: S311
        self._listed, self._more = (
            [text_of(value) for value in part] for part in (drawn[:count], drawn[count:])
        )
        self._via: list[str] = []

    def prepare(self, via: Sequence[str]) -> None:
        """Make the lists, and rules that use them."""
        self._via = list(via)
        self._testbed.run("ipset", "restore", text=_CREATE + self._restore_lines("add", self._listed))
        self._testbed.run(
            "iptables", "-t", "raw", "-A", "PREROUTING", "-m", "set", "--match-set", _SET, "src"
        )
        self._testbed.run("nft", "-f", "-", text=_NFT + self._nft_line("add", self._listed))
        file = self._write("listed", self._listed)
        for name in via:
            run_fwtop("list", "create", name, f"@{file}", "--netns", self._testbed.victim)
            words = ["block", "--list", name, "--via", name, "--yes", "--force", "--ttl", "1h"]
            run_fwtop(*words, "--netns", self._testbed.victim)

    def rows(self, size: int) -> list[Row]:
        """Return the rows that add so many entries."""
        more = self._more[:size]
        restore = f"{size:,}: ipset restore"
        found = [
            Row(restore, "s", partial(self._timed, self._restore_lines, "del", more, _RESTORE)),
            Row(
                f"{size:,}: nft -f",
                "s",
                partial(self._timed, self._nft_line, "delete", more, ["nft", "-f"]),
                restore,
            ),
        ]
        file = self._write(f"more-{size}", more)
        entries = PrefixRows.of([Prefix.parse(text) for text in more])
        for via in self._via:
            own = f"{size:,}: fwtop list add, rule via {via}"
            found += [
                Row(own, "s", partial(self._command, via, file), restore),
                Row(f"{own}, connected client", "s", partial(self._request, via, entries), restore),
            ]
        return found

    def _timed(
        self, lines: Callable[[str, Sequence[str]], str], remove: str, more: list[str], command: list[str]
    ) -> float:
        paths = [self._write(verb, [lines(verb, more)]) for verb in ("add", remove)]
        taken = seconds_of(partial(self._testbed.run, *command, str(paths[0])))
        self._testbed.run(*command, str(paths[1]))
        return taken

    def _command(self, name: str, file: Path) -> float:
        words = partial(run_fwtop, "list")
        taken = seconds_of(partial(words, "add", name, f"@{file}", "--netns", self._testbed.victim))
        words("remove", name, f"@{file}", "--netns", self._testbed.victim)
        return taken

    def _request(self, name: str, entries: PrefixRows) -> float:
        change: Callable[[str], object] = lambda action: self._client.change_list(  # noqa: E731
            ListChange(name, action), entries
        )
        taken = seconds_of(partial(change, "add"))
        change("remove")
        return taken

    @staticmethod
    def _restore_lines(verb: str, entries: Sequence[str]) -> str:
        return "".join([f"{verb} {_SET} {entry}\n" for entry in entries])

    @staticmethod
    def _nft_line(verb: str, entries: Sequence[str]) -> str:
        return f"{verb} element inet {_TABLE} {_NFT_SET} {{ {','.join(entries)} }}\n"
