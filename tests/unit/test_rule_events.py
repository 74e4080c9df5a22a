"""Events about rules and sets: what two readings differ in, and lines for a slow reader."""

from __future__ import annotations

from msgspec.structs import replace

from fwtop.analysis.rule_readings import RuleChanges, changes
from fwtop.api.watcher import EventLog
from fwtop.model.ruleset import (
    COMPARED,
    IPSET,
    IPTABLES_LEGACY,
    NFT,
    NOTIFIED,
    ROUTE,
    ListedRule,
    ListedSet,
    RuleEvent,
    Ruleset,
)
from fwtop.netfilter.listing.events import event_json, event_text

RULE = ListedRule("a", IPTABLES_LEGACY, "ip", "filter INPUT", "-j DROP", False, 5, 300)
OURS = ListedRule("b", ROUTE, "ip", "main", "blackhole 192.0.2.0/24", True)
NATIVE = ListedRule("c", NFT, "inet", "t c", "drop", False, 1, 60)
SET = ListedSet("s", IPSET, "ip", "bad", "hash:ip", False, 3, 10)


def names(before: Ruleset, after: Ruleset, *notified: str) -> list[tuple[str, str]]:
    return [(event.event, event.by) for event in changes(before, after, notified)]


def test_what_came_and_went_is_told_and_counters_are_no_change() -> None:
    counted = replace(RULE, packets=900)
    assert names(Ruleset(1.0, (RULE,)), Ruleset(2.0, (counted,))) == []
    assert names(Ruleset(1.0, (RULE,)), Ruleset(2.0, (OURS,))) == [
        ("rule_added", "fwtop"),
        ("rule_removed", "other"),
    ]


def test_sets_are_added_changed_replaced_and_removed() -> None:
    def between(old: tuple[ListedSet, ...], new: tuple[ListedSet, ...]) -> list[RuleEvent]:
        return changes(Ruleset(1.0, (), old), Ruleset(2.0, (), new), ())

    assert [event.event for event in between((), (SET,))] == ["set_added"]
    assert [event.event for event in between((SET,), ())] == ["set_removed"]
    assert [event.event for event in between((SET,), (replace(SET, size=99),))] == ["set_replaced"]
    (changed,) = between((SET,), (replace(SET, entries=7),))
    assert (changed.event, changed.how, changed.at) == ("set_changed", COMPARED, 2.0)
    assert (changed.about["entries_before"], changed.about["entries"]) == (3, 7)


def test_what_the_kernel_notifies_of_is_not_compared() -> None:
    assert names(Ruleset(1.0), Ruleset(2.0, (NATIVE,)), NFT) == []
    assert names(Ruleset(1.0), Ruleset(2.0, (NATIVE,))) == [("rule_added", "other")]


def test_many_changes_are_counted() -> None:
    many = tuple(replace(RULE, key=str(number)) for number in range(5000))
    found = changes(Ruleset(1.0), Ruleset(2.0, many), ())
    assert len(found) == 1001
    assert (found[-1].event, found[-1].about) == ("more_changes", {"count": 4000})


def test_a_first_reading_has_alarms_but_no_changes() -> None:
    watch = RuleChanges(())
    full = replace(SET, entries=9)
    first = watch.take(Ruleset(1.0, (RULE,), (full,)), ())
    assert [(event.event, event.about["kind"]) for event in first] == [("alarm", "set_nearly_full")]
    assert "ipset swap" in first[0].about["mend"]
    later = watch.take(Ruleset(2.0, (RULE,), (SET,)), ())
    assert [event.event for event in later] == ["set_changed", "alarm_over"]


def test_a_slow_reader_delays_nothing_and_is_told_what_it_missed() -> None:
    log = EventLog(kept_bytes=40_000)
    start = log.last
    for _ in range(500):
        log.put(RuleEvent(1.0, "rule_added", NOTIFIED, about={"rule": "x" * 4000}))
    found, missed = log.after(start, 0.0)
    assert len(found) + missed == 500
    assert missed > 400
    assert [kept.seq for kept in found] == [*range(missed + 1, 501)]
    assert log.after(found[-1].seq, 0.0) == ([], 0)


def test_a_cursor_is_good_as_long_as_nothing_behind_it_is_gone() -> None:
    log = EventLog(kept_bytes=1_000)
    assert log.position(f"{log.name}-0") == 0
    for number in range(1, 40):
        log.put(RuleEvent(1.0, "rule_added", NOTIFIED, about={"rule": "x" * 200}))
        assert log.position(f"{log.name}-{number}") == number
    for other in (f"{log.name}-0", f"{log.name}-40", f"{log.name}-x", f"{EventLog().name}-3", "", "3"):
        assert log.position(other) is None


def test_an_event_is_one_line_for_people() -> None:
    about = {"family": "ip", "table": "t", "handle": 3, "process": {"pid": 7, "name": "nft"}}
    text = event_text(event_json(RuleEvent(0.0, "rule_removed", NOTIFIED, "fwtop", NFT, about)))
    assert text == "00:00:00Z rule removed nft ip t handle 3 by nft (process 7) fwtop's [notified]"
