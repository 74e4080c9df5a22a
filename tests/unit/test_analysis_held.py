"""Attacks that hold connections are named by what the sockets tell; ordinary clients never are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest
from analysis_factory import (
    STARTED,
    address,
    ethernet,
    ip,
    make_batch,
    make_frames,
    make_tables,
    make_window,
    tcp,
)
from held_tables import PORT, table
from msgspec.structs import replace
from test_analysis_clients import after, connected

from fwtop.analysis.attacks.held_connections import ENTRIES, groups
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.connections import ConnectionMemory, source_of
from fwtop.analysis.learning import BACK, NORMAL
from fwtop.analysis.memory import Baseline
from fwtop.analysis.proposals.preview import preview
from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import ConnectionLimit, Kind, Match, Preview, Rule
from fwtop.model.traffic.packets import Connections, SocketTable
from fwtop.model.traffic.snapshot import Judgement, Proposal

CLIENTS = (("kept alive", 60, 30), ("pushed", 20, 20))


def judge(sockets: SocketTable | None, advisor: Advisor | None = None, at: float = 0.0) -> Judgement:
    """Judge a second without a packet, with these connections."""
    window = make_window(make_batch(make_frames([], 3.0)), 3.0, live=True)
    window = replace(window, sockets=sockets, started=window.started + at)
    return (advisor or Advisor()).judge(window, make_tables(window))


def kinds(judgement: Judgement) -> list[str]:
    return [attack.kind for attack in judgement.on]


ATTACKS = {
    "slow_headers": "headers",
    "idle_connections": "silent",
    "slow_read": "stalled",
}


@pytest.mark.parametrize(("number", "sources"), [(200, 1), (1_000, 1), (200, 50), (1_000, 50)])
@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attack_is_named_whether_by_one_source_or_fifty(kind: str, number: int, sources: int) -> None:
    judgement = judge(table((ATTACKS[kind], number, sources), *CLIENTS))
    assert kinds(judgement) == [kind]
    [attack] = judgement.attacks
    assert attack.target == f"tcp/{PORT}"
    assert attack.sources == f"{sources} source{'s' * (sources > 1)}"
    assert f"{number:,} connections to port 80" in attack.evidence[0]
    assert attack.confidence > 0.85


def test_pieces_that_keep_coming_are_told() -> None:
    [attack] = judge(table(("crumbs", 300, 10), *CLIENTS)).attacks
    assert attack.kind == "slow_headers"
    assert any("send a piece now and then, 8 bytes/s each" in line for line in attack.evidence)


def segment(at: int, data: bytes, sources: int = 10) -> bytes:
    """Return a frame of the connection in a row of the table."""
    head = tcp(1024 + at, PORT, 24, seq=1, ack=1, data=data)
    source = (0x0A000001 + at % sources).to_bytes(4)
    return ethernet(ip(source, bytes((198, 18, 0, 2)), 6, head, ttl=60))


def test_requests_that_announce_a_body_make_the_difference() -> None:
    """The sockets of slow headers and slow bodies look alike: the first bytes tell."""
    sockets = table(("headers", 300, 10), *CLIENTS)
    for method, kind in (("POST", "slow_body"), ("GET", "slow_headers")):
        data = f"{method} / HTTP/1.1\r\nHost: shop.example\r\n".encode()
        frames = [(0.1 * at, segment(at, data)) for at in range(10)]
        window = replace(make_window(make_batch(frames), 3.0, live=True), sockets=sockets)
        advisor = Advisor()
        assert kinds(advisor.judge(window, make_tables(window))) == [kind]
        assert kinds(judge(sockets, advisor, at=3.0)) == [kind], "the requests have left the window"


UNSEEN = {  # pieces of tools, as they follow the request
    "slowhttptest, the longest name": (b"X-%s: a\r\n" % (b"f" * 34), "slow_headers"),
    "slowloris": (b"X-a: 4131\r\n", "slow_headers"),
    "slowhttptest, body": (b"&Kq3=Zt9aa", "slow_body"),
    "R-U-Dead-Yet": (b"A", "slow_body"),
}


@pytest.mark.parametrize("tool", UNSEEN)
def test_pieces_tell_of_requests_that_nobody_saw_whether_they_have_a_body(tool: str) -> None:
    """Who begins to watch later sees only what trickles."""
    data, kind = UNSEEN[tool]
    sockets = table(("crumbs", 300, 10), *CLIENTS)
    frames = [(0.05 * at, segment(at, data)) for at in range(10)]
    window = replace(make_window(make_batch(frames), 3.0, live=True), sockets=sockets)
    advisor = Advisor()
    [attack] = advisor.judge(window, make_tables(window)).attacks
    assert attack.kind == kind
    assert any("send form data" in line for line in attack.evidence) == (kind == "slow_body")
    assert kinds(judge(sockets, advisor, at=3.0)) == [kind], "the pieces have left the window"


def test_one_whose_connections_send_a_line_every_five_seconds_goes_on_in_between() -> None:
    """Between two lines of all, with a straggler, it had ended and begun again."""
    sockets, line = table(("headers", 300, 10), *CLIENTS), b"X-a: b\r\n"
    bursts = [(begin + 0.05 * at, segment(at, line)) for begin in (0.0, 5.0, 10.0) for at in range(10)]
    batch = make_batch(sorted([*bursts, (1.8, segment(11, line)), (6.8, segment(11, line))]))
    zero, advisor = int(batch.time_ns.min()), Advisor()
    for end in (3.0, 4.0, 5.6, 7.0, 9.0, 10.6):
        seen = (batch.time_ns >= zero + int((end - 3) * 1e9)) & (batch.time_ns < zero + int(end * 1e9))
        window = make_window(batch.select(seen), 3.0, live=True, started=STARTED + end - 3.0)
        window = replace(window, sockets=sockets, clock=STARTED - zero / 1e9)
        [attack] = advisor.judge(window, make_tables(window)).attacks
        assert (attack.letter, attack.is_on) == ("A", True)


def test_header_lines_tell_though_the_request_could_have_a_body() -> None:
    """slowhttptest -H -t POST: the head of the request never ends."""
    sockets = table(("crumbs", 300, 10), *CLIENTS)
    head, more = b"POST / HTTP/1.1\r\nHost: shop.example\r\n", b"X-a: b\r\n"
    advisor, found = Advisor(), []
    for place, data in enumerate((head, more)):
        batch = make_batch([(0.02 * at, segment(at, data)) for at in range(10)])
        window = make_window(batch, 3.0, live=True, started=STARTED + place)
        clock = STARTED + 2.7 - int(batch.time_ns.min()) / 1e9  # just before the end of the first window
        window = replace(window, sockets=sockets, clock=clock)
        found += [(one.kind, one.letter) for one in advisor.judge(window, make_tables(window)).attacks]
    assert found == [("slow_body", "A"), ("slow_headers", "A")], "another name of the same attack"


LOGS = (
    b"<134>Nov 22 18:00:00 web-7 nginx[311]: GET /shop 200",
    b'{"@timestamp":"2026-11-22T18:00:00Z","level":"info"}',
    b"servers.web-7.cpu.user 12.5 1795000000",
    b"2W\0\0\0\x032C\0\0\x01\x20\x78\x9c",
)


@pytest.mark.parametrize("each", [1, 4])
@pytest.mark.parametrize("line", LOGS)
def test_machines_that_ship_logs_are_none_whatever_they_say(line: bytes, each: int) -> None:
    """Nobody answers them, and between two lines they are quiet: by their sockets they are slow requests."""
    sockets = table(("shipping", 500, 500 // each))
    frames = [(0.05 * at, segment(at, line, 500 // each)) for at in range(0, 60, 3)]
    window = replace(make_window(make_batch(frames), 3.0, live=True), sockets=sockets)
    assert kinds(Advisor().judge(window, make_tables(window))) == []
    crumbs = [(time, segment(at, b"X-a: b\r\n", 500 // each)) for at, (time, _) in enumerate(frames)]
    window = replace(make_window(make_batch(crumbs), 3.0, live=True), sockets=table(("crumbs", 500, 125)))
    assert kinds(Advisor().judge(window, make_tables(window))) == ["slow_headers"]


ORDINARY = {
    "long polling": (("asked", 600, 600),),
    "long polling from offices": (("asked", 300, 200),),
    "WebSockets that the server pushes to": (("pushed", 2_000, 900),),
    "messages without answers": (("pushing", 500, 500),),
    "gateways of sensors behind one address": (("pushing", 300, 3),),
    "keep-alive": (("kept alive", 900, 300),),
    "a load balancer's idle pool": (("kept alive", 200, 1),),
    "a load balancer in front of a slow service": (("asked again", 200, 2), ("kept alive", 100, 2)),
    "browsers' connections in reserve": (("silent", 120, 70),),
    "slow downloads": (("downloading", 400, 300),),
    "players that pause": (("paused", 150, 120),),
    "few of everything": (("headers", 15, 1), ("silent", 15, 1), ("stalled", 15, 1)),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_clients_are_not_called_an_attack(name: str) -> None:
    assert kinds(judge(table(*ORDINARY[name], *CLIENTS))) == []


def test_requests_of_one_program_that_wait_for_long_are_no_slow_ones() -> None:
    """Long polling of agents in offices, first seen in its middle: nobody saw their requests."""
    polls = ("asked", 300, 60)
    assert kinds(judge(table(polls, *CLIENTS, received=300, since_received=45.0, since_sent=45.0))) == []
    assert kinds(judge(table(polls, received=300, since_received=6.0, since_sent=6.0))) == ["slow_headers"]


def test_an_old_pool_of_silent_connections_is_none() -> None:
    pool = table(("silent", 200, 1), since_received=4_000.0, since_sent=4_000.0)
    assert kinds(judge(pool)) == []


def test_what_was_usual_before_is_none_and_more_of_it_is() -> None:
    advisor = Advisor()
    for second in range(60):
        assert kinds(judge(table(("asked", 90, 45), *CLIENTS), advisor, second)) == []
    assert kinds(judge(table(("asked", 110, 40), *CLIENTS), advisor, 61)) == []
    assert kinds(judge(table(("asked", 90, 45), ("headers", 600, 20)), advisor, 62)) == ["slow_headers"]


def pass_seconds(memory: ConnectionMemory, seconds: range, *parts: tuple[str, int, int]) -> float | None:
    """Read and learn these connections each second; returns how many usually wait."""
    usual = None
    for second in seconds:
        sockets = table(*parts)
        memory.read(float(second), sockets)
        told = [memory.usual(held, one.name) for one, held in groups(sockets) if one.name == "waiting"]
        usual = told[0] if told else None
        memory.learn(AdviseConfig(), quiet=True)
    return usual


def test_a_crowd_far_above_usual_makes_nobody_known_and_teaches_no_number() -> None:
    memory = ConnectionMemory()
    pass_seconds(memory, range(400), ("asked", 90, 45), *CLIENTS)
    clients = len(memory.known)
    assert clients > 0
    bots = (("asked", 400, 400), ("kept alive", 500, 500))
    usual = pass_seconds(memory, range(400, 600), *bots, *CLIENTS)
    assert len(memory.known) == clients
    assert usual == pytest.approx(90, rel=0.1)


def test_a_crowd_at_one_port_keeps_nobody_unknown_who_is_served_at_another() -> None:
    memory = ConnectionMemory()
    pass_seconds(memory, range(400), ("asked", 90, 45), *CLIENTS)
    clients = set(memory.known.tolist())
    for second in range(400, 500):
        sockets = table(("asked", 400, 400), ("kept alive", 500, 500), *CLIENTS)
        rows = sockets.connections
        rows.port[400:410] = 443
        rows.segments_out[400:410] = 9
        rows.lo[400:410] = np.arange(10**9, 10**9 + 10)
        memory.read(float(second), sockets)
        list(groups(sockets))
        memory.learn(AdviseConfig(), quiet=True)
    new = set(memory.known.tolist()) - clients
    assert new == set(source_of(rows.select(np.arange(400, 410))).tolist())


def say(advisor: Advisor, said: str, sockets: SocketTable, at: float) -> tuple[str, Judgement]:
    """Say what an operator does, and judge the next second; returns the answer."""
    with ThreadPoolExecutor() as asking:
        answer = asking.submit(advisor.learner.hear, said)
        while advisor.learner._words.empty():
            pass
        judged = judge(sockets, advisor, at)
        return answer.result(), judged


def test_connections_that_are_said_to_be_normal_are_no_attack_until_that_is_taken_back() -> None:
    advisor, slow = Advisor(), table(("headers", 600, 20), *CLIENTS)
    for second in range(60):
        judge(table(("asked", 90, 45), *CLIENTS), advisor, second)
    assert kinds(judge(slow, advisor, 61)) == ["slow_headers"]
    told, _ = say(advisor, NORMAL, slow, 62)
    assert "600 connections held to port 80" in told
    assert kinds(judge(slow, advisor, 63)) == []
    say(advisor, BACK, slow, 64)
    assert kinds(judge(slow, advisor, 65)) == ["slow_headers"]


def test_what_was_learned_of_connections_since_a_time_is_forgotten_and_can_be_taken_back() -> None:
    memory = ConnectionMemory()
    pass_seconds(memory, range(200), *CLIENTS)
    known = len(memory.known)
    pass_seconds(memory, range(200, 400), ("kept alive", 90, 70), *CLIENTS)
    learned = memory.learned
    assert len(memory.known) > known
    memory.forget(201.0)
    assert len(memory.known) == known
    assert 100 < memory.learned.seconds < 200
    memory.restore(learned)
    assert len(memory.known) > known
    memory.forget(-1.0)
    assert len(memory.known) == 0


def test_a_full_listen_queue_weighs() -> None:
    spread = (("headers", 80, 27), *CLIENTS)
    assert kinds(judge(table(*spread))) == []
    assert kinds(judge(table(*spread, queue=0.95))) == ["slow_headers"]


def test_visitors_that_an_overloaded_server_keeps_waiting_are_no_attack() -> None:
    assert kinds(judge(table(("asked", 600, 100), queue=1.0))) == []


def test_requests_that_wait_behind_slow_readers_belong_to_them() -> None:
    """Apache's workers are few: most connections of a slow reader are in its listen queue."""
    sockets = table(("stalled", 50, 50), ("queued", 500, 50), *CLIENTS)
    rows = sockets.connections
    rows.lo[(rows.unread > 0)] -= 1 << 16  # the same sources
    [attack] = judge(sockets).attacks
    assert attack.kind == "slow_read"
    assert attack.evidence[0].startswith("550 connections to port 80")
    assert "300 bytes" in attack.evidence[0]


