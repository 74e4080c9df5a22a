"""Tools of others attack at random beside steady clients of real services, and a hand presses `1 Enter y`.

What fwtop says is compared with the clients' own counts and with counters that fwtop has no part in: whether
each attack was named, what its first proposal stopped and harmed, what was predicted, and what was called an
attack while nothing attacked.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from benches.anger.lab import SERVED, TIMEOUT_SECONDS, AngerLab, Steady
from benches.anger.tools import TOOLS, Tool
from benches.screens import Screen
from benches.tables.hour import PEERS
from benches.tables.screen import proportional_bytes
from fwtop.bench.frame import Document, Options, Result, progress, until
from fwtop.bench.measured_harm import forget_session
from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.lab.network import VICTIM_4
from fwtop.lab.processes import Program
from fwtop.model.errors import FwtopError
from fwtop.model.rule import ACTIVE_STATES
from fwtop.model.text import safe_text

_MINUTES, _QUICK_MINUTES = 180, 6
_SIZE = 120, 40
_CALM_SECONDS = 25.0  # the baseline of clients is trusted then
_NAMED_SECONDS, _DIALOG_SECONDS, _RULE_SECONDS = 30.0, 6.0, 6.0
_ESCAPE_SECONDS = 0.3  # a key that follows Escape at once is one with Alt
_OFFERED, _OFFER_SECONDS = re.compile(r"press [\d*] Enter"), 3.0  # the screen's first line says so
_READ_SECONDS = 0.5  # that an operator needs at least to read what is named
_STRAY = 10  # packets that the attackers' host itself sends meanwhile, such as IGMP reports
_SETTLE_SECONDS, _MEASURED_SECONDS = 2.5, 6.0
_AFTERWARDS_SECONDS = 20.0  # in which what is called an attack may still be the one that ended
_PAUSES = 3.0, 6.0, 15.0, 30.0
_STOPS, _HARMS, _ERRS = 0.95, 0.01, 0.05  # what a first proposal has to keep to
_RANDOM_KEYS = (*"\t[]r\x1bgovajkm0pp?\x1b", "/zz\r\x1b")


class Seen(threading.Thread):
    """Reads what a recorder writes: the newest line, and each incident that it told of."""

    def __init__(self, lines: Path) -> None:
        super().__init__(daemon=True)
        self._lines = lines
        self._end = threading.Event()
        self.latest: dict[str, Any] = {}
        self.incidents: dict[int, dict[str, Any]] = {}
        self.unjudged = self.count = 0

    def run(self) -> None:
        """Read until told to stop."""
        with self._lines.open(encoding="utf-8") as file:
            rest = ""
            while not self._end.is_set():
                rest += file.read()
                *whole, rest = rest.split("\n")
                for line in whole:
                    self._take(json.loads(line))
                if not whole:
                    time.sleep(0.05)

    def _take(self, line: dict[str, Any]) -> None:
        self.count += 1
        self.unjudged += bool(line["not_judged"])
        for attack in line["attacks"]:
            self.incidents[attack["id"]] = attack | {
                "seen": self.incidents.get(attack["id"], {}).get("seen", time.time())
            }
        self.latest = line

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        self.join()


class Met(Struct):
    """One attack and what came of it; shares are of 1, None what could not be measured."""

    tool: Tool
    began: float  # Unix seconds
    ended: float = 0.0
    names: tuple[str, ...] = ()  # kinds that it was given
    after_s: float | None = None  # to its first right name
    proposal: str = ""  # in words, the rule that `1` installed
    is_due: bool = True  # a rule: the kernel doesn't drop it by itself
    predicted: float | None = None
    stopped: float | None = None
    served: dict[str, float] = field(default_factory=dict)  # share by service, under attack with the rule
    spared: dict[str, float] = field(
        default_factory=dict
    )  # the same after the attack, the rule still in force

    @property
    def harm(self) -> float:
        """The largest share of a service's requests that its clients lost to the rule alone."""
        return max((1 - share for share in self.spared.values()), default=0.0)

    def line(self) -> str:
        """Tell of it in a line."""
        shares = (self.predicted, self.stopped)
        predicted, stopped = ("–" if share is None else f"{share:.1%}" for share in shares)
        after = "not named" if self.after_s is None else f"named after {self.after_s:.1f} s"
        served = ", ".join(f"{name} {share:.0%}" for name, share in sorted(self.served.items()))
        return (
            f"{_clock(self.began)} {self.tool.name}: {after} ({', '.join(self.names)}); "
            f"{safe_text(self.proposal, limit=1000)}; predicted {predicted}, stopped {stopped}; "
            f"served {served or '–'}; harm {self.harm:.1%}"
        )


