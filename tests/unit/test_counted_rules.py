"""Rules that only count: whom they would have hit, as the samples of a long watch tell."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from test_analysis_clients import DATA, HTTPS, SYN, packets
from test_losses import ADMINS, CLIENTS, START, learned

from fwtop.incidents.counted import CountWatch
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.named_list import entries_of
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Counted, Kind, Match, Mode, RateLimit, Rule, RuleStatus, State
from fwtop.model.traffic.packets import Hook, PacketBatch
from fwtop.report.effects import RuleEffect
from fwtop.ui.lists.rules import rule_details

STRANGERS = range(60_001, 60_101)


def counting(match: Match, **more: object) -> RuleStatus:
    rule = replace(Rule("38", Kind.XDP, match, "", 600, mode=Mode.COUNT), **more)
    return RuleStatus(rule, State.CONFIRMED, 1_000)


def arrived(*parts: PacketBatch) -> PacketBatch:
    batch = PacketBatch.concat(list(parts))
    return replace(batch, hook=np.full(len(batch), Hook.INGRESS, np.uint8))


def watched(status: RuleStatus, *polls: PacketBatch, allowed: tuple[AllowedPeer, ...] = ()) -> Counted | None:
    def read(_: str) -> Rule:
        raise FwtopError("no guardian")

    watch, known = CountWatch(read), learned()
    for number, poll in enumerate((PacketBatch.empty(), *polls)):
        watch.add(poll, 1.0, (status,), learned=known, allowed=allowed, now=START + number)
    (told,) = watch.with_hits((status,))
    return told.hits


def test_hits_add_up_over_polls_by_source_service_and_client() -> None:
    one = arrived(
        packets(CLIENTS, HTTPS, DATA), packets(STRANGERS, HTTPS, SYN), packets(ADMINS, (6, 22), DATA)
    )
    hits = watched(counting(Match(protocol=6, dport=443)), one, one, one)
    assert hits is not None
    assert hits.services == {"443/tcp": 1.0}
    assert hits.clients_total == len(CLIENTS), "strangers are none, and the others' service is not hit"
    assert set(hits.clients.values()) == {3}, "each in three polls"
    assert all(name.endswith(" at 443/tcp") for name in hits.clients)
    assert hits.words(sources=False).startswith("to 443/tcp 100 %, of 100 long-known clients (")
    assert hits.words(sources=False).endswith(", …)")


def test_what_passes_anyway_is_not_hit() -> None:
    """The allow-list's, what other hooks saw again, and all of what is below a limit."""
    (client,) = packets(range(1, 2), HTTPS, DATA).src_lo
    whole = counting(Match(protocol=6, dport=443))
    entry = AllowedPeer(Prefix.of_columns(4, 0, int(client)), Role.OPERATOR)
    hits = watched(whole, arrived(packets(CLIENTS, HTTPS, DATA)), allowed=(entry,))
    assert hits is not None
    assert hits.clients_total == len(CLIENTS) - 1
    delivered = replace(packets(CLIENTS, HTTPS, DATA), hook=np.full(len(CLIENTS), Hook.ACCEPTED, np.uint8))
    assert watched(whole, delivered) == Counted(START, known=300)
    busy = arrived(*[packets(STRANGERS[:1], HTTPS, SYN)] * 30, packets(CLIENTS, HTTPS, DATA))
    hits = watched(counting(Match(protocol=6, dport=443), limit=RateLimit(10, 1)), busy)
    assert hits is not None
    assert (hits.clients_total, list(hits.sources.values())) == (0, [1.0])
    assert hits.words(sources=True).endswith(" 100 %, to 443/tcp 100 %, of no long-known client")


def test_a_flood_of_sources_takes_no_more_room_and_its_busiest_stay() -> None:
    polls = [
        arrived(
            packets(range(number * 10_000, number * 10_000 + 5_000), HTTPS, SYN),
            *[packets(range(7, 8), HTTPS, SYN)] * 500,
        )
        for number in range(1, 40)
    ]
    status = counting(Match(protocol=6, dport=443))
    watch = CountWatch(lambda _: status.rule)
    for number, poll in enumerate((PacketBatch.empty(), *polls)):
        watch.add(poll, 1.0, (status,), learned=learned(), allowed=(), now=START + number)
    (told,) = watch.with_hits((status,))
    assert told.hits is not None
    assert list(told.hits.sources.values()) == [pytest.approx(500 / 5_500, abs=0.001)]
    assert len(watch._rules["38"].sources) <= 4_096


