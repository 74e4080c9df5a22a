"""The cost of connection tracking and long rule lists, after a filtering bridge (Univ. of Washington).

There, 190,000 tracked connections made no measurable difference to forwarding, and 500 more rules doubled the
CPU time of 11,000 packets/s. Measured here: packets accepted per second of the receiving core's time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from benches.connections import RULES, STATES, long_list, open_connections
from fwtop.bench import drop_methods
from fwtop.bench.drop_methods import FWTOP_PORT, DropMethod, throughput
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.testbed import Testbed

_FIRST = "accept, tracked, table empty"


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 1), 0.5 if options.quick else 1.0
    notes: list[str] = []
    with Testbed() as testbed:
        tracking = partial(drop_methods.tracking, testbed)
        table: list[tuple[str, float | None, DropMethod]] = [
            (_FIRST, None, tracking),
            (f"accept, {STATES:,} connections tracked", 1.0, partial(_filled, testbed)),
            (
                f"accept, tracked, {RULES} more rules",
                0.5,
                partial(drop_methods.all_of, tracking, partial(_long_list, testbed)),
            ),
            (
                "accept, not tracked",
                None,
                partial(drop_methods.all_of, tracking, partial(drop_methods.notrack, testbed)),
            ),
        ]
        own = drop_methods.installable(testbed, {"accept, fwtop notrack": ["notrack", *FWTOP_PORT]}, notes)
        table += [
            (name, None, partial(drop_methods.all_of, tracking, method)) for name, method in own.items()
        ]
        rows = [
            Row(name, "packets/s and core", partial(throughput, testbed, seconds, method),
                None if name == _FIRST else _FIRST, published)
            for name, published, method in table
        ]  # fmt: skip
        return Document("conntrack", rounds, measure(rows, rounds), tuple(notes))


@contextlib.contextmanager
def _long_list(testbed: Testbed) -> Iterator[None]:
    """Add rules to INPUT that the flood doesn't match."""
    long_list(testbed, "INPUT")
    try:
        yield
    finally:
        testbed.run("iptables", "-F", "INPUT")


@contextlib.contextmanager
def _filled(testbed: Testbed) -> Iterator[None]:
    """Fill the connection table with flows other than the flood's; flush it afterwards."""
    with drop_methods.tracking(testbed):
        testbed.run("sysctl", "-q", "-w", "net.netfilter.nf_conntrack_udp_timeout=300")
        open_connections(testbed, testbed.lab.wire.victim)
        yield
        testbed.run("conntrack", "-F")