def test_of_a_part_of_the_connections_the_number_is_estimated() -> None:
    [attack] = judge(table(("headers", 500, 10), share=0.1)).attacks
    assert attack.evidence[0].startswith("5,000 connections")


def test_one_attack_is_not_named_twice() -> None:
    """While a tool opens its connections some are still silent."""
    sockets = table(("headers", 300, 2))
    rows = sockets.connections
    young = rows.peer_port < 1024 + 100
    rows.segments_in[young] = 0
    rows.received[young] = 0
    assert sorted(behaviour.name for behaviour, _ in groups(sockets)) == ["unused", "waiting"]
    assert kinds(judge(sockets)) == ["slow_headers"]


def test_who_sends_much_is_not_slow() -> None:
    """Junk on connections to a program that never answers: as many pieces as slow requests, but fast."""
    slow = table(("crumbs", 300, 1), *CLIENTS)
    assert kinds(judge(slow)) == ["slow_headers"]
    assert kinds(judge(table(("crumbs", 300, 1), received=400_000, segments_in=4_000))) == []


RECORD = b"\x17\x03\x03\x00\x1c" + bytes(28)


def trickle(sort: str, sources: int, *, pieces: int = 3, age: float = 12.0) -> tuple[list[str], Judgement]:
    """Judge what follows a calm when 300 connections to a TLS server send record after record.

    Returns the kinds after each piece, and the last judgement.
    """
    advisor, found = Advisor(), []
    for second in range(0 if age > 600 else 45):  # what is older is there when fwtop begins
        assert kinds(judge(table((sort, 0, 1), *CLIENTS, port=22), advisor, second - 50)) == []
    for turn in range(pieces + 1):
        sent = 28 * turn
        sockets = table((sort, 300, sources), since_sent=age + 10 * turn)
        rows = sockets.connections
        rows.received[:] += np.uint64(sent)
        rows.segments_in[:] += np.uint32(turn)
        frames = [(0.05 * at, segment(at, RECORD, sources)) for at in range(20)]
        window = replace(make_window(make_batch(frames), 3.0, live=True), sockets=sockets)
        window = replace(window, started=window.started + 10 * turn)
        last = advisor.judge(window, make_tables(window))
        found.append(kinds(last))
    return [name for one in found for name in one], last


