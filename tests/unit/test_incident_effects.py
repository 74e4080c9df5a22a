"""What fwtop's own rules cause is an effect of the incident that they are against, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from analysis_factory import STARTED, make_batch, make_tables, make_window
from analysis_flows import HOST, OPTIONS, Frame, connection, hosts, segment
from held_tables import table
from msgspec.structs import replace

from fwtop.analysis.connections import BEHAVIOURS
from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.traffic.counters import DropCount
from fwtop.model.traffic.packets import SocketTable
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Incident, Judgement

BOTS, STRANGERS = (hosts(Random(seed), 150) for seed in (7, 8))
REQUEST = b"GET /search?q=a HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: python-requests/2.31\r\n\r\n"
CUT = 6.0  # when the rule was installed
CODE = 8  # of the kernel's reason for what netfilter drops


def flood(rng: Random) -> list[Frame]:
    """Requests without pauses, until the rule."""
    return [
        frame
        for at in range(2, int(CUT))
        for bot in BOTS
        for frame in connection(rng, bot, 80, [REQUEST] * 8, gap=0.08, at=at + rng.random() / 4)
    ]


def visits(rng: Random, until: int) -> list[Frame]:
    """A request a second of ten visitors."""
    return [
        frame
        for at in range(9, until)
        for visitor in STRANGERS[:10]
        for frame in connection(
            rng, visitor, 80, [REQUEST.replace(b"a HTTP", b"%d HTTP" % at)], at=at + rng.random() / 2
        )
    ]


def syns(
    rng: Random,
    senders: list[bytes],
    *,
    port: int = 80,
    times: int = 25,
    flags: str = "S",
    at: float = CUT + 0.3,
    seconds: float = 3.5,
) -> list[Frame]:
    """SYNs without an answer, or what else these flags say, each sent again."""
    found = []
    for sender in senders:
        sport, seq = rng.randrange(32768, 61000), rng.randrange(1 << 32)
        packet = segment(sender, HOST, sport, port, flags, seq=seq, options=OPTIONS)
        found += [(at + seconds * rng.random(), packet) for _ in range(times)]
    return found


def held(sort: str, each: int, **changes: object) -> SocketTable:
    """Connections that the bots hold, beside those of clients."""
    made = table((sort, each * len(BOTS), len(BOTS)), ("kept alive", 60, 30), **changes)
    rows = made.connections
    theirs = np.array([int.from_bytes(bot) for bot in BOTS * each], np.uint64)
    rows.lo[: len(theirs)] = theirs
    return made


def judged(
    frames: list[Frame],
    *,
    rule: bool = True,
    drops: bool = True,
    sockets: Callable[[float], SocketTable | None] = lambda _: None,
    ends: float = 99.0,
    other: float = 99.0,
    last: int = 10,
    advisor: Advisor | None = None,
    shown: list[Judgement] | None = None,
) -> dict[str, Incident]:
    """Return the incidents by kind as the last of the windows of three seconds shows them.

    `sockets` are the host's at the end of a window; the rule is removed when it `ends`, and another installed
    at `other`; what each window tells is `shown`.
    """
    batch, advisor, found = make_batch(sorted(frames)), advisor or Advisor(), {}
    origin = int(batch.time_ns.min()) - int(min(at for at, _ in frames) * 1e9)
    theirs = tuple(Prefix.parse(".".join(map(str, bot))) for bot in BOTS)
    blocking = Rule("7", Kind.IPSET, Match(sources=theirs), "block 150 addresses", 600, STARTED + CUT)
    for end in map(float, range(3, last + 1)):
        low, high = (origin + int(moment * 1e9) for moment in (end - 3.0, end))
        part = batch.select((batch.time_ns >= low) & (batch.time_ns < high))
        window = make_window(part, 3.0, live=True, started=STARTED + end - 3.0)
        active = (blocking,) if rule and CUT < end <= ends else ()
        if end > other:
            active += (replace(blocking, id="8", created=STARTED + other),)
        if active and drops:  # after it, nearly all
            packets = window.counters.arrived_packets
            dropped = (DropCount("netfilter", "NETFILTER_DROP", packets * 9 // 10, rule="7", code=CODE),)
            counters = replace(window.counters, drops=dropped, accepted_packets=packets // 10)
            samples = replace(part, reason=np.full(len(part), CODE, part.reason.dtype))
            window = replace(window, counters=counters, dropped=samples)
        window = replace(window, sockets=sockets(end))
        made = advisor.judge(window, make_tables(window), active)
        found |= {one.kind: one for one in made.attacks}
        if shown is not None:
            shown.append(made)
    return found


@pytest.mark.parametrize(("each", "closes"), [(4, True), (0, False)])
def test_a_block_of_those_who_occupy_a_server_closes_what_they_have_open(each: int, closes: bool) -> None:
    """Without that the server waits for them until its timeouts, and serves nobody."""
    shown: list[Judgement] = []
    sockets = held("kept alive", each) if each else table(("kept alive", 60, 30))
    judged(flood(Random(1)), rule=False, sockets=lambda _: sockets, last=5, shown=shown)
    [best, *_] = shown[-1].proposals
    assert best.attack == "HTTP flood"
    assert best.rule is not None
    assert best.rule.close_open is closes
    assert ("and close the open connections" in best.summary) is closes


def test_syns_that_a_rule_leaves_without_an_answer_are_the_incident_that_it_is_against() -> None:
    rng = Random(1)
    found = judged([*flood(rng), *syns(rng, BOTS)])
    assert set(found) == {"http_flood"}
    assert found["http_flood"].evidence[0].endswith("looks like a SYN flood")


def test_attempts_at_the_old_pace_are_retries_though_each_is_several_packets() -> None:
    """A SYN without an answer is sent again after 1, 3, 7, 15 and 31 seconds."""
    rng = Random(1)
    found = judged([*flood(rng), *syns(rng, BOTS, times=160)])
    assert found["syn_flood"].pps > 1.7 * found["http_flood"].peak_pps
    assert found["syn_flood"].title == "Retries of HTTP flood"
    assert found["syn_flood"].severity.harm is Harm.UNUSUAL


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


def test_a_flood_of_the_same_senders_after_the_rule_was_removed_is_an_attack() -> None:
    """A minute later, and forged in their names, perhaps."""
    rng = Random(1)
    later = syns(rng, BOTS, times=60, at=66.0, seconds=8.0)
    shown: list[Judgement] = []
    judged([*flood(rng), *syns(rng, BOTS), *later], ends=9, other=70, last=74, shown=shown)
    told = {one.title for judgement in shown[-4:] for one in judgement.attacks}
    assert told == {"SYN flood"}, told


def test_whom_a_rule_cut_off_is_called_no_client_for_what_is_left_of_its_connections() -> None:
    rng, advisor = Random(1), Advisor()
    left = [frame for bot in BOTS[:40] for frame in connection(rng, bot, 80, [REQUEST], at=8 + rng.random())]
    judged([*flood(rng), *left, *visits(rng, 10)], advisor=advisor)
    clients = set(advisor.standing.lo[advisor.standing.client].tolist())
    assert clients == {int.from_bytes(visitor) for visitor in STRANGERS[:10]}


def test_what_the_rule_lets_through_is_another_vector() -> None:
    rng = Random(1)
    assert judged([*flood(rng), *syns(rng, BOTS)], drops=False)["syn_flood"].severity.harm is Harm.ATTACK


@pytest.mark.parametrize("senders", [BOTS, STRANGERS])
def test_bots_whose_requests_a_rule_drops_close_their_connections_past_it(senders: list[bytes]) -> None:
    rng = Random(1)
    found = judged([*flood(rng), *syns(rng, senders, flags="FA")], drops=False)
    assert set(found) == ({"http_flood"} if senders is BOTS else {"http_flood", "fin_flood"})


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


@pytest.mark.parametrize("first", [BOTS, STRANGERS], ids=["retries first", "the flood first"])
def test_a_flood_beside_the_retries_of_what_a_rule_cut_off_is_an_attack_of_its_own(
    first: list[bytes],
) -> None:
    """Bots get no answer to their SYNs any more, and others forge as many: that was one finding."""
    rng, shown = Random(1), list[Judgement]()
    forged = [frame for _ in range(6_000) for frame in syns(rng, [rng.randbytes(4)], times=1)]
    retries = syns(rng, BOTS, times=25)
    late = [(at + 2.0, packet) for at, packet in (forged if first is BOTS else retries)]
    early = retries if first is BOTS else forged
    judged([*flood(rng), *early, *late], shown=shown, last=10)
    [attack] = [one for one in shown[-1].attacks if one.kind == "syn_flood" and not one.effect_of]
    assert attack.severity.harm is Harm.ATTACK
    assert attack.spoofed
    sent = sum(7 <= at < 10 for at, _ in (late if first is BOTS else early)) / 3
    assert attack.pps == pytest.approx(sent, rel=0.1), "without the retries"
    assert [one.kind for one in shown[-1].proposals if one.incident == attack.id]
    [cause] = [one for one in shown[-1].attacks if one.kind == "http_flood"]
    retries_of = [one.cause for one in shown[-1].attacks if one.effect_of]
    assert retries_of == ([] if first is BOTS else [cause.id]), "what goes on as the incident is no other"


def test_retries_of_slow_bots_keep_the_name_of_their_attack() -> None:
    """The rule blocks them and closes what they hold: each tries again, more often than it ever sent."""
    rng = Random(1)
    trickle = [
        frame
        for at in range(2, int(CUT))
        for bot in BOTS[::10]
        for frame in connection(rng, bot, 80, [b"X-a: b\r\n"], at=at + rng.random() / 4, answered=0)
    ]
    slow, calm = held("headers", 4), table(("kept alive", 60, 30))
    found = judged([*trickle, *syns(rng, BOTS, times=12)], sockets=lambda end: slow if end <= CUT else calm)
    cause, effect = found["slow_headers"], found["syn_flood"]
    assert effect.cause == cause.id
    assert effect.severity.harm is Harm.UNUSUAL
    assert effect.title == "Retries of Slow headers (Slowloris)"
    assert cause.holds == 600


def test_retries_begin_with_the_openings_where_a_key_was_pressed_in_an_attack_s_first_second() -> None:
    """One window showed both, and their SYNs as a flood that was there before the rule."""
    rng, slow, calm = Random(1), held("headers", 4), table(("kept alive", 60, 30))
    openings = syns(rng, BOTS, times=4, at=5.2, seconds=0.75)
    found = judged(
        [*openings, *syns(rng, BOTS, times=12)], sockets=lambda end: slow if 5 <= end <= CUT else calm
    )
    assert found["syn_flood"].since < STARTED + CUT
    assert found["syn_flood"].title == "Retries of Slow headers (Slowloris)"


def test_what_a_string_rule_leaves_open_is_no_attack_of_its_own() -> None:
    """Handshakes pass and requests don't: to the server these are connections on which nothing is sent."""
    rng = Random(1)
    knocks = [
        frame
        for at in (6, 7, 8, 9)
        for bot in BOTS
        for frame in connection(rng, bot, 80, [REQUEST] * 3, gap=0.2, at=at + rng.random() / 4, answered=0)
    ]
    found = judged(
        [*flood(rng), *knocks],
        sockets=lambda end: held("silent", 4, since_received=end - CUT - 0.5) if end > CUT + 2 else None,
    )
    cause, effect = found["http_flood"], found["idle_connections"]
    assert effect.cause == cause.id
    assert effect.severity.harm is Harm.UNUSUAL
    assert effect.title == "Connections left open by HTTP flood"


