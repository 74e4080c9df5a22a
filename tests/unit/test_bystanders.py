"""Who may be cut by a rule though nobody there attacks: forged clients, and whom the host asks."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from analysis_factory import ethernet, icmp, ip, make_batch, make_tables, make_window, udp
from analysis_flows import HOST, OPTIONS, Frame, connection, hosts, segment, visitors
from msgspec.structs import replace

from fwtop.analysis.connections import flows_of_packets
from fwtop.analysis.proposals.bystanders import _of_another_family
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.window.traffic import mix
from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind
from fwtop.model.traffic.packets import TrackedFlows
from fwtop.model.traffic.protocols import UDP
from fwtop.model.traffic.snapshot import Judgement, Proposal
from fwtop.rehearsal.host import Asked

CLIENT, RESOLVER = bytes([185, 31, 8, 5]), bytes([9, 9, 9, 9])
PINGER = bytes([62, 4, 4, 4])
PLAYER, PLAYER_6, HOST_6 = bytes([81, 2, 3, 4]), b"\x2a\x02" + bytes(13) + b"\x09", b"\x2a\x03" + bytes(14)
SECONDS = 4.0


def arriving(source: bytes, protocol: int, body: bytes) -> bytes:
    return ethernet(ip(source, HOST, protocol, body, ttl=57))


def game(source: bytes, data: bytes) -> bytes:
    to = HOST if len(source) == 4 else HOST_6
    return ethernet(ip(source, to, 17, udp(30_000 + source[-1], 5453, data), ttl=57))


def usual(rng: Random, end: float, players: tuple[bytes, ...] = ()) -> list[Frame]:
    """Visitors, a monitor, who pings, and answers of a resolver that an application here asks."""
    frames = visitors(rng, 40)
    frames += connection(rng, CLIENT, 80, [b"GET / HTTP/1.1\r\n\r\n"], at=end - 2)
    frames += [(at / 8, game(who, bytes(20))) for at in range(16) for who in players]
    ping = arriving(PINGER, 1, icmp(8, 0, bytes(40)))
    answer = arriving(RESOLVER, 17, udp(53, 40_000, b"\x12\x34\x81\x80" + bytes(60)))
    return frames + [(at / 2, frame) for at in range(4) for frame in (ping, answer)]


def learned(*players: bytes) -> Advisor:
    """An advisor that has watched this for a minute."""
    advisor, rng = Advisor(), Random(1)
    for end in range(2, 62, 2):
        frames = sorted((at, frame) for at, frame in usual(rng, 2.0, players) if 0 <= at < 2)
        batch = make_batch(frames, start_ns=(10**3 + end) * 10**9)
        window = make_window(batch, 2.0, live=True, started=1e9 + end)
        advisor.judge(window, make_tables(window))
    assert advisor.baseline.ready
    return advisor


def judged(
    flood: list[Frame],
    advisor: Advisor,
    handshakes: float = 0.0,
    players: tuple[bytes, ...] = (),
    assured: float | None = None,
) -> Judgement:
    frames = sorted(usual(Random(2), 2.0, players) + flood, key=lambda item: item[0])
    batch = make_batch([one for one in frames if 0 <= one[0] < SECONDS], start_ns=2_000 * 10**9)
    window = make_window(batch, SECONDS, live=True, started=1e9 + 1_000)
    window = replace(window, handshakes_per_s=handshakes)
    if assured is not None:
        asked = np.unique(flows_of_packets(batch))[::7]
        window = replace(window, tracked=TrackedFlows(asked, asked[: int(assured * len(asked))]))
    return advisor.judge(window, make_tables(window))


def proposals(
    flood: list[Frame], advisor: Advisor, handshakes: float = 0.0, assured: float | None = None
) -> list[Proposal]:
    judgement = judged(flood, advisor, handshakes, assured=assured)
    return [one for one in judgement.proposals if one.rule is not None]


def spread(rng: Random, count: int) -> list[float]:
    return [rng.random() * SECONDS for _ in range(count)]


def syns(rng: Random, sources: list[bytes]) -> list[Frame]:
    return [
        (at, segment(rng.choice(sources), HOST, rng.randrange(32768, 61000), 80, "S",
                     seq=rng.getrandbits(32), options=OPTIONS, ttl=64 - CLIENT[3] % 20))
        for at in spread(rng, 8_000)
    ]  # fmt: skip


def test_a_client_in_whose_name_syns_come_is_named_and_a_proxy_harms_nobody() -> None:
    found = proposals(syns(Random(3), [CLIENT]), learned())
    by_source = [one for one in found if one.rule and one.rule.match.sources]
    assert by_source
    for one in by_source:
        assert one.bystanders.startswith("could be forged: 185.31.8.5 is a client of yours since ")
        assert not one.return_path
    (proxy,) = [one for one in found if one.rule and one.rule.kind is Kind.SYNPROXY]
    assert not proxy.bystanders
    assert proxy.attack_share > 0.95


def test_sources_that_nobody_knows_could_be_forged_all_the_same() -> None:
    found = proposals(syns(Random(3), [bytes([203, 0, 113, last]) for last in range(1, 6)]), learned())
    blocks = [one for one in found if one.rule and one.rule.match.sources and one.rule.limit is None]
    assert blocks
    assert all("none of these sources has completed a handshake" in one.bystanders for one in blocks)
    (limit,) = [one for one in found if one.rule and one.rule.match.sources and one.rule.limit]
    assert not limit.bystanders, "it harms no client, and leaves 10/s to whoever is there"


@pytest.mark.parametrize("counted", [False, True])
def test_requests_prove_their_sources_only_where_the_kernel_counts_the_handshakes(counted: bool) -> None:
    """A forger can write numbers that advance, but no acknowledgement that the kernel takes."""
    rng, flood = Random(4), []
    for bot in hosts(rng, 12) * 20:
        loads = [b"GET /?%d HTTP/1.1\r\nHost: x\r\n\r\n" % rng.getrandbits(40) for _ in range(12)]
        flood += connection(rng, bot, 80, loads, gap=0.02, at=rng.random() * 3)
    found = proposals(flood, learned(), handshakes=70.0 if counted else 5.0)
    blocks = [one for one in found if one.rule and one.rule.match.sources and one.rule.limit is None]
    assert blocks
    assert {one.return_path for one in blocks} == {counted}
    assert all(bool(one.bystanders) is not counted for one in blocks)


@pytest.mark.parametrize("assured", [0.3, 0.9])
def test_of_a_service_behind_this_host_connection_tracking_tells_who_can_hear_it(assured: float) -> None:
    rng, flood = Random(4), []
    for bot in hosts(rng, 12) * 20:
        loads = [b"GET /?%d HTTP/1.1\r\nHost: x\r\n\r\n" % rng.getrandbits(40) for _ in range(12)]
        flood += connection(rng, bot, 80, loads, gap=0.02, at=rng.random() * 3)
    found = proposals(flood, learned(), handshakes=5.0, assured=assured)
    blocks = [one for one in found if one.rule and one.rule.match.sources and one.rule.limit is None]
    assert blocks
    assert {one.return_path for one in blocks} == {assured > 0.5}


def test_who_pings_in_calm_is_cut_by_a_rule_against_pings() -> None:
    rng = Random(5)
    flood = [(at, arriving(PINGER, 1, icmp(8, 0, bytes(40)))) for at in spread(rng, 8_000)]
    found = proposals(flood, learned())
    assert found
    assert all("62.4.4.4 sends such packets in calm" in one.bystanders for one in found)


def test_clients_are_none_of_a_floods_sources_though_their_packets_look_alike() -> None:
    rng = Random(8)
    bots = [bytes([203, 0, 113, number]) for number in range(1, 21)]
    flood = [(at, game(rng.choice(bots), rng.randbytes(20))) for at in spread(rng, 8_000)]
    found = judged(flood, learned(PLAYER), players=(PLAYER,))
    line = "could be forged: 81.2.3.4 sends such packets in calm"
    assert any(one.bystanders.startswith(line) for one in found.proposals)
    assert [one.sources for one in found.attacks] == ["20 sources"]


def test_a_flood_forges_no_address_of_a_family_that_it_does_not_have() -> None:
    calm = make_batch([(at / 8, game(who, bytes(20))) for at in range(16) for who in (PLAYER, PLAYER_6)])
    normal = Normal(calm, np.ones(len(calm)), "", guess=False)
    both = np.unique(mix(calm.src_hi, calm.src_lo))
    apart = _of_another_family(both, normal, np.array([4] * 99 + [6], np.uint8), np.ones(100))
    assert both[apart].tolist() == np.unique(mix(calm.src_hi, calm.src_lo)[calm.family == 6]).tolist()
    assert not _of_another_family(both, normal, np.array([4, 6], np.uint8), np.ones(2)).any()


@pytest.mark.parametrize("how", ["seen", "told"])
def test_answers_to_what_this_host_asks_are_bystanders(how: str) -> None:
    rng, advisor = Random(6), learned()
    server = RESOLVER if how == "seen" else bytes([78, 7, 7, 7])
    if how == "told":
        asked = Asked(Prefix(4, int.from_bytes(server), 32), UDP, 53)
        advisor.known = replace(advisor.known, asked=(asked,))
    flood = [
        (at, arriving(server, 17, udp(53, rng.randrange(1024, 65536), rng.randbytes(300))))
        for at in spread(rng, 8_000)
    ]
    found = proposals(flood, advisor)
    names = ".".join(map(str, server))
    cut = [
        one
        for one in found
        if one.rule and not one.rule.limit and (one.rule.match.sources or one.rule.match.sport)
    ]
    assert cut
    assert all(names in one.bystanders for one in cut if not one.rule or not one.rule.match.ip_length)


def test_who_hardly_takes_part_in_another_family_is_no_source_to_block() -> None:
    """A flood over all ports claims what few others send to some of them; of IPv6 that was all there is."""
    rng, bot = Random(10), bytes([203, 0, 113, 5])
    flood = [
        (at, arriving(bot, 17, udp(53, rng.randrange(1, 65_000), bytes(rng.choices(range(256), k=40)))))
        for at in spread(rng, 8_000)
    ]
    neighbour = HOST_6[:8] + bytes(7) + b"\x33"
    flood += [
        (at, ethernet(ip(neighbour, HOST_6, 17, udp(53, 40_000, bytes(40)), ttl=64)))
        for at in spread(rng, 12)
    ]
    blocks = [one.rule for one in proposals(flood, learned()) if one.rule and one.rule.match.sources]
    assert blocks
    assert {str(source) for rule in blocks for source in rule.match.sources} == {"203.0.113.5"}