def test_slow_requests_inside_tls_are_named() -> None:
    """The handshake has been answered, and nothing after it: no length of a request tells."""
    assert set(trickle("in TLS", 3)[0]) == {"slow_headers"}
    assert trickle("in TLS", 300)[1].attacks[0].sources == "300 sources"


def test_sensors_that_report_inside_tls_are_none() -> None:
    """Gateways have many connections, none is answered; but no server lets a request take an hour."""
    assert trickle("in TLS", 3, age=3_600.0)[0] == []
    assert trickle("in TLS", 300, age=3_600.0)[0] == []


@pytest.mark.parametrize("sort", ["crumbs", "silent", "stalled"])
def test_one_connection_of_each_of_many_sources_is_named_by_what_it_does(sort: str) -> None:
    advisor = Advisor()
    for second in range(45):
        assert kinds(judge(table(*CLIENTS), advisor, second)) == []
    assert len(kinds(judge(table(*CLIENTS, (sort, 300, 300)), advisor, 45))) == 1


def test_reserves_of_clients_that_were_just_served_are_none() -> None:
    """A crowd comes: the servers end what was answered, and the reserve stays open."""
    advisor = Advisor()
    for second in range(15):
        judge(table(("kept alive", 400, 400)), advisor, second)
    assert kinds(judge(table(("silent", 400, 400)), advisor, 15)) == []


