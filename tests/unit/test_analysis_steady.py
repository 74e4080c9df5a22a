"""Bots that each ask more slowly than a browser loads a page, but never pause; and what resembles them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from analysis_factory import STARTED, ethernet, ip, make_batch, make_tables, make_window, udp
from analysis_flows import HOST, STAMPS, Frame, connection, hosts, segment, visitors
from held_tables import PORT, table
from msgspec.structs import replace

from benches.corpus.cases import learn
from fwtop.analysis.memory import Baseline
from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.counters import DropCount
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Incident

SECONDS = 3.0
BROWSER = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:%d.0) Gecko/20100101 Firefox/%d.0"


def judged(frames: list[Frame], *, before: list[Frame] | None = None) -> dict[str, Incident]:
    """Judge a live window of three seconds; `before` is a window of what is normal."""
    baseline = Baseline()
    for _ in range(3 if before else 0):
        usual = make_batch(sorted(before or [], key=lambda frame: frame[0]), start_ns=10**12)
        learn(baseline, usual, SECONDS)
    inside = [frame for frame in frames if 0 <= frame[0] < SECONDS]
    batch = make_batch(sorted(inside, key=lambda frame: frame[0]), start_ns=10**12 + 60 * 10**9)
    window = make_window(batch, SECONDS, live=True, started=STARTED + 60)
    attacks = Advisor(baseline=baseline).judge(window, make_tables(window)).attacks
    return {attack.kind: attack for attack in attacks}


def page(rng: Random, number: int) -> bytes:
    agent = BROWSER % (90 + number % 30, 90 + number % 30)
    head = f"GET /p{rng.randrange(30)}.html HTTP/1.1\r\nHost: shop.example\r\n{agent}\r\n"
    return (head + "Accept: */*\r\n\r\n").encode()


def login(rng: Random, number: int) -> bytes:
    return page(rng, number).replace(b"GET /p", b"POST /login?") + rng.randbytes(20).hex().encode()


def in_tls(size: int) -> Callable[[Random, int], bytes]:
    return lambda rng, _: b"\x17\x03\x03" + size.to_bytes(2, "big") + rng.randbytes(size)


def asking(
    rng: Random, count: int, pause: float, what: Callable[[Random, int], bytes], port: int, *, answered: int
) -> list[Frame]:
    """Return what clients send that ask evenly, without a longer pause, and began before the window."""
    frames: list[Frame] = []
    for number, client in enumerate(hosts(rng, count)):
        loads = [what(rng, number) for _ in range(int(6 / pause))]
        frames += connection(rng, client, port, loads, gap=pause, at=-rng.random(), answered=answered, end="")
    return frames


@pytest.mark.parametrize(
    ("count", "pause", "what", "port"),
    [(40, 0.1, page, 80), (100, 0.5, login, 80), (40, 0.1, in_tls(160), 443), (100, 0.3, in_tls(250), 443)],
    ids=["pages", "logins", "pages inside TLS", "logins inside TLS"],
)
def test_bots_slower_than_browsers_that_never_pause_are_a_flood(
    count: int, pause: float, what: Callable[[Random, int], bytes], port: int
) -> None:
    rng = Random(1)
    found = judged(
        asking(rng, count, pause, what, port, answered=5_000) + visitors(rng, 10), before=visitors(rng, 40)
    )
    assert set(found) == {"http_flood"}
    assert found["http_flood"].share > 0.6
    assert any("pause" in sentence for sentence in found["http_flood"].evidence)


def test_without_a_baseline_or_as_usual_they_are_none() -> None:
    rng = Random(2)
    bots = asking(rng, 40, 0.1, in_tls(160), 443, answered=5_000)
    assert judged(bots) == {}
    assert judged(bots, before=[frame for frame in bots if 0 <= frame[0] < SECONDS]) == {}


def test_players_inside_tls_are_no_flood() -> None:
    rng = Random(3)
    players = asking(rng, 60, 0.05, in_tls(40), 443, answered=60)
    assert judged(players + visitors(rng, 10), before=visitors(rng, 40)) == {}


def test_browsers_that_wait_for_a_slow_server_are_no_flood() -> None:
    def resource(rng: Random, number: int) -> bytes:
        return page(rng, number).replace(b".html", rng.choice((b".png", b".css", b".js", b".html")))

    rng = Random(4)
    assert judged(asking(rng, 80, 0.25, resource, 80, answered=9_000), before=visitors(rng, 40)) == {}


@pytest.mark.parametrize(
    ("port", "count", "each", "found"),
    [
        (1883, 100, 3, {"syn_flood": Harm.ATTACK}),
        (1883, 5, 5, {}),
        (22, 100, 3, {"password_guessing": Harm.ATTACK}),
        (22, 5, 5, {"password_guessing": Harm.ABUSE}),
    ],
)
def test_connections_opened_again_and_again_are_a_flood_or_where_users_log_in_guesses(
    port: int, count: int, each: int, found: dict[str, Harm]
) -> None:
    rng, frames = Random(5), list[Frame]()
    for client in hosts(rng, count):
        for k in range(3 * each):
            load = [b"\x10\x17\0\4MQTT\4\2\0\x3c\0\x0b" + rng.randbytes(11)]
            frames += connection(rng, client, port, load, at=(k + rng.random()) / each, answered=4, end="R")
    seen = judged(frames + visitors(rng, 5), before=visitors(rng, 6))
    assert {name: one.severity.harm for name, one in seen.items()} == found


def stamped(rng: Random, senders: int, pps: int) -> list[Frame]:
    """ACKs as clients' systems send them, each of another connection that there isn't."""
    sources = hosts(rng, senders)
    return [
        (k / pps, segment(
            sources[k % senders], HOST, rng.randrange(32_768, 61_000), PORT, "A",
            seq=rng.randrange(1 << 32), ack=rng.randrange(1 << 32), options=STAMPS,
        ))
        for k in range(int(SECONDS * pps))
    ]  # fmt: skip


@pytest.mark.parametrize("senders", [1, 20])
@pytest.mark.parametrize(
    ("port", "reason", "found"),
    [(PORT, "", ["ack_flood"]), (0, "TCP_FLAGS", ["ack_flood"]), (0, "", [])],
    ids=["by sockets", "by the kernel's word", "published from a container"],
)
def test_acks_that_no_socket_takes_are_a_flood_however_much_they_look_like_clients(
    senders: int, port: int, reason: str, found: list[str]
) -> None:
    """Nothing but the sockets tells them from idle connections, whose sockets may be a container's."""
    rng, baseline = Random(3), Baseline()
    frames = [frame for frame in stamped(rng, senders, 2_000) + visitors(rng, 40) if 0 <= frame[0] < SECONDS]
    learn(baseline, make_batch(sorted(visitors(rng, 40), key=lambda frame: frame[0])), SECONDS)
    batch = make_batch(sorted(frames, key=lambda frame: frame[0]), start_ns=10**12)
    window = make_window(batch, SECONDS, live=True, started=STARTED + 60)
    held = table(("kept alive", 30, 30))
    held.connections.port[:] = port
    drops = (DropCount("socket", reason, 6_000, before_delivery=False),) if reason else ()
    own = (Prefix.parse(".".join(map(str, HOST))),)
    window = replace(window, sockets=held, own=own, counters=replace(window.counters, drops=drops))
    judged = Advisor(baseline=baseline).judge(window, make_tables(window))
    assert [one.kind for one in judged.attacks] == found


