"""A stopwatch walk: from an attack's first packet to PROTECTED, by the keys that an operator would press.

Each round opens a screen of either size for a scenario, waits for calm figures, starts the attack, presses
what the badge's line says (the best proposal, or all attacks' together where there are several), installs
it, and confirms it as soon as the trial shows its effect. Then what the screen says for some seconds is
compared with the victim's own counters.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct, field

from benches.screens import Screen
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.kernel.namespaces import inside
from fwtop.kernel.procfs import parse_paired, parse_single, read_text
from fwtop.lab.run import Lab
from fwtop.lab.scenario import names
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

SCENARIOS = ("few_sources", "syn_flood", "mixed_vectors", "conntrack_exhaustion")
_SIZES = (80, 24), (120, 40)
_PATIENCE_SECONDS = 20.0
_CALM_SECONDS = 8.0  # before the attack: the baseline of clients needs five
_READ_SECONDS = 0.5  # that an operator needs at least to read what is named
_SETTLE_SECONDS = 1.0  # before the first window that is compared
_WINDOW_SECONDS = 3.0  # of the rates on the screen
_EVERY_SECONDS = 0.05
_NEXT = re.compile(r"press (\S) Enter")
_RATES = re.compile(r"REACHES(?: YOU)? ([\d.]+)([kMG]?).*clients ([\d.]+)([kMG]?)/s")
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


def run(options: Options) -> Document:
    """Measure the table, of all four scenarios or of those that are named."""
    for name in options.captures:
        if name not in names():
            shown = safe_text(name, limit=40)
            raise FwtopError(f"there is no scenario {shown!r}; 'fwtop lab list' names them", 2)
    rounds, seconds = options.choose(3, 1), 5.0 if options.quick else 15.0
    sizes = _SIZES[:1] if options.quick else _SIZES
    walks = [Walk(name, size, seconds) for name in options.captures or SCENARIOS for size in sizes]
    rows = [row for walk in walks for row in _rows(walk)]
    return Document("walk", rounds, measure(rows, rounds))


def _rows(walk: Walk) -> Iterator[Row]:
    """Yield the rows of a scenario: the first walks, the others report the same walk."""
    name = f"{walk.scenario} at {walk.size[0]}×{walk.size[1]}"
    for place, stop in enumerate(STOPS):
        measured = partial(walk.take_to, stop) if place == 0 else partial(walk.passed.__getitem__, stop)
        yield Row(f"{name}: first packet to {stop}", "s", measured)
    yield Row(f"{name}: keys pressed", "keys", lambda: float(walk.keys))
    for figure in FIGURES:
        own, other = f"{name}: {figure}, screen", f"{name}: {figure}, victim's counters"
        yield Row(other, "per s", partial(walk.counted.__getitem__, figure))
        yield Row(own, "per s", partial(walk.shown.__getitem__, figure), other)


NAME, PREVIEW, EFFECT = "its name", "the preview", "the trial's effect"
STOPS = {  # what the screen shows then
    NAME: r"^ ?(UNPROTECTED|PARTLY|ALREADY)",
    PREVIEW: r"Install",
    "the first drop shown": r"TRIAL.* drops? [1-9]",
    EFFECT: r"TRIAL.*(✔|(= |>)(9\d(\.\d)?|100) %)",
    "PROTECTED": r"^ ?PROTECTED",
}
FIGURES = ("reaches you", "clients")


class Walk(Struct):
    """One scenario; `take_to` walks, the figures tell of the last walk."""

    scenario: str
    size: tuple[int, int]  # of the terminal
    seconds: float  # of comparison
    keys: int = 0
    passed: dict[str, float] = field(default_factory=dict)  # stop → seconds since the first packet
    shown: dict[str, float] = field(default_factory=dict)  # by the screen: figure → rate
    counted: dict[str, float] = field(default_factory=dict)  # by the victim

    def take_to(self, stop: str) -> float:
        """Walk; return the seconds from the first packet to a stop."""
        with Lab(self.scenario) as lab:
            argv = fwtop_argv("watch", "--netns", lab.victim, "--no-store")
            try:
                with Screen(argv, {"SSH_CONNECTION": lab.ssh_connection}, self.size) as terminal:
                    self._protect(lab, terminal)
                    self._compare(lab, terminal)
            finally:
                run_fwtop("undo", "--all", "--netns", lab.victim)
        return self.passed[stop]

    def _protect(self, lab: Lab, terminal: Screen) -> None:
        terminal.wait_to_show(r"arrives .* pps", _PATIENCE_SECONDS)
        time.sleep(_CALM_SECONDS)
        self.keys = 0
        started = time.monotonic()
        lab.start_flood()
        for stop, pattern in STOPS.items():
            self.passed[stop] = terminal.wait_to_show(pattern, _PATIENCE_SECONDS) - started
            self._press(terminal, stop)

    def _press(self, terminal: Screen, stop: str) -> None:
        if stop == NAME:
            time.sleep(_READ_SECONDS)
            said = _NEXT.search(terminal.screen())
            key = said[1] if said else "1"
        else:
            key = {PREVIEW: "\r", EFFECT: "y"}.get(stop, "")
        if key:
            terminal.press(key)
            self.keys += 1

    def _compare(self, lab: Lab, terminal: Screen) -> None:
        """Read the screen and the victim's counters for some seconds."""
        time.sleep(_SETTLE_SECONDS)
        counts: list[tuple[float, _Delivered]] = []
        readings: list[tuple[float, dict[str, float]]] = []
        end = time.monotonic() + self.seconds + _WINDOW_SECONDS
        while (now := time.monotonic()) < end:
            counts.append((now, _Delivered.read(lab.victim)))
            rates = _rates(terminal.screen())
            if rates and now - counts[0][0] > _WINDOW_SECONDS and (not readings or rates != readings[-1][1]):
                readings.append((now, rates))
            time.sleep(_EVERY_SECONDS)
        if not readings:
            header = safe_text(" / ".join(terminal.screen().splitlines()[:3]), limit=400)
            raise FwtopError(f"the screen showed no rates after PROTECTED ({header}); the lab is taken down")
        for figure in FIGURES:
            self.shown[figure] = statistics.fmean(rates[figure] for _, rates in readings)
            self.counted[figure] = statistics.fmean(_window(counts, at)[figure] for at, _ in readings)