def test_packets_of_open_connections_are_no_flood() -> None:
    """A client that says something once a minute shows in no window; the sockets know it."""
    sockets = table(("pushed", 400, 400))
    held = sockets.connections
    rng = Random(3)
    frames = []
    for lo, port in zip(held.lo.tolist(), held.peer_port.tolist(), strict=True):
        body = tcp(port, PORT, 24, seq=rng.getrandbits(32), ack=1, window=500, data=b"\x89\x80ping")
        packet = ip(lo.to_bytes(4), address("10.10.10.10"), 6, body, ttl=50, ip_id=1)
        frames.append((rng.random(), ethernet(packet)))
    window = make_window(make_batch(sorted(frames)), 1.0, live=True)
    assert kinds(Advisor().judge(window, make_tables(window))) == ["ack_flood"]
    window = replace(window, sockets=sockets)
    assert kinds(Advisor().judge(window, make_tables(window))) == []


def test_without_sockets_nothing_is_said() -> None:
    assert kinds(judge(None)) == []
    assert kinds(judge(SocketTable(Connections.empty()))) == []


def test_every_behaviour_has_an_innocent_explanation_and_servers_have_settings_against_attacks() -> None:
    for one in ENTRIES:
        assert all(says.low < says.high for says in one.evidence)
        assert bool(one.kind) == bool(one.settings)
    attacks = {need.feature for one in ENTRIES for need in one.needs if one.kind}
    assert attacks == {need.feature for one in ENTRIES for need in one.needs if not one.kind}
    assert len(attacks) == 3


