"""Accepted packets by listening socket, and the answer of the guardian that names them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from fwtop.console.rules import parse_survey, read_ruleset
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer
from fwtop.model.service import Service
from fwtop.model.traffic.counters import Counters, DropCount
from fwtop.model.traffic.packets import PacketBatch, Window
from fwtop.model.traffic.snapshot import FilterChain, Ring, Snapshot, Surroundings
from fwtop.stats.services import with_rates
from fwtop.store.database import decode_value, encode_value

SSH = Service("tcp", 22, "sshd")
WEB = Service("tcp", 80, "nginx")


def packets(count: int, protocol: int, dport: int, to: str = "10.0.0.1", reason: int = 0) -> PacketBatch:
    batch = PacketBatch.zeros(count, 8)
    address = Prefix.parse(to)
    batch.weight[:] = 1.0
    batch.family[:] = address.family
    batch.dst_hi[:], batch.dst_lo[:] = address.value >> 64, address.value & (1 << 64) - 1
    batch.protocol[:], batch.dport[:], batch.reason[:] = protocol, dport, reason
    return batch


def window(accepted: list[PacketBatch], dropped: PacketBatch | None = None, **counts: object) -> Window:
    joined = PacketBatch.concat(accepted)
    nothing = PacketBatch.empty(8)
    counters = Counters(2.0, 1000, 60_000, len(joined), **counts)  # type: ignore[arg-type]
    own = (Prefix.parse("10.0.0.1"), Prefix.parse("fd00::1"))
    return Window(0.0, 2.0, nothing, nothing if dropped is None else dropped, joined, counters, own=own)


def rates(listeners: tuple[Service, ...], seen: Window) -> dict[tuple[str, int, str], float]:
    return {(item.protocol, item.port, item.name): item.pps for item in with_rates(listeners, seen)}


def test_each_listener_gets_its_packets_of_either_family() -> None:
    seen = window([packets(60, 6, 80), packets(40, 6, 80, "fd00::1"), packets(10, 6, 22), packets(5, 17, 80)])
    assert rates((SSH, WEB), seen) == {("tcp", 80, "nginx"): 50.0, ("tcp", 22, "sshd"): 5.0}


def test_forwarded_packets_reach_no_listener() -> None:
    seen = window([packets(60, 6, 80, "192.0.2.9"), packets(40, 6, 80)])
    assert rates((WEB,), seen) == {("tcp", 80, "nginx"): 20.0}


def test_samples_stand_for_the_exact_count() -> None:
    seen = window([packets(10, 6, 80)])
    seen = replace(seen, counters=replace(seen.counters, accepted_packets=1000))
    assert rates((WEB,), seen) == {("tcp", 80, "nginx"): pytest.approx(500.0)}


def test_what_the_socket_drops_does_not_reach_the_service() -> None:
    late = DropCount("socket", "TCP_OLD_DATA", 40, before_delivery=False, code=7)
    early = DropCount("netfilter", "NETFILTER_DROP", 500, code=8)
    dropped = PacketBatch.concat([packets(20, 6, 80, reason=7), packets(50, 6, 80, reason=8)])
    seen = window([packets(100, 6, 80)], dropped, drops=(late, early))
    assert rates((WEB,), seen) == {("tcp", 80, "nginx"): 30.0}


def test_services_stand_in_where_nobody_could_be_asked() -> None:
    seen = window([packets(20, 6, 22), packets(10, 17, 53), packets(30, 6, 50_000)])
    assert rates((), seen) == {("tcp", 22, "ssh"): 10.0, ("udp", 53, "dns"): 5.0}


def test_nothing_accepted_is_no_rate() -> None:
    assert with_rates((SSH,), window([])) == (SSH,)
    assert np.isfinite(with_rates((SSH,), replace(window([packets(1, 6, 22)])))[0].pps)


def test_the_guardians_answer_is_made_safe() -> None:
    found = parse_survey(
        {
            "asks": [{"protocol": "udp", "port": 123, "name": "", "addresses": ["192.0.2.9"]}],
            "services": [{"protocol": "tcp", "port": 80, "name": "ngi\x1b[2Jnx\u202e" + "x" * 90}],
            "rings": [["eth0", 256, 4096], ["eth1", 1, 2]],
            "chains": [["filter", "inet \x1bfilter input", True]],
        },
        ("eth0",),
    )
    assert found.rings == (Ring("eth0", 256, 4096),)
    assert found.chains == (FilterChain("filter", "inet ·filter input", True),)
    assert found.listeners[0].name.startswith("ngi·[2Jnx·")
    assert len(found.listeners[0].name) <= 65
    assert found.asks == (Service("udp", 123, "ntp", addresses=("192.0.2.9",)),)


def test_surroundings_are_stored_and_old_sessions_have_none() -> None:
    from stored_samples import START, snapshot

    full = snapshot(START)
    around = Surroundings(
        (replace(WEB, pps=5.0),), (Ring("eth0", 1, 2),), (FilterChain("raw", "ip a b", False),)
    )
    told = replace(full, surroundings=around)
    assert decode_value(Snapshot, encode_value(told)).surroundings == around


def test_an_answer_about_rules_that_makes_no_sense_is_one_line() -> None:
    link = SimpleNamespace(demand=lambda *_, **__: Answer(True, data={"ruleset": {"rules": 5}}))
    with pytest.raises(FwtopError, match="answer about rules makes no sense"):
        read_ruleset(link)  # type: ignore[arg-type]
