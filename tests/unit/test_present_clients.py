"""What known clients lose of what they send now: theirs, or what somebody else sends in their name."""

from __future__ import annotations

import numpy as np
import pytest
from analysis_factory import STARTED

from fwtop.analysis.clients import Clients
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.analysis.memory import Baseline
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.proposals.present import lost_now
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import PacketBatch, Window
from fwtop.stats.services import Doors

_CALM_SECONDS, _SECONDS = 60.0, 3.0
_NEW, _USUAL, _FORGED = 201, 101, 200  # bytes, by which the test tells packets
_RULE = Rule("", Kind.STRING, Match(), "a rule", 600)


def _sent(clients: range, each: int, length: int, protocol: int = 17) -> PacketBatch:
    """Return `each` packets with data of each client to port 443."""
    made = PacketBatch.zeros(len(clients) * each, 0)
    made.weight[:], made.family[:], made.dst_lo[:], made.dport[:] = 1.0, 4, 1, 443
    made.src_lo[:], made.sport[:] = np.repeat(np.array(clients, np.uint64), each), 40_000
    made.protocol[:], made.tcp_flags[:] = protocol, 16 if protocol == 6 else 0
    made.ip_length[:] = made.length[:] = length
    made.payload_length[:] = 50
    return made


def _lost(
    usual: PacketBatch, now: list[PacketBatch], dropped: tuple[int, ...], *, returns: bool
) -> list[float]:
    """Return what each client loses if packets of these lengths are dropped."""
    doors, clients = Doors.of(), Clients.of()
    first = usual.select(np.unique(usual.src_lo, return_index=True)[1])
    joined = PacketBatch.concat(now)
    empty = PacketBatch.empty()
    window = Window(STARTED, _SECONDS, joined, empty, empty, Counters(_SECONDS, len(joined), 0))
    context = make_context(window, AdviseConfig(), Baseline())
    for at in (0.0, _CALM_SECONDS):
        calm = Window(STARTED - 100 + at, _SECONDS, first, empty, empty, Counters(_SECONDS, len(first), 0))
        traffic = make_context(calm, AdviseConfig(), Baseline()).traffic
        clients = clients.met(traffic, np.arange(len(first)), doors, quiet=True)
    assert clients.long_known.all()
    normal = Normal(usual, usual.weight / _CALM_SECONDS, "", False, _CALM_SECONDS, clients, doors)
    hit = np.isin(context.traffic.packets.ip_length, dropped).astype(np.float64)
    return np.round(lost_now(_RULE, hit, context, normal, returns=returns), 2).tolist()


@pytest.mark.parametrize("protocol", [6, 17])
def test_who_sends_only_what_is_dropped_as_often_as_ever_loses_it(protocol: int) -> None:
    usual, now = _sent(range(9, 13), 240, _USUAL, protocol), _sent(range(9, 13), 12, _NEW, protocol)
    flood = _sent(range(100, 200), 30, _NEW, protocol)
    for returns in (True, False):
        assert _lost(usual, [now, flood], (_NEW,), returns=returns) == [1.0] * 4


def test_what_is_forged_in_clients_names_is_not_theirs() -> None:
    usual, now = _sent(range(9, 13), 240, _USUAL), _sent(range(9, 13), 12, _USUAL)
    forged = _sent(range(9, 13), 12, _FORGED)
    assert _lost(usual, [now, forged], (_FORGED,), returns=False) == [0.0] * 4


def test_a_bot_behind_a_clients_address_is_not_the_client() -> None:
    usual, now = _sent(range(9, 13), 60, _USUAL, 6), _sent(range(9, 13), 3, _USUAL, 6)
    bot = _sent(range(9, 10), 90, _NEW, 6)
    assert _lost(usual, [now, bot], (_NEW,), returns=True) == [0.0] * 4


def test_a_client_that_begins_with_it_shares_an_address_with_one_that_does_not() -> None:
    usual, now = _sent(range(9, 13), 60, _USUAL, 6), _sent(range(9, 13), 3, _USUAL, 6)
    begins = _sent(range(9, 10), 1, _NEW, 6)
    assert _lost(usual, [now, begins], (_NEW,), returns=True) == [0.25, 0.0, 0.0, 0.0]


def test_who_is_seldom_there_is_not_missed_where_packets_may_be_forged() -> None:
    usual = _sent(range(9, 10), 3, _USUAL)
    assert _lost(usual, [_sent(range(9, 10), 2, _FORGED)], (_FORGED,), returns=False) == [0.0]
