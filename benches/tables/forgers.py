"""Floods in the names of innocents: what automatic rules do to those, and how much of the flood they stop.

For each kind of attack a recorder in automatic mode learns what is normal, then somebody floods in the name
of each innocent in turn. Names pick kinds or innocents: `python -m benches forgers "SYN flood" monitor`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from benches.bystanders import INNOCENTS, INTERFACE, PROTOCOLS, VISITORS, Bystanders, Innocent
from fwtop.bench.frame import Document, Options, Result
from fwtop.bench.measured_harm import forget_session
from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.lab.processes import Program
from fwtop.model.errors import FwtopError

_PPS = 2_000
_LEARN_SECONDS, _ATTACK_SECONDS, _GRACE_SECONDS, _AFTER_SECONDS, _CALM_SECONDS = 45.0, 20.0, 10.0, 10.0, 8.0
_POLICY = "enabled = true\n"
_COLUMNS = ("during", "after", "others", "stopped", "1st rule")
_HEAD = f"{'attack':12} {'in the name of':26} {''.join(f'{name:>9}' for name in _COLUMNS)}"


class _Turn(Struct, frozen=True):
    """What one flood did: shares, 0 to 1."""

    kind: str
    name: str
    during: float  # of the innocent's requests that were served
    after: float  # the same, from 10 s after the end
    others: float  # of everybody else's, during and after
    stopped: float  # of the flood's packets
    acted: float | None  # seconds until a rule was tried; None: none was

    @property
    def line(self) -> str:
        """The row."""
        shares = f"{self.during:9.1%}{self.after:9.1%}{self.others:9.1%}{self.stopped:9.1%}"
        acted = f"{self.acted:7.1f} s" if self.acted is not None else f"{'-':>9}"
        return f"{self.kind:12} {self.name:26} {shares}{acted}"


def run(options: Options) -> Document:
    """Run the kinds, with all innocents each."""
    known = {*PROTOCOLS, *(one.name for one in INNOCENTS)}
    if wrong := set(options.captures) - known:
        raise FwtopError(f"there is no {min(wrong)!r}; known are: {', '.join(sorted(known))}", 2)
    kinds = [kind for kind in PROTOCOLS if kind in options.captures] or list(PROTOCOLS)
    whom = [one for one in INNOCENTS if one.name in options.captures] or list(INNOCENTS)
    turns: list[_Turn] = []
    notes = [
        f"{_PPS:,} packets/s for {_ATTACK_SECONDS:.0f} s a row; during: from the first packet; after: from "
        f"{_GRACE_SECONDS:.0f} s after the end; policy: docs/automatic.toml's defaults, enabled"
    ]
    for kind in kinds:
        found, said = _kind(kind, whom[:1] if options.quick else whom)
        turns += found
        notes += [f"{kind}: {line}" for line in said]
    rows = [
        Result(f"{one.kind}, {one.name}: {what}", "share", (value,))
        for one in turns
        for what, value in (
            ("served during", one.during), ("served after", one.after),
            ("others served", one.others), ("stopped", one.stopped),
        )
    ]  # fmt: skip
    return Document("forgers", 1, tuple(rows), tuple(notes), lines=(_HEAD, *(one.line for one in turns)))


def _kind(kind: str, whom: list[Innocent]) -> tuple[list[_Turn], list[str]]:
    """Return the rows of a kind of attack, and what the recorder said of its rules."""
    with tempfile.TemporaryDirectory() as directory, Bystanders() as lab:
        policy = Path(directory) / "automatic.toml"
        policy.write_text(_POLICY, encoding="ascii")
        argv = fwtop_argv(
            "record", "--netns", lab.victim, "-i", INTERFACE, "--no-alarms", "--automatic", str(policy)
        )
        try:
            with Program(argv) as recorder:
                time.sleep(_LEARN_SECONDS)
                turns = [_turn(lab, recorder, kind, one) for one in whom]
                said = recorder.said()
        finally:
            run_fwtop("undo", "--all", "--netns", lab.victim)
            forget_session(lab)
    return turns, said


def _turn(lab: Bystanders, recorder: Program, kind: str, one: Innocent) -> _Turn:
    protocol = PROTOCOLS[kind]
    began, before = time.monotonic(), lab.passed(protocol)
    time.sleep(_CALM_SECONDS)
    usual = (lab.passed(protocol) - before) / (time.monotonic() - began)
    began, before = time.monotonic(), lab.passed(protocol)
    acted, tried = None, _tried(recorder)
    with lab.forged(kind, one.addresses, _PPS) as sent:
        while (passed := time.monotonic() - began) < _ATTACK_SECONDS:
            time.sleep(0.1)
            if acted is None and _tried(recorder) > tried:
                acted = passed
    ended = time.monotonic()
    came = lab.passed(protocol) - before - usual * (ended - began)
    time.sleep(_GRACE_SECONDS + _AFTER_SECONDS)
    settled, until = ended + _GRACE_SECONDS, ended + _GRACE_SECONDS + _AFTER_SECONDS - 3.0
    others = [lab.served(name, *span) for name in _names(one) for span in ((began, ended), (settled, until))]
    return _Turn(
        kind,
        one.name,
        lab.served(one.name, began, ended),
        lab.served(one.name, settled, until),
        min(others),
        min(1.0, max(0.0, 1.0 - came / max(sent[0], 1))),
        acted,
    )


def _tried(recorder: Program) -> int:
    return sum(" is tried " in line for line in recorder.said())


def _names(but: Innocent) -> Iterator[str]:
    return (one.name for one in (*INNOCENTS, VISITORS) if one is not but)
