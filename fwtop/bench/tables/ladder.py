"""Where to drop: Cloudflare's ladder (M. Majkowski, "How to drop 10 million packets per second", 2018).

Packets per second that one core drops, by hook, with fwtop's own rules below, of IPv4 and then of IPv6. The
published figures are of one core under 14 Mpps of IPv4; what compares across machines is each row's ratio to
the first of its family.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from fwtop.bench import drop_methods
from fwtop.bench.drop_methods import FWTOP_PORT, TO_PORT, DropMethod, tc_drop, throughput, xdp_drop
from fwtop.bench.frame import Document, Options, Result, Row, measure
from fwtop.bench.testbed import PAYLOAD_START, SOURCES, SOURCES_6, Testbed

_FIRST = "application, recvmmsg"
_OWN = {
    family: {
        "fwtop block (ipset)": ["block", sources],
        "fwtop limit (hashlimit)": ["limit", *FWTOP_PORT, "--per", "24", "--rate", "1000/s"],
        "fwtop match (string)": ["match", "--string", PAYLOAD_START, *FWTOP_PORT],
        "fwtop drop (nftables)": ["drop", *FWTOP_PORT, "--via", "nftables"],
        "fwtop drop (tc)": ["drop", *FWTOP_PORT, "--via", "tc"],
        "fwtop drop (XDP)": ["drop", *FWTOP_PORT, "--via", "xdp"],
    }
    for family, sources in ((4, SOURCES), (6, SOURCES_6))
}


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 1), 0.5 if options.quick else 1.0
    notes: list[str] = []
    results: list[Result] = []
    for family in (4, 6):
        with Testbed(family=family) as testbed:
            results += measure(_rows(testbed, seconds, notes), rounds)
    return Document("ladder", rounds, tuple(results), tuple(notes))


def _rows(testbed: Testbed, seconds: float, notes: list[str]) -> list[Row]:
    """Return the rows of a family."""
    rows = _application_rows(testbed, seconds)
    own = drop_methods.installable(testbed, _OWN[testbed.family], notes)
    dropping = [*_places(testbed), *((name, None, method) for name, method in own.items())]
    for name, kpps, method in dropping:
        rows.append(_row(name, kpps, partial(throughput, testbed, seconds, method)))
    if testbed.family == 4:
        return rows
    return [
        replace(row, name=f"{row.name}, IPv6", versus=row.versus and f"{row.versus}, IPv6", published=None)
        for row in rows
    ]


_row = partial(drop_methods.row, (_FIRST, 175.0))


def _application_rows(testbed: Testbed, seconds: float) -> list[Row]:
    def received(*, tracked: bool, busy_poll: bool = False) -> float:
        with (
            drop_methods.tracking(testbed) if tracked else drop_methods.notrack(testbed),
            testbed.receiver() as child,
        ):
            if busy_poll:
                child.ask(do="busy_poll", on=True)
            return testbed.core_received_pps(child, seconds)

    def filtered() -> float:
        with drop_methods.notrack(testbed), testbed.receiver() as child:
            child.ask(do="filter", on=True)
            return testbed.core_pps(seconds)

    return [
        _row(_FIRST, 175, partial(received, tracked=True)),
        _row("application, notrack", 333, partial(received, tracked=False)),
        _row("application, notrack, busy poll", 470, partial(received, tracked=False, busy_poll=True)),
        _row("BPF socket filter, notrack", 512, filtered),
    ]


def _places(testbed: Testbed) -> list[tuple[str, float | None, DropMethod]]:
    notrack = partial(drop_methods.notrack, testbed)
    input_drop = partial(drop_methods.iptables, testbed, "filter", "INPUT", *TO_PORT, "-j", "DROP")
    return [
        ("iptables INPUT drop, notrack", 608, partial(drop_methods.all_of, notrack, input_drop)),
        ("iptables raw PREROUTING drop", 1688, partial(drop_methods.raw_drop, testbed)),
        ("nftables netdev ingress drop", 1530, partial(drop_methods.netdev_drop, testbed)),
        ("tc ingress drop (BPF)", 1800, partial(tc_drop, testbed.victim)),
        ("XDP generic drop", None, partial(xdp_drop, testbed.victim, native=False)),
        ("XDP drop", 10_100, partial(xdp_drop, testbed.victim)),
    ]