class _Delivered(Struct, frozen=True):
    """What a victim's own kernel counted (net/ipv4/proc.c, net/ipv6/proc.c) since the namespace exists."""

    packets: int  # past the firewall, and not dropped by transport or socket
    handshakes: int  # that clients finished

    @staticmethod
    def read(netns: str) -> _Delivered:
        """Read the counters of a named namespace."""
        with inside(netns):
            snmp = parse_paired(read_text("/proc/net/snmp"))
            snmp6 = parse_single(read_text("/proc/net/snmp6"))
            extended = parse_paired(read_text("/proc/net/netstat"))["TcpExt"]
        passed = snmp["Ip"]["InDelivers"] + snmp6["Ip6InDelivers"]
        lost = sum(snmp["Udp"][name] + snmp6[f"Udp6{name}"] for name in ("NoPorts", "InErrors"))
        return _Delivered(passed - lost - extended["ListenDrops"], snmp["Tcp"]["PassiveOpens"])


def _rates(screen: str) -> dict[str, float]:
    found = _RATES.search(screen)
    if found is None:
        return {}
    values = (float(found[1]) * _UNITS[found[2]], float(found[3]) * _UNITS[found[4]])
    return dict(zip(FIGURES, values, strict=True))


def _window(counts: Sequence[tuple[float, _Delivered]], at: float) -> dict[str, float]:
    """Return the rates of the window that ended then."""
    inside = [(when, count) for when, count in counts if at - _WINDOW_SECONDS <= when <= at]
    (first, before), (last, after) = inside[0], inside[-1]
    values = (after.packets - before.packets, after.handshakes - before.handshakes)
    return {figure: value / (last - first) for figure, value in zip(FIGURES, values, strict=True)}
