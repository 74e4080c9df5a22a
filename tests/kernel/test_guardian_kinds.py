"""Every other kind of rule does in the kernel what it says, and ends there without any process."""

from __future__ import annotations

import fcntl
import threading
import time

import pytest
from guardian_bench import (
    PORT,
    SOON_SECONDS,
    VARIANTS,
    Bench,
    apply,
    kill,
    own_xtables_lock,
    rules_of,
    tcp_connection,
    use_variant,
)

from fwtop.model.protocol import Plan, Undo
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from tests.kernel.wire import let_arrive, received

pytestmark = pytest.mark.kernel
FAMILIES = (4, 6)
UDP, TCP = 17, 6


def flood(path, count: int) -> int:
    """Send at once and return how many arrived."""
    for _ in range(count):
        path.send()
    let_arrive()
    arrived = 0
    while arrived < count and received(path.receiver, 0.0):
        arrived += 1
    return arrived


def burst_passes(path, count: int, burst: int) -> int:
    """Send more than a burst and return how many arrived: the burst, and one a second."""
    began = time.monotonic()
    arrived = flood(path, count)
    assert burst <= arrived <= burst + 2 + (time.monotonic() - began)
    return arrived


@pytest.mark.one_each
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_limit_lets_the_burst_through(bench: Bench, family: int, variant: str) -> None:
    use_variant(bench, variant)
    before = bench.state()
    path = bench.path(family)
    limit = RateLimit(per_second=1, burst=10, prefix_v4=24, prefix_v6=64)
    rule = Rule("", Kind.HASHLIMIT, Match(protocol=UDP, dport=PORT), "limit", 600, limit=limit)
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        arrived = burst_passes(path, 60, 10)
        assert rules_of(guardian)[rule_id]["packets"] == 60 - arrived
        guardian.demand(Undo((rule_id,)))
        assert flood(path, 60) == 60
    assert bench.settled(before) == before


def test_new_rate_holds(bench: Bench) -> None:
    """The kernel keeps the first parameters of a hashlimit name: a changed rate must have another."""
    path = bench.path(4)
    with bench.connect() as guardian:
        for burst in (5, 20):
            limit = RateLimit(per_second=1, burst=burst)
            rule_id = apply(
                guardian, Rule("", Kind.HASHLIMIT, Match(protocol=UDP), "limit", 600, limit=limit)
            )
            burst_passes(path, 40, burst)
            guardian.demand(Undo((rule_id,)))


def test_fast_rates_and_bytes_are_taken(bench: Bench) -> None:
    with bench.connect() as guardian:
        for limit in (
            RateLimit(50_000, 100_000),
            RateLimit(1_000_000, 1_000_000),
            RateLimit(100_000_000, 10_000_000, in_bytes=True),
            RateLimit(64, 3000, in_bytes=True, by_dport=True),
        ):
            apply(guardian, Rule("", Kind.HASHLIMIT, Match(protocol=UDP), "limit", 600, limit=limit))
        guardian.demand(Undo(all=True))


STRINGS = [
    (PayloadMatch(b"attack"), b"any attack at all", b"any attac"),
    (PayloadMatch(b'q"\\| \x00\xff'), b'before q"\\| \x00\xff', b'before q"\\| \x00\xfe'),
    (PayloadMatch(b"\x03bad\x02eu\0", dns_name="bad.eu"), b"..\x03bAd\x02Eu\0", b"..\x03bad\x03eu\0"),
    (
        PayloadMatch(b"\x03bad\x02eu\0\0\x01", dns_name="bad.eu"),  # and its type
        b"..\x03BAD\x02eu\0\0\x01\0\x01",
        b"..\x03BAD\x02eu\0\0\x1c\0\x01",
    ),
    (PayloadMatch(b"GET /", 0), b"GET /", b"xGET /"),
    (
        PayloadMatch(b"longer than forty bytes, so that u32 needs two matches", 3),
        b"123longer than forty bytes, so that u32 needs two matches",
        b"12longer than forty bytes, so that u32 needs two matches",
    ),
    (PayloadMatch(b"\x10\x20", 1, b"\xf0\x00"), b"a\x1fz", b"a\x2fz"),
]


@pytest.mark.one_each
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_string_matches_those_bytes_only(bench: Bench, family: int, variant: str) -> None:
    use_variant(bench, variant)
    before = bench.state()
    path = bench.path(family)
    with bench.connect() as guardian:
        for payload, hit, missed in STRINGS:
            rule = Rule("", Kind.STRING, Match(protocol=UDP, dport=PORT, payload=(payload,)), "match", 600)
            rule_id = apply(guardian, rule)
            assert not path.passes(hit), payload
            assert path.passes(missed, wait_s=30), payload
            guardian.demand(Undo((rule_id,)))
            assert path.passes(hit, wait_s=30), payload
            assert bench.settled(before) == before, payload


@pytest.mark.one_each("4")
@pytest.mark.parametrize("family", FAMILIES)
def test_anchored_string_follows_tcp_options(bench: Bench, family: int, poll_until) -> None:
    """A segment with options (timestamps) has a longer header than one without."""
    rule = Rule("", Kind.STRING, Match(payload=(PayloadMatch(b"GET /bad", 0),)), "match", 600)
    with tcp_connection(bench, family) as (client, connection), bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        client.send(b"GET /good")
        assert connection.recv(100) == b"GET /good"
        client.send(b"GET /bad")
        poll_until(lambda: rules_of(guardian)[rule_id]["packets"] > 0)
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        guardian.demand(Undo((rule_id,)))
        connection.settimeout(120)
        assert connection.recv(100) == b"GET /bad"  # TCP sends it again


