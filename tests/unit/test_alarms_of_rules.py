"""What a recorder tells of the machine's rules: once when it begins, once when it is over."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from fwtop.alarms.message import Alarm
from fwtop.analysis.rule_readings import IN_A_ROW, LEARN
from fwtop.console.publish.alarms import RuleWatch
from fwtop.model.errors import FwtopError
from fwtop.model.ruleset import NFT, ListedRule, Ruleset


def readings() -> Iterator[Ruleset | None]:
    """None, then a rule at 10 packets a second, at 1,000, at 10 again; each reading comes twice."""
    yield None
    packets = 0
    for second in range(100):
        packets += 1_000 if LEARN < second <= LEARN + IN_A_ROW + 5 else 10
        rule = ListedRule("key", NFT, "inet", "filter input", "udp dport 53 accept", False, packets, None)
        yield Ruleset(1_000.0 + second, (rule,))
        yield Ruleset(1_000.0 + second, (rule,))


def test_each_alarm_is_told_when_it_begins_and_when_it_is_over_though_the_guardian_fails_meanwhile() -> None:
    told: queue.SimpleQueue[Alarm] = queue.SimpleQueue()
    found, calls = readings(), iter(range(1_000))

    def read() -> Ruleset | None:
        if next(calls) % 3 == 2:
            raise FwtopError("the guardian did not answer")
        return next(found)

    watch = RuleWatch("web-1", read, lambda: (), told.put, every_seconds=0.001)
    began, ended = told.get(timeout=60), told.get(timeout=60)
    watch.close()
    assert told.empty()
    assert (began.event, ended.event) == ("rules_alarm", "rules_alarm_over")
    assert (began.host, began.subject, began.details["alarm_kind"]) == ("web-1", "key", "rate_high")
    assert "counts 1.00k packets a second, usually 10" in began.message
    assert began.details["mend"] == "nft list chain inet filter input"
    assert ended.message == f"Over: {began.message}"
