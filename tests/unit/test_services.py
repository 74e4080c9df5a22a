"""What a service is told from others by, which packets are its own, and what stays bounded."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from msgspec.structs import replace
from test_analysis_clients import HTTPS, after, connected, context, met, packets

from fwtop.analysis.clients import Clients
from fwtop.analysis.context import Finding
from fwtop.analysis.memory import Baseline
from fwtop.analysis.proposals.census import Aim
from fwtop.analysis.proposals.effect import clients_harmed, harm_by
from fwtop.analysis.proposals.normal import Normal
from fwtop.guardian.services import OftenAsked, Published
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.service import Service, plain_number, service_at
from fwtop.model.traffic.packets import PacketBatch
from fwtop.model.traffic.protocols import TCP
from fwtop.netfilter.ctnetlink import ASSURED, DST_NAT, SEEN_REPLY, TCP_STATES, Entry
from fwtop.rehearsal.host import Asked
from fwtop.stats.services import Doors

NGINX = Service("tcp", 443, "nginx", user="root", unit="nginx.service")
SHOP = Service(
    "tcp", 443, "node", addresses=("172.17.0.2",), published=(("0.0.0.2", 443), ("0.0.0.1", 8443)),
    user="1000", container="docker 3f2a1b0c9d8e",
)  # fmt: skip
WHERE = {443: plain_number("tcp", 443), 8443: plain_number("tcp", 8443)}


def to(address: int, port: int, sources: Iterable[int] = (7,)) -> PacketBatch:
    """Make packets to 0.0.0.`address`."""
    made = connected(sources, (6, port))
    made.dst_lo[:] = address
    return made


def told(*services: Service, now: float = 0.0, before: Doors | None = None) -> tuple[Doors, dict[int, int]]:
    return (before if before is not None else Doors.of()).told(services, now)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        pytest.param(NGINX, replace(NGINX, pps=9.0), True, id="rates are not part of it"),
        pytest.param(NGINX, replace(NGINX, name="worker", user="www-data"), True, id="a unit's process"),
        pytest.param(NGINX, replace(NGINX, unit="caddy.service"), False, id="another unit"),
        pytest.param(NGINX, replace(NGINX, port=80), False, id="another port"),
        pytest.param(NGINX, replace(NGINX, protocol="udp"), False, id="another protocol"),
        pytest.param(NGINX, replace(NGINX, addresses=("192.0.2.1",)), False, id="one address, and all"),
        pytest.param(NGINX, replace(NGINX, addresses=("::1", "192.0.2.1")), True, id="several addresses"),
        pytest.param(SHOP, replace(SHOP, container="docker 000011112222"), True, id="deployed anew"),
        pytest.param(SHOP, replace(SHOP, container="podman 3f2a1b0c9d8e"), False, id="another runtime"),
        pytest.param(SHOP, replace(SHOP, published=()), True, id="published elsewhere"),
        pytest.param(
            replace(NGINX, unit="session-3.scope"), replace(NGINX, unit="session-4.scope"), True,
            id="started in another login",
        ),
        pytest.param(
            replace(NGINX, unit=""), replace(NGINX, unit="", user="www-data"), False, id="another user"
        ),
    ],
)  # fmt: skip
def test_what_a_service_is_told_by(first: Service, second: Service, same: bool) -> None:
    assert (first.key.number == second.key.number) is same


def test_where_nothing_is_known_protocol_and_port_are_the_service() -> None:
    assert Service("tcp", 443, "https").key.number == WHERE[443]
    assert Doors.of().numbers(to(1, 443)).tolist() == [WHERE[443]] * 3


def test_packets_go_to_the_service_behind_their_door() -> None:
    doors, _ = told(NGINX, SHOP)
    for address, port, number in (
        (1, 443, NGINX.key.number), (2, 443, SHOP.key.number), (1, 8443, SHOP.key.number),
        (2, 8443, WHERE[8443]),
    ):  # fmt: skip
        assert set(doors.numbers(to(address, port)).tolist()) == {number}, (address, port)
    delivered = Prefix.parse("172.17.0.2").value
    assert set(doors.numbers(to(delivered, 443)).tolist()) == {SHOP.key.number}
    assert service_at((NGINX, SHOP), "tcp", "0.0.0.2", 443) is SHOP
    assert service_at((NGINX, SHOP), "tcp", "0.0.0.3", 443) is NGINX
    assert service_at((NGINX, SHOP), "udp", "0.0.0.3", 443) is None


def test_who_listened_stays_known_while_the_server_restarts() -> None:
    doors, _ = told(NGINX)
    nobody, moves = told(Service("tcp", 443, ""), before=doors)
    gone, _ = told(Service("udp", 53, "named", user="bind"), before=nobody)
    for after_it in (nobody, gone):
        assert set(after_it.numbers(to(1, 443)).tolist()) == {NGINX.key.number}
    assert moves == {}
    caddy = replace(NGINX, unit="caddy.service")
    other, moves = told(caddy, before=gone)
    assert set(other.numbers(to(1, 443)).tolist()) == {caddy.key.number}
    assert moves == {}, "clients of the one are none of the other"


def test_clients_stay_known_when_it_turns_out_who_serves_them() -> None:
    clients = after((0.0, True, to(1, 443)), (60.0, True, to(1, 443)))
    doors, moves = told(NGINX)
    assert moves == {WHERE[443]: NGINX.key.number}
    clients = clients.moved(moves)
    assert clients.service.tolist() == [NGINX.key.number]
    later = context(63.0, to(1, 443))
    rows = np.flatnonzero(later.unclaimed & later.proven)
    clients = clients.met(later.traffic, rows, doors, quiet=True)
    assert len(clients) == 1
    assert clients.seconds[0] == 63.0
    again = met(Clients.of(), later, quiet=True)  # by its port, as after a reading that failed
    names = Clients.__struct_fields__
    both = Clients.of([np.concatenate([getattr(one, name) for one in (clients, again)]) for name in names])
    assert len(both) == 2
    assert both.moved(moves).first.tolist() == clients.first.tolist()


def test_which_of_two_services_old_clients_were_served_by_is_not_guessed() -> None:
    first, second = (replace(SHOP, published=(), addresses=(one,)) for one in ("10.0.0.1", "10.0.0.2"))
    assert told(first, second)[1] == {}


def test_the_clients_of_an_attacked_service_are_not_those_of_another_one_on_its_port() -> None:
    baseline = Baseline()
    baseline.meet((NGINX, SHOP), 0.0)
    calm = PacketBatch.concat([to(1, 443, range(1, 41)), to(2, 443, range(101, 107))])
    for at in (0.0, 120.0):
        seen = context(at, calm)
        rows = np.flatnonzero(seen.unclaimed & seen.proven)
        baseline.clients = baseline.clients.met(seen.traffic, rows, baseline.doors, quiet=True)
    flood = packets(range(1 << 20, (1 << 20) + 50_000), HTTPS, 2)
    flood.dst_lo[:] = 2
    now = replace(context(180.0, calm, flood), baseline=baseline)
    attack = Finding(
        "syn_flood", "", np.flatnonzero(now.tcp.syn), 1.0, (), match=Match(protocol=TCP, dport=443)
    )
    normal = Normal(calm, np.ones(len(calm)), "", guess=False, clients=baseline.clients, doors=baseline.doors)
    rule = Rule("", Kind.XDP, Match(protocol=TCP, dport=443), "", 600)
    usually = harm_by(rule, normal, now.traffic)
    nobody = np.zeros(len(baseline.clients))
    found = clients_harmed(rule, usually, nobody, normal, Aim.at(attack, now))
    assert (found.known, found.hit, found.others, found.others_hit) == (6, 6, 40, 40)


def test_what_is_normal_at_one_service_is_not_at_another_on_its_port() -> None:
    calm = PacketBatch.concat([to(1, 443, range(1, 91)), to(2, 443, range(101, 111))])
    baseline = Baseline(seconds=100.0, mean={"tcp.ack": 1_000.0}, square={"tcp.ack": 1_000_000.0})
    baseline.keep_rows(calm)
    arrived = to(2, 443, range(1 << 20, (1 << 20) + 500))
    arrived.sport[:] = np.arange(len(arrived)) + 1_024
    seen = replace(context(0.0, arrived), baseline=baseline)
    flood = seen.features(np.arange(len(seen.traffic)))
    assert seen.usual_of(flood, "tcp.ack") == pytest.approx(1_000.0)
    baseline.meet((NGINX, SHOP), 0.0)
    assert replace(seen).usual_of(flood, "tcp.ack") == pytest.approx(100.0)


def test_doors_are_stored_with_the_baseline() -> None:
    baseline = Baseline()
    baseline.meet((NGINX, SHOP), 5.0)
    read = Baseline.from_bytes(baseline.to_bytes()).doors
    assert read.numbers(to(2, 443)).tolist() == [SHOP.key.number] * 3
    with pytest.raises(ValueError, match="not a stored table of services"):
        Doors.of([np.zeros(3), *([np.zeros(2)] * 5)])


def test_the_doors_are_bounded_and_those_gone_longest_go() -> None:
    doors = told(NGINX, now=1.0)[0]
    for number in range(40):
        many = [Service("udp", port, "x", user="root") for port in range(64 * number + 1, 64 * number + 65)]
        doors, _ = told(*many, now=2.0 + number, before=doors)
    assert len(doors) == 512
    assert set(doors.numbers(to(1, 443)).tolist()) == {WHERE[443]}
    told_now = [Service("udp", port, "x", user="root") for port in range(1, 5_001)]
    assert len(told(*told_now, before=doors)[0]) == 512


def _entry(source: int, dport: int, status: int) -> Entry:
    return Entry(4, TCP, source.to_bytes(4, "big"), b"\x0a\0\0\1", 40_000, dport, status)


def test_doors_that_others_try_are_bounded_and_refusals_open_none() -> None:
    published = Published()
    reply = Entry(4, TCP, b"\xac\x11\0\2", b"\0\0\0\7", 80, 40_000)
    reset = ((_entry(source, 1 + source % 60_000, DST_NAT | SEEN_REPLY), reply) for source in range(100_000))
    published.note(reset, (), 0.0)
    assert published.doors() == {}
    scanned = ((_entry(7, port, DST_NAT | ASSURED), reply._replace(sport=port)) for port in range(1, 60_000))
    published.note(scanned, (), 0.0)
    assert len(published.doors()) == 256
    published.note([(_entry(7, 8080, DST_NAT | ASSURED), reply)], ("0.0.0.7",), 1.0)
    assert ("tcp", "10.0.0.1", 8080) not in {door for doors in published.doors().values() for door in doors}


def test_handshakes_half_done_show_doors_and_push_none_out() -> None:
    published = Published()
    reply = Entry(4, TCP, b"\xac\x11\0\2", b"\0\0\0\7", 80, 40_000)
    half = _entry(7, 443, DST_NAT | SEEN_REPLY)._replace(tcp_state=TCP_STATES.index("SYN_RECV"))
    used = ("tcp", "10.0.0.1", 8080)
    published.note([(_entry(7, 8080, DST_NAT | ASSURED), reply)], (), 0.0)
    published.note([(half, reply)], (), 1.0)
    assert [*published.doors().values()] == [[used, ("tcp", "10.0.0.1", 443)]]
    published.note([(half._replace(dport=port), reply) for port in range(1, 60_000)], (), 2.0)
    assert used in [door for doors in published.doors().values() for door in doors]


def test_a_door_leads_to_several_places_until_one_is_not_seen_for_long() -> None:
    published = Published()
    for at, last in ((0.0, 2), (1.0, 3), (900.0, 3)):
        reply = Entry(4, TCP, bytes((172, 17, 0, last)), b"\0\0\0\7", 80, 40_000)
        published.note([(_entry(7, 8080, DST_NAT | ASSURED), reply)], (), at)
        if at == 1.0:
            assert [len(places) for places in published.doors()] == [2]
    assert list(published.doors()) == [{("tcp", "172.17.0.3", 80)}]


def test_what_is_asked_in_most_readings_stays_whatever_a_host_is_made_to_ask() -> None:
    asked = OftenAsked()
    steady = Asked(Prefix.parse("192.0.2.53"), 17, 53)
    asked.note([steady])
    for reading in range(20):
        made = (Asked(Prefix(4, (reading << 16) + number, 32), 17, 53) for number in range(5_000))
        asked.note([*made, steady])
    assert len(asked._seen) <= 512
    found = asked.services()
    assert len(found) == 64
    assert (found[0].addresses, found[0].port) == (("192.0.2.53",), 53)
