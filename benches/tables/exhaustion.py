"""A full connection table, and what `fwtop harden conntrack` does for new clients.

The victim's only rule on states is for port 22, yet every connection is tracked. Its table is full of
connections to port 443; a real nginx answers on port 8080, where a client comes every 20 ms and waits 0.25 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shutil import which

from benches.connections import count, establish
from fwtop.bench.frame import Document, Options, Row, measure, until
from fwtop.bench.programs import run_fwtop
from fwtop.bench.testbed import Testbed
from fwtop.kernel.namespaces import inside
from fwtop.lab import network as net
from fwtop.model.errors import FwtopError

SIZES = (262_144, 2_000_000)
_PORT, _FLOODED = 8080, 443
_EVERY_SECONDS, _PATIENCE_SECONDS, _READY_SECONDS = 0.02, 0.25, 10.0
_MOST = Path("/proc/sys/net/netfilter/nf_conntrack_max")
# Waits for the pipe's end; leaves what somebody else has set meanwhile.
_GIVE_BACK = 'trap "" HUP INT TERM; read -r _; [ "$(cat "$1")" != "$2" ] || echo "$3" > "$1"'
_STATEFUL = "*filter\n-A INPUT -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW -j ACCEPT\nCOMMIT\n"
_NGINX = """daemon off; worker_processes 1; pid {0}/pid; error_log {0}/error;
events {{ worker_connections 1024; }}
http {{ access_log off; client_body_temp_path {0}/b; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f;
 uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;
 server {{ listen {1}; location / {{ return 200 "served"; }} }} }}
"""
_NOTES = (
    "clients: one every 20 ms, who gives up after 0.25 s; % served",
    "applied: 'fwtop harden conntrack --apply', from before its start to its end",
    "back: seconds from its start until ten clients in a row were served",
)


def run(options: Options) -> Document:
    """Measure the table."""
    if which("nginx") is None:
        raise FwtopError("nginx is not installed; nothing was started: apt-get install nginx-light", 3)
    rounds, seconds = options.choose(3, 1), 2.0 if options.quick else 4.0
    with Testbed() as testbed, _served(testbed):
        testbed.run("iptables-restore", "--noflush", text=_STATEFUL)
        rows: list[Row] = []
        for size in SIZES[:1] if options.quick else SIZES:
            rows += _rows(_Turn(testbed, size, seconds))
        return Document("exhaustion", rounds, measure(rows, rounds), _NOTES)


def _rows(turn: _Turn) -> Iterator[Row]:
    """Yield the rows of one size; the first makes the turn that the others report."""
    size = f"{turn.size:,} entries"
    yield Row(f"table empty ({size} at most)", "% served", turn.run)
    for name in ("full", "applied", "hardened"):
        yield Row(f"{size}, {name}", "% served", partial(turn.figures.__getitem__, name))
    for name, unit in (("back", "s"), ("left", "entries")):
        yield Row(f"{size}, {name}", unit, partial(turn.figures.__getitem__, name))


class _Turn:
    """One table: filled, hardened, and given back."""

    def __init__(self, testbed: Testbed, size: int, seconds: float) -> None:
        self._testbed, self.size, self._seconds = testbed, size, seconds
        self.figures: dict[str, float] = {}

    def run(self) -> float:
        """Measure everything; returns how clients fare while the table is empty, in percent."""
        with room(self.size):
            empty = self._share(self._for(self._seconds))
            self._testbed.run("conntrack", "-F")  # the clients' entries would expire, and make room
            with inside(self._testbed.victim):
                establish(self.size, net.VICTIM_4, _FLOODED)
            self.figures["full"] = self._share(self._for(self._seconds))
            self._harden()
            self.figures["left"] = count(self._testbed)
            self.figures["hardened"] = self._share(self._for(self._seconds))
            run_fwtop("undo", "--all", "--netns", self._testbed.victim)
            self._testbed.run("conntrack", "-F")
        return empty

    def _harden(self) -> None:
        over, found = threading.Event(), list[tuple[float, bool]]()
        asking = threading.Thread(target=lambda: found.extend(_ask(self._testbed, over)))
        asking.start()
        started = time.monotonic()
        try:
            run_fwtop("harden", "conntrack", "--apply", "--yes", "--netns", self._testbed.victim)
        finally:
            over.set()
            asking.join()
        self.figures["applied"] = self._share(found)
        served = [good for _, good in found]
        first = next((at for at in range(len(served)) if all(served[at : at + 10])), None)
        self.figures["back"] = found[first][0] - started if first is not None else float("inf")

    def _for(self, seconds: float) -> list[tuple[float, bool]]:
        over = threading.Event()
        timer = threading.Timer(seconds, over.set)
        timer.start()
        return _ask(self._testbed, over)

    def _share(self, found: list[tuple[float, bool]]) -> float:
        return 100 * sum(good for _, good in found) / max(len(found), 1)


@contextlib.contextmanager
def room(size: int) -> Iterator[None]:
    """Let a table hold so many entries, a setting of the whole machine: only there can it be changed.

    A child gives it back when this process ends, however it does: its pipe then closes.
    """
    before = _MOST.read_text(encoding="ascii").strip()
    give_back = ["sh", "-c", _GIVE_BACK, "sh", str(_MOST), str(size), before]
    with subprocess.Popen(give_back, stdin=subprocess.PIPE, start_new_session=True):
        try:
            _MOST.write_text(str(size), encoding="ascii")
        except OSError as error:
            complaint = f"{_MOST} can't be changed here: {error.strerror}; nothing was measured"
            raise FwtopError(complaint) from None
        yield


@contextlib.contextmanager
def _served(testbed: Testbed) -> Iterator[None]:
    """Run nginx on the victim."""
    with tempfile.TemporaryDirectory(prefix="fwtop-bench-") as folder:
        config = Path(folder, "nginx.conf")
        config.write_text(_NGINX.format(folder, _PORT), encoding="ascii")
        argv = ["ip", "netns", "exec", testbed.victim, "nginx", "-c", str(config), "-e", f"{folder}/error"]
        daemon = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            once = threading.Event()
            once.set()
            until(lambda: any(good for _, good in _ask(testbed, once)), _READY_SECONDS)
            yield
        finally:
            daemon.terminate()
            daemon.wait()


def _ask(testbed: Testbed, over: threading.Event) -> list[tuple[float, bool]]:
    """Send clients until it is over, at least one; returns when each began and whether it was served."""

    async def all_of() -> list[tuple[float, bool]]:
        asked = [asyncio.create_task(_client())]
        while not over.is_set():
            await asyncio.sleep(_EVERY_SECONDS)
            asked.append(asyncio.create_task(_client()))
        return await asyncio.gather(*asked)

    with inside(testbed.lab.attacker):
        return asyncio.run(all_of())


async def _client() -> tuple[float, bool]:
    began, answer = time.monotonic(), b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            reader, writer = await asyncio.open_connection(net.VICTIM_4, _PORT)
            try:
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                answer = await reader.read()
            finally:
                writer.close()
    return began, answer.endswith(b"served")
