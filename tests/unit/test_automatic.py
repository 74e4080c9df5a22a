"""Automatic mitigation: what the policy allows is tried, and taken back if it harms or does nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from stored_samples import START, attack, proposal, rule, snapshot

from fwtop.console.automatic import Policy, read_policy
from fwtop.console.automatic.agent import Agent
from fwtop.console.automatic.decisions import Decider, Decision
from fwtop.model.addresses.address import Prefix
from fwtop.model.console_scope import AUTOMATIC
from fwtop.model.errors import FwtopError
from fwtop.model.files import ConfigText
from fwtop.model.harm import ClientHarm, ClientLoss
from fwtop.model.messages import Answer
from fwtop.model.protocol import Apply, Keep, Undo
from fwtop.model.rule import Kind, Match, Mode, Range, RateLimit, Rule, RuleStatus, State
from fwtop.model.traffic.severity import Harm, Severity
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.model.wire import of_plain, plain

POLICY = Policy(enabled=True)
SAMPLE = Path(__file__).parents[2] / "docs/automatic.toml"
FLOOD = attack(since=START - 10)
OFFER = replace(proposal(180_000.0), attack=FLOOD.title, incident=FLOOD.id, rule=replace(rule(), id=""))


def seen(second: float, *, calm: bool = False, **changes: Any) -> Snapshot:
    """What is seen in a second: a flood with one proposal, unless something else is said."""
    rules = changes.pop("rules", ())
    flood = replace(FLOOD, **changes.pop("flood", {}))
    offer = replace(OFFER, **changes.pop("offer", {}))
    found = snapshot(START + second - 5, attacks=() if calm else (flood,), mitigations=rules)
    judged = replace(found.judgement, proposals=() if calm else (offer,))
    return replace(found, judgement=judged)


def installed(decider: Decider, at: float = 0.0) -> RuleStatus:
    """Have the flood's rule installed; return it on trial."""
    (decision,) = decider.next(seen(at))
    assert decision.verb == "install"
    return RuleStatus(replace(decision.rule, id="7"), State.PROVISIONAL, pps=175_000.0)


def test_a_rule_within_the_policy_is_tried_and_kept_and_renewed_while_it_drops() -> None:
    decider = Decider(POLICY)
    status = installed(decider)
    made = status.rule
    assert (made.created_by, made.ttl_seconds, made.predicted_pps) == (AUTOMATIC, 600, 180_000.0)
    assert made.summary.startswith("automatic: ")
    verbs = [
        decision.verb for second in range(1, 14) for decision in decider.next(seen(second, rules=(status,)))
    ]
    assert verbs == ["keep"]
    status = replace(status, state=State.CONFIRMED, expires=START + 600)
    assert decider.next(seen(400, rules=(status,))) == []
    (renewed,) = decider.next(seen(500, rules=(status,)))
    assert renewed.verb == "keep"
    idle = replace(status, pps=0.0)
    assert decider.next(seen(570, rules=(idle,))) == []


def test_in_the_shadow_a_rule_only_counts_and_what_it_would_have_dropped_is_told() -> None:
    decider = Decider(replace(POLICY, shadow=True))
    (decision,) = decider.next(seen(0))
    assert (decision.rule.mode, decision.rule.summary[:22]) == (Mode.COUNT, "count only: automatic:")
    assert "counts what it would drop of" in decision.why
    assert decider.next(seen(1)) == [], "it is not asked for twice"
    entries = {"203.0.113.7": 900, "203.0.113.8": 100}
    status = RuleStatus(replace(decision.rule, id="7"), State.CONFIRMED, 1000, pps=175_000.0, entries=entries)
    status = replace(status, expires=START + 600)
    made = [one for second in range(2, 400, 2) for one in decider.next(seen(second, rules=(status,)))]
    assert [one.verb for one in made] == ["tell"]
    assert made[0].why == (
        "counts only: would have dropped 1,000 packets (175,000/s); most of 203.0.113.7 900, 203.0.113.8 100"
    )
    (renewed,) = decider.next(seen(500, rules=(status,)))
    assert (renewed.verb, "would have dropped 1,000" in renewed.why) == ("keep", True)


def test_in_the_shadow_nothing_more_is_tried_than_if_rules_dropped() -> None:
    """The attack goes on: what is counted of it is what would not have."""
    decider = Decider(replace(POLICY, shadow=True))
    (decision,) = decider.next(seen(0))
    decider.answered(decision, seen(0).at, is_refused=False)
    other = {"rule": replace(OFFER.rule, match=Match(protocol=17, dport=53))}
    counts = RuleStatus(replace(decision.rule, id="7"), State.CONFIRMED, 1000, pps=FLOOD.pps)
    assert not any(decider.next(seen(second, rules=(counts,), offer=other)) for second in range(1, 9))
    passed = replace(counts, pps=FLOOD.pps / 2)
    made = [
        one.verb
        for second in range(9, 14)
        for one in decider.next(seen(second, rules=(passed,), offer=other))
    ]
    assert made == ["install", "tell"]


