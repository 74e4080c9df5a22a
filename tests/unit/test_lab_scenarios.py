"""Scenarios: strict TOML, well-formed packets, weights and addresses as written."""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment
from scapy.layers.l2 import Ether

from fwtop.lab import network as net
from fwtop.lab import scenario
from fwtop.lab.network import Wire
from fwtop.lab.scenario import Pool, ScenarioError
from fwtop.lab.traffic import plan as plans
from fwtop.lab.traffic.craft import MAKERS
from fwtop.lab.traffic.frames import IPV6, NO_PSEUDO, TARGET, checksum, word_sum
from fwtop.lab.traffic.pools import slots
from fwtop.model.addresses.address import Prefix

WIRE = Wire(bytes.fromhex("020000000002"), bytes.fromhex("020000000001"))
HEAD = 'title = "t"\n[[vector]]\nkind = "udp_flood"\nprotocol = "udp"\n'


@lru_cache
def plan_of(name: str) -> plans.Plan:
    return plans.build_plan(scenario.load(name), WIRE)


def build_plan(text: str) -> plans.Plan:
    return plans.build_plan(scenario.parse(text, "test"), WIRE)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("title = ", ":1: invalid value"),
        ('[[vector]]\nprotocol = "udp"\n', ": title is missing"),
        ('title = "t"\nspeed = 3\n', ":2: speed is unknown; the nearest is seed"),
        ('title = "t"\npps = "many"\n', ":2: pps must be a whole number from 0 to 100000000"),
        ('title = "t"\npps = true\n', ":2: pps must be a whole number"),
        ('title = "t"\nfirewall = "pf"\n', ':2: firewall must be one of "none", "open", "stateful"'),
        ('title = "t"\nopen_ports = ["27015"]\n', ':2: open_ports must be a list of ports like "udp/27015"'),
        ('title = "t"\nopen_ports = ["udp/65536"]\n', ":2: open_ports must be a list of ports"),
        ('title = "t"\n[[vector]]\nkind = "x"\n', ":2: vector[0].protocol is missing"),
        (HEAD + 'protocol = "upd"\n', ":5: cannot overwrite a value"),
        (HEAD + "dprt = 3\n", ":5: vector[0].dprt is unknown; the nearest is dport"),
        (HEAD + "dport = 70000\n", ":5: vector[0].dport must be a port, a list of ports, "),
        (HEAD + 'dport = "9-1"\n', ":5: vector[0].dport must be a port"),
        (HEAD + 'dport = "1-2-3"\n', ":5: vector[0].dport must be a port"),
        (HEAD + "dport = []\n", ":5: vector[0].dport must be a port"),
        (HEAD + 'flags = "SIN"\n', ":5: vector[0].flags must be FIN, SYN"),
        (HEAD + 'source = { prefixes = ["1.2.3.0/33"] }\n', ':5: vector[0].source must be "random", or'),
        (HEAD + "source = 3\n", ':5: vector[0].source must be "random", or'),
        (HEAD + "source = { count = 3, weights = [1] }\n", "as many as sources"),
        (HEAD + 'source = { count = 3, prefixes = ["1.1.1.1"] }\n', ":5: vector[0].source must be"),
        (HEAD + 'family = 6\nsource = { prefixes = ["1.1.1.1"] }\n', ":6: vector[0].source must be of the"),
        (HEAD + "weight = 0\n", ":5: vector[0].weight must be a number above 0"),
        (HEAD + "icmp = [1, 2, 3]\n", ":5: vector[0].icmp must be a number or a pair of numbers"),
        (HEAD + "payload = {}\n", ":5: vector[0].payload must be a table or a list of tables"),
        (HEAD + "active = [0, 0.5]\n", ":5: vector[0].active needs the scenario's 'cycle'"),
        (HEAD + "active = [0.5, 0.2]\n", ":5: vector[0].active must be a pair such as [0, 0.5]"),
        ('title = "t"\n[[crowd]]\nprotocol = "gopher"\n', ':3: crowd[0].protocol must be one of "http"'),
    ],
)
def test_an_invalid_scenario_is_refused_in_one_line(text: str, line: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario.parse(text, "test")
    assert line in str(caught.value)
    assert str(caught.value).startswith("scenario test:")
    assert str(caught.value).endswith("; the scenario is not used")
    assert "\n" not in str(caught.value)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        ("{ random = 7 }", "multiple of 8"),
        ('{ hex = "0g" }', "vector vector-1"),
        ('{ make = "nonsense_response" }', "payload: 'make' is not text"),
        ("[{ random = 8 }, { letters = 8 }]", "given once"),
    ],
)
def test_an_invalid_payload_is_refused_in_one_line(payload: str, line: str) -> None:
    with pytest.raises(ScenarioError, match=line):
        build_plan(HEAD + f"payload = {payload}\n")


def test_an_unknown_scenario_is_refused_with_a_hint() -> None:
    with pytest.raises(ScenarioError, match="fwtop lab list"):
        scenario.load("smurf")


@pytest.mark.parametrize("name", scenario.names())
def test_every_template_is_a_correct_packet(name: str) -> None:
    plan = plan_of(name)
    for item, owner in zip(plan.templates, plan.owner, strict=True):
        vector = plan.scenario.vectors[owner]
        frame = Ether(item.data)
        ip = frame[IPv6] if vector.family == 6 else frame[IP]
        assert Prefix.parse(ip.dst) in (
            item.target,
            Prefix(item.target.family, item.target.value, item.target.bits),
        )
        assert net.is_own(item.target)
        assert len(item.data) <= 1514 + 4 * len(vector.vlan)
        rebuilt = frame.copy()
        layers = [layer for layer in (IP, TCP, UDP, ICMP) if layer in rebuilt]
        for layer in layers:
            tunnelled = layer is UDP and vector.protocol == 47  # whose checksum 0 means none
            if (not item.fragment or layer is IP) and not tunnelled:
                del rebuilt[layer].chksum
                again = Ether(bytes(rebuilt))
                assert again[layer].chksum == frame[layer].chksum, f"{name}: {layer.__name__}"


