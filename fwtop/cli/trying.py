"""Verbs that try fwtop out in network namespaces, which no packet leaves: attacks, and benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fwtop.cli.options import Verb, flag, option, positive, seconds, whole
from fwtop.kernel.waiting import waiting
from fwtop.model.errors import FwtopError
from fwtop.model.text import aligned, safe_text

if TYPE_CHECKING:
    from fwtop.bench.frame import Document, Table


_DEFAULT = "few_sources"


def _lab_arguments(parser: argparse.ArgumentParser) -> None:
    scenario = f"a scenario's name, a TOML file of your own, 'list', or 'fleet' (default {_DEFAULT})"
    parser.add_argument("scenario", nargs="?", default=None, help=scenario)
    option(parser, "--seconds", "S", "without a screen: how long (default 5)", seconds, default=5.0)
    pps = "packets per second (default: the scenario's; 0: unlimited)"
    option(parser, "--pps", "N", pps, whole("a rate from 0 to 100,000,000", 0, 100_000_000))
    capture = (
        "replay a capture (pcap, pcapng, gzip) to the victim at its own rate: its first 16,384 packets "
        "in a loop, readdressed, each cut to 640 bytes and padded with zeros"
    )
    option(parser, "--capture", "FILE", capture)
    flag(parser, "--json", "print what was sent and observed as JSON")
    harm = "fleet: the rule is to hurt the clients of this machine, for example web-2"
    option(parser, "--harm", "MACHINE", harm)
    option(
        parser, "--kill", "WHAT", "fleet: kill broker, coordinator or both (with a comma) during the trial"
    )
    flag(parser, "--store", "without a screen: keep the observation as a session (the screen always does)")


def _lab(args: argparse.Namespace) -> int:
    if args.scenario == "list":
        return _list_scenarios(as_json=args.json)
    if args.scenario == "fleet":
        return _fleet(args)
    if args.harm or args.kill:
        raise FwtopError("--harm and --kill go with 'fwtop lab fleet'", 2)
    if args.capture and args.scenario:
        raise FwtopError("a scenario and --capture exclude each other", 2)
    with _ending_by_signals(), ExitStack() as opened:
        what = safe_text(args.capture or args.scenario or _DEFAULT)
        with waiting(f"building a lab for {what}: victim, attacker, services, clients"):
            from fwtop.lab import watch  # which takes a second
            from fwtop.lab.run import Lab

            lab = Lab("calm", capture=Path(args.capture)) if args.capture else Lab(args.scenario or _DEFAULT)
            opened.enter_context(lab)
        if args.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            result = watch.observe(lab, args.seconds, args.pps, store=args.store)
            print(json.dumps(result, indent=None if args.json else 1))
            return 0
        status = watch.show(lab, args.pps)
    print("fwtop: the lab is gone: every rule in its namespaces is undone, and they are removed")
    return status


def _fleet(args: argparse.Namespace) -> int:
    """Play one roll-out on six machines; 0 if it ended as it should: kept, or reverted where it must be."""
    from fwtop.lab import fleet, fleet_trial

    kill = frozenset(one for one in (args.kill or "").split(",") if one)
    if kill - {"broker", "coordinator"} or (args.harm and args.harm not in fleet.NAMES[: fleet.ATTACKED]):
        among = ", ".join(fleet.NAMES[: fleet.ATTACKED])
        raise FwtopError(f"--kill takes broker, coordinator or both, --harm one of {among}", 2)

    def say(line: str) -> None:
        print(line, file=sys.stderr if args.json else sys.stdout, flush=True)

    with _ending_by_signals(), fleet.FleetLab(say) as lab:
        result = fleet_trial.play(lab, fleet_trial.Trial(args.harm or "", kill), say)
    if args.json:
        print(json.dumps(result))
    else:
        for row in result["machines"]:
            clients = f"clients {row['clients_now']:.0f}/s (before {row['clients_before']:.0f})"
            rates = f"{row['arrives_pps']:>8.0f} pps arrive, {row['reaches_pps']:>8.0f} reach"
            print(f"{row['name']:<8} {row['state']:<10} {rates}, {clients}")
        print(f"{result['rollout']['outcome']}: {result['rollout']['reason'] or 'no harm was done'}")
    wanted = "reverted" if args.harm or kill else "kept"
    return 0 if result["rollout"]["outcome"] == wanted else 1


def _list_scenarios(*, as_json: bool) -> int:
    from fwtop.lab import scenario

    found = [scenario.load(name) for name in scenario.names()]
    if as_json:
        rows = [{"scenario": item.name, "title": item.title, "kinds": list(item.kinds)} for item in found]
        print(json.dumps(rows))
        return 0
    print("\n".join(aligned([(item.name, item.title) for item in found])))
    return 0


class _Ended(BaseException):
    """A signal asked the lab to end; a BaseException, so that no handler on the way swallows it."""


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _ending_by_signals() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into an exception, so that clean-up runs."""

    def end(number: int, _frame: FrameType | None) -> None:
        for ignored in _ENDING:
            signal.signal(ignored, signal.SIG_IGN)
        raise _Ended(signal.Signals(number).name)

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    except _Ended as ended:
        raise FwtopError(f"ended by {ended}; the lab was taken down") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    add_table(
        parser,
        "harm: run only these trials; accuracy: judge these captures (FILE=kind,kind labels one)",
    )
    calibrate = "measure the per-packet cost of each kind of rule here; proposals are ranked by it"
    flag(parser, "--calibrate", calibrate)