def proposed(judgement: Judgement) -> dict[str, Proposal]:
    return {proposal.kind: proposal for proposal in judgement.proposals}


def test_few_sources_are_blocked_or_limited_and_their_connections_closed() -> None:
    held = table(("headers", 400, 4), *CLIENTS)
    made = proposed(judge(held))
    block, limit = made["ipset"], made["connlimit"]
    assert block.attack_share == 1.0
    assert block.collateral_share == 0.0
    assert block.rule is not None
    assert len(block.rule.match.sources) == 4
    assert block.rule.close_open
    assert previewed(block.rule, held).reach.covers == "covers 4 addresses, of which 4 attacked"
    assert limit.attack_share == pytest.approx(0.92)
    assert limit.rule is not None
    assert limit.rule.connections == ConnectionLimit(8)
    assert "--connlimit-above 8" in " ".join(limit.commands)
    assert "fwtop limit" in limit.fwtop
    assert "--close-open" in limit.fwtop
    assert "client_header_timeout" in made["service"].commands[0]
    assert made["service"].rule is None


def test_a_limit_that_would_not_reach_them_is_not_offered() -> None:
    made = proposed(judge(table(("headers", 300, 75), *CLIENTS)))
    assert "connlimit" not in made
    assert made["ipset"].attack_share == 1.0


