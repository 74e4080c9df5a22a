"""Floods of DNS questions among a name server's daily work: what resolvers don't ask so."""

from __future__ import annotations

import string
from random import Random

import pytest
from analysis_factory import ethernet, ip, make_batch, make_tables, make_window, udp
from analysis_flows import HOST, Frame, hosts, judge
from analysis_payloads import dns_name

from fwtop.incidents.advisor import Advisor
from fwtop.model.rule import Kind
from fwtop.model.traffic.snapshot import Proposal

SECONDS = 2.0


def question(
    rng: Random, src: bytes, name: str, qtype: int = 1, *, recursive: bool = False, ttl: int | None = None
) -> Frame:
    head = rng.randbytes(2) + bytes([int(recursive), 0]) + b"\0\1\0\0\0\0\0\0"
    body = udp(rng.randrange(1024, 65536), 53, head + dns_name(name) + qtype.to_bytes(2, "big") + b"\0\1")
    return rng.random() * SECONDS, ethernet(ip(src, HOST, 17, body, ttl=ttl or 64 - src[3] % 20))


def daily(rng: Random, count: int) -> list[Frame]:
    """Resolvers that ask an authoritative server for its names."""
    resolvers = hosts(rng, 400)
    names = [f"{label}.zone.example" for label in ("www", "mail", "api", "ns1", "shop", "cdn")]
    return [
        question(rng, rng.choice(resolvers), rng.choice(names), rng.choice((1, 28, 15, 65)))
        for _ in range(count)
    ]


def drawn(rng: Random, length: int) -> str:
    return "".join(rng.choices(string.ascii_lowercase + string.digits, k=length))


def shares(frames: list[Frame]) -> dict[str, float]:
    return {kind: attack.share for kind, attack in judge(frames, seconds=SECONDS).items()}


def proposals(frames: list[Frame]) -> tuple[Proposal, ...]:
    window = make_window(make_batch(sorted(frames, key=lambda frame: frame[0]), snap=216), SECONDS)
    return Advisor().judge(window, make_tables(window)).proposals


def test_forged_questions_for_one_name_show_at_a_tenth_of_the_traffic() -> None:
    rng = Random(1)
    forged = [
        question(rng, bytes([rng.randrange(1, 224)]) + rng.randbytes(3), "zone.example", 255, ttl=240)
        for _ in range(600)
    ]
    assert shares(daily(rng, 5400) + forged) == {"dns_query_flood": pytest.approx(0.1, abs=0.01)}


def test_one_source_that_asks_the_same_again_and_again_is_a_flood() -> None:
    rng = Random(2)
    source = hosts(rng, 1)[0]
    again = [question(rng, source, "www.zone.example") for _ in range(800)]
    assert shares(daily(rng, 3200) + again) == {"dns_query_flood": pytest.approx(0.2, abs=0.03)}


def test_a_tool_that_wants_recursion_stands_out_among_resolvers() -> None:
    rng = Random(3)
    bots = hosts(rng, 800)
    tool = [question(rng, rng.choice(bots), "mail.zone.example", recursive=True) for _ in range(1000)]
    assert shares(daily(rng, 3000) + tool) == {"dns_query_flood": pytest.approx(0.25, abs=0.01)}


def test_a_popular_name_is_no_flood() -> None:
    rng = Random(4)
    resolvers = hosts(rng, 2000)
    popular = [
        question(rng, rng.choice(resolvers), "www.zone.example", rng.choice((1, 1, 28, 65)))
        for _ in range(2500)
    ]
    assert shares(daily(rng, 500) + popular) == {}


def test_a_name_service_is_no_flood() -> None:
    assert shares(daily(Random(5), 4000)) == {}


@pytest.mark.parametrize("part", [0.15, 0.4, 0.8])
def test_random_names_are_counted_without_the_other_names_of_the_zone(part: float) -> None:
    rng = Random(6)
    resolvers = hosts(rng, 300)
    words = ("host", "srv", "cam", "user", "node")
    torture = [
        question(rng, rng.choice(resolvers), f"{drawn(rng, 12)}.zone.example")
        for _ in range(int(4000 * part))
    ]
    numbered = [
        question(rng, rng.choice(resolvers), f"{rng.choice(words)}{rng.randrange(400)}.zone.example")
        for _ in range(int(2000 * (1 - part)))
    ]
    frames = torture + numbered + daily(rng, int(2000 * (1 - part)))
    assert shares(frames) == {"dns_random_subdomain": pytest.approx(part, abs=0.02)}


def test_random_names_below_one_zone_leave_other_zones_out() -> None:
    rng = Random(7)
    clients = hosts(rng, 300)
    torture = [question(rng, rng.choice(clients), f"{drawn(rng, 10)}.victim.example") for _ in range(1500)]
    sites = [f"{rng.choice(('www', 'm', 'api'))}.{drawn(rng, 6)}.example" for _ in range(120)]
    frames = torture + [question(rng, rng.choice(clients), rng.choice(sites)) for _ in range(1000)]
    assert shares(frames) == {"dns_random_subdomain": pytest.approx(0.6, abs=0.02)}


def test_a_tool_that_goes_through_a_list_of_names_invents_none() -> None:
    rng = Random(8)
    (tool,), names = hosts(rng, 1), [f"{drawn(rng, 9)}.zone.example" for _ in range(500)]
    listed = [question(rng, tool, rng.choice(names), recursive=True) for _ in range(9000)]
    assert set(shares(daily(rng, 1000) + listed)) == {"dns_query_flood"}


def test_many_customers_names_are_no_attack() -> None:
    rng = Random(8)
    resolvers = hosts(rng, 500)
    words = ("red", "garden", "blue", "smith", "bakery", "auto", "river", "north", "hotel", "music")
    blogs = [f"{one}{other}{k}.blog.example" for one in words for other in words for k in range(9)]
    popularity = [1 / (rank + 1) for rank in range(len(blogs))]
    frames = [question(rng, rng.choice(resolvers), name) for name in rng.choices(blogs, popularity, k=3000)]
    assert shares(frames) == {}


@pytest.mark.parametrize(("kind", "asked"), [("ANY", 255), ("random names", 1)])
def test_resolver_play_book_is_proposed_and_measured(kind: str, asked: int) -> None:
    """It drops what the flood asks, by its type or by the length of its random names."""
    rng = Random(6)
    forged = [
        question(
            rng,
            bytes([rng.randrange(1, 224)]) + rng.randbytes(3),
            "zone.example" if asked == 255 else f"{drawn(rng, 12)}.hunted.example",
            asked,
            ttl=240,
        )
        for _ in range(3000)
    ]
    (found,) = (one for one in proposals(daily(rng, 1500) + forged) if one.kind == "harden")
    assert found.rule is not None
    assert found.rule.playbook == "resolver"
    assert {part.kind for part in found.rule.parts} >= {Kind.STRING}
    assert found.attack_share > 0.8
    assert found.collateral_share < 0.05
