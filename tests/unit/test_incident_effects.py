"""What fwtop's own rules cause is an effect of the incident that they are against, and nothing else is."""

from __future__ import annotations

from random import Random

import pytest
from analysis_factory import STARTED, make_batch, make_tables, make_window
from analysis_flows import HOST, OPTIONS, Frame, connection, hosts, segment
from msgspec.structs import replace

from fwtop.incidents.advisor import Advisor
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.traffic.counters import DropCount
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Incident

BOTS, STRANGERS = (hosts(Random(seed), 150) for seed in (7, 8))
REQUEST = b"GET /search?q=a HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: python-requests/2.31\r\n\r\n"
CUT = 6.0  # when the rule was installed


def flood(rng: Random) -> list[Frame]:
    """Requests without pauses, until the rule."""
    return [
        frame
        for at in range(2, int(CUT))
        for bot in BOTS
        for frame in connection(rng, bot, 80, [REQUEST] * 8, gap=0.08, at=at + rng.random() / 4)
    ]


def syns(rng: Random, senders: list[bytes], *, port: int = 80, times: int = 25) -> list[Frame]:
    """SYNs without an answer, each sent again."""
    found = []
    for sender in senders:
        sport, seq = rng.randrange(32768, 61000), rng.randrange(1 << 32)
        packet = segment(sender, HOST, sport, port, "S", seq=seq, options=OPTIONS)
        found += [(CUT + 0.3 + 3.5 * rng.random(), packet) for _ in range(times)]
    return found


def judged(frames: list[Frame], *, rule: bool = True, drops: bool = True) -> dict[str, Incident]:
    """Return the incidents by kind as the last of the windows of three seconds shows them."""
    batch, advisor, found = make_batch(sorted(frames)), Advisor(), {}
    origin = int(batch.time_ns.min()) - int(min(at for at, _ in frames) * 1e9)
    blocking = Rule("7", Kind.IPSET, Match(), "block 150 addresses", 600, STARTED + CUT)
    for end in (3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0):
        low, high = (origin + int(moment * 1e9) for moment in (end - 3.0, end))
        part = batch.select((batch.time_ns >= low) & (batch.time_ns < high))
        window = make_window(part, 3.0, live=True, started=STARTED + end - 3.0)
        active = (blocking,) if rule and end > CUT else ()
        if active and drops:  # after it, nearly all
            packets = window.counters.arrived_packets
            dropped = (DropCount("netfilter", "NETFILTER_DROP", packets * 9 // 10, rule="7"),)
            counters = replace(window.counters, drops=dropped, accepted_packets=packets // 10)
            window = replace(window, counters=counters)
        made = advisor.judge(window, make_tables(window), active)
        found |= {one.kind: one for one in made.attacks}
    return found


def test_syns_that_a_rule_leaves_without_an_answer_are_the_incident_that_it_is_against() -> None:
    rng = Random(1)
    found = judged([*flood(rng), *syns(rng, BOTS)])
    assert set(found) == {"http_flood"}
    assert found["http_flood"].evidence[0].endswith("looks like a SYN flood")


def test_what_begins_after_the_rule_is_an_effect_of_the_incident() -> None:
    """Some of the bots still get through, so that their requests go on beside what the others send again."""
    rng = Random(1)
    going_on = [
        frame
        for at in (6, 7, 8, 9)
        for bot in BOTS[:60]
        for frame in connection(rng, bot, 80, [REQUEST] * 8, gap=0.08, at=at + rng.random() / 4)
    ]
    found = judged([*flood(rng), *going_on, *syns(rng, BOTS[60:])])
    cause, effect = found["http_flood"], found["syn_flood"]
    assert effect.cause == cause.id
    assert effect.effect_of == "http_flood tcp/80"
    assert effect.severity.harm is Harm.UNUSUAL, "nobody is woken, nothing is installed"


def test_what_the_rule_lets_through_is_another_vector() -> None:
    rng = Random(1)
    assert judged([*flood(rng), *syns(rng, BOTS)], drops=False)["syn_flood"].severity.harm is Harm.ATTACK


@pytest.mark.parametrize(
    ("senders", "port", "times", "rule"),
    [
        pytest.param(BOTS, 80, 25, False, id="without a rule"),
        pytest.param(STRANGERS, 80, 25, True, id="other sources"),
        pytest.param(BOTS, 443, 25, True, id="another target"),
        pytest.param(BOTS, 80, 300, True, id="more than they sent before"),
    ],
)
def test_an_attack_of_its_own_is_no_effect(
    senders: list[bytes], port: int, times: int, *, rule: bool
) -> None:
    rng = Random(1)
    found = judged([*flood(rng), *syns(rng, senders, port=port, times=times)], rule=rule)
    assert not found["syn_flood"].effect_of
    assert found["syn_flood"].severity.harm is Harm.ATTACK
