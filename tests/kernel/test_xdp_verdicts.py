"""Compiled rules against a slow reference in Python: the same verdict for every packet and rule set."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from xdp_frames import ethernet, ipv4, ipv6, random_frame, random_matches, udp
from xdp_programs import Compiled, verdict

from fwtop.guardian.mechanisms.compiled.prefix_hits import PrefixHits
from fwtop.model.addresses.address import Prefix, format_address
from fwtop.model.addresses.roles import Conversation, Passes
from fwtop.model.rule import Kind, Match, RateLimit, Rule
from fwtop.xdp import maps

pytestmark = pytest.mark.kernel
PACKETS = int(os.environ.get("FWTOP_XDP_PACKETS", "500"))
TAGGED = ((0x8100, 5),)
ALLOW = (Prefix.parse("192.0.2.7"), Prefix.parse("2001:db8:7::/48"), Prefix.parse("10.0.0.0/30"))
RESOLVER, PEER, GATEWAY = (tuple(map(Prefix.parse, texts)) for texts in (
    ("198.51.100.200", "2001:db8:8:1::5"), ("10.1.2.3", "2001:db8::1"), ("203.0.113.255", "fd00::1"),
))  # fmt: skip
ROLES = tuple(
    Passes(
        family,
        (),
        ((RESOLVER[at], 17, 53), (RESOLVER[at], 17, 123), (PEER[at], 6, 80), (GATEWAY[at], 6, 179)),
        (GATEWAY[at],),
        tuple(
            Conversation(one, protocol, port, other)
            for one, other in ((GATEWAY[at], RESOLVER[at]), (RESOLVER[at], PEER[at]))
            for protocol, port in ((6, 53), (6, 80), (17, 53), (17, 123), (17, 3784), (89, 0))
        ),
    )
    for at, family in enumerate((4, 6))
)


@pytest.mark.one_each("0")
@pytest.mark.parametrize("seed", range(6))
def test_same_verdict_as_the_slow_reference(seed: int, root_required: None) -> None:
    chance = random.Random(seed)
    matches = random_matches(chance)
    expected = [0] * len(matches)
    with Compiled(matches, ALLOW, limit=chance.choice((0, 3, 64)), roles=ROLES) as compiled:
        for _ in range(PACKETS):
            frame = random_frame(chance)
            wanted = verdict(matches, ALLOW, frame, ROLES)
            assert compiled.drops(frame) == (wanted is not None), (frame.hex(), matches)
            if wanted is not None:
                expected[wanted] += 1
        assert compiled.counts()[: len(matches)] == expected
    assert sum(expected) > PACKETS / 20  # the packets do meet the rules


def packet(source: str, dport: int = 53, tags: tuple[tuple[int, int], ...] = (), size: int = 0) -> bytes:
    make, protocol, kind = (ipv6, 17, 0x86DD) if ":" in source else (ipv4, 17, 0x0800)
    target = "2001:db8::9" if ":" in source else "198.51.100.9"
    return ethernet(make(udp(9, dport, bytes(size)), protocol, source, target), kind, tags)


@pytest.mark.one_each("6")
@pytest.mark.parametrize("family", [4, 6])
def test_a_long_list_agrees_with_a_linear_search(family: int, root_required: None) -> None:
    chance = random.Random(family)
    bits = 32 if family == 4 else 128
    prefixes = [listed_prefix(chance, family, bits) for _ in range(3000)]
    by_length: dict[int, set[int]] = {}
    for prefix in prefixes:
        by_length.setdefault(prefix.length, set()).add(prefix.value >> (bits - prefix.length))
    seen = [0, 0]
    expected: Counter[str] = Counter()
    with Compiled([Match(sources=tuple(prefixes))], limit=0) as compiled:
        for _ in range(PACKETS * 4):
            address = chance.choice(prefixes).value ^ chance.choice((0, 1, 3 << 6, 5 << 8, 1 << bits - 12))
            held = [length for length, values in by_length.items() if address >> (bits - length) in values]
            listed = bool(held)
            text = format_address(family, address >> 64, address & (1 << 64) - 1)
            assert compiled.drops(packet(text)) == listed, text
            seen[listed] += 1
            if held:
                free = bits - min(held)
                expected[str(Prefix(family, address >> free << free, min(held)))] += 1
        assert counted(compiled, tuple(prefixes)) == expected
    assert min(seen) > PACKETS / 4


def counted(compiled: Compiled, sources: tuple[Prefix, ...]) -> dict[str, int]:
    """Return the hits of the first rule's prefixes, as the guardian reads them."""
    hits = PrefixHits()
    hits.take({"1": os.dup(compiled.hits[0])})
    try:
        rule = Rule("1", Kind.XDP, Match(sources=sources), "", 600)
        return hits.most(rule, maps.possible_cpus(), len(sources))
    finally:
        hits.keep(set())


