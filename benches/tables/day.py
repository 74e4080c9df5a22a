"""A lab day, recorded: the lab against the report, the report against the store, live against replay.

Ten minutes of calm, pulse wave, mixed vectors and calm are recorded live; then once more by a clock so much
faster that they become 24 hours, inside the console's sandbox, with trends, alarms, report and bundle. Only
the clock is compressed: rates are those of the ten minutes, and a rule's counter is the kernel's. One rule
only counts, from the first second to the last; the notes say what the reports say of it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benches.lab_day import FULL, QUICK, Day, accelerate, faster, record_day
from fwtop.alarms.message import AlarmConfig
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.console.publish.alarms import AlarmEvents
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Mode
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import SessionRecord, Trends
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.observation import observation_json
from fwtop.report.bundle import bundle_files
from fwtop.report.summary import Digest, digest
from fwtop.sandbox.child import ask, unprivileged
from fwtop.sandbox.confine import Profile, unprivileged_user
from fwtop.store.reader import load_session, replay
from fwtop.store.thinning import COMMAND_CHARACTERS, COMMANDS, PREFIXES
from fwtop.store.trends import session_trends

DAY_SECONDS = 86_400.0
_TOP = 10  # entries of each list in a live line
_NOT_COMPARED = ("source",)  # says whether it is live or replayed
_SAME = 1e-6  # of a figure: sums of the same numbers in another order
_Figures = Iterator[tuple[str, str, float, str | None]]


def run(options: Options) -> Document:
    """Measure the table; a folder that is named keeps the accelerated day's session, history and bundle."""
    day = record_day(QUICK if options.quick else FULL)
    with tempfile.TemporaryDirectory(prefix="fwtop-") as folder:
        state = Path(folder)
        live = load_session(day.path)
        factor = DAY_SECONDS / live.info.seconds
        fast = load_session(accelerate_confined(day.path, state, factor))
        taken = tuple(one.snapshot for one in faster(day.path, factor))
        told = digest(live)
        rows = [
            *_truth(day, told),
            *_counting(day, "ten minutes", told),
            *_store(day, live, told),
            *_accelerated(day, fast, taken, factor),
            *_counting(day, "the day", replayed := digest(fast)),
            *_bundle(fast, state),
        ]
        if options.captures:
            _keep(state, Path(options.captures[0]))
    made = [Row(name, unit, partial(float, value), versus) for name, unit, value, versus in rows]
    notes = [f"The live session is {safe_text(day.path)}."]
    notes += [
        f"What only counted, in the report of {span}: {safe_text(effect.done, limit=1000)}."
        for span, of in (("ten minutes", told), ("the day", replayed))
        for effect in of.effects
        if effect.rule.counts_only
    ]
    if options.captures:
        place = safe_text(options.captures[0])
        notes.append(f"The accelerated day, its history and its bundle are in {place}.")
    return Document("day", 1, measure(made, 1), notes=tuple(notes))


def accelerate_confined(day: Path, state: Path, factor: float) -> Path:
    """Record the accelerated day as a console does: by its user, in its sandbox."""
    if os.geteuid() != 0:
        return accelerate(day, state, factor)
    user = unprivileged_user()
    os.chown(state, user.pw_uid, user.pw_gid)
    made = ask(
        lambda: str(accelerate(day, state, factor)),
        str,
        who="the console of the accelerated day",
        enter=lambda: unprivileged(Profile.CONSOLE, read=(day.parent,), write=(state,)),
    )
    return Path(made)


def _keep(state: Path, folder: Path) -> None:
    try:
        shutil.copytree(state, folder, dirs_exist_ok=True)
    except OSError as error:
        raise FwtopError(
            f"{safe_text(folder)} can't be written: {error.strerror or 'see its files'}"
        ) from None


def _truth(day: Day, told: Digest) -> _Figures:
    """Compare the report with what the lab sent and the victim's interface counted."""
    truth = day.truth
    yield "packets, the victim's interface", "packets", float(truth["arrived_packets"]), None
    yield "packets, the report", "packets", told.sums.packets, "packets, the victim's interface"
    yield "the attacks' packets, the lab", "packets", float(truth["attack"]["packets"]), None
    yield (
        "the attacks' packets, the report",
        "packets",
        told.protection.packets,
        "the attacks' packets, the lab",
    )
    sent: dict[str, float] = {}
    for vector in truth["vectors"]:
        sent[vector["kind"]] = sent.get(vector["kind"], 0.0) + vector["packets"]
    for kind, packets in sent.items():
        seen = sum(span.packets for span in told.spans if span.kind == kind)
        yield f"{kind}, the lab", "packets", packets, None
        yield f"{kind}, the report", "packets", seen, f"{kind}, the lab"
    counted = float(sum(rule["packets"] for rule in day.rules if rule["mode"] == Mode.DROP))
    yield "dropped by rules, their counters", "packets", counted, None
    yield "dropped by rules, the report", "packets", told.sums.mine or 0.0, "dropped by rules, their counters"


def _counting(day: Day, span: str, told: Digest) -> _Figures:
    """Compare what is told of the rule that only counted with the kernel and with the lab's clients."""
    counter, clients = f"{span}: would have dropped, the rule's counter", f"{span}: clients of it, the lab"
    (rule,) = (rule for rule in day.rules if rule["mode"] == Mode.COUNT)
    (effect,) = (effect for effect in told.effects if effect.rule.counts_only)
    hits = effect.status.hits if effect.status is not None else None
    if hits is None:
        raise FwtopError("the session does not say whom the rule that counts would have hit")
    yield counter, "packets", float(rule["packets"]), None
    yield f"{span}: would have dropped, its report", "packets", float(effect.packets), counter
    yield clients, "clients", float(len(day.clients)), None
    yield f"{span}: clients of it, its report", "clients", float(hits.clients_total), clients
    strangers = [name for name in hits.clients if name.partition(" ")[0] not in day.clients]
    yield f"{span}: clients named that are none", "clients", float(len(strangers)), None