def left(end: float, *, opened: tuple[float, float] = (CUT, CUT + 1), queue: float = 0.0) -> SocketTable:
    """Connections of the bots without a request, opened in these seconds, as they are at an end."""
    made = held("silent", 4, queue=queue)
    bots = 4 * len(BOTS)
    age = end - np.linspace(*opened, bots)
    made.connections.since_received[:bots] = made.connections.since_sent[:bots] = age
    keep = np.ones(len(made.connections), np.bool_)
    keep[:bots] = age > 0
    full = replace(made, overflows_per_s=30.0 if queue else 0.0)
    return replace(full, connections=made.connections.select(keep))


@pytest.mark.parametrize("queue", [0.0, 1.0], ids=["workers taken", "the listen queue full"])
def test_what_a_removed_rule_left_open_is_named_after_the_incident(queue: float) -> None:
    rng = Random(1)
    found = judged(
        [*flood(rng), *visits(rng, 20)],
        sockets=lambda end: left(end, queue=queue) if end > 11 else None,
        ends=8.0,
        last=20,
    )
    effect = found["idle_connections"]
    assert effect.title == "Connections left open by HTTP flood"
    assert effect.cause == found["http_flood"].id
    assert effect.severity.harm is Harm.UNUSUAL, "the rule's doing: no alarm of its own"
    assert effect.evidence[0] == "600 connections of its sources are still open; no new ones come"