def add_table(parser: argparse.ArgumentParser, takes: str) -> None:
    """Add a table's name, what it takes, and how it is measured and printed."""
    parser.add_argument("table", nargs="?", metavar="TABLE", help="a table's name, or 'list'")
    parser.add_argument("captures", nargs="*", metavar="CAPTURE", help=takes)
    option(parser, "--svg", "FILE", "also draw the table to this file", Path)
    flag(parser, "--json", "print one JSON document")
    flag(parser, "--quick", "reduced run, a minute or two per table")
    option(parser, "--rounds", "N", "number of measurements per row", positive)


def _bench(args: argparse.Namespace) -> int:
    from fwtop.bench.frame import TABLES

    if args.calibrate and args.table not in (None, "calibrate"):
        name = safe_text(args.table, limit=40)
        raise FwtopError(f"--calibrate is a table of its own, not {name!r}; nothing measured", 2)
    args.table = "calibrate" if args.calibrate else args.table
    return measure(args, TABLES, "fwtop bench", seed=None)


def measure(args: argparse.Namespace, tables: Sequence[Table], command: str, *, seed: int | None) -> int:
    """Measure a table of a list and print it, or print the list."""
    from fwtop.bench.frame import Options, find
    from fwtop.bench.frame import run as measured

    if args.table == "list":
        return _list_tables(tables, as_json=args.json)
    if args.table is None:
        raise FwtopError(f"which table? see '{command} list'; nothing was measured", 2)
    table = find(args.table, tables, command)
    if args.captures and not table.takes:
        raise FwtopError(f"table {table.name} takes no captures; nothing was measured", 2)
    if table.needs_root and os.geteuid() != 0:
        line = f"table {table.name} needs root to make namespaces; nothing was measured; use sudo"
        raise FwtopError(line, 3)
    with _ending_by_signals():
        document = measured(table, Options(args.rounds, args.quick, tuple(args.captures), seed))
    if getattr(args, "calibrate", False):
        document = _kept(document)
    if args.svg is not None:
        _draw(document, args.svg)
    _print_table(document, as_json=args.json)
    return 0


def _list_tables(tables: Sequence[Table], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([{"table": table.name, "title": table.title} for table in tables]))
    else:
        print("\n".join(aligned([(table.name, table.title) for table in tables])))
    return 0


def _kept(document: Document) -> Document:
    from fwtop.bench.tables.calibrate import keep

    return replace(document, notes=(*document.notes, keep(document)))


def _print_table(document: Document, *, as_json: bool) -> None:
    from fwtop.bench.frame import render

    if as_json:
        json.dump(document.to_json(), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(render(document))


def _draw(document: Document, path: Path) -> None:
    from fwtop.bench.picture import draw

    try:
        path.write_text(document.picture or draw(document), encoding="utf-8")
    except OSError as error:
        print(f"fwtop: {safe_text(path)}: {error.strerror}; the table was not drawn", file=sys.stderr)


VERBS = {
    "lab": Verb(
        "Attack a victim in network namespaces and watch it with fwtop. No packet leaves them.",
        "sudo fwtop lab dns_amplification --seconds 5 --json | jq .truth",
        _lab_arguments,
        _lab,
    ),
    "bench": Verb(
        "Benchmark fwtop on this machine. Floods stay within the lab's network namespaces.",
        "sudo fwtop bench ladder --quick",
        _bench_arguments,
        _bench,
    ),
}