def _store(day: Day, live: SessionRecord, told: Digest) -> _Figures:
    """Count ticks whose replay is not what was live, and the report's figures that the store denies."""
    observed = (_without(observation_json(one, top=_TOP)) for one in replay(day.path))
    replayed = {_key(line): line for line in observed}
    lines = {_key(line): line for line in map(_without, day.lines)}
    yield "ticks observed live", "ticks", float(len(lines)), None
    yield "ticks that are stored", "ticks", float(len(lines.keys() & replayed.keys())), "ticks observed live"
    differing = sum(lines[at] != replayed[at] for at in lines.keys() & replayed.keys())
    yield "stored ticks whose replay is not what was live", "ticks", float(differing), None
    yield "figures of the report that the store denies", "figures", float(len(denied(live, told))), None


def _key(line: Mapping[str, Any]) -> tuple[Any, Any]:
    return line["started"], line["seconds"]


def _without(line: dict[str, Any]) -> dict[str, Any]:
    """Leave out what differs on purpose, such as the ends of long commands and lists: the store cuts them."""
    kept = {name: value for name, value in line.items() if name not in _NOT_COMPARED}
    kept["proposals"] = [
        {
            **proposal,
            "commands": [command[:COMMAND_CHARACTERS] for command in proposal["commands"][:COMMANDS]],
            "fwtop": proposal["fwtop"][:COMMAND_CHARACTERS],
            "rule": _cut(proposal["rule"]),
        }
        for proposal in kept["proposals"]
    ]
    return kept


def _cut(rule: dict[str, Any] | None) -> dict[str, Any] | None:
    if rule is None or "sources" not in rule.get("match", {}):
        return rule
    return {**rule, "match": {**rule["match"], "sources": rule["match"]["sources"][:PREFIXES]}}


_SUMS = {
    "packets": "pps",
    "dropped": "dropped_pps",
    "accepted": "accepted_pps",
    "mine": "mine_pps",
    "other": "other_pps",
    "kernel": "kernel_pps",
}
_WIDTHS = (
    "SELECT *, coalesce(seconds, min(max(at - lag(at, 1, (SELECT CAST(value AS REAL) FROM meta "
    "WHERE name = 'started')) OVER (ORDER BY at, n), 0), 60.0)) AS width FROM tick"
)


def denied(record: SessionRecord, told: Digest) -> list[str]:
    """Return the report's figures that plain SQL on the session's file does not find."""
    with closing(sqlite3.connect(f"file:{record.info.path}?mode=ro", uri=True)) as database:

        def ask(query: str) -> float:
            return float(database.execute(query).fetchone()[0] or 0.0)

        found = {
            name: (getattr(told.sums, name) or 0.0, ask(f"SELECT sum({column} * width) FROM ({_WIDTHS})"))  # noqa: S608
            for name, column in _SUMS.items()
        }
        found["peak"] = told.sums.peak_pps, ask("SELECT max(coalesce(peak_pps, pps)) FROM tick")
        for effect in told.effects:
            query = "SELECT max(packets) FROM rule_tick WHERE rule_id = ?"
            counted = database.execute(query, (effect.rule.id,)).fetchone()[0] or 0.0
            found[f"rule {effect.rule.id}"] = float(effect.packets), float(counted)
    return [
        name for name, (mine, stored) in found.items() if abs(mine - stored) > _SAME * max(abs(stored), 1.0)
    ]


def _accelerated(day: Day, fast: SessionRecord, taken: tuple[Snapshot, ...], factor: float) -> _Figures:
    """Compare the report and the trends of 24 hours with the lab's truth, and count what was made of them."""
    trends = session_trends(fast.info)
    told = digest(fast, trends=trends)
    alarms = AlarmEvents(AlarmConfig())
    raised = [alarm for snapshot in taken for alarm in alarms.next(snapshot)]
    arrived, attacked = "the day's packets, the interface", "the day's attack packets, the lab"
    yield "the day's length", "h", fast.info.seconds / 3_600, None
    yield arrived, "packets", factor * day.truth["arrived_packets"], None
    yield "the day's packets, its report", "packets", told.sums.packets, arrived
    yield "the day's packets, its trends", "packets", _trend_packets(trends), arrived
    yield attacked, "packets", factor * day.truth["attack"]["packets"], None
    yield "the day's attack packets, its report", "packets", told.protection.packets, attacked
    yield "figures of the day's report that its store denies", "figures", float(len(denied(fast, told))), None
    yield "alarms of the day", "alarms", float(len(raised)), None
    yield "attacks of the day", "attacks", float(len(told.spans)), None


def _bundle(fast: SessionRecord, state: Path) -> _Figures:
    files = bundle_files(fast, digest(fast, trends=session_trends(fast.info)))
    yield "files of its bundle", "files", float(len(files)), None
    for name, content in files.items():
        path = state / "bundle" / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(content)


def _trend_packets(trends: Trends | None) -> float:
    """Return the packets of all hours that are in the history."""
    if trends is None:
        return 0.0
    rows = (row for row in trends.group("traffic") if row.key == "arrived")
    return next(((row.day or 0.0) * trends.day_seconds for row in rows), 0.0)