def test_a_rule_that_changed_begins_anew_and_one_that_drops_is_not_followed() -> None:
    status = counting(Match(protocol=6, dport=443))
    watch, poll = CountWatch(lambda _: status.rule), arrived(packets(CLIENTS, HTTPS, DATA))
    for number in range(3):
        watch.add(poll, 1.0, (status,), learned=learned(), allowed=(), now=START + number)
    changed = replace(status, stamp=1)
    watch.add(poll, 1.0, (changed,), learned=learned(), allowed=(), now=START + 3)
    (told,) = watch.with_hits((changed,))
    assert told.hits is not None
    assert (told.hits.since, told.hits.clients) == (START + 3, dict.fromkeys(told.hits.clients, 1))
    drops = replace(status, rule=replace(status.rule, mode=Mode.DROP))
    watch.add(poll, 1.0, (drops,), learned=learned(), allowed=(), now=START + 4)
    assert watch.with_hits((drops,)) == (drops,)


def test_of_a_long_list_the_guardian_is_asked_and_none_is_guessed_without_it() -> None:
    whole = Match(
        sources=tuple(Prefix.of_columns(4, 0, int(one)) for one in packets(CLIENTS, HTTPS, DATA).src_lo)
    )
    status = counting(replace(whole, sources=whole.sources[:10]))
    status = replace(status, sources_total=len(CLIENTS))
    poll = arrived(packets(CLIENTS, HTTPS, DATA))
    assert watched(status, poll) is None
    answers: list[Rule | FwtopError] = [FwtopError("busy"), replace(status.rule, match=whole)]

    def read(_: str) -> Rule:
        if isinstance(answer := answers.pop(0), Rule):
            return answer
        raise answer

    watch = CountWatch(read)
    for number in (0, 1, 10, 11):  # of which it is asked at once, and again after five seconds
        watch.add(poll, 1.0, (status,), learned=learned(), allowed=(), now=START + number)
        watch._reader.join()
        (told,) = watch.with_hits((status,))
        assert (told.hits is None) is (number < 10)
    assert told.hits is not None
    assert told.hits.clients_total == len(CLIENTS)
    too_long = replace(status, sources_total=20_000)
    watch.add(poll, 1.0, (too_long,), learned=learned(), allowed=(), now=START + 90)
    assert (watch.with_hits((too_long,)), answers) == ((too_long,), [])


def test_a_rule_on_a_list_is_compared_with_the_entries_of_the_list_and_an_empty_one_with_none() -> None:
    status = counting(Match(), origin="list:bad")
    poll = arrived(packets(CLIENTS, HTTPS, DATA), packets(ADMINS, (6, 22), DATA))
    (client,) = packets(range(1, 2), HTTPS, DATA).src_lo.tolist()
    for entries, hit in (((), None), ((f"{Prefix.of_columns(4, 0, client)}:22/tcp",), 0),
                         ((str(Prefix.of_columns(4, 0, client)),), 1)):  # fmt: skip
        whole = replace(status.rule, match=Match(sources=entries_of(entries)))
        watch = CountWatch(lambda _, whole=whole: whole)
        for number in range(2):
            watch.add(poll, 1.0, (status,), learned=learned(), allowed=(), now=START + number)
            watch._reader.join()
        (told,) = watch.with_hits((status,))
        assert (told.hits and told.hits.clients_total) == hit, entries


def test_the_screen_and_the_report_say_whom_it_would_have_hit() -> None:
    hits = Counted(START, {"192.0.2.9": 0.5}, {"443/tcp": 1.0}, {"192.0.2.7 at 443/tcp": 3}, 1, 9)
    status = replace(counting(Match(protocol=6, dport=443)), hits=hits)
    whom = "from 192.0.2.9 50 %, to 443/tcp 100 %, of 1 long-known client (192.0.2.7 at 443/tcp)"
    assert status.would_have == f"counts only: would have dropped 1,000 packets (0/s); {whom}"
    shown = " ".join("".join(text for text, *_ in line) for line in rule_details(status, START)[1])
    assert whom in " ".join(shown.split())
    effect = RuleEffect(status.rule, None, None, None, "", 1_000, 0, 0.0, (), (), status=status)
    assert effect.done == f"it only counted: it would have dropped 1.00 k packets; {whom}"
    counted = replace(status, entries={"192.0.2.9": 500})
    assert counted.whom == f"most of 192.0.2.9 500; {whom.partition(', ')[2]}", "the kernel's count is exact"
