"""The verdict and the rates: how protected this machine is, and where its packets go."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from screen_factory import SCENES, calm, conntrack_full, protected, provisional, snapshot, trial
from screen_parts import NOW, PPS, SECONDS, attack, block_rule, with_fates
from screen_run import running

from fwtop.console.recorder import Recorder
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import RuleStatus, State
from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.session import FULL_TABLE, flow_of
from fwtop.model.traffic.severity import Harm, Resource, Severity
from fwtop.model.traffic.snapshot import Destination, Judgement, LedgerRow, Share, Snapshot
from fwtop.render.observation import observation_json
from fwtop.render.verdict import Badge, verdict_of
from fwtop.ui.header.lines import HeaderState, _few_words, header_lines, rates_line, verdict_line
from fwtop.ui.lists.history import Clients, History
from fwtop.ui.style import TEXT, Line, width_of


def row(layer: str, part: float, rule: str | None = None) -> LedgerRow:
    return LedgerRow(layer, "because", round(part * PPS * SECONDS), part * PPS, rule)


def under_attack(*rows: LedgerRow, rules: tuple[RuleStatus, ...] = (), share: float = 0.8) -> Snapshot:
    """A flood of 80 % of the packets, of which some end in the given rows; the rest is accepted."""
    base = snapshot(mitigations=rules)
    rest = PPS - sum(item.pps for item in rows)
    ledger = (*rows, LedgerRow("delivered", "accepted", round(rest * SECONDS), rest))
    judgement = Judgement((attack(share=share, pps=share * PPS),))
    return with_fates(replace(base, tables=replace(base.tables, ledger=ledger), judgement=judgement))


def rule(state: State = State.CONFIRMED, **changes: object) -> RuleStatus:
    status = RuleStatus(block_rule("7"), state, confirm_by=NOW + 21 if state is State.PROVISIONAL else None)
    return replace(status, **changes)  # type: ignore[arg-type]


def classed(shown: Snapshot, harm: Harm) -> Snapshot:
    attacks = tuple(replace(one, severity=Severity(harm)) for one in shown.judgement.attacks)
    return replace(shown, judgement=replace(shown.judgement, attacks=attacks))


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


@pytest.mark.parametrize(
    ("shown", "verdict", "badge"),
    [
        (calm(), Badge.CALM, "CALM"),
        (under_attack(), Badge.UNPROTECTED, "UNPROTECTED"),
        (under_attack(row("socket", 0.8)), Badge.UNPROTECTED, "UNPROTECTED"),
        (under_attack(row("netfilter", 0.8)), Badge.ALREADY, "ALREADY STOPPED BY YOUR FIREWALL"),
        (under_attack(row("xdp", 0.77)), Badge.ALREADY, "ALREADY STOPPED BY YOUR FIREWALL"),
        (under_attack(row("netfilter", 0.576, "7"), rules=(rule(),)), Badge.PARTLY, "PARTLY 72 %"),
        (under_attack(row("netfilter", 0.2)), Badge.PARTLY, "PARTLY 25 %"),
        (under_attack(row("netfilter", 0.8, "7"), rules=(rule(),)), Badge.PROTECTED, "PROTECTED"),
        (classed(under_attack(), Harm.ABUSE), Badge.ABUSE, "ABUSE"),
        (classed(under_attack(row("netfilter", 0.8)), Harm.ABUSE), Badge.ALREADY, "ALREADY STOPPED"),
        (classed(under_attack(), Harm.UNUSUAL), Badge.UNUSUAL, "UNUSUAL"),
        (
            under_attack(row("netfilter", 0.4, "7"), row("netfilter", 0.4), rules=(rule(),)),
            Badge.PROTECTED,
            "PROTECTED",
        ),
        (
            under_attack(row("netfilter", 0.8, "7"), rules=(rule(State.PROVISIONAL),)),
            Badge.TRIAL,
            "TRIAL 21 s",
        ),
        (
            under_attack(row("netfilter", 0.8, "7"), rules=(rule(State.EXPIRED),)),
            Badge.UNPROTECTED,
            "UNPROTECTED",
        ),
        (
            under_attack(rules=(rule(State.PROVISIONAL, acting=False),)),
            Badge.UNPROTECTED,
            "UNPROTECTED",
        ),
    ],
)
def test_badge_says_how_protected_the_machine_is(shown: Snapshot, verdict: Badge, badge: str) -> None:
    assert verdict_of(shown, NOW).badge is verdict
    line = verdict_line(shown, HeaderState(NOW), 120, [])
    assert text(line).startswith(f" {badge} ")
    assert line[0][1].reverse, "a badge without colour too"


def dropped_by_kernel(**changes: object) -> Snapshot:
    """A flood that nothing here takes, on two cores of which a tenth is busy with it."""
    shown = under_attack(row("socket", 0.8))
    told: dict[str, object] = {"undeliverable_share": 1.0, **changes}
    attacks = tuple(replace(one, **told) for one in shown.judgement.attacks)  # type: ignore[arg-type]
    return replace(shown, softirq_share=0.0625, cores=2, judgement=Judgement(attacks))


def filling(shown: Snapshot) -> Snapshot:
    """The same, while connection tracking evicts entries for it."""
    attack = shown.judgement.attacks[0]
    table = replace(attack, id=attack.id + 1, kind=FULL_TABLE, cause=attack.id, effect_of=attack.kind)
    return replace(shown, judgement=Judgement((attack, table)))


def test_what_the_kernel_drops_is_no_gap_but_a_matter_of_its_cost() -> None:
    shown = dropped_by_kernel()
    verdict = verdict_of(shown, NOW)
    assert verdict.badge is Badge.KERNEL
    assert verdict.cores == pytest.approx(0.1)
    line = text(verdict_line(shown, HeaderState(NOW), 120, []))
    assert line.startswith(" YOUR KERNEL DROPS IT ")
    assert "at 10 % of a core; no rule is worth it" in line
    best = snapshot().judgement.proposals[0]
    cheap = (replace(best, cost_ns=50.0, stopped_pps=0.8 * PPS),)
    judgement = replace(shown.judgement, proposals=cheap)
    busy = replace(shown, softirq_share=0.4, judgement=judgement)
    saved = 0.64 - 0.8 * PPS * 50e-9
    assert verdict_of(busy, NOW).advice == f"at 64 % of a core; a rule would save up to {saved * 100:.0f} %"
    assert verdict_of(replace(busy, softirq_share=None), NOW).advice == "cost unknown"
    for one, ends in ((shown, "nothing to do"), (busy, "press 1 Enter")):
        line = text(verdict_line(one, HeaderState(NOW, press="1 Enter", does="drop it"), 120, []))
        assert verdict_of(one, NOW).advice in line
        assert line.rstrip().endswith(ends)


@pytest.mark.parametrize(
    ("shown", "badge"),
    [
        pytest.param(dropped_by_kernel(undeliverable_share=0.5), Badge.UNPROTECTED, id="half"),
        pytest.param(dropped_by_kernel(undeliverable_share=0.3), Badge.UNPROTECTED, id="a buffer is full"),
        pytest.param(filling(dropped_by_kernel()), Badge.UNPROTECTED, id="it fills conntrack's table"),
        pytest.param(
            dropped_by_kernel(severity=Severity(Harm.ATTACK, Resource.SOFTIRQ, 0.9)),
            Badge.UNPROTECTED,
            id="the cores are busy",
        ),
        pytest.param(
            dropped_by_kernel(severity=Severity(Harm.ABUSE)), Badge.ABUSE, id="a scan gets its answers"
        ),
        pytest.param(dropped_by_kernel(paused=NOW - 4, last=NOW - 4), Badge.PAUSED, id="paused"),
        pytest.param(dropped_by_kernel(ended=NOW - 4, last=NOW - 4), Badge.ENDED, id="ended"),
        pytest.param(
            dropped_by_kernel(kind="conntrack_exhaustion", effect_of="syn_flood tcp/80", cause=3),
            Badge.ENDED,
            id="a table drains",
        ),
    ],
)
def test_the_verdict_is_about_what_reaches_services_now(shown: Snapshot, badge: Badge) -> None:
    assert verdict_of(shown, NOW).badge is badge
    assert observation_json(shown)["verdict"]["state"] == badge.name.lower()


def test_the_header_says_when_the_last_packet_came_and_what_is_left() -> None:
    over = dropped_by_kernel(ended=NOW - 4, last=NOW - 4).judgement.attacks[0]
    table = replace(over, id=9, title="Full table", ended=None, effect_of="udp_flood udp/27015", cause=1)
    shown = replace(calm(), judgement=Judgement((over, table)))
    line = text(verdict_line(shown, HeaderState(NOW), 120, []))
    assert line.startswith(" ATTACK ENDED   UDP flood, last packet 4 s ago  still there: Full table")


@pytest.mark.parametrize(
    ("shown", "badge", "reason"),
    [
        (calm(), "NOT JUDGED", "judging failed (ValueError: x)"),
        (under_attack(), "NOT JUDGED", "judging failed (ValueError: x)  before: "),
        (under_attack(rules=(rule(State.PROVISIONAL),)), "TRIAL 21 s", "judging failed (ValueError: x)"),
    ],
)
def test_what_was_not_judged_is_neither_calm_nor_protected(shown: Snapshot, badge: str, reason: str) -> None:
    blind = replace(shown.judgement, not_judged="judging failed (ValueError: x)")
    line = text(verdict_line(replace(shown, judgement=blind), HeaderState(NOW), 160, []))
    assert line.startswith(f" {badge} ")
    assert reason in line


def test_share_is_of_the_attacks_packets_and_never_above_all_of_them() -> None:
    verdict = verdict_of(under_attack(row("netfilter", 0.95, "7"), rules=(rule(),)), NOW)
    assert verdict.mine == 1.0
    assert verdict.stopped == 1.0
    half = verdict_of(under_attack(row("netfilter", 0.2, "7"), rules=(rule(),), share=0.4), NOW)
    assert half.mine == pytest.approx(0.5)
    assert half.attack_pps == pytest.approx(0.4 * PPS)


def test_drops_of_other_traffic_protect_from_nothing() -> None:
    """A firewall drops a fifth of all packets, scans and the like; the attack passes whole."""
    shown = under_attack(row("netfilter", 0.2), share=0.5)
    passing = replace(shown.judgement.attacks[0], other_share=0.0)
    verdict = verdict_of(replace(shown, judgement=Judgement((passing,))), NOW)
    assert verdict.badge is Badge.UNPROTECTED
    assert verdict.stopped == 0.0


def test_attacks_count_by_their_packets() -> None:
    shown = under_attack(row("netfilter", 0.2, "7"), rules=(rule(),))
    stopped = attack(pps=30_000.0, mine_share=1.0)
    passing = attack(kind="syn_flood", target="tcp/80", pps=10_000.0)
    verdict = verdict_of(replace(shown, judgement=Judgement((stopped, passing))), NOW)
    assert verdict.badge is Badge.PARTLY
    assert verdict.mine == pytest.approx(0.75)


def test_full_table_is_an_effect_not_a_share_of_the_attack() -> None:
    shown = under_attack(row("netfilter", 0.8, "7"), rules=(rule(),))
    full = attack(kind="conntrack_exhaustion", title="Connection table full", share=0.9, pps=0.9 * PPS)
    both = replace(shown, judgement=Judgement((*shown.judgement.attacks, full)))
    assert verdict_of(both, NOW).badge is Badge.PROTECTED
    assert "conntrack FULL" in text(
        verdict_line(conntrack_full(), HeaderState(NOW), 80, [("conntrack FULL", TEXT)])
    )


def test_recorded_packets_have_no_verdict_on_their_fate() -> None:
    base = under_attack()
    recorded = replace(base.tables, ledger=(LedgerRow("capture", "recorded", 9, 9.0),))
    shown = replace(base, tables=recorded)
    assert flow_of(shown) is None
    assert verdict_of(shown, NOW).badge is Badge.RECORDED
    assert "not recorded" in text(rates_line(shown, None, 80, []))


def test_trial_compares_what_the_rule_drops_with_what_was_expected() -> None:
    status = rule(State.PROVISIONAL)
    wanted = text(
        verdict_line(under_attack(row("netfilter", 0.8, "7"), rules=(status,)), HeaderState(NOW), 140, [])
    )
    assert "rule 7 drops 250k pps = 100.0 % of the attack" in wanted or "= 100 % of the attack" in wanted
    assert "✔" in wanted
    short = text(
        verdict_line(under_attack(row("netfilter", 0.1, "7"), rules=(status,)), HeaderState(NOW), 140, [])
    )
    assert "not yet" in short


def test_a_trial_is_measured_on_what_came_after_it() -> None:
    young = rule(State.PROVISIONAL)
    young = replace(young, rule=replace(young.rule, created=NOW - 0.5))  # most of the window is older
    shown = text(
        verdict_line(under_attack(row("netfilter", 0.04, "7"), rules=(young,)), HeaderState(NOW), 140, [])
    )
    assert "measuring …" in shown
    assert "%" not in shown


def test_rules_on_trial_together_are_told_together() -> None:
    """A combined set: the first to end counts the seconds, their drops add up."""
    first, second = rule(State.PROVISIONAL), rule(State.PROVISIONAL, confirm_by=NOW + 24)
    second = replace(second, rule=replace(second.rule, id="8"))
    drops = (row("netfilter", 0.5, "7"), row("xdp", 0.3, "8"))
    shown = text(verdict_line(under_attack(*drops, rules=(second, first)), HeaderState(NOW), 140, []))
    assert shown.startswith(" TRIAL 21 s ")
    assert "rules 7, 8 drop 250k pps = 100 % of the attack ✔" in shown


@pytest.mark.parametrize("shown", [calm(), snapshot(), provisional(), conntrack_full(), trial(), protected()])
def test_rates_add_up_to_what_arrives_as_the_ledger_says(shown: Snapshot) -> None:
    flow = flow_of(shown)
    assert flow is not None
    parts = flow.mine + flow.other + flow.kernel + flow.reaches + flow.unaccounted
    assert parts == pytest.approx(flow.arrives)
    assert flow.arrives == shown.tables.totals.pps
    ledger = shown.tables.ledger
    assert flow.mine == pytest.approx(sum(item.pps for item in ledger if item.rule))
    assert flow.reaches == pytest.approx(sum(item.pps for item in ledger if item.layer == "delivered"))
    dropped = sum(item.pps for item in ledger if item.layer not in ("delivered", "unexplained"))
    assert flow.mine + flow.other + flow.kernel == pytest.approx(dropped)


def rounded(words: str) -> tuple[float, float]:
    """A number as it is written, and the most that was lost by rounding."""
    words = words.lstrip("<")
    digits = words.rstrip("kMG")
    unit = {"k": 1e3, "M": 1e6, "G": 1e9}.get(words[len(digits) :], 1.0)
    places = len(digits.partition(".")[2])
    return float(digits) * unit, unit / 10**places / 2


PART = st.one_of(st.just(0.0), st.floats(0.0, 1e7), st.floats(0.0, 30.0))


@given(st.tuples(PART, PART, PART, PART, PART), st.integers(60, 200), st.booleans())
@settings(deadline=None, max_examples=400)
def test_the_ledger_adds_up_at_every_width_and_names_who_drops_most(
    split: tuple[float, ...], width: int, serves: bool
) -> None:
    *ends, _ = split  # the last one is unaccounted
    whole = max(sum(split), 1.0)
    places = (("xdp", "7"), ("netfilter", None), ("socket", None), ("delivered", None))
    book = tuple(
        LedgerRow(layer, "because", 0, pps, rule) for (layer, rule), pps in zip(places, ends, strict=True)
    )
    base = snapshot()
    totals = replace(base.tables.totals, pps=whole)
    shown = replace(base, tables=replace(base.tables, totals=totals, ledger=book))
    line = rates_line(served(shown, 102.0, 900.0) if serves else shown, Clients(133.0, 900.0), width, [])
    assert width_of(line) <= width
    parts = dict(part.strip().removesuffix(" pps").rsplit(" ", 1) for part in ledger_of(text(line)))
    most = max(ends[:3])
    if most > max(0.002 * whole, 0.05) and most > whole - sum(ends):
        names = [
            name for name, pps in zip(("my rules", "firewall", "kernel"), ends, strict=False) if pps == most
        ]
        assert any(name.endswith(tuple(names)) for name in parts) or width < 80
    numbers = {name: rounded(words) for name, words in parts.items()}
    assert "REACHES YOU" in numbers or "REACHES" in numbers
    total, loss = numbers.pop("arrives")
    if width < 80 and len(numbers) == 1:
        return  # the rest is dropped
    loss += sum(lost for _, lost in numbers.values()) + 0.004 * whole + 0.2
    assert sum(number for number, _ in numbers.values()) == pytest.approx(total, abs=loss)


def ledger_of(line: str) -> list[str]:
    """The parts of a line up to what reaches services, without bits a second."""
    parts = re.sub(r" pps [\d.]+ .?bit/s", "", line).split("│")
    return [part for part in parts if not part.strip().startswith(("clients", "acked"))]


def served(shown: Snapshot, handshakes: float, acknowledged: float) -> Snapshot:
    return replace(shown, tcp=TcpService(3, handshakes, acknowledged))


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("other", [0.0, 0.0005, 0.3])
def test_the_smallest_screen_says_how_clients_fare(width: int, other: float) -> None:
    """SCREEN.md: three questions are answered without a key press, at 80×24 too."""
    shown = served(under_attack(row("netfilter", other)) if other else under_attack(), 102.0, 900.0)
    line = rates_line(shown, Clients(133.0, 900.0), width, [])
    assert width_of(line) <= width
    assert "REACHES" in text(line)
    assert "arrives" in text(line)
    assert re.search(r"clients 102/s (▼23.3 % )?✖", text(line))


def test_the_window_of_the_rates_outlives_a_long_name_of_a_namespace() -> None:
    shown = snapshot()
    origin = replace(shown.origin, interfaces=("eth0",), netns="fwtop-lab-12883-victim-behind-a-router")
    first = text(header_lines(replace(shown, host="vm", origin=origin), History(), HeaderState(NOW), 80)[0])
    assert "netns fwtop-lab-12883-victim" in first
    assert "mean of 3 s" in first
    assert len(first) <= 80


def test_clients_are_compared_with_before_the_attack() -> None:
    history = History()
    for second in range(20):
        history.take(served(calm(), 100.0, 1000.0), NOW - 130 + second)
    flood = served(under_attack(), 77.0, 1000.0)  # since NOW - 106
    history.take(flood, NOW)
    assert history.before is not None
    shown = text(rates_line(flood, history.before, 200, []))
    assert "clients 77/s ▼23.0 % ✖ (was 100)" in shown
    assert "acked 1.00k/s =" in shown


def test_without_calm_before_the_attack_clients_have_no_baseline() -> None:
    history = History()
    flood = served(under_attack(), 77.0, 900.0)
    history.take(flood, NOW)
    assert history.before is None
    assert "clients 77/s ? usual rate not known" in text(rates_line(flood, history.before, 200, []))
    nothing = replace(under_attack(), tcp=None)
    assert "clients not counted" in text(rates_line(nothing, None, 200, [])), "it is always said"


def test_a_machine_that_only_forwards_does_not_say_that_no_client_is_served() -> None:
    """Its own counters know nothing of the handshakes with servers behind it."""
    flood = served(under_attack(), 0.0, 0.0)
    assert "clients 0/s ?" in text(rates_line(flood, None, 200, []))
    server = Prefix.parse("192.0.2.10")
    behind = Destination("192.0.2.10", Share(0.5, 0.49, 0.51, 500, 500.0, 30_000), 0.0, server, "service")
    forwards = replace(flood, tables=replace(flood.tables, destinations=(behind,)))
    assert text(rates_line(forwards, None, 200, [])).endswith("clients not counted: it forwards")


async def test_verdict_and_rates_head_the_screen() -> None:
    async with running(served(under_attack(), 77.0, 900.0)) as run:
        lines = run.lines()
        assert "UNPROTECTED" in lines[1]
        assert "REACHES YOU" in lines[2]
        await run.send(calm())
        assert run.lines()[1].startswith(" CALM ")


async def test_ages_stand_still_while_paused_and_countdowns_do_not() -> None:
    async with running(provisional()) as run:
        await run.press("p")
        before = run.text()
        run.clock[0] += 5
        await run.press("]", "[")
        now = run.text()
        assert "TRIAL 21 s" in before
        assert "TRIAL 16 s" in now
        await run.press("a")
        since = [line for line in run.lines() if " since " in line]
        assert since
        run.clock[0] += 5
        await run.press("escape", "a")
        assert [line for line in run.lines() if " since " in line] == since


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize("then", [calm, provisional], ids=["calm", "another attack"])
async def test_lists_that_were_paused_by_accident_say_so_and_propose_nothing(
    then: Callable[[], Snapshot], size: tuple[int, int]
) -> None:
    """What they propose is against attacks that have ended, or nothing, while another reaches services."""
    now = SCENES["vectors"]()
    judged = now.judgement
    attacks = tuple(replace(one, id=one.id + 100) for one in judged.attacks)
    offered = tuple(replace(one, incident=one.incident + 100) for one in judged.proposals)
    now = replace(now, mitigations=(), judgement=replace(judged, attacks=attacks, proposals=offered))
    async with running(then(), size) as run:
        await run.press("p")
        assert "paused, press" not in run.lines()[1], "the lists show what is on"
        await run.send(now)
        assert " PAUSED " in run.lines()[0]
        assert "UNPROTECTED" in run.lines()[1]
        assert "  lists paused, press p " in run.lines()[1]
        for key in ("1", "*"):
            await run.press(key)
            assert "p resumes them" in run.status
            assert run.dialog == "MainScreen"
        await run.press("p")
        assert "press * Enter" in run.lines()[1], "at once, without waiting for the next snapshot"
        await run.press("1")
        assert run.dialog == "RuleDialog"


@pytest.mark.parametrize("shown", [calm(), under_attack()], ids=["calm", "attacked"])
async def test_the_head_says_since_when_and_why_nothing_is_stored(shown: Snapshot, tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.write_text("no directory")
    recorder = Recorder("web-1", shown.origin, place)
    noted = replace(shown, notes=("drops are estimated",))
    async with running(noted) as run:
        await run.send(recorder.write(noted))
        assert re.search(r"not stored since \d\d:\d\d:\d\d: its directory is a file; move away ", run.text())
        place.unlink()
        recorder.wait()
    recorder.close(clean=True)


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (40, "2 attacks: SYN flood, DNS amplification"),
        (26, "2 attacks: SYN flood +1"),
        (23, "2 attacks: SYN flood +1"),
        (22, "2 attacks"),
        (9, "2 attacks"),
    ],
)
def test_of_several_attacks_no_name_is_cut(room: int, words: str) -> None:
    assert _few_words("2 attacks: SYN flood, DNS amplification", room) == words


def test_a_trial_beside_another_firewall_is_judged_by_what_both_stop() -> None:
    """It drops all that the other one lets through: a share of all attacks alone looked like a failure."""
    shown = trial()
    beside = replace(shown.judgement.attacks[0], id=99, mine_share=0.0, other_share=1.0)
    both = replace(shown, judgement=replace(shown.judgement, attacks=(*shown.judgement.attacks, beside)))
    line = "".join(text for text, _ in verdict_line(both, HeaderState(NOW), 80, []))
    assert re.search(r"rule 8 and other firewall stop (100|>?99\.\d) % ✔", line), line


def test_a_trial_that_drops_nothing_takes_no_credit_for_another_firewall() -> None:
    shown = trial()
    other = replace(shown.judgement.attacks[0], id=99, mine_share=0.0, other_share=1.0)
    rows = tuple(replace(row, rule="") for row in shown.tables.ledger)  # none of the drops are the rule's
    idle = replace(
        shown,
        tables=replace(shown.tables, ledger=rows),
        judgement=replace(shown.judgement, attacks=(other,)),
    )
    line = "".join(text for text, _ in verdict_line(idle, HeaderState(NOW), 120, []))
    assert "rule 8 drops 0 pps  other firewall stops 100 % already" in line, line
    assert "✔" not in line, line