@pytest.mark.one_each
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_notrack_keeps_both_directions_out_of_conntrack(bench: Bench, family: int, variant: str) -> None:
    use_variant(bench, variant)
    tool = "iptables" if family == 4 else "ip6tables"
    # A stateful rule is what switches connection tracking on in a namespace.
    bench.pair.victim.run(
        f"{tool}-{variant}", "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT"
    )
    before = bench.state()
    path = bench.path(family)

    def tracked() -> int:
        wanted = ("conntrack", "-L", "-f", "ipv4" if family == 4 else "ipv6", "-p", "udp")
        return bench.pair.victim.run(*wanted).stdout.count(f"dport={PORT} ")

    with bench.connect() as guardian:
        rule_id = apply(guardian, Rule("", Kind.NOTRACK, Match(protocol=UDP, dport=PORT), "notrack", 600))
        assert path.passes(wait_s=30)
        path.receiver.sendto(b"answer", path.sender.getsockname())
        path.sender.settimeout(120)
        assert path.sender.recv(100) == b"answer"
        assert tracked() == 0
        assert rules_of(guardian)[rule_id]["packets"] == 2
        guardian.demand(Undo((rule_id,)))
        assert path.passes(wait_s=30)
        assert tracked() == 1
    bench.pair.victim.run("conntrack", "-F")
    assert bench.settled(before) == before


@pytest.mark.one_each
@pytest.mark.parametrize("kind", [Kind.HASHLIMIT, Kind.STRING])
@pytest.mark.parametrize("family", FAMILIES)
def test_switch_set_ends_the_rule_without_any_process(
    bench: Bench, family: int, kind: Kind, poll_until
) -> None:
    path = bench.path(family)
    payload = (PayloadMatch(b"attack"),) if kind is Kind.STRING else ()
    limit = RateLimit(1, 1) if kind is Kind.HASHLIMIT else None
    rule = Rule("", kind, Match(protocol=UDP, payload=payload), "x", SOON_SECONDS, limit=limit)
    with bench.connect() as guardian:
        apply(guardian, rule)
        pid = int(guardian.about["pid"])
    kill(pid)
    assert not all([path.passes(b"attack"), path.passes(b"attack")])
    poll_until(lambda: path.passes(b"attack") and path.passes(b"attack"))


@pytest.mark.one_each("6")
@pytest.mark.parametrize("family", FAMILIES)
def test_header_fields_are_matched(bench: Bench, family: int) -> None:
    """The IP total length, TTL and ports of an ipset rule narrow it down."""
    path = bench.path(family)
    source = bench.block_rule(family).match.sources
    header = 28 if family == 4 else 48
    with bench.connect() as guardian:
        length = Range(header + 50, header + 60)
        rule = Rule(
            "", Kind.IPSET, Match(sources=source, ip_length=length, protocol=UDP, dport=PORT), "x", 60
        )
        first = apply(guardian, rule)
        assert not path.passes(b"x" * 50)
        assert path.passes(b"x" * 40, wait_s=30)
        assert path.passes(b"x" * 70, wait_s=30)
        guardian.demand(Undo((first,)))
        second = apply(guardian, Rule("", Kind.IPSET, Match(sources=source, ttl=Range(60, 64)), "x", 600))
        assert not path.passes()
        guardian.demand(Undo((second,)))
        apply(
            guardian, Rule("", Kind.IPSET, Match(sources=source, ttl=Range(65, 255), protocol=UDP), "x", 600)
        )
        assert path.passes(wait_s=30)


@pytest.mark.parametrize("family", FAMILIES)
def test_fragments_are_matched_from_the_first(bench: Bench, family: int) -> None:
    path = bench.path(family)
    big = b"x" * 3000
    with bench.connect() as guardian:
        rule = Rule(
            "", Kind.IPSET, Match(sources=bench.block_rule(family).match.sources, fragment=True), "x", 60
        )
        assert path.send(big)
        path.receiver.settimeout(120)
        assert len(path.receiver.recv(4096)) > 3000
        rule_id = apply(guardian, rule)
        path.send(big)
        assert path.passes(wait_s=30)
        assert rules_of(guardian)[rule_id]["packets"] == 3


def test_legacy_waits_for_a_held_lock(bench: Bench) -> None:
    use_variant(bench, "legacy")
    with own_xtables_lock(bench) as lock, bench.connect() as guardian:
        fcntl.flock(lock, fcntl.LOCK_EX)
        release = threading.Timer(0.5, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        release.start()
        apply(guardian, bench.block_rule(4))
        release.join()
        assert not bench.path(4).passes()


def test_rules_of_both_variants_are_told(bench: Bench) -> None:
    use_variant(bench, "nft")
    use_variant(bench, "legacy")
    with bench.connect() as guardian:
        warnings = guardian.demand(Plan(bench.block_rule(4).to_dict())).data["warnings"]
    assert any("both iptables variants hold rules" in warning for warning in warnings)