def run(options: Options) -> Document:
    """Measure for some minutes; `rounds` is their number."""
    minutes = options.choose(_MINUTES, _QUICK_MINUTES)
    tools = [one for one in TOOLS if one.is_named(options.captures)]
    if not tools:
        raise FwtopError("no installed tool has such a name; nothing was measured", 2)
    seed = options.seed or 1
    with tempfile.TemporaryDirectory(prefix="fwtop-") as folder, AngerLab(seed) as lab:
        lines = Path(folder) / "lines"
        record = fwtop_argv("record", "--netns", lab.victim, "--no-alarms", "--jsonl", str(lines))
        steady = Steady(lab.attacker, VICTIM_4, PEERS[:20], 1.0)
        try:
            with Program(record), steady.asking():
                if not until(lambda: lines.exists() and lines.stat().st_size > 0, _NAMED_SECONDS):
                    raise FwtopError("the recorder did not start; the lab is taken down")
                seen = Seen(lines)
                seen.start()
                with Screen(fwtop_argv("watch", "--netns", lab.victim, "--no-store"), None, _SIZE) as screen:
                    night = Night(lab, seen, steady, screen, random.Random(seed))  # noqa: S311
                    night.live(tools, minutes * 60.0)
                seen.stop()
        finally:
            run_fwtop("undo", "--all", "--netns", lab.victim)
            forget_session(lab)
        return Document("anger", 1, tuple(night.results()), tuple(night.notes()))


