"""What a stateful firewall costs a service, and what the stateless playbook gives back (Strongarm).

There, accepting untracked instead of tracked packets made 87,000 packets/s 106,000. Here the flood goes to a
service that a stateful rule set accepts, from ports that change, so that most packets open a connection.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from functools import partial

from benches.connections import count
from fwtop.bench import drop_methods
from fwtop.bench.drop_methods import throughput
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.receiver import PORT
from fwtop.bench.testbed import Testbed, flood_text
from fwtop.kernel.namespaces import inside

_FIRST = "accept by stateful rules"
_PUBLISHED = 106 / 87
_RULES = f"""*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW -j ACCEPT
-A INPUT -p udp -m udp --dport {PORT} -m conntrack --ctstate NEW -j ACCEPT
COMMIT
"""


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 1), 0.5 if options.quick else 1.0
    fills: dict[str, int] = {}
    with Testbed(flood_text(sport="random")) as testbed, _service(testbed):
        stateful = partial(_stateful, testbed)
        notes: list[str] = []
        with stateful():
            words = {"fwtop harden stateless": ["harden", "stateless", "--apply"]}
            own = drop_methods.installable(testbed, words, notes)
        methods = {_FIRST: stateful}
        methods |= {name: partial(drop_methods.all_of, stateful, method) for name, method in own.items()}

        def measured(name: str) -> float:
            pps = throughput(testbed, seconds, partial(_noted, testbed, methods[name], fills, name))
            testbed.run("conntrack", "-F")
            return pps

        rows = [
            Row(name, "packets/s and core", partial(measured, name), None if name == _FIRST else _FIRST,
                None if name == _FIRST else _PUBLISHED)
            for name in methods
        ]  # fmt: skip
        results = measure(rows, rounds)
    notes += [f"{name}: {held:,} entries in the table after a measurement" for name, held in fills.items()]
    return Document("stateless", rounds, results, tuple(notes))


@contextlib.contextmanager
def _noted(
    testbed: Testbed, method: drop_methods.DropMethod, fills: dict[str, int], name: str
) -> Iterator[None]:
    """Note how full the table is at the end of a measurement."""
    with method():
        yield
        fills[name] = count(testbed)


@contextlib.contextmanager
def _stateful(testbed: Testbed) -> Iterator[None]:
    testbed.run("iptables-restore", text=_RULES)
    try:
        yield
    finally:
        testbed.run("iptables", "-P", "INPUT", "ACCEPT")
        testbed.run("iptables", "-F", "INPUT")


@contextlib.contextmanager
def _service(testbed: Testbed) -> Iterator[None]:
    """Hold the flood's port open, so that the playbook finds a service there."""
    with inside(testbed.victim):
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with listener:
        listener.bind(("", PORT))
        yield
