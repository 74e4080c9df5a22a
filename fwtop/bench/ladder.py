"""Where to drop: Cloudflare's ladder (M. Majkowski, "How to drop 10 million packets per second", 2018).

Packets a second that one processor gets rid of, by the place where they end, with fwtop's own ways below.
The published figures were packets of one core under 14 Mpps: what compares is each row against the first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fwtop.bench import ways
from fwtop.bench.arena import PAYLOAD_START, SOURCES, Arena
from fwtop.bench.bytecode import tc_drop, xdp_drop
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.ways import FWTOP_PORT, TO_PORT, Way, ending

_FIRST = "application, recvmmsg"
_PUBLISHED_FIRST_KPPS = 175.0
_OWN = {
    "fwtop block (ipset)": ["block", SOURCES],
    "fwtop limit (hashlimit)": ["limit", *FWTOP_PORT, "--per", "24", "--rate", "1000/s"],
    "fwtop match (string)": ["match", "--string", PAYLOAD_START, *FWTOP_PORT],
    "fwtop drop (nftables)": ["drop", *FWTOP_PORT, "--via", "nftables"],
    "fwtop drop (tc)": ["drop", *FWTOP_PORT, "--via", "tc"],
    "fwtop drop (XDP)": ["drop", *FWTOP_PORT, "--via", "xdp"],
}


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 1), 0.5 if options.quick else 1.0
    notes: list[str] = []
    with Arena() as arena:
        rows = _application_rows(arena, seconds)
        dropping = [
            *_places(arena),
            *((name, None, way) for name, way in ways.usable(arena, _OWN, notes).items()),
        ]
        rows += [_row(name, kpps, partial(ending, arena, seconds, way)) for name, kpps, way in dropping]
        return Document("ladder", rounds, measure(rows, rounds), tuple(notes))


def _row(name: str, kpps: float | None, value: Callable[[], float]) -> Row:
    published = kpps / _PUBLISHED_FIRST_KPPS if kpps is not None else None
    return Row(name, "packets/s and core", value, None if name == _FIRST else _FIRST, published)


def _application_rows(arena: Arena, seconds: float) -> list[Row]:
    def received(*, tracked: bool, busy_poll: bool = False) -> float:
        with ways.tracking(arena) if tracked else ways.notrack(arena), arena.receiver() as child:
            if busy_poll:
                child.ask(do="busy_poll", on=True)
            return arena.core_received_pps(child, seconds)

    def filtered() -> float:
        with ways.notrack(arena), arena.receiver() as child:
            child.ask(do="filter", on=True)
            return arena.core_pps(seconds)

    return [
        _row(_FIRST, 175, partial(received, tracked=True)),
        _row("application, notrack", 333, partial(received, tracked=False)),
        _row("application, notrack, busy poll", 470, partial(received, tracked=False, busy_poll=True)),
        _row("BPF socket filter, notrack", 512, filtered),
    ]


def _places(arena: Arena) -> list[tuple[str, float | None, Way]]:
    notrack = partial(ways.notrack, arena)
    input_drop = partial(ways.iptables, arena, "filter", "INPUT", *TO_PORT, "-j", "DROP")
    return [
        ("iptables INPUT drop, notrack", 608, partial(ways.both, notrack, input_drop)),
        ("iptables raw PREROUTING drop", 1688, partial(ways.raw_drop, arena)),
        ("nftables netdev ingress drop", 1530, partial(ways.netdev_drop, arena)),
        ("tc ingress drop (BPF)", 1800, partial(tc_drop, arena.victim)),
        ("XDP generic drop", None, partial(xdp_drop, arena.victim, native=False)),
        ("XDP drop", 10_100, partial(xdp_drop, arena.victim)),
    ]
