"""Sources under an active rule carry its number; others don't. Rates of rules are of the ledger's window."""

import time
from unittest.mock import Mock

from msgspec.structs import replace

from fwtop.console.rules import Marks, RuleMonitor, RuleRates
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule, RuleStatus, State
from fwtop.model.traffic.counters import NETFILTER_DROP, DropCount
from fwtop.model.traffic.snapshot import LedgerRow, Share, Source, Sources

SHARE = Share(1, 1, 1.0, 0.1, 0.1, 0.1)


def _rule(number, state, *sources, origin=None):
    match = Match(sources=tuple(Prefix.parse(text) for text in sources))
    return RuleStatus(Rule(number, Kind.IPSET, match, "block", 600, origin=origin), state)


def _source(text):
    return Source(text, SHARE, 0.0, prefix=Prefix.parse(text))


def test_marks_what_a_rule_covers_wholly():
    coverage = Marks(
        [
            _rule("1", State.REVERTED, "192.0.2.0/24"),
            _rule("2", State.CONFIRMED, "198.51.100.0/25", "2001:db8::/32"),
            _rule("3", State.PROVISIONAL, "203.0.113.7", origin="asn:64500"),
        ],
        (),
    )
    sources = Sources(
        address=tuple(
            map(_source, ("192.0.2.1", "198.51.100.1", "198.51.100.200", "2001:db8::1", "203.0.113.7"))
        ),
        prefix=tuple(map(_source, ("198.51.100.0/24", "198.51.100.64/26"))),
        asn=(Source("AS64500", SHARE, 0.0, asn=64500), Source("AS64501", SHARE, 0.0, asn=64501)),
    )
    marked = coverage.mark(sources)
    assert [entry.active_rule for entry in marked.address] == [None, "2", None, "2", "3"]
    assert [entry.active_rule for entry in marked.prefix] == [None, "2"]
    assert [entry.active_rule for entry in marked.asn] == ["3", None]


def test_known_peers_are_marked_by_what_they_are_to_this_host() -> None:
    known = (("198.51.100.7", Role.SSH), ("192.0.2.53", Role.DNS), ("203.0.113.0/24", Role.OPERATOR))
    peers = Marks((), (AllowedPeer(Prefix.parse(text), role) for text, role in known))

    def who(text: str) -> str:
        share = Share(1, 100, 1.0, 0.1, 0.0, 0.2)
        entry = Source(text, share, 0.0, prefix=Prefix.parse(text))
        return peers.mark(Sources(address=(entry,))).address[0].who

    assert [who(text) for text in ("198.51.100.7", "192.0.2.53", "203.0.113.9", "198.51.100.8")] == [
        "you",
        "resolver",
        "allowed",
        "",
    ]


def test_rates_of_rules_are_of_the_window_asked_for() -> None:
    """The guardian's own rates, here 7, are of one second: beside the ledger's they would differ."""
    old, new, over = (
        replace(_rule(number, state), packets=0, pps=7.0)
        for number, state in (("1", State.CONFIRMED), ("2", State.PROVISIONAL), ("3", State.REVERTED))
    )
    new = replace(new, rule=replace(new.rule, created=1_002.0))
    rates = RuleRates()
    for second, packets in enumerate((0, 0, 0, 3_000, 6_000)):
        old = replace(old, packets=packets, counted_at=1_000.0 + second)
        new = replace(new, packets=9 * packets, counted_at=old.counted_at)
        known = (old, over) if second < 3 else (old, new, over)
        assert second or rates.over(known, 3.0) == known, "nothing is counted yet"
        rates.note(known, 100.0 + second)
    assert [status.pps for status in rates.over(known, 3.0)] == [2_000.0, 27_000.0, 7.0]
    assert [status.pps for status in rates.over(known, 1.0)] == [3_000.0, 27_000.0, 7.0]


def test_rates_are_over_the_time_between_two_counts() -> None:
    """Polled twice a second, counted once: in one second of polls there may be two of packets."""
    rates, rule = RuleRates(), _rule("1", State.CONFIRMED)
    for second, counted in ((0.0, 0.0), (0.5, 0.0), (1.0, 1.0), (1.5, 1.0), (2.1, 2.0)):
        known = replace(rule, packets=int(116_000 * counted), counted_at=1_000.0 + counted)
        rates.note((known,), 100.0 + second)
        if second in (1.0, 1.5, 2.1):
            assert rates.over((known,), 0.5)[0].pps in (116_000.0, rule.pps)
    assert rates.over((known,), 1.0)[0].pps == 116_000.0


def test_what_a_rule_drops_has_the_ledgers_rate() -> None:
    monitor = RuleMonitor(Mock())
    monitor.statuses = tuple(
        replace(_rule(number, state), pps=7.0)
        for number, state in (("1", State.CONFIRMED), ("2", State.PROVISIONAL), ("3", State.REVERTED))
    )
    ledger = [LedgerRow("xdp", "XDP_DROP", 30, 10.0, number) for number in ("1", "1", "3", None)]
    assert [status.pps for status in monitor.rated(3.0, ledger)] == [20.0, 7.0, 7.0]


def _lost(*statuses):
    link = Mock(lost="no answer")
    link.demand.side_effect = FwtopError("no answer")
    monitor = RuleMonitor(link)
    monitor.statuses = statuses
    monitor.counts()
    return monitor


def test_without_a_guardian_rules_end_when_their_time_is_over() -> None:
    """Nobody tells any more: the kernel's own clock ends them, and the screen showed TRIAL 0 s for ever."""
    now = time.time()
    trial = replace(_rule("1", State.PROVISIONAL), expires=now + 600, confirm_by=now - 1)
    changed = replace(trial, stamp=1)
    over = replace(_rule("2", State.CONFIRMED), expires=now - 1)
    on = replace(trial, confirm_by=now + 60)
    found = _lost(trial, changed, over, on)
    states = [status.state for status in found.statuses]
    assert states == [State.REVERTED, State.CONFIRMED, State.EXPIRED, State.PROVISIONAL]
    assert "kernel's own clock" in found.statuses[0].note
    assert found.in_force == {"1"}, "the change is over, the rule goes on"
    sysctl = replace(trial, rule=replace(trial.rule, kind=Kind.SYSCTL))
    assert "a shell gave the sysctls back" in _lost(sysctl).statuses[0].note


def test_drops_have_the_rules_polled_at_once() -> None:
    """They may be the first of a rule that another shell just installed, and not another firewall's."""
    link = Mock(lost="")
    link.demand.return_value = Mock(data={"rules": []})
    monitor = RuleMonitor(link)
    kernels, foreign = DropCount("socket", "NO_SOCKET", 9), DropCount("netfilter", NETFILTER_DROP, 9)
    for drops in ((), (), (kernels,), (foreign,)):
        monitor.counts(drops)
    assert link.demand.call_count == 2


def test_rules_in_force_are_those_that_act() -> None:
    monitor = RuleMonitor(Mock())
    monitor.statuses = (
        _rule("1", State.REVERTED, "192.0.2.0/24"),
        _rule("2", State.CONFIRMED, "198.51.100.0/25"),
        _rule("3", State.PROVISIONAL, "203.0.113.7"),
        replace(_rule("4", State.CONFIRMED, "203.0.113.8"), acting=False),
    )
    assert monitor.in_force == {"2", "3"}
