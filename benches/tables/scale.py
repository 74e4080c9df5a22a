"""Loading 5 and 25 million addresses (P8): seconds, and the memory of whoever has to hold them.

`ipset restore` is the reference for 5 million; fwtop puts no more into an ipset, and nft needs more than
23 GB for as many. The addresses are spread evenly, so that nearly each /24 has one or two: 32 bytes of the
table that counts each, of up to 5 million, and 4 bytes of the one that doesn't.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benches.tables.bulk import Lists, has_xdp, seconds_of
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.bench.testbed import Testbed
from fwtop.kernel import bpf, namespaces
from fwtop.model.paths import PIN_DIRECTORY

_MANY, _MOST = 5_000_000, 25_000_000
_QUICKER = 50  # times fewer
_STEP = 2_654_435_769  # odd: its multiples modulo 2^32 are all different
_CHUNK = 1 << 18
_POLL_SECONDS = 0.05
_SET = "bench"
_MIB = 1 << 20


def run(options: Options) -> Document:
    """Measure the table."""
    many, most = (count // (_QUICKER if options.quick else 1) for count in (_MANY, _MOST))
    rounds = options.choose(2, 1)
    with Testbed() as testbed, tempfile.TemporaryDirectory(prefix="fwtop-bench-") as directory:
        notes: list[str] = []
        with_xdp = has_xdp(testbed, notes)
        lists = _Rows(testbed, Path(directory))
        rows = measure(list(lists.rows(many, most, with_xdp=with_xdp)), rounds)
        return Document("scale", rounds, rows, tuple(notes))


class _Rows(Lists):
    """The files, and the rows that load them; rows of memory tell what the load before them took."""

    def __init__(self, testbed: Testbed, directory: Path) -> None:
        super().__init__(testbed, directory)
        self._took: dict[str, float] = {}

    def rows(self, many: int, most: int, *, with_xdp: bool) -> Iterator[Row]:
        """Return the rows; writes the files."""
        restore = f"{many:,}: ipset restore"
        file = self._write(str(many), addresses(many))
        head = f"create {_SET} hash:net family inet maxelem {1 << (many - 1).bit_length()}"
        script = self._write("restore", [head], (f"add {_SET} {one}" for one in addresses(many)))
        yield Row(restore, "s", partial(self._restore, script))
        yield Row(f"{many:,}: fwtop block @file", "s", partial(self._own, file), restore)
        yield from self._memory(("client", "guardian"))
        if not with_xdp:
            return
        yield Row(
            f"{many:,}: fwtop block @file --via xdp", "s", partial(self._own, file, "--via", "xdp"), restore
        )
        own = partial(self._own, self._write(str(most), addresses(most)), "--via", "xdp")
        yield Row(f"{most:,}: fwtop block @file --via xdp", "s", own)
        yield from self._memory(("client", "guardian", "maps"))

    def _memory(self, names: tuple[str, ...]) -> Iterator[Row]:
        said = {
            "client": "  the client at most",
            "guardian": "  the guardian at most",
            "maps": "  the maps, for as long as the rule runs",
        }
        for name in names:
            yield Row(
                f"{said[name]}{'' if 'maps' in names else ' (ipset)'}",
                "MiB",
                partial(self._took.__getitem__, name),
            )

    def _own(self, file: Path, *words: str) -> float:
        netns = ("--netns", self._testbed.victim)
        argv = fwtop_argv("block", f"@{file}", "--yes", "--force", *words, *netns)
        taken = seconds_of(partial(self._watched, argv))
        about = json.loads(run_fwtop("status", "--json", *netns))["guardian"]
        self._took |= {"guardian": _peak_mib(int(about["pid"])), "maps": self._maps_mib()}
        run_fwtop("undo", "--all", *netns)
        return taken

    def _watched(self, argv: list[str]) -> None:
        """Run a client and note its memory; raises CalledProcessError."""
        peak, over = [0.0], threading.Event()
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as client:

            def watch() -> None:
                while not over.wait(_POLL_SECONDS):
                    peak[0] = max(peak[0], _peak_mib(client.pid))

            watcher = threading.Thread(target=watch)
            watcher.start()
            status = client.wait()
            over.set()
            watcher.join()
        if status:
            raise subprocess.CalledProcessError(status, argv)
        self._took["client"] = peak[0]

    def _maps_mib(self) -> float:
        namespace = namespaces.open_netns(self._testbed.victim)
        number = namespaces.inode(namespace)
        os.close(namespace)
        total = 0
        for path in (PIN_DIRECTORY / str(number)).glob("list-*"):
            descriptor = bpf.open_pin(path)
            try:
                total += bpf.value_size(descriptor)
            finally:
                os.close(descriptor)
        return total / _MIB


def addresses(count: int) -> Iterator[str]:
    """Yield different addresses, evenly spread, in no order."""
    import numpy as np

    halves = [f"{number >> 8}.{number & 255}" for number in range(1 << 16)]
    given = first = 0
    while given < count:
        value = np.arange(first, first + _CHUNK, dtype=np.uint64) * np.uint64(_STEP) & np.uint64(0xFFFFFFFF)
        top = value >> np.uint64(24)
        value = value[(top >= 1) & (top < 200) & (top != 10) & (top != 127)][: count - given]
        pairs = zip((value >> np.uint64(16)).tolist(), (value & np.uint64(0xFFFF)).tolist(), strict=True)
        yield from (f"{halves[high]}.{halves[low]}" for high, low in pairs)
        first, given = first + _CHUNK, given + len(value)


def _peak_mib(pid: int) -> float:
    """Return the most memory that a process had, 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