@pytest.mark.parametrize("name", scenario.names())
def test_partial_sums_complete_to_the_template_checksum(name: str) -> None:
    """What the kernel does with a copy, done here to the template itself: the same checksums come out."""
    for item in plan_of(name).templates:
        data = item.data
        if not item.rewrite & IPV6:
            ip = data[item.l3 : item.l3 + 20]
            total = item.ip_sum + word_sum(ip[12:16]) + word_sum(bytes([ip[8], 0]))
            total += word_sum(ip[4:6]) if item.rewrite & 4 else 0
            total += word_sum(ip[16:20]) if item.rewrite & TARGET else 0
            assert checksum(total) == ip[10:12]
        if not item.checksum or item.fragment:
            continue
        assert checksum(item.l4_sum + _rewritten(item)) == data[item.checksum : item.checksum + 2]


def _rewritten(item: plans.Template) -> int:
    data, l4 = item.data, item.l4
    source = data[item.l3 + 8 : item.l3 + 24] if item.rewrite & IPV6 else data[item.l3 + 12 : item.l3 + 16]
    target = data[item.l3 + 32 : item.l3 + 40] if item.rewrite & IPV6 else data[item.l3 + 16 : item.l3 + 20]
    total = 0 if item.rewrite & NO_PSEUDO else word_sum(source)
    total += word_sum(target) if item.rewrite & TARGET else 0
    for bit, start, size in ((1, 0, 2), (2, 2, 2), (8, 4, 4), (16, 8, 4), (512, 14, 2), (1024, 8, 2)):
        total += word_sum(data[l4 + start : l4 + start + size]) if item.rewrite & bit else 0
    drawn = data[item.random_at : item.random_at + item.random_size]
    return total + word_sum(b"\0" + drawn if (item.random_at - l4) % 2 else drawn)


def test_the_schedule_honours_the_weights() -> None:
    text = 'title = "t"\n' + "".join(
        f'[[vector]]\nname = "{n}"\nkind = "udp_flood"\nprotocol = "udp"\nweight = {n}\nvariants = 3\n'
        for n in (1, 2, 5)
    )
    plan = build_plan(text)
    shares = Counter(plan.owner[number] for number in plan.schedule)
    for number, weight in enumerate((1, 2, 5)):
        assert shares[number] / len(plan.schedule) == pytest.approx(weight / 8, abs=0.002)


def test_fragments_stay_together_and_in_order() -> None:
    plan = build_plan(HEAD + "payload = { zeros = 4000 }\nvariants = 4\n")
    assert len(plan.templates) == 12
    order = list(plan.schedule)
    for at, number in enumerate(order):
        if plan.templates[number].continues:
            assert order[at - 1] == number - 1


def test_phases_follow_the_cycle() -> None:
    plan = build_plan(
        "cycle = 20\n" + HEAD + "active = [0, 0.5]\n" + HEAD.partition("\n")[2] + "active = [0.5, 1]\n"
    )
    first, second = (plan.phase(at) for at in (3.0, 13.0))
    assert plan.phase(23.0) is first is not second
    owners = {
        number: {plan.owner[item] for item in plan.schedule[phase.first : phase.first + phase.count]}
        for number, phase in enumerate((first, second))
    }
    assert owners == {0: {0}, 1: {1}}


def test_skewed_sources_keep_their_proportions() -> None:
    made = slots(Pool(forged=False, count=20, skew=1.0), 4, (50, 60), random.Random(1))
    counts = [count for _, count in Counter(slot.prefix for slot in made).most_common()]
    assert len(counts) == 20
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.01)
    assert counts[0] / counts[19] == pytest.approx(20, rel=0.02)


def test_same_seed_same_packets() -> None:
    first, second = (plans.build_plan(scenario.load("dns_amplification"), WIRE) for _ in range(2))
    assert np.array_equal(first.packets, second.packets)
    assert np.array_equal(first.schedule, second.schedule)


@pytest.mark.parametrize("maker", sorted(MAKERS))
def test_protocol_messages_fit_a_datagram_and_follow_the_seed(maker: str) -> None:
    table = {"name": "zone.example", "make": maker}
    first = MAKERS[maker](random.Random(1), table)
    assert 0 < len(first) <= 65_000
    assert first == MAKERS[maker](random.Random(1), table)


def test_ipv6_fragments_carry_a_fragment_header() -> None:
    plan = build_plan(HEAD + "family = 6\npayload = { zeros = 3000 }\nfragment = true\n")
    frames = [Ether(item.data) for item in plan.templates]
    assert [frame[IPv6ExtHdrFragment].offset * 8 for frame in frames] == [0, 1448, 2896]
    assert [int(frame[IPv6ExtHdrFragment].m) for frame in frames] == [1, 1, 0]
    assert [item.id_at for item in plan.templates] == [58, 58, 58]


def test_destinations_outside_the_lab_are_refused() -> None:
    plan = build_plan(HEAD)
    foreign = plan.templates[0].__class__(
        **{name: getattr(plan.templates[0], name) for name in plan.templates[0].__slots__}
        | {"target": Prefix.parse("192.0.2.1")}
    )
    with pytest.raises(ScenarioError, match=r"refused: 192\.0\.2\.1"):
        plans.packet_rows([foreign], [(0, 1)])