class Night:
    """The attacks of one run."""

    def __init__(
        self, lab: AngerLab, seen: Seen, steady: Steady, screen: Screen, drawn: random.Random
    ) -> None:
        self._lab, self._seen, self._steady, self._screen, self._drawn = lab, seen, steady, screen, drawn
        self._met: list[Met] = []
        self._memory: list[int] = []

    def live(self, tools: Sequence[Tool], seconds: float) -> None:
        """Meet one attack after the other, each tool once before any comes again."""
        time.sleep(_CALM_SECONDS)
        end = time.monotonic() + seconds
        left: list[Tool] = []
        while time.monotonic() < end:
            left = left or self._drawn.sample(tools, len(tools))
            self._note_memory()
            met = self._meet(left.pop())
            self._met.append(met)
            progress(met.line())
            time.sleep(self._drawn.choice(_PAUSES))

    def _note_memory(self) -> None:
        self._memory.append(sum(map(proportional_bytes, _family(self._screen.pid))))

    def _meet(self, tool: Tool) -> Met:
        met = Met(tool, time.time())
        began = time.monotonic()
        with self._lab.attacked(tool):
            if until(lambda: self._names() & tool.kinds, _NAMED_SECONDS, every=0.05):
                met.after_s = time.monotonic() - began
            met.names = tuple(sorted(self._names()))
            if ruled := self._press(met):
                time.sleep(_SETTLE_SECONDS)
                self._measure(met)
        met.ended = time.time()
        if ruled:
            time.sleep(_SETTLE_SECONDS)
            since = time.monotonic()
            time.sleep(_MEASURED_SECONDS)
            met.spared = self._steady.share(since, time.monotonic() - TIMEOUT_SECONDS)
        self._clear()
        return met

    def _names(self) -> set[str]:
        """Return the kinds of what goes on."""
        return {
            attack["kind"]
            for attack in self._seen.latest.get("attacks", ())
            if attack["ended"] is None and not attack["paused"]
        }

    def _press(self, met: Met) -> bool:
        """Install the first proposal by keys; say whether a rule is in force."""
        if self._drawn.random() < 0.3:
            for key in self._drawn.choices(_RANDOM_KEYS, k=6):
                self._screen.press(key)
                time.sleep(0.1)
            self._leave_dialog()
        time.sleep(_READ_SECONDS)
        if "PAUSED" in self._screen.screen():  # as an operator would before deciding
            self._screen.press("p")
            until(lambda: "PAUSED" not in self._screen.screen(), _DIALOG_SECONDS, every=0.05)
        # The recorder may be a judgement ahead of the screen, which is all that an operator sees
        until(lambda: _OFFERED.search(self._screen.screen()) is not None, _OFFER_SECONDS, every=0.05)
        proposals = self._seen.latest["proposals"]
        self._screen.press("1")
        if not until(lambda: "Install" in self._screen.screen(), _DIALOG_SECONDS, every=0.05):
            met.is_due = self._seen.latest["verdict"]["state"] != "kernel"
            met.proposal = self._shown()
            return False
        self._screen.press("\r")
        if not until(self._rules, _RULE_SECONDS, every=0.05):
            met.proposal = self._shown()
            return False
        rules = self._rules()
        met.proposal = " + ".join(rule["summary"] for rule in rules)
        shares = [one["attack_share"] for one in proposals if one["kind"] == rules[0]["kind"]]
        met.predicted = shares[0] if shares else None
        return True

    def _rules(self) -> list[dict[str, Any]]:
        return [one for one in self._seen.latest["mitigations"] if one["state"] in ACTIVE_STATES]

    def _shown(self) -> str:
        """Return what the screen shows that the hand did not expect, and leave it."""
        shown = " / ".join(line.strip() for line in self._screen.screen().splitlines() if line.strip())
        self._leave_dialog()
        return f"no rule: {shown}"

    def _leave_dialog(self) -> None:
        self._screen.press("\x1b")
        time.sleep(_ESCAPE_SECONDS)

    def _measure(self, met: Met) -> None:
        before, since = self._lab.passed(), time.monotonic()
        time.sleep(_MEASURED_SECONDS)
        after, until_ = self._lab.passed(), time.monotonic()
        self._screen.press("y")
        sent = after.sent - before.sent
        silent = sent <= _STRAY  # a tool that waits for answers stops sending once it gets none
        met.stopped = 1.0 if silent else max(0.0, 1 - (after.delivered - before.delivered) / sent)
        met.served = self._steady.share(since, until_)

    def _clear(self) -> None:
        """Take the rules away as an operator would, and whatever is left by command."""
        self._screen.press("u")
        time.sleep(1.0)
        self._leave_dialog()
        run_fwtop("undo", "--all", "--netns", self._lab.victim)
        until(lambda: not self._rules(), _RULE_SECONDS, every=0.05)

    def results(self) -> Iterator[Result]:
        """Yield the figures."""
        met, ruled = self._met, [one for one in self._met if one.stopped is not None]
        due = [one for one in met if one.is_due]
        good = [
            one for one in ruled if one.stopped is not None and one.stopped >= _STOPS and one.harm <= _HARMS
        ]
        errors = [
            abs(one.predicted - one.stopped)
            for one in ruled
            if one.predicted is not None and one.stopped is not None
        ]
        false, wrong = self._untrue()
        figures = (
            ("attacks", "attacks", len(met)),
            ("named rightly", "%", 100 * _share(sum(one.after_s is not None for one in met), len(met))),
            (
                "first packet to the name, median",
                "s",
                statistics.median(one.after_s for one in met if one.after_s),
            ),
            ("attacks that the kernel drops by itself", "", len(met) - len(due)),
            ("of others, a first proposal was there and installed", "%", 100 * _share(len(ruled), len(due))),
            (
                f"of others, stopped ≥ {_STOPS:.0%} at ≤ {_HARMS:.0%} harm",
                "%",
                100 * _share(len(good), len(due)),
            ),
            ("worst harm", "%", 100 * max((one.harm for one in ruled), default=0)),
            ("predicted against measured, median", "points", 100 * statistics.median(errors or [0])),
            (f"predictions more than {_ERRS * 100:g} points off", "", sum(error > _ERRS for error in errors)),
            ("called an attack while none was", "", len(false)),
            ("called by a name that no attack then had", "", len(wrong)),
            ("observations not judged", "", self._seen.unjudged),
            ("memory of the screen at the end ÷ after the first quarter", "", self._growth()),
        )
        for name, unit, value in figures:
            yield Result(name, unit, (float(value),))

    def _growth(self) -> float:
        early = self._memory[len(self._memory) // 4]
        return self._memory[-1] / early if early else 0.0

    def _untrue(self) -> tuple[list[str], list[str]]:
        """Find the incidents of class attack that had no attack, and those with another's name."""
        false, wrong = [], []
        for one in self._seen.incidents.values():
            if one["class"] != "attack":
                continue
            at = one["seen"]
            beside = [met for met in self._met if met.began - 1 <= at <= met.ended + _AFTERWARDS_SECONDS]
            told = f"{_clock(at)} {safe_text(one['title'])}, {one['pps']:,.0f} packets/s"
            if not beside:
                false.append(f"false: {told}")
            elif not any(one["kind"] in met.tool.kinds for met in beside):
                wrong.append(f"wrong name: {told}, during {' and '.join(met.tool.name for met in beside)}")
        return false, wrong

    def notes(self) -> list[str]:
        """Tell of each attack, and of what was said in error."""
        false, wrong = self._untrue()
        missing = ", ".join(one.name for one in TOOLS if one.missing)
        services = ", ".join(one.name for one in SERVED)
        return [
            f"Steady clients asked {services}; harm is the largest share that those of one lost "
            "after the attack, with the rule still in force.",
            *([f"Not installed, and so left out: {missing}."] if missing else []),
            *(met.line() for met in self._met),
            *false,
            *wrong,
        ]


def _share(part: Sequence[object] | int, whole: int) -> float:
    count = part if isinstance(part, int) else len(part)
    return count / whole if whole else 0.0


def _family(pid: int) -> Iterator[int]:
    """Yield a process and all that it started."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        yield from _family(int(child))


def _clock(unix_seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(unix_seconds))