def test_a_limit_spares_a_proxy_with_many_connections() -> None:
    made = proposed(judge(table(("headers", 400, 2), ("kept alive", 40, 1), *CLIENTS)))
    assert made["connlimit"].rule is not None
    assert made["connlimit"].rule.connections == ConnectionLimit(50)
    assert made["connlimit"].collateral_share == 0.0


def test_what_else_an_attacking_source_has_open_is_no_client_s() -> None:
    sockets = table(("headers", 400, 1), ("kept alive", 40, 1), *CLIENTS)
    held = sockets.connections
    bot = np.where(held.lo == held.lo[400], held.lo[0], held.lo)
    made = proposed(judge(replace(sockets, connections=replace(held, lo=bot))))
    assert made["ipset"].attack_share == 1.0
    assert made["ipset"].collateral_share == 0.0


def previewed(rule: Rule, sockets: SocketTable, baseline: Baseline | None = None) -> Preview:
    window = make_window(make_batch(make_frames([], 3.0)), 3.0, live=True)
    return preview(rule, replace(window, sockets=sockets), baseline)


def test_the_preview_tells_who_exceeds_a_limit() -> None:
    rule = Rule("", Kind.CONNLIMIT, Match(protocol=6, dport=PORT), "", 60, connections=ConnectionLimit(5))
    calm = previewed(rule, table(("kept alive", 30, 1), ("kept alive", 70, 70)))
    assert calm.collateral_share == pytest.approx(0.25)
    assert calm.examples == ("connections of 10.0.0.1",)
    attacked = previewed(rule, table(("headers", 400, 4), *CLIENTS))
    assert attacked.attack == "Slow headers (Slowloris)"
    assert attacked.attack_share == pytest.approx(0.95)
    assert attacked.collateral_share == 0.0


def test_a_block_of_bystanders_is_measured_on_connections_too() -> None:
    sources = (Prefix.parse("10.1.0.0/16"),)
    rule = Rule("", Kind.IPSET, Match(sources=sources), "", 60)
    shown = previewed(rule, table(("headers", 400, 4), *CLIENTS))
    assert shown.attacks == (("Slow headers (Slowloris)", 0.0),)
    assert shown.collateral_share == pytest.approx(0.75)


def test_clients_that_came_with_an_attack_without_packets_are_not_sure_to_lose() -> None:
    """Closing the port hits the known ones; who came since may be bots, though no packet of them is seen."""
    web = (6, PORT)
    met = after((0.0, True, connected(range(3), web)), (60.0, True, connected(range(3), web)),
                (70.0, False, connected(range(10, 45), web)))  # fmt: skip
    rule = Rule("", Kind.XDP, Match(protocol=6, dport=PORT), "", 60)
    clients = previewed(rule, table(("silent", 200, 35)), replace(Baseline(), clients=met)).clients
    assert clients is not None
    assert (clients.port, clients.known, clients.hit, clients.unsure) == (PORT, 3, 3, 35)
