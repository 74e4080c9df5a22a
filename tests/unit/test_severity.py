"""Which class an attack has, what it exhausts and how near that is to its end."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from analysis_factory import ethernet, icmp, ip, make_batch, make_frames, make_tables, make_window, udp
from analysis_flows import HOST, connection, hosts, judge, segment
from msgspec.structs import replace
from stored_samples import START, attack, snapshot

from fwtop.analysis.attacks import HYPOTHESES
from fwtop.analysis.severity import Load, Surroundings, severity_of
from fwtop.cli.options import read_as
from fwtop.console.headless import show
from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.counters import ConntrackSample, Counters, DropCount
from fwtop.model.traffic.packets import ListenQueue
from fwtop.model.traffic.severity import Harm, Resource, Severity, Threshold
from fwtop.render.rows.defence import severity_words
from fwtop.store.events import derive

# An attack by its name, what it sends or holds, what was measured beside it; what the operator reads
TABLE = """
ACK flood                        | 30 pps                         |                            | unusual: exhausts nothing
ACK flood                        | 5,000 pps                      |                            | attack: 5 % of a modest host's softirq
ACK flood                        | 5,000 pps share 0.5            | softirq 0.2                | attack: softirq 10 %
ACK flood                        | 300,000 pps                    | softirq 0.3                | attack: softirq 30 %
ACK flood                        | 300 pps                        | softirq 0.02               | attack: softirq 2 %
fragment flood                   | 12 pps 142,000 bps             |                            | unusual: exhausts nothing
fragment flood                   | 2,000 pps 24,000,000 bps       |                            | attack: 24 % of a modest host's link
UDP flood                        | 2,000 pps 24,000,000 bps       | link 10,000,000,000        | attack: 2 % of a modest host's softirq
UDP flood                        | 90,000 pps 900,000,000 bps     | link 1,000,000,000         | attack: link 90 %
UDP flood                        | 9,000 pps 7,000,000 bps        | nic loses                  | attack: softirq 100 %
UDP flood                        | 900 pps 700,000 bps share 0.01 | nic loses                  | unusual: exhausts nothing
UDP flood                        | 9,000 pps                      | table 200,000/262,144      | attack: connection table 76 %
UDP flood                        | 9,000 pps                      | table 262,144/262,144 lost | attack: connection table 100 %
UDP flood                        | 2,000 pps                      | table 200,000/262,144      | attack: 2 % of a modest host's softirq
UDP flood                        | 20,000 pps 40,000,000 bps bearable |                       | unusual: exhausts nothing
UDP flood                        | 60,000 pps 40,000,000 bps bearable |                       | attack: 60 % of a modest host's softirq
UDP flood                        | 9,000 pps bearable             | softirq 0.7                | attack: softirq 70 %
UDP flood                        | 9,000 pps bearable             | socket full                | attack: 9 % of a modest host's softirq
queries that no resolver sends   | 30,000 pps bearable            |                            | unusual: exhausts nothing
queries that no resolver sends   | 30,000 pps bearable            | socket full                | attack: 100 % of a modest host's service
queries that no resolver sends   | 30,000 pps bearable            | capture                    | attack: 100 % of a modest host's service
surge far above normal           | 0 pps                          |                            | unusual: exhausts nothing
SYN flood                        | 4 pps                          |                            | attack: 25 % of a modest host's SYN backlog
SYN flood                        | 9,000 pps reaching 0           |                            | attack: 9 % of a modest host's softirq
SYN flood                        | 100 pps                        |                            | attack: 100 % of a modest host's SYN backlog
Slow headers (Slowloris)         | 1 pps 64 connections           |                            | attack: 25 % of a modest host's workers
Slow body (R-U-Dead-Yet)         | 0 pps 128 connections          |                            | attack: 50 % of a modest host's workers
Slow read                        | 0 pps 64 connections           | queue 90/128               | attack: workers 70 %
Slow read                        | 0 pps 256 connections          | queue 6/128                | attack: 100 % of a modest host's workers
Idle connection flood            | 0 pps 64 connections           | queue 128/128 overflows    | attack: workers 100 %
slow HTTP attack                 | 2 pps 256 connections          |                            | attack: 100 % of a modest host's workers
port scan                        | 50 pps                         |                            | abuse: exhausts nothing
port scan                        | 9,000 pps                      |                            | abuse: exhausts nothing
flood over many ports            | 27,000 pps                     |                            | attack: 27 % of a modest host's softirq
this host as a reflector         | 20 pps 16,000 bps              |                            | abuse: exhausts nothing
this host as a reflector         | 900 pps 800,000 bps            |                            | attack: 40 % of a modest host's bandwidth out
amplification by few reflectors  | 42 pps 440,000 bps             |                            | unusual: exhausts nothing
amplification by few reflectors  | 42 pps 440,000 bps at least    |                            | attack: of link
requests without pauses          | 100 pps                        |                            | attack: 50 % of a modest host's service
password guessing                | 25 pps                         |                            | abuse: exhausts nothing
password guessing                | 300 pps                        |                            | attack: 60 % of a modest host's service
password guessing                | 25 pps                         | queue 120/128              | attack: accept queue 94 %
"""  # noqa: E501 - a table


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _load(words: str) -> Load:
    found: dict[str, Any] = {
        unit: _number(n) for n, unit in re.findall(r"([\d,]+) (pps|bps|connections)", words)
    }
    found |= {name: float(n) for name, n in re.findall(r"(share|reaching) ([\d.]+)", words)}
    found["asked"] = found["pps"]
    return Load(**found, least="at least" in words, bearable="bearable" in words)


def _around(words: str) -> Surroundings:
    counters = Counters(1.0, 10_000, 0)
    link: float | None = None
    queue: ListenQueue | None = None
    name, _, value = words.partition(" ")
    if name == "capture":
        return Surroundings()
    if name == "link":
        link = _number(value)
    elif name == "softirq":
        counters = replace(counters, softirq_share=float(value))
    elif name == "nic":
        counters = replace(counters, drops=(DropCount("nic", "rx_missed", 500),))
    elif name == "socket":
        counters = replace(counters, drops=(DropCount("socket", "SOCKET_RCVBUFF", 500),))
    elif name == "table":
        count, most = (int(_number(part)) for part in value.split()[0].split("/"))
        lost = 50 * ("lost" in value)
        counters = replace(
            counters, conntrack=ConntrackSample(count, most, new_per_s=9_500.0, early_drop=lost)
        )
    elif name == "queue":
        waiting, limit = (int(part) for part in value.split()[0].split("/"))
        queue = ListenQueue(80, waiting, limit)
    return replace(Surroundings.of(counters, link), queue=queue, overflows="overflows" in words)


@pytest.mark.parametrize("line", TABLE.strip().splitlines())
def test_class_and_nearness_of(line: str) -> None:
    name, does, measured, words = (part.strip() for part in line.split("|"))
    one = next(entry for entry in HYPOTHESES if entry.name == name)
    assert severity_words(severity_of(one.exhausts, one.otherwise, _load(does), _around(measured))) == words


def test_every_attack_declares_what_it_exhausts() -> None:
    assert [one.name for one in HYPOTHESES if one.kind and not one.exhausts] == []
    assert [one.name for one in HYPOTHESES if not one.kind and (one.exhausts or one.holds)] == []


def _strays(rng: Random, count: int, seconds: float, data: int) -> list[tuple[float, bytes]]:
    """PSH-ACKs of one host, each alone in its flow."""
    (source,) = hosts(rng, 1)
    return [
        (seconds * i / count, segment(source, HOST, rng.randrange(1_024, 65_535), 80, "PA",
                                      seq=rng.getrandbits(32), ack=rng.getrandbits(32), data=bytes(data)))
        for i in range(count)
    ]  # fmt: skip


def test_thirty_packets_a_second_are_unusual_and_as_many_thousand_an_attack() -> None:
    slow = judge(_strays(Random(3), 600, 20.0, 10), seconds=20.0)
    assert slow["ack_flood"].severity == Severity(Harm.UNUSUAL)
    fast = judge(_strays(Random(3), 6_000, 0.2, 10), seconds=0.2)
    assert (fast["ack_flood"].severity.harm, fast["ack_flood"].severity.exhausts) == (
        Harm.ATTACK, Resource.SOFTIRQ,
    )  # fmt: skip


def _stream(rng: Random, sources: int, each: int, ports: int = 1) -> list[tuple[float, bytes]]:
    """Datagrams of one length and random contents, so many a second of each source for four seconds."""
    frames = []
    for source in hosts(rng, sources):
        for k in range(4 * each):
            body = udp(40_000 + rng.randrange(ports), 7_777, rng.randbytes(160))
            frames.append((k / each, ethernet(ip(source, HOST, 17, body, ttl=60))))
    return frames


def _pings(rng: Random, sources: int) -> list[tuple[float, bytes]]:
    """What ping -f of each source sends in four seconds where the way takes 0.1 ms."""
    return [
        (k / 5_000, ethernet(ip(source, HOST, 1, icmp(8, 0, k.to_bytes(4) + bytes(56)), ttl=60)))
        for source in hosts(rng, sources)
        for k in range(20_000)
    ]


@pytest.mark.parametrize(
    ("frames", "harm"),
    [
        pytest.param(_stream(Random(4), 1, 1_500), Harm.UNUSUAL, id="telemetry of a format of its own"),
        pytest.param(_stream(Random(4), 3, 3_000), Harm.UNUSUAL, id="three of them"),
        pytest.param(_stream(Random(4), 1, 3_000, 8_000), Harm.ATTACK, id="each from another port"),
        pytest.param(_stream(Random(4), 40, 200), Harm.ATTACK, id="forty sources"),
    ],
)
def test_what_few_programs_send_one_way_is_unusual_until_something_is_near_its_end(
    frames: list[tuple[float, bytes]], harm: Harm
) -> None:
    assert {kind: one.severity.harm for kind, one in judge(frames).items()} == {"udp_flood": harm}


@pytest.mark.parametrize(("sources", "harm"), [(1, Harm.UNUSUAL), (12, Harm.ATTACK)])
def test_one_host_that_pings_as_fast_as_it_is_answered_is_unusual(sources: int, harm: Harm) -> None:
    found = judge(_pings(Random(4), sources))
    assert {kind: one.severity.harm for kind, one in found.items()} == {"icmp_flood": harm}


@pytest.mark.parametrize(("seconds", "harm"), [(20.0, Harm.UNUSUAL), (0.02, Harm.ATTACK)])
def test_a_few_fragments_are_unusual(seconds: float, harm: Harm) -> None:
    shape = {"count": 240, "fragment": 704, "payload": "random_1400", "headless": True, "protocol": "udp"}
    window = make_window(make_batch(make_frames([shape], seconds)), seconds)
    found = Advisor().judge(window, make_tables(window)).attacks
    assert {one.kind: one.severity.harm for one in found} == {"fragment_flood": harm}


def test_hundreds_of_forged_packets_in_fifteen_days_are_unusual_or_nothing() -> None:
    days = 15 * 86_400.0
    shape = {"count": 629, "protocol": 99, "payload": "random_64", "src": "random"}
    window = make_window(make_batch(make_frames([shape], days)), days)
    judgement = Advisor().judge(window, make_tables(window))
    assert judgement.harmful == ()


def _mixed(*severities: Severity) -> tuple[Any, ...]:
    return tuple(replace(attack(f"kind{n}"), severity=one) for n, one in enumerate(severities))


ATTACK, ABUSE, UNUSUAL = (
    Severity(Harm.ATTACK, Resource.LINK, 0.4),
    Severity(Harm.ABUSE),
    Severity(Harm.UNUSUAL),
)


def test_the_log_tells_of_attacks_and_abuse_only() -> None:
    before = snapshot(START, attacks=())
    events = derive(before, snapshot(START + 1, attacks=_mixed(ABUSE, UNUSUAL, ATTACK)))
    assert [event.subject for event in events if event.kind.value == "attack_began"] == ["kind0", "kind2"]


@pytest.mark.parametrize(
    ("seen", "asked", "status"),
    [
        ((), "unusual", 0),
        ((UNUSUAL,), "unusual", 4),
        ((UNUSUAL,), "abuse", 0),
        ((UNUSUAL, ABUSE), "abuse", 4),
        ((ABUSE,), "attack", 0),
        ((ATTACK,), "abuse", 4),
        ((ATTACK,), "attack:0.3", 4),
        ((ATTACK,), "attack:0.5", 0),
        ((Severity(Harm.ATTACK, Resource.LINK),), "attack:0.5", 4),  # nobody knows how near
        ((ATTACK,), None, 0),
    ],
)
def test_the_exit_status_tells_of_what_was_asked_for(
    seen: tuple[Severity, ...], asked: str | None, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = snapshot(START, attacks=_mixed(*seen))
    fail_on = Threshold.parse(asked) if asked else None
    assert show(shown, as_json=False, top=5, fail_on=fail_on) == status
    assert ("unusual: exhausts nothing" in capsys.readouterr().out) == (UNUSUAL in seen)


@pytest.mark.parametrize("text", ["", "harm", "attack:2", "attack:-1", "attack:x", "attack:0.", "ATTACK"])
def test_no_other_class_is_accepted(text: str) -> None:
    with pytest.raises(Exception, match="is not attack"):
        read_as(Threshold.parse)(text)


def _logins(bots: int, each: float, port: int) -> list[tuple[float, bytes]]:
    """Bots that log in so often a second, by connections of their own, throughout six seconds."""
    rng, frames = Random(5), []
    for bot in hosts(rng, bots):
        for number in range(int(6 * each)):
            loads = [b"SSH-2.0-libssh2_1.11\r\n", *(rng.randbytes(200) for _ in range(4))]
            frames += connection(rng, bot, port, loads, at=(number + rng.random() / 4) / each)
    return frames


@pytest.mark.parametrize(
    ("port", "name"), [(22, "password guessing"), (8_022, "connections opened without pauses")]
)
def test_who_opens_connections_again_and_again_where_users_log_in_guesses_passwords(
    port: int, name: str
) -> None:
    window = make_window(make_batch(sorted(_logins(12, 4.0, port))), 6.0)
    advisor = Advisor(explains=True)
    advisor.judge(window, make_tables(window))
    (one,) = (one for one in advisor.explained if one.group.cut == "connections without pauses")
    assert [entry.name for entry, _ in one.ranked if entry.kind] == [name]


def test_the_most_severe_is_listed_first_however_few_its_packets() -> None:
    shape = {"count": 400, "protocol": "tcp", "flags": "S", "src": "random", "dport": 80}
    found = judge([*_strays(Random(3), 600, 20.0, 10), *make_frames([shape], 20.0)], seconds=20.0)
    assert [one.severity.harm for one in found.values()] == [Harm.ATTACK, Harm.UNUSUAL]
    assert list(found) == ["syn_flood", "ack_flood"]
    assert found["syn_flood"].share < found["ack_flood"].share