STATE = b"\x01\x02status=ok;temperature=21.5;humidity=40"


def cells(rng: Random, number: int) -> bytes:
    """Seven cells of an MPEG transport stream."""
    return b"".join(
        b"\x47\x01\x00" + bytes([0x10 | ((number * 7 + k) & 15)]) + rng.randbytes(184) for k in range(7)
    )


@pytest.mark.parametrize(
    ("senders", "pps", "what", "harm"),
    [
        (8, 200, lambda *_: STATE, Harm.UNUSUAL),
        (20, 100, cells, Harm.UNUSUAL),
        (8, 600, lambda *_: STATE, Harm.ATTACK),
        (8, 600, lambda rng, _: rng.randbytes(512), Harm.ATTACK),
        (8, 2_000, lambda *_: bytes(512), Harm.ATTACK),
        (60, 60, lambda *_: STATE, Harm.ATTACK),
    ],
    ids=["devices", "video", "fast devices", "noise", "zeros", "many"],
)
def test_senders_of_one_flow_each_at_a_program_s_pace_attack_nobody_until_something_is_full(
    senders: int, pps: int, what: Callable[[Random, int], bytes], harm: Harm
) -> None:
    rng, frames = Random(7), list[Frame]()
    for number, sender in enumerate(hosts(rng, senders)):
        for k in range(int(SECONDS * pps)):
            body = ip(sender, HOST, 17, udp(40_000 + number, 9_000, what(rng, k)), ttl=64 - sender[3] % 20)
            frames.append(((k + number / senders) / pps, ethernet(body)))
    found = judged(frames + visitors(rng, 20), before=visitors(rng, 40))
    assert [one.severity.harm for one in found.values()] == [harm]


def test_devices_that_keep_their_connection_are_no_flood() -> None:
    rng = Random(6)
    devices = asking(rng, 100, 0.5, lambda rng, _: b"\x30\x0c" + rng.randbytes(12), 1883, answered=0)
    assert judged(devices, before=visitors(rng, 40)) == {}
