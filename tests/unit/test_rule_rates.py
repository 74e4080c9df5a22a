"""Rates of listed rules, and what is usual for each."""

from __future__ import annotations

from collections.abc import Iterable

from fwtop.analysis.rule_readings import HISTORY, IN_A_ROW, LEARN, RatedRule, RuleRates
from fwtop.model.ruleset import NFT, ListedRule, ListedSet, Ruleset
from fwtop.model.wire import of_plain, plain
from fwtop.render.observation import quantity, spark


def rule(key: str, packets: int | None) -> ListedRule:
    return ListedRule(
        key, NFT, "inet", "t c", "drop", False, packets, None if packets is None else packets * 60
    )


def feed(rates: RuleRates, counts: Iterable[int], *, start: float = 1000.0) -> list[RatedRule]:
    return [
        rates.take(Ruleset(start + 2 * number, (rule("a", count),)))[0] for number, count in enumerate(counts)
    ]


def totals(*rates: int) -> list[int]:
    """Counters of a rule, read every 2 s, that goes at these rates."""
    found = [0]
    for rate in rates:
        found.append(found[-1] + 2 * rate)
    return found


def test_the_rate_is_what_came_between_two_readings() -> None:
    first, second = feed(RuleRates(), [10, 210])
    assert first.pps is None
    assert (second.pps, second.bps) == (100.0, 6000.0)


def test_a_rule_that_does_not_count_has_no_rate() -> None:
    rates = RuleRates()
    for at in (1.0, 3.0):
        (rated,) = rates.take(Ruleset(at, (rule("a", None),)))
    assert rated.pps is None


def test_counters_set_to_zero_give_no_rate_and_keep_the_history() -> None:
    found = feed(RuleRates(), [0, 200, 400, 10, 30])
    assert [item.pps for item in found] == [None, 100.0, 100.0, None, 10.0]
    assert found[-1].history == (100.0, 100.0, 10.0)


def test_a_quiet_rule_that_begins_has_a_history_of_zeros() -> None:
    found = feed(RuleRates(), totals(0, 0, 0, 7))
    assert found[-1].history == (0.0, 0.0, 0.0, 7.0)


def test_a_rate_far_above_the_usual_is_abnormal_after_some_in_a_row() -> None:
    calm = [100, 104, 98, 101] * 5
    found = feed(RuleRates(), totals(*calm, *[5000] * IN_A_ROW))
    assert [item.abnormal for item in found[-IN_A_ROW:]] == ["", "", "high"]
    assert found[-1].usual is not None
    assert 98 <= found[-1].usual <= 104


def test_a_single_peak_is_not_abnormal() -> None:
    found = feed(RuleRates(), totals(*[100, 104] * 10, 5000, 101, 5000, 102, 99))
    assert {item.abnormal for item in found} == {""}


def test_what_is_abnormal_ends_only_well_inside() -> None:
    calm = [100, 104, 98, 101] * 5
    found = feed(RuleRates(), totals(*calm, *[5000] * 4, 260, 260, 260, 260, 101, 101, 101))
    assert [item.abnormal for item in found[-7:]] == ["high"] * 6 + [""]


def test_a_busy_rule_that_sees_nothing_any_more_is_abnormal() -> None:
    found = feed(RuleRates(), totals(*[1000, 1040, 980] * 6, 0, 0, 0))
    assert found[-1].abnormal == "low"


def test_a_rate_that_scatters_is_usual_within_its_scatter() -> None:
    noisy = [100, 900, 300, 1500, 50, 1200, 700, 20] * 4
    assert {item.abnormal for item in feed(RuleRates(), totals(*noisy))} == {""}


def test_a_long_change_becomes_usual() -> None:
    found = feed(RuleRates(), totals(*[100] * LEARN, *[5000] * 400))
    assert any(item.abnormal == "high" for item in found)
    assert found[-1].abnormal == ""
    assert found[-1].usual == 5000


def test_the_history_is_bounded_and_forgets_rules_that_are_gone() -> None:
    rates = RuleRates()
    found = feed(rates, totals(*[5] * (HISTORY + 20)))
    assert len(found[-1].history) == HISTORY
    rates.take(Ruleset(9000.0, ()))
    (again,) = rates.take(Ruleset(9002.0, (rule("a", 7),)))
    assert again.history == ()


def test_a_ruleset_is_the_same_after_json() -> None:
    item = ListedSet("ipset a", "ipset", "ip", "a", "hash:ip", False, 95, 100)
    whole = Ruleset(12.5, (rule("a", 1), rule("b", None)), (item,), ("cut",), 7)
    assert of_plain(Ruleset, plain(whole)) == whole
    assert item.nearly_full


def test_a_history_is_drawn_by_its_greatest_rate() -> None:
    assert spark((0.0, 50.0, 100.0)) == "▁▅█"
    assert spark((0.0, 0.0)) == "▁▁"
    assert spark(()) == ""


def test_quantities_are_short() -> None:
    shown = [quantity(value) for value in (None, 0, 0.25, 9999, 123_456, 12_345_678, 5e9)]
    assert shown == ["-", "0", "0.2", "10.0k", "123k", "12.3M", "5.00G"]