@pytest.mark.parametrize(
    ("opened", "ends", "queue"),
    [
        pytest.param((8.0, 18.0), 8.0, 0.0, id="after the rule"),
        pytest.param((CUT, 18.0), 99.0, 1.0, id="while the rule lasts, until nobody is served"),
    ],
)
def test_new_connections_that_keep_coming_are_an_attack(
    opened: tuple[float, float], ends: float, queue: float
) -> None:
    rng = Random(1)
    found = judged(
        [*flood(rng), *visits(rng, 20)],
        sockets=lambda end: left(end, opened=opened, queue=queue) if end > 11 else None,
        ends=ends,
        last=20,
    )
    assert found["idle_connections"].severity.harm is Harm.ATTACK
    assert not found["idle_connections"].effect_of


def test_what_is_left_open_keeps_nothing_from_being_learned() -> None:
    """Nothing was learned before; the connections stay for as long as the server lets them."""
    rng, advisor = Random(1), Advisor()
    seen = [*flood(rng), *visits(rng, 60)]
    judged(seen, sockets=lambda end: left(end) if end > 11 else None, ends=8.0, last=60, advisor=advisor)
    assert advisor.baseline.ready
    learned = advisor._memory.connections.learned
    assert learned.usual.usual("open", np.array([80], np.uint32), BEHAVIOURS) == pytest.approx(60, abs=5)


