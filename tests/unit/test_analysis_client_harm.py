"""Rules in, counts of known clients out; and the words for them."""

from __future__ import annotations

from ipaddress import ip_address

import numpy as np
import pytest
from msgspec.structs import replace
from test_analysis_clients import DNS, SSH, after, connected, context, packets

from fwtop.analysis.clients import Clients
from fwtop.analysis.proposals.census import Aim
from fwtop.analysis.proposals.census import Census as Counted
from fwtop.analysis.proposals.effect import harm_by
from fwtop.analysis.proposals.normal import Normal
from fwtop.cli.rules.mitigation import harm_line
from fwtop.model.addresses.address import Prefix
from fwtop.model.harm import ClientHarm
from fwtop.model.rule import Kind, Match, Preview, RateLimit, Rule
from fwtop.model.traffic.packets import PacketBatch
from fwtop.rules.overlap import as_one
from fwtop.stats.services import Doors

CALM = range(1, 101)  # clients of HTTPS, of whom the first half was seen in what is normal
ADMINS = range(201, 204)
NEW = range(301, 306)  # in the attack
AT_HTTPS = Aim(6, 443)
FLOOD, BOTS = AT_HTTPS, replace(AT_HTTPS, completes=True)


def table() -> Clients:
    calm = PacketBatch.concat([connected(CALM), connected(ADMINS, SSH)])
    return after((0.0, True, calm), (120.0, True, calm), (123.0, False, connected(NEW)))


def normal() -> Normal:
    seen = PacketBatch.concat([connected(CALM[:50]), connected(ADMINS, SSH)])
    return Normal(seen, np.ones(len(seen)), "", guess=False, seconds=60.0, clients=table())


def rule(match: Match, limit: RateLimit | None = None, kind: Kind = Kind.XDP) -> Rule:
    return Rule("", kind, match, "", 600, limit=limit)


def sources(*numbers: int) -> tuple[Prefix, ...]:
    return tuple(Prefix.parse(str(ip_address(number))) for number in numbers)


@pytest.mark.parametrize(
    ("ours", "aim", "expected"),
    [
        pytest.param(rule(Match(protocol=17, dport=53)), FLOOD, (105, 0, 0, 0, 3, 0), id="another service"),
        pytest.param(rule(Match(protocol=6, dport=443)), FLOOD, (105, 105, 105, 0, 3, 0), id="its port"),
        pytest.param(
            rule(Match(protocol=6, dport=443)), BOTS, (100, 100, 100, 5, 3, 0), id="its port, among bots"
        ),
        pytest.param(rule(Match(protocol=6)), FLOOD, (105, 105, 105, 0, 3, 3), id="all services"),
        pytest.param(
            rule(Match(sources=sources(1, 99, 201))),
            FLOOD,
            (105, 2, 2, 0, 3, 1),
            id="a list",
        ),
        pytest.param(
            rule(Match(sources=sources(1, 301))),
            BOTS,
            (100, 1, 1, 1, 3, 0),
            id="a list of bots",
        ),
        pytest.param(
            rule(Match(protocol=6, dport=443), RateLimit(50, 50, 32, 64), Kind.HASHLIMIT),
            FLOOD,
            (105, 0, 0, 0, 3, 0),
            id="a limit above what clients send",
        ),
        pytest.param(
            as_one([rule(Match(sources=sources(1, 99))), rule(Match(sources=sources(1, 201)))]),
            FLOOD,
            (105, 2, 2, 0, 3, 1),
            id="two lists, with one client on both",
        ),
        pytest.param(
            as_one([rule(Match(protocol=17, dport=53)), rule(Match(protocol=6, dport=22))]),
            FLOOD,
            (105, 0, 0, 0, 3, 3),
            id="a set for other services",
        ),
        pytest.param(rule(Match(protocol=6)), Aim(), (108, 108, 108, 0, 0, 0), id="a flood of the link"),
    ],
)
def test_rules_and_the_clients_that_they_hit(
    ours: Rule, aim: Aim, expected: tuple[int, int, int, int, int, int]
) -> None:
    base = normal()
    cost = harm_by(ours, base, context(130, packets(range(900, 930), DNS, 0)).traffic)
    found = base.census.harm(base.census.lost(ours, cost.part, base.packets), aim)
    assert (
        found.known, found.hit, found.hit_half, found.unsure, found.others, found.others_hit,
    ) == expected  # fmt: skip


def test_who_is_known_for_longer_weighs_more_and_peers_are_spared() -> None:
    clients = table()
    first = np.where(clients.lo == 1, clients.first - 86_400.0, clients.first)
    census = Counted.of(replace(clients, first=first), connected([1, 2]), np.ones(6), Doors.of())
    lost = (census.clients.lo == 1).astype(np.float64)
    assert census.harm(lost, BOTS).share > 0.8
    assert census.harm(1.0 - lost, BOTS).share < 0.2
    assert census.harm(lost, BOTS, sources(1)).hit == 0


def test_nobody_counts_attackers_as_clients() -> None:
    bots = after((0.0, False, connected(range(1, 326))))
    census = Counted.of(bots, PacketBatch.empty(), np.zeros(0), Doors.of())
    found = census.harm(np.ones(325), BOTS)
    assert (found.known, found.hit, found.most) == (0, 0, 325)
    assert found.short == "not known"


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (ClientHarm(port=443), "no client of 443 is known"),
        (ClientHarm(4117, 2, 2, protocol=6, port=443), "2 of 4,117 clients of 443 lose it"),
        (ClientHarm(4117, 1, 1, protocol=6, port=443), "1 of 4,117 clients of 443 loses it"),
        (ClientHarm(4117, 0, protocol=17, port=53), "none of 4,117 clients of UDP 53 loses anything"),
        (ClientHarm(9, 4, 1), "4 of 9 clients lose packets, 1 more than half"),
        (
            ClientHarm(9, 2, 2, 55, 20, 3, protocol=6, port=443),
            "2 of 9 clients of 443 lose it; up to 55 new, clients or bots; 3 of 20 of other services",
        ),
        (ClientHarm(unsure=5), "no client is known from before the attack; up to 5 new, clients or bots"),
    ],
)
def test_words(harm: ClientHarm, words: str) -> None:
    assert harm.words == words


def test_a_preview_in_text_tells_both_counts() -> None:
    clients = ClientHarm(4117, 2, 2, protocol=6, port=443)
    made = Preview(0.94, 1_000.0, 0.012, 36.0, 1_036.0, attack="UDP flood", clients=clients)
    assert harm_line(made).endswith("2 of 4,117 clients of 443 lose it (1.20 % of normal traffic)")
    assert "client" not in harm_line(replace(made, clients=None))