@pytest.mark.parametrize("tags", [(), TAGGED])
def test_a_short_list_counts_for_the_wider_prefix(
    tags: tuple[tuple[int, int], ...], root_required: None
) -> None:
    texts = ("192.0.2.0/25", "192.0.2.7", "192.0.2.128/25", "2001:db8::/32", "2001:db8:1::/48", "10.0.0.0/8")
    sources = tuple(map(Prefix.parse, texts))
    sent = {"192.0.2.7": 3, "192.0.2.200": 2, "2001:db8:1::5": 4, "198.51.100.1": 1}
    with Compiled([Match(sources=sources)]) as compiled:
        for source, times in sent.items():
            for _ in range(times):
                compiled.drops(packet(source, tags=tags))
        assert counted(compiled, sources) == {"2001:db8::/32": 4, "192.0.2.0/25": 3, "192.0.2.128/25": 2}


def listed_prefix(chance: random.Random, family: int, bits: int) -> Prefix:
    """Draw from few /16s (IPv6: /32s), so that prefixes are equal, nested and adjacent."""
    length = chance.choice(
        (8, 15, 20, 23, 24, 25, 26, 27, 31, 32) if family == 4 else (12, 33, 48, 64, 65, 128)
    )
    value = chance.randrange(1 << 8, 200 << 8) if chance.random() < 0.3 else 0xC000 + chance.randrange(8)
    value = value << (bits - 16) | chance.randrange(1 << (bits - 16))
    return Prefix(family, value >> (bits - length) << (bits - length), length)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [("192.0.2.1 192.0.2.200", "192.0.3.1"), ("2001:db8::1 2001:db8::ff", "2001:db8:0:1::1")],
)
def test_a_limit_counts_each_source_prefix(inside: str, outside: str, root_required: None) -> None:
    """Tagged packets take the general path, and still share the bucket."""
    rate = RateLimit(1, 4, prefix_v4=24, prefix_v6=64)
    first, second = inside.split()
    with Compiled([Match(protocol=17)], rates={0: rate}) as compiled:
        seen = [
            compiled.drops(packet(source, tags=tags)) for tags in ((), TAGGED) for source in (first, second)
        ]
        assert seen == [False] * 4
        assert compiled.drops(packet(first))
        assert compiled.drops(packet(second, dport=99, tags=TAGGED))
        assert not compiled.drops(packet(outside))
        assert compiled.counts()[0] == 2


def test_a_limit_passes_packets_again_at_its_rate(root_required: None, poll_until) -> None:
    with Compiled([Match()], rates={0: RateLimit(20, 1)}) as compiled:
        assert not compiled.drops(packet("192.0.2.1"))
        assert compiled.drops(packet("192.0.2.1"))
        poll_until(lambda: not compiled.drops(packet("192.0.2.1")))


def test_a_limit_by_port_and_in_bytes(root_required: None) -> None:
    with Compiled([Match()], rates={0: RateLimit(10, 300, in_bytes=True, by_dport=True)}) as compiled:
        assert [compiled.drops(packet("192.0.2.1", size=100)) for _ in range(3)] == [False, False, True]
        assert not compiled.drops(packet("192.0.2.1", dport=54, size=100))
        assert not compiled.drops(packet("192.0.2.2", size=2000))  # more than the bucket holds, and alone


def test_packets_below_a_limit_meet_the_rules_after_it(root_required: None) -> None:
    matches = [Match(protocol=17), Match(dport=53)]
    with Compiled(matches, rates={0: RateLimit(1, 1)}, allow=(Prefix.parse("192.0.2.7"),)) as compiled:
        assert compiled.drops(packet("192.0.2.1", dport=53))
        assert compiled.drops(packet("192.0.2.1", dport=54))
        assert compiled.counts()[:2] == [1, 1]
        assert [compiled.drops(packet("192.0.2.7", dport=54)) for _ in range(3)] == [False] * 3