@pytest.mark.parametrize(
    ("senders", "ends", "holds"), [(BOTS, 99, True), (STRANGERS, 99, False), (BOTS, 20, False)]
)
def test_an_attack_is_held_off_while_the_rule_drops_what_its_senders_still_send(
    senders: list[bytes], ends: float, *, holds: bool
) -> None:
    """One SYN each now and then makes no attack; without the rule it would be back."""
    rng, shown = Random(1), list[Judgement]()
    again = [
        frame for at in range(7, 30, 2) for frame in syns(rng, senders[:20], times=1, at=at, seconds=1.0)
    ]
    judged([*flood(rng), *visits(rng, 30), *again], shown=shown, last=30, ends=ends)
    listed = {one.title: one for one in shown[-1].attacks}
    assert ("HTTP flood" in listed) is holds, listed
    if holds:
        assert listed["HTTP flood"].held_pps == pytest.approx(9, abs=4)
        assert not listed["HTTP flood"].spoofed, "whoever made requests has an address of his own"
        assert not shown[-1].proposals, "nothing is left to do"


@pytest.mark.parametrize(("handshakes", "spoofed"), [(150.0, False), (0.0, True)])
def test_requests_over_connections_that_the_kernel_completed_are_nobodys_in_another_name(
    handshakes: float, *, spoofed: bool
) -> None:
    """In the first second addresses from everywhere, each seen once or twice, looked forged."""
    rng = Random(1)
    anywhere = [rng.randbytes(4) for _ in range(600)]
    frames = [
        frame
        for number, bot in enumerate(anywhere)
        for frame in connection(rng, bot, 80, [REQUEST], gap=0.01, at=number / 200)
    ]
    window = make_window(make_batch(sorted(frames)), 3.0, live=True, started=STARTED)
    window = replace(window, handshakes_per_s=handshakes)
    [attack] = Advisor().judge(window, make_tables(window)).attacks
    assert (attack.title, attack.spoofed) == ("HTTP flood", spoofed)


def test_who_attacked_a_moment_ago_is_no_client_to_measure_harm_on() -> None:
    """A block of 260 bots was said to hit 4 % of client-like packets: the six that had just paused."""
    rng, advisor = Random(1), Advisor()
    idle = [
        frame
        for at in (6, 7, 8, 9)
        for bot in BOTS[:20]
        for frame in connection(rng, bot, 80, [b"GET / HTTP/1.0\r\n\r\n"], at=at + rng.random() / 2)
    ]
    going_on = [
        frame
        for at in (6, 7, 8, 9)
        for bot in BOTS[20:]
        for frame in connection(rng, bot, 80, [REQUEST] * 8, gap=0.08, at=at + rng.random() / 4)
    ]
    judged([*flood(rng), *idle, *going_on, *visits(rng, 10)], rule=False, advisor=advisor)
    assert advisor.judged is not None
    normal = set(advisor.judged.normal.packets.src_lo.tolist())
    assert normal & {int.from_bytes(bot) for bot in BOTS} == set()
    assert normal & {int.from_bytes(visitor) for visitor in STRANGERS[:10]}