def test_in_the_shadow_a_limit_counts_where_it_can_do_so_without_dropping() -> None:
    """A full table of hashlimit drops, whatever its line's target is; a SYN proxy can't count at all."""
    shadow, limit = replace(POLICY, shadow=True), RateLimit(1000, 1000)
    match = Match(protocol=17, dport=53)
    for kind, counting in ((Kind.HASHLIMIT, {Kind.TC, Kind.XDP}), (Kind.SYNPROXY, set())):
        made = Rule("", kind, match, "x", 600, limit=limit if kind is Kind.HASHLIMIT else None)
        found = Decider(shadow).next(seen(0, offer={"rule": made}))
        assert {one.rule.kind for one in found} <= counting
        assert bool(found) == bool(counting)


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ({}, {"flood": {"confidence": 0.8}}),
        ({}, {"flood": {"ended": START}}),
        ({}, {"flood": {"severity": Severity(Harm.ABUSE)}}),
        ({"attacks": (FLOOD.kind,)}, {"flood": {"severity": Severity(Harm.UNUSUAL)}}),
        ({}, {"flood": {"other_share": 0.97}}),
        ({}, {"flood": {"since": START - 0.5}}),
        ({"attacks": ("syn_flood",)}, {}),
        ({"rules": ("xdp",)}, {}),
        ({}, {"offer": {"guess": True}}),
        ({}, {"offer": {"needs_force": "port 22 is where operators log in"}}),
        ({}, {"offer": {"collateral_share": 0.02}}),
        ({}, {"offer": {"rule": replace(OFFER.rule, predicted_clients=ClientHarm(100, 2, 2))}}),
        ({}, {"offer": {"attack_share": 0.4}}),
        ({}, {"offer": {"bystanders": "could be forged: 192.0.2.7 is a client of yours since 10:04Z"}}),
        ({}, {"offer": {"rule": replace(OFFER.rule, match=Match((Prefix.parse("203.0.112.0/23"),)))}}),
        ({}, {"offer": {"rule": replace(OFFER.rule, match=Match((Prefix.parse("2001:db8::/47"),)))}}),
        ({}, {"offer": {"rule": None}}),
        ({}, {"offer": {"incident": FLOOD.id + 1}}),
    ],
)
def test_what_the_policy_does_not_allow_is_left_to_the_operator(
    policy: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert Decider(replace(POLICY, **policy)).next(seen(0, **changes)) == []
    assert len(Decider(POLICY).next(seen(0))) == 1


def test_what_has_to_be_compiled_is_planned_while_its_attack_is_young() -> None:
    begun = seen(0).at
    young, compiled = {"since": begun}, {"rule": replace(OFFER.rule, kind=Kind.XDP)}
    decider = Decider(replace(POLICY, rules=("xdp", OFFER.rule.kind.value)))
    attacks = seen(0, flood=young).judgement.attacks
    assert decider.next(seen(0, flood=young)) == [], "what needs no compiler is not"
    assert decider.due(attacks) == begun + POLICY.after_seconds
    (planned,) = decider.next(seen(0.1, flood=young, offer=compiled))
    assert planned.verb == "plan"
    assert decider.next(seen(0.2, flood=young, offer=compiled)) == []
    (made,) = decider.next(seen(POLICY.after_seconds + 0.1, flood=young, offer=compiled))
    assert (made.verb, made.rule.match) == ("install", planned.rule.match)
    assert decider.due(attacks) is None


def test_abuse_is_stopped_where_its_kind_is_named() -> None:
    named = Decider(replace(POLICY, attacks=(FLOOD.kind,)))
    assert len(named.next(seen(0, flood={"severity": Severity(Harm.ABUSE)}))) == 1


def test_a_rule_without_effect_is_taken_back_and_not_tried_again_soon() -> None:
    decider = Decider(POLICY)
    status = replace(installed(decider), pps=300.0)
    made = [decision for second in range(1, 13) for decision in decider.next(seen(second, rules=(status,)))]
    assert [decision.verb for decision in made] == ["undo"]
    assert "without effect" in made[0].why
    assert decider.next(seen(20)) == []
    assert [decision.verb for decision in decider.next(seen(1000))] == ["install"]


def test_a_rule_stays_while_its_attack_pauses_and_is_judged_when_that_is_back() -> None:
    """A pulse that ends before the rule is in says nothing about it."""
    for pps_when_back, verbs in ((175_000.0, ["keep"]), (300.0, ["keep", "undo"])):
        decider = Decider(POLICY)
        status = replace(installed(decider), pps=0.0)
        made: list[Decision] = []
        for second in range(1, 60):
            is_kept = any(one.verb == "keep" for one in made)
            state = State.CONFIRMED if is_kept else State.PROVISIONAL
            is_back = second > 40 and not any(one.verb == "undo" for one in made)
            status = replace(status, state=state, pps=pps_when_back if is_back else 0.0, expires=START + 600)
            decisions = decider.next(seen(second, calm=second <= 40, rules=(status,)))
            for decision in decisions:
                decider.answered(decision, START + second - 5, is_refused=False)
            made += decisions
        assert [one.verb for one in made] == verbs
        assert "pauses" in made[0].why


@pytest.mark.parametrize("proven", [False, True])
def test_a_rule_that_meets_only_retries_ends_at_once_unless_its_sources_are_proven(proven: bool) -> None:
    """Bots that were proven to attack still try to come back: theirs are no clients' retries."""
    decider = Decider(POLICY)
    (decision,) = decider.next(seen(0, offer={"return_path": proven}))
    decider.answered(decision, START - 5, is_refused=False)
    status = RuleStatus(replace(decision.rule, id="7"), State.PROVISIONAL, pps=175_000.0)
    made = [one for second in range(1, 13) for one in decider.next(seen(second, rules=(status,)))]
    status = replace(status, state=State.CONFIRMED, expires=START + 600, pps=3.0)
    decider.answered(made[0], START + 8, is_refused=False)
    for second in range(14, 18):
        made += decider.next(seen(second, calm=True, rules=(status,)))
    assert [one.verb for one in made] == (["keep"] if proven else ["keep", "end"])
    assert proven or "retries" in made[1].why
    again = {"rule": replace(OFFER.rule, match=decision.rule.match)}
    assert [one.verb for one in decider.next(seen(90, offer=again))] == ["install"], "it was not wrong"


def test_a_rule_that_takes_long_to_install_is_asked_for_once() -> None:
    decider = Decider(POLICY)
    (decision,) = decider.next(seen(0))
    assert [decider.next(seen(second)) for second in range(1, 15)] == [[]] * 14
    decider.answered(decision, START + 10, is_refused=False)
    assert [decider.next(seen(second)) for second in range(15, 19)] == [[]] * 4


def test_a_rule_on_header_fields_comes_before_a_list_of_sources_that_stops_little_more() -> None:
    fields = replace(OFFER, attack_share=0.75, rule=replace(rule(), id="", match=Match(dport=27015)))
    for share, is_list in ((0.9, False), (1.0, False), (1.0, True)):
        listed = replace(OFFER, attack_share=share)
        found = seen(0)
        offers = (listed, replace(fields, attack_share=0.6) if is_list else fields)
        judged = replace(found.judgement, proposals=offers)
        (decision,) = Decider(POLICY).next(replace(found, judgement=judged))
        assert bool(decision.rule.match.sources) is is_list


@pytest.mark.parametrize(("share", "is_more"), [(0.74, False), (0.5, True)])
def test_a_second_rule_is_for_packets_that_the_first_one_passes(share: float, is_more: bool) -> None:
    decider = Decider(POLICY)
    fields = {"attack_share": 0.73, "rule": replace(rule(), id="", match=Match(sport=53))}
    (first,) = decider.next(seen(0, offer=fields))
    decider.answered(first, START - 5, is_refused=False)
    status = RuleStatus(replace(first.rule, id="7"), State.PROVISIONAL, pps=100_000.0)
    other = {"attack_share": share, "rule": replace(rule(), id="", match=Match(fragment=True))}
    made = [one for second in range(1, 9) for one in decider.next(seen(second, offer=other, rules=(status,)))]
    assert bool(made) is is_more


def test_a_second_rule_need_drop_only_what_the_first_one_left() -> None:
    decider = Decider(POLICY)
    (decision,) = decider.next(seen(0, flood={"mine_share": 0.8}))
    status = RuleStatus(replace(decision.rule, id="7"), State.PROVISIONAL, pps=15_000.0)
    made = [one for second in range(1, 14) for one in decider.next(seen(second, rules=(status,)))]
    assert [one.verb for one in made] == ["keep"]


@pytest.mark.parametrize(("sure", "is_wrong"), [(0.25, True), (0.15, False)])
def test_a_rule_that_costs_clients_their_handshakes_is_taken_back(sure: float, is_wrong: bool) -> None:
    """The policy says how much is too much, `incidents/losses.py` what is lost."""
    decider = Decider(POLICY)
    status, made = installed(decider), []
    for second in range(1, 14):
        lost = ClientLoss("7", "443/tcp", 100.0, 70.0, sure)
        made += decider.next(replace(seen(second, rules=(status,)), losses=(lost,)))
    assert [one.verb for one in made] == (["undo"] if is_wrong else ["keep"])
    assert ("clients of 443/tcp 100/s → 70/s" in made[0].why) is is_wrong


@pytest.mark.parametrize(
    ("changes", "is_tried"),
    [({}, False), ({"family": 4}, False), ({"ttl": None}, False), ({"dport": 54}, True)],
)
def test_nothing_alike_is_tried_after_a_rule_that_cost_clients_something(
    changes: dict[str, Any], is_tried: bool
) -> None:
    decider, match = Decider(POLICY), Match(protocol=17, dport=53, ttl=Range(60, 60))
    first = replace(OFFER.rule, match=match)
    (decision,) = decider.next(seen(0, offer={"rule": first}))
    decider.answered(decision, START, is_refused=False)
    status = RuleStatus(replace(decision.rule, id="7"), State.PROVISIONAL, pps=175_000.0)
    lost = (ClientLoss("7", "53/udp", 100.0, 10.0, 0.6),)
    (taken,) = decider.next(replace(seen(6, rules=(status,), offer={"rule": first}), losses=lost))
    assert taken.verb == "undo"
    other = replace(first, match=replace(match, **changes))
    verbs = [one.verb for one in decider.next(seen(10, offer={"rule": other}))]
    assert verbs == ["install"] * is_tried


def test_the_budget_counts_rules_of_an_earlier_recording_and_nobody_elses() -> None:
    mine = RuleStatus(replace(rule(1), created_by=AUTOMATIC), State.CONFIRMED)
    other = replace(mine, rule=replace(mine.rule, id="2", created_by="key"))
    offer = {"rule": replace(mine.rule, ttl_seconds=1, match=replace(mine.rule.match, dport=53))}
    assert Decider(replace(POLICY, most_rules=1)).next(seen(0, offer=offer, rules=(mine, other))) == []
    (decision,) = Decider(replace(POLICY, most_rules=2)).next(seen(0, offer=offer, rules=(mine, other)))
    assert decision.verb == "install"
    # What is active already is not installed again, whoever did it
    assert Decider(POLICY).next(seen(0, rules=(other,))) == []


def test_an_attack_that_nothing_is_done_about_is_told_once() -> None:
    decider = Decider(POLICY)
    for second in range(100):
        decider.next(seen(second, offer={"guess": True}))
    assert decider.unable == [
        (FLOOD.kind, f"{FLOOD.title} is left to the operator: "
         "nothing was learnt before it, so the harm of each rule is a guess")
    ]  # fmt: skip


class FakeLink:
    """A guardian that does everything, or refuses to install."""

    def __init__(self, refusal: str = "") -> None:
        self.asked: list[object] = []
        self.refusal = refusal

    def demand_for_rule(self, request: Apply, rule: object) -> Answer:
        self.asked.append(request)
        if self.refusal:
            raise FwtopError(self.refusal)
        return Answer(True, data={"status": {"rule": {"id": "7"}}})

    def demand(self, request: Keep | Undo) -> Answer:
        self.asked.append(request)
        return Answer(True)


@pytest.mark.parametrize("refusal", ["", "it is allow-listed"])
def test_what_was_done_or_refused_is_told(refusal: str, poll_until: Callable[..., Any]) -> None:
    link = FakeLink(refusal)
    agent = Agent(POLICY, link)  # type: ignore[arg-type]
    assert agent.take(seen(0)) == []
    poll_until(lambda: link.asked)
    told = poll_until(lambda: agent.take(seen(0.1)))
    agent.close()
    assert isinstance(link.asked[0], Apply)
    assert not link.asked[0].force
    assert link.asked[0].confirm_seconds > POLICY.trial_seconds
    subject, sentence = told[0]
    assert refusal in sentence
    assert subject == ("" if refusal else "7")


def test_the_sample_holds_the_defaults() -> None:
    lines = [line[2:].partition("  #")[0] for line in SAMPLE.read_text().splitlines() if " = " in line]
    table = tomllib.loads("\n".join(lines))
    assert table == plain(Policy())
    assert of_plain(Policy, plain(POLICY)) == POLICY


@pytest.mark.parametrize(
    "text",
    [
        "harm = 2.0",
        "most_rules = 1.5",
        "rules = []",
        'rules = ["sysctl"]',
        "attacks = 3",
        "nonsense = 1",
        "x =",
    ],
)
def test_a_mistake_turns_everything_off(text: str) -> None:
    policy, wrong = read_policy(ConfigText("automatic.toml", f"enabled = true\n{text}"))
    assert not policy.enabled
    assert len(wrong) == 1
    assert "nothing is automatic" in wrong[0]
    assert read_policy(ConfigText("automatic.toml", "enabled = true\nharm = 0"))[0] == replace(POLICY, harm=0)
