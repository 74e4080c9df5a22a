"""Windows in, known clients out; and what attackers do to the table."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from analysis_factory import STARTED

from fwtop.analysis.clients import LONG_SECONDS, Clients
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import AnalysisContext, make_context
from fwtop.analysis.learning import Learner
from fwtop.analysis.memory import Baseline
from fwtop.model.service import plain_number
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import FLAG_OUTBOUND, PacketBatch, Window
from fwtop.stats.services import Doors

HTTPS, SSH, DNS = (6, 443), (6, 22), (17, 53)
DATA, SYN = 16, 2


def packets(sources: Iterable[int], service: tuple[int, int], flags: int, *, each: int = 1) -> PacketBatch:
    """Make `each` packets of one flow from each source."""
    numbers = np.repeat(np.fromiter(sources, np.uint64), each)
    made = PacketBatch.zeros(len(numbers), 0)
    made.weight[:], made.family[:], made.src_lo[:] = 1.0, 4, numbers
    made.dst_lo[:], made.protocol[:], made.dport[:] = 1, service[0], service[1]
    made.sport[:], made.tcp_flags[:] = 40_000, flags if service[0] == 6 else 0
    order = np.tile(np.arange(each), len(numbers) // each)
    made.tcp_seq[:], made.time_ns[:] = 1_000 + 100 * order, 1_000 * order
    made.ip_length[:] = made.length[:] = 140
    made.payload_length[:] = 100
    return made


def connected(sources: Iterable[int], service: tuple[int, int] = HTTPS) -> PacketBatch:
    return packets(sources, service, DATA, each=3)


def answers(sources: Iterable[int], service: tuple[int, int]) -> PacketBatch:
    """Make what this host answers, a moment later."""
    asked = packets(sources, service, 0)
    made = PacketBatch.zeros(len(asked), 0)
    made.weight[:], made.family[:], made.src_lo[:], made.dst_lo[:] = 1.0, 4, 1, asked.src_lo
    made.protocol[:], made.sport[:], made.dport[:] = service[0], service[1], asked.sport
    made.flags[:], made.time_ns[:] = FLAG_OUTBOUND, 500
    return made


def context(at: float, *batches: PacketBatch) -> AnalysisContext:
    joined = PacketBatch.concat(list(batches))
    empty = PacketBatch.empty()
    window = Window(STARTED + at - 3.0, 3.0, joined, empty, empty, Counters(3.0, len(joined), 0))
    config = AdviseConfig(max_rows=1 << 21, max_capture_rows=1 << 21)
    return make_context(window, config, Baseline())


def after(*windows: tuple[float, bool, PacketBatch]) -> Clients:
    """Return who is known after windows: when, whether nothing attacks, and what arrived."""
    clients = Clients.of()
    for at, quiet, batch in windows:
        clients = met(clients, context(at, batch), quiet=quiet)
    return clients


def met(clients: Clients, seen: AnalysisContext, *, quiet: bool) -> Clients:
    return clients.met(seen.traffic, np.flatnonzero(seen.unclaimed & seen.proven), Doors.of(), quiet=quiet)


def told(clients: Clients) -> set[tuple[int, int, str]]:
    """Return source, port and class of each."""
    words = np.where(clients.long_known, "long known", "new")
    return set(zip(clients.lo.tolist(), (clients.service & 0xFFFF).tolist(), words.tolist(), strict=True))


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        pytest.param([(0, True, packets([7], HTTPS, SYN))], set(), id="a lone SYN"),
        pytest.param([(0, True, packets([7], DNS, 0))], set(), id="a lone datagram"),
        pytest.param([(0, True, connected([7]))], {(7, 443, "new")}, id="one connection"),
        pytest.param(
            [(0, True, connected([7])), (60, True, connected([7]))], {(7, 443, "long known")}, id="a minute"
        ),
        pytest.param(
            [(0, True, connected([7])), (5, True, connected([7]))], {(7, 443, "new")}, id="the onset"
        ),
        pytest.param(
            [(0, False, connected([7])), (600, False, connected([7]))],
            {(7, 443, "new")},
            id="ten minutes of an attack",
        ),
        pytest.param(
            [(0, True, connected([7])), (60, True, connected([7], SSH))],
            {(7, 443, "new"), (7, 22, "new")},
            id="two services",
        ),
        pytest.param(
            [(0, True, PacketBatch.concat([packets([7], DNS, 0), answers([7], DNS)]))],
            {(7, 53, "new")},
            id="an answered datagram",
        ),
    ],
)
def test_windows_and_known_clients(
    windows: list[tuple[float, bool, PacketBatch]], expected: set[tuple[int, int, str]]
) -> None:
    assert told(after(*windows)) == expected


@pytest.mark.parametrize(("calm_seconds", "expected"), [(2, "new"), (8, "long known")])
def test_bots_of_attacks_that_come_again_are_not_long_known_by_their_onsets(
    calm_seconds: int, expected: str
) -> None:
    learner = Learner(Baseline(), AdviseConfig())
    for began in (0, 600):
        for second in range(10):
            batch = connected([7])
            batch.time_ns[:] += int((began + second) * 1e9)
            seen = context(began + second, batch)
            empty, counters = PacketBatch.empty(), Counters(1.0, len(batch), 0)
            window = Window(STARTED + began + second - 1.0, 1.0, batch, empty, empty, counters)
            learner.take(seen, window, quiet=second < calm_seconds)
    assert told(learner.baseline.clients) == {(7, 443, expected)}


def test_what_a_client_got_before_the_attack_and_since() -> None:
    calm = [(0.0, True, connected([7])), (60.0, True, connected([7]))]
    clients = after(*calm, (63, False, connected([7, 8])))
    got = zip(clients.lo.tolist(), clients.before.tolist(), clients.since.tolist(), strict=True)
    assert sorted(got) == [(7, 6, 3), (8, 0, 3)]
    again = after(*calm, (63, False, connected([7, 8])), (90, True, connected([7])))
    assert not again.since.any()  # of the present attack
    assert plain_number("tcp", 443) == clients.service[0]


def test_forged_sources_and_bots_evict_nobody_and_cost_no_memory() -> None:
    known = after((0.0, True, connected(range(1, 2_001))), (LONG_SECONDS, True, connected(range(1, 2_001))))
    assert known.long_known.sum() == 2_000
    forged = context(61, packets(range(1 << 20, (1 << 20) + 1_000_000), HTTPS, SYN))
    assert met(known, forged, quiet=False) is known
    clients = known
    for service in (HTTPS, SSH, (6, 25), (6, 80)):
        bots = context(62, connected(range(1 << 20, (1 << 20) + 100_000), service))
        for quiet in (True, False):
            clients = met(clients, bots, quiet=quiet)
    assert len(clients) <= 12_288
    assert np.isin(known.key, clients.key).all()
    assert clients.long_known.sum() == 2_000


def test_the_table_is_stored_with_the_baseline() -> None:
    baseline = Baseline()
    baseline.clients = after((0.0, True, connected([9, 7])), (60, True, connected([7])))
    read = Baseline.from_bytes(baseline.to_bytes())
    assert told(read.clients) == told(baseline.clients) == {(7, 443, "long known"), (9, 443, "new")}
    with pytest.raises(ValueError, match="not a stored table of clients"):
        Clients.of([np.zeros(3), *([np.zeros(2)] * 10)])
