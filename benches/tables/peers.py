"""fwtop's automatic rules beside FastNetMon, fail2ban and nobody, each on one host against the same tools.

Real services with steady clients, whose own counts say how they fared; attack packets are counted by nftables
where they leave, and behind every firewall. What each tool costs is its processes' CPU time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from benches.anger.lab import AngerLab, Steady
from benches.anger.tools import Tool
from benches.peers.defenders import DEFENDERS, Defender
from benches.tables.hour import PEERS
from fwtop.bench.frame import Document, Options, Result, median_ratio, progress
from fwtop.kernel.namespaces import inside
from fwtop.kernel.procfs import parse_paired, read_text
from fwtop.lab import namespaces
from fwtop.lab.network import VICTIM_4
from fwtop.model.errors import FwtopError

_CALM_SECONDS, _ATTACK_SECONDS = 60.0, 20.0
_QUICK_CALM_SECONDS = 15.0
_STEP_SECONDS = 0.02
_DROPPED = 0.9
_FOR_GOOD = 25  # steps in a row
_HTTP = frozenset({"http_flood"})
_NONE: frozenset[str] = frozenset()
_TOOLS = (
    Tool("UDP, one source", "hping3 -q -i u25 --udp -p 53 -d 60 -a {bot} {host}", _NONE),
    Tool("SYN, forged", "hping3 -q -i u25 -S -p 80 --rand-source {host}", _NONE),
    Tool(
        "UDP, forged, from port 53",
        "hping3 -q -i u25 --udp -s 53 -k -p 9999 -d 900 --rand-source {host}",
        _NONE,
    ),
    Tool(
        "HTTP, 20 sources",
        "for bot in {bots}; do ab -q -B $bot -t 60 -n 9999999 -c 3 http://{host}/ & done; wait",
        _HTTP,
        "ab",
    ),
)


class _Run(Struct, frozen=True):
    """What came of one attack on one defended host."""

    after_s: float | None  # from the first attack packet until nine tenths are dropped for good
    through_pps: float  # packets of the attack that reached the host's stack, past every firewall
    served: float  # of the clients' requests, of the service that fared worst
    cores: float  # while the attack goes on


def run(options: Options) -> Document:
    """Run each attack against each defender in turn, round by round."""
    rounds = options.choose(5, 1)
    wanted = [one for one in _TOOLS if one.is_named(options.captures)]
    if not wanted:
        raise FwtopError("no attack's name begins so, or its program isn't installed; nothing was run", 2)
    there = [one for one in DEFENDERS if not one.missing]
    met: dict[str, list[_Run]] = {}
    calm = _QUICK_CALM_SECONDS if options.quick else _CALM_SECONDS
    for number in range(rounds):
        for tool in wanted:
            for defender in there:
                if defender.http_only and not tool.kinds:
                    continue
                name = f"{tool.name}: {defender.name}"
                progress(f"round {number + 1} of {rounds}: {name}")
                met.setdefault(name, []).append(_attack(defender, tool, calm, number))
    missing = ", ".join(one.name for one in DEFENDERS if one.missing)
    notes = ["Served: of the service that fared worst. Not dropped in time: –."]
    return Document(
        "peers", rounds, tuple(_results(met)), (*notes, *([f"Not installed: {missing}."] * bool(missing)))
    )


def _results(met: dict[str, list[_Run]]) -> Iterator[Result]:
    for name, runs in met.items():
        nobody = f"{name.partition(':')[0]}: {DEFENDERS[0].name}"
        through = tuple(one.through_pps for one in runs)
        part = median_ratio(through, tuple(one.through_pps for one in met[nobody]))
        times = tuple(one.after_s for one in runs if one.after_s is not None)
        if times:
            yield Result(f"{name}: nine tenths dropped after", "s", times)
        yield Result(f"{name}: reaches the host", "packets/s", through, part, nobody)
        yield Result(f"{name}: clients served", "%", tuple(100 * one.served for one in runs))
        yield Result(f"{name}: CPU", "% of a core", tuple(100 * one.cores for one in runs))


def _attack(defender: Defender, tool: Tool, calm: float, seed: int) -> _Run:
    with AngerLab(seed) as lab, defender.watching(lab):
        steady = Steady(lab.attacker, VICTIM_4, PEERS[:12], 0.25)
        with steady.asking():
            time.sleep(calm)
            usual = _Delivered.rate(lab)
            before, spent = lab.passed(), _cpu_seconds(lab, defender.program)
            watch = _Delivered(lab, usual)
            watch.start()
            began = time.monotonic()
            with lab.attacked(tool):
                time.sleep(_ATTACK_SECONDS)
                ended, after = time.monotonic(), lab.passed()
                cores = (_cpu_seconds(lab, defender.program) - spent) / (ended - began)
            watch.end()
        through = (after.delivered - before.delivered) / (ended - began)
        shares = steady.share(began, ended - 2.0)
        return _Run(watch.after_s(), through, min(shares.values()), cores)


class _Delivered(threading.Thread):
    """Notes how many packets reach the host's stack past every firewall, many times a second."""

    def __init__(self, lab: AngerLab, usual_pps: float) -> None:
        super().__init__(daemon=True)
        self._lab, self._usual_pps = lab, usual_pps
        self._over = threading.Event()
        self._seen: list[tuple[float, int]] = []

    def run(self) -> None:
        """Read until told to stop."""
        with inside(self._lab.victim):
            while not self._over.wait(_STEP_SECONDS):
                self._seen.append((time.monotonic(), _delivered()))

    def end(self) -> None:
        """Stop reading."""
        self._over.set()
        self.join()

    def after_s(self) -> float | None:
        """Return the seconds from the attack's first packets until nine tenths of its peak stay away."""
        pairs = zip(self._seen, self._seen[1:], strict=False)
        rates = [(t1, (n1 - n0) / (t1 - t0) - self._usual_pps) for (t0, n0), (t1, n1) in pairs]
        peak = sorted(rate for _, rate in rates)[-5]
        first = next((at for at, (_, rate) in enumerate(rates) if rate > peak / 3), 0)
        for at in range(first, len(rates) - _FOR_GOOD):
            if all(rate < (1 - _DROPPED) * peak for _, rate in rates[at : at + _FOR_GOOD]):
                return rates[at][0] - rates[first][0] + _STEP_SECONDS
        return None

    @staticmethod
    def rate(lab: AngerLab, seconds: float = 3.0) -> float:
        """Return the packets a second that are delivered in calm."""
        with inside(lab.victim):
            before = _delivered()
            time.sleep(seconds)
            return (_delivered() - before) / seconds


def _delivered() -> int:
    """Return InDelivers of IP in this thread's namespace (RFC 4293): past PREROUTING and INPUT."""
    return parse_paired(read_text("/proc/thread-self/net/snmp"))["Ip"]["InDelivers"]


def _cpu_seconds(lab: AngerLab, program: str) -> float:
    """Return the CPU time of a program's processes in the host, and of their children that ended."""
    ticks = 0
    for pid in namespaces.run("ip", "netns", "pids", lab.victim).split() if program else ():
        with contextlib.suppress(OSError):  # it has just ended
            words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
            if any(word.rpartition("/")[2].partition(".")[0] == program for word in words):
                stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
                ticks += sum(map(int, stat[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
