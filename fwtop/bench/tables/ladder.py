"""Where to drop: Cloudflare's ladder (M. Majkowski, "How to drop 10 million packets per second", 2018).

Packets per second that one core drops, by hook, with fwtop's own rules below. The published figures are of
one core under 14 Mpps; what compares across machines is each row's ratio to the first.
"""

from __future__ import annotations

from functools import partial

from fwtop.bench import drop_methods
from fwtop.bench.drop_methods import FWTOP_PORT, TO_PORT, DropMethod, tc_drop, throughput, xdp_drop
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.testbed import PAYLOAD_START, SOURCES, Testbed

_FIRST = "application, recvmmsg"
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
    with Testbed() as testbed:
        rows = _application_rows(testbed, seconds)
        dropping = [
            *_places(testbed),
            *(
                (name, None, method)
                for name, method in drop_methods.installable(testbed, _OWN, notes).items()
            ),
        ]
        rows += [
            _row(name, kpps, partial(throughput, testbed, seconds, method)) for name, kpps, method in dropping
        ]
        return Document("ladder", rounds, measure(rows, rounds), tuple(notes))


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
