"""The texts of the screen: keys as configured, figures that agree, and nothing that matters cut off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from screen_factory import calm, conntrack_full, protected, provisional, snapshot, spoofed, trial
from screen_fakes import FakeFeed
from screen_packets import flood
from screen_parts import NOW
from screen_run import LARGE, SMALL, Run, running
from screen_vectors import syn_proposals, vectors
from test_screen_player import played, recorded

from fwtop.model.addresses.address import Prefix
from fwtop.model.files import ConfigText
from fwtop.model.rule import Kind, Match, PlanView, Range, RateLimit, Rule
from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.severity import Resource, Severity
from fwtop.model.traffic.snapshot import LedgerRow, Origin, Proposal, Snapshot
from fwtop.rules.overlap import includes
from fwtop.store.events import EventLog
from fwtop.ui.actions.dialog import DetailsDialog
from fwtop.ui.keys import KEY_MAP, Here
from fwtop.ui.layout import Lines
from fwtop.ui.lists.attacks import ATTACK_VIEW
from fwtop.ui.lists.table import CellContext
from fwtop.ui.settings import read_settings
from fwtop.ui.style import ACCENT, BAD

KEYS = """
[keys]
block = ["F5"]
hold = ["F6"]
keep = ["F7"]
graph = ["F8"]
view = ["F9"]
pause = ["F10"]
next_step = ["F11"]
previous_step = ["F12"]
mouse = ["F2"]
up = ["F3"]
why = ["F4"]
string = ["F1"]
like = ["Ctrl+D"]
help = ["?"]
"""


async def shown(run: Run, *keys: str) -> str:
    await run.press(*keys)
    return run.text()


@pytest.mark.parametrize(
    ("scene", "at", "keys", "wanted"),
    [
        (snapshot, "", (), "now  F8 pps"),
        (snapshot, "sources", (), "F9 address"),
        (snapshot, "sources", ("F5",), "unless you press F7"),
        (spoofed, "", ("A",), "unless you press F7"),
        (calm, "all_rules", (), "F5 blocks a row of another tab"),
        (snapshot, "", ("F2",), "F2 ends that"),
        (snapshot, "sources", ("F1",), "F1 drops packets with the selected bytes"),
        (snapshot, "packets", (), "live F6 hold"),
        (snapshot, "packets", ("F6",), "held: F6 goes on"),
        (snapshot, "packet_pane", (), "F6 or F3 holds and decodes it"),
    ],
)
async def test_texts_name_the_configured_keys(
    scene: Callable[[], Snapshot],
    at: str,
    keys: tuple[str, ...],
    wanted: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed = FakeFeed()
    feed.controls.recent = flood()
    effective = read_settings([ConfigText("screen.toml", KEYS)])
    async with running(scene(), LARGE, feed=feed, settings=effective) as run:
        if at.startswith("packet"):
            run.app.main.tabs.show("packets")
            await run.send(scene())
        elif at:
            await run.go(at)
        if wanted.startswith("F2"):
            monkeypatch.setattr("fwtop.ui.main_screen.ResilientDriver", type(run.app._driver))
            monkeypatch.setattr(run.app._driver, "turn_mouse", lambda: False, raising=False)
        assert wanted in await shown(run, *(key.lower() if len(key) > 1 else key for key in keys))


async def test_the_time_bar_names_the_configured_keys() -> None:
    feed, _ = played()
    effective = read_settings([ConfigText("screen.toml", KEYS)])
    async with running(recorded(), LARGE, feed=feed, settings=effective) as run:
        assert "F10 pause  F12 F11 step  < > speed  { } event" in run.text()


def test_an_action_that_does_not_exist_is_no_key() -> None:
    with pytest.raises(KeyError):
        KEY_MAP.words("{no_such_action} does nothing")


async def test_the_graph_ends_now_while_it_is_live_and_a_pause_holds_the_lists_only() -> None:
    async with running(snapshot()) as run:
        assert "now  g pps" in run.text()
        assert "now  g pps" in await shown(run, "p")
    feed, _ = played()
    async with running(recorded(), feed=feed) as run:
        assert "14:13:20  g pps" in run.text()
        assert "14:13:20 bit/s ~" in await shown(run, "g")


def clients_row(run: Run) -> list[tuple[str, object]]:
    return [(text, style) for text, style in run.app.main.bars.graph._content[0][-1] if text.strip()]


def graph_of(run: Run) -> list[str]:
    return ["".join(text for text, _ in line) for line in run.app.main.bars.graph._content[0]]


async def test_the_graph_shows_what_clients_get() -> None:
    async with running(replace(calm(), tcp=TcpService(100, 100.0, 200.0)), LARGE) as run:
        for second in range(20):
            run.clock[0] += 1
            await run.send(replace(calm(), tcp=TcpService(100, 100.0, 200.0), started=NOW - 2 + second))
        row = graph_of(run)[-1]
        assert row.startswith("clients")
        assert row.endswith("  0–100/s       ")  # the width of the legend
        assert "██████████" in row
        run.clock[0] += 4
        flood_now = snapshot(tcp=TcpService(30, 30.0, 60.0), started=NOW + 20)
        begun = replace(flood_now.judgement.attacks[0], since=NOW + 19)
        await run.send(replace(flood_now, judgement=replace(flood_now.judgement, attacks=(begun,))))
        glyph, style = clients_row(run)[-2]
        assert (set(glyph), style) == ({"▂"}, BAD), "a third of what they got before the attack"
    async with running(replace(calm(), tcp=None), LARGE) as run:
        assert "clients" not in graph_of(run)[-1], "nothing counts them"


async def test_what_reaches_services_is_red_only_while_an_attack_does() -> None:
    for scene, style in ((snapshot, BAD), (trial, ACCENT), (protected, ACCENT)):
        async with running(scene(), LARGE) as run:
            graph = run.app.main.bars.graph._content[0]
            reaching = {held for line in graph for text, held in line[1:-2] if set(text) & set("▁▂▃▄▅▆▇█")}
            assert style in reaching
            assert (BAD in reaching) == (style is BAD)


# -- proposals


def offer(number: int, share: str) -> Proposal:
    made = next(item for item in syn_proposals() if item.rule is not None)
    assert made.rule is not None
    reason = f"({share} of its packets have this length; evaded by: other header fields)"
    return replace(made, number=number, summary=f"{made.rule.summary} {reason}")


async def test_a_proposal_keeps_place_and_cursor_though_its_figures_change() -> None:
    base = spoofed()
    first = replace(base, judgement=replace(base.judgement, proposals=(offer(1, "99.9 %"), offer(2, "1 %"))))
    then = replace(base, judgement=replace(base.judgement, proposals=(offer(1, ">99.9 %"), offer(2, "1 %"))))
    async with running(first, LARGE) as run:
        await run.go("proposals")
        await run.press("home", "down", "up")
        await run.send(then)
        rows = run.app.main.tabs.panel.rows
        assert [item.number for item in rows.items] == [1, 2]
        assert (rows.selected, rows.gone) == (0, False)


@pytest.mark.parametrize("size", [SMALL, (120, 40), LARGE])
async def test_the_selected_proposal_says_why_and_what_evades_it(size: tuple[int, int]) -> None:
    base = spoofed()
    shot = replace(base, judgement=replace(base.judgement, proposals=(offer(1, "99.9 %"), offer(2, "1 %"))))
    async with running(shot, size, at="proposals") as run:
        text = " ".join(run.text().split())
        assert "99.9 % of its packets have this length · evaded by: other header fields" in text
        assert "1 % of its packets" not in text.replace("99.9 %", "")


async def test_a_relief_says_once_that_it_drops_nothing() -> None:
    rule = Rule("", Kind.NOTRACK, replace(syn_proposals()[0].rule.match), "don't track TCP to port 443", 600)  # type: ignore[union-attr]
    summary = f"{rule.summary} (it fills the table; drops nothing; stateful rules don't see these packets)"
    base = spoofed()
    relief = Proposal(1, "notrack", summary, 0.0, 0.0, rule=rule, attack=base.judgement.attacks[0].title)
    async with running(replace(base, judgement=replace(base.judgement, proposals=(relief,))), LARGE) as run:
        assert "relief: 1 don't track 40-byte SYNs to 443/tcp" in run.text()
        await run.press("enter", "down")
        assert run.text().count("drops nothing") == 1


async def test_the_dialog_of_a_play_book_that_drops_nothing_says_what_it_does_instead() -> None:
    """Shares of the attack and of clients would all be 0, and its title is cut off at 80 columns."""
    parts = tuple(Rule("", Kind.NOTRACK, Match(protocol=17, dport=port), "", 600) for port in (53, 123))
    summary = "conntrack playbook: don't track UDP to port 53, UDP to port 123, delete their entries"
    rule = Rule("", Kind.HARDEN, Match(), summary, 600, playbook="conntrack", parts=parts)
    base = spoofed()
    relief = Proposal(1, "harden", summary, 0.0, 0.0, rule=rule, attack=base.judgement.attacks[0].title)
    shot = replace(base, judgement=replace(base.judgement, proposals=(relief,)))
    async with running(shot, SMALL, at="proposals") as run:
        await run.press("1")
        assert run.dialog == "RuleDialog"
        text = " ".join(run.text().replace("│", " ").split())
        assert f"effect drops nothing: {summary}" in text
        assert "client-like" not in text
        assert "of the attack" not in text


async def test_many_attacks_leave_room_for_the_position_in_their_title() -> None:
    async with running(vectors(snapshot()), SMALL) as run:
        assert "against B: rule 118 does it" in run.text()


async def test_a_set_tells_each_warning_once() -> None:
    feed = FakeFeed()
    feed.controls.plan_answer = PlanView(("x",), ("some drivers reset the interface",))
    async with running(vectors(snapshot()), (120, 40), feed=feed) as run:
        await run.press("A")
        assert run.dialog == "RuleDialog"
        assert run.text().count("some drivers reset the interface") == 1


# -- figures


async def test_the_verdict_of_a_trial_is_the_share_that_the_list_shows() -> None:
    base = trial()
    slow = replace(base.judgement.attacks[0], mine_share=0.709, other_share=0.0, kernel_share=0.0)
    shot = replace(base, judgement=replace(base.judgement, attacks=(slow,)))
    async with running(shot, LARGE) as run:
        lines = run.lines()
        assert "= 70.9 % of the attack" in lines[1]
        assert any("UDP flood" in line and "70.9 %" in line for line in lines[2:])


def test_only_a_firewall_earns_the_tick() -> None:
    (reaches,) = (column for column in ATTACK_VIEW.columns if column.title == "reaches you")
    shot = snapshot()
    kernel = replace(shot.judgement.attacks[0], mine_share=0.0, other_share=0.0, kernel_share=1.0)
    context = CellContext(NOW, snapshot=shot)
    assert "".join(text for text, _ in reaches.cell(kernel, context, 8)) == "0 %"
    stopped = replace(kernel, kernel_share=0.0, other_share=1.0)
    assert "".join(text for text, _ in reaches.cell(stopped, context, 8)) == "0 % ✔"


@pytest.mark.parametrize("resource", Resource)
def test_what_is_exhausted_is_named_without_a_cut_in_the_narrowest_column(resource: Resource) -> None:
    (severity,) = (column for column in ATTACK_VIEW.columns if column.title == "severity")
    item = replace(snapshot().judgement.attacks[0], severity=Severity(exhausts=resource, nearness=0.97))
    told = "".join(text for text, _ in severity.cell(item, CellContext(NOW, snapshot=snapshot()), 8))
    assert told.split(" ")[0] in (*str(resource).split(" "), "backlog", "ct", "accept", "uplink")
    assert len(told) <= severity.width


async def test_a_full_table_claims_no_share_of_the_packets() -> None:
    shot = conntrack_full()
    async with running(shot, (120, 60)) as run:
        text = await shown(run, "a")
        assert "others fill the table" in text
        assert " 0 % of all packets" not in text
    events = EventLog()
    events.next(calm())
    (began,) = (event for event in events.next(shot) if event.subject == "conntrack_exhaustion")
    assert "0 % of packets" not in began.text


async def test_expiry_keeps_its_key_in_a_narrow_terminal() -> None:
    async with running(provisional(seconds_left=0.5), (64, 20)) as run:
        run.clock[0] = NOW + 3
        await run.send(replace(provisional(), mitigations=(), started=NOW))
        assert "Enter previews it" in run.text()


async def test_a_dialog_speaks_of_clients_as_the_list_does() -> None:
    async with running(snapshot(), LARGE) as run:
        text = await shown(run, "1")
        assert "0.2 % of client-like packets" in text
        assert "matches now" in text


async def test_the_large_overview_lists_packets_once_a_second() -> None:
    feed = FakeFeed()
    feed.controls.recent = flood()
    async with running(snapshot(), LARGE, feed=feed) as run:
        run.clock[0] += 2
        await run.send(snapshot(started=NOW))
        panel = run.app.main.tabs.packet_panel
        assert panel.display
        assert panel.book.rows
        assert "Space hold" not in run.text(), "here Space pauses"
        asked = feed.controls.packets_asked
        run.clock[0] += 0.25
        await run.send(snapshot(started=NOW + 0.25))
        assert feed.controls.packets_asked == asked
    for shot, size in ((snapshot(), (120, 40)), (calm(), LARGE)):  # in calm nobody would pay for it
        async with running(shot, size, feed=feed) as run:
            assert not run.app.main.tabs.packet_panel.display


# -- recordings and read-only


def captured() -> Snapshot:
    base = spoofed()
    ended = (LedgerRow("capture", "recorded", base.tables.totals.packets, base.tables.totals.pps),)
    tables = replace(base.tables, ledger=ended)
    return replace(base, tables=tables, origin=Origin("capture", file="a.pcap"))


async def test_a_capture_claims_nothing_about_drops() -> None:
    async with running(captured(), LARGE) as run:
        text = run.text()
        assert "unrecorded" in text
        assert " dropped " not in text, "a column of unknowns"


async def test_footers_offer_what_the_recording_can_do() -> None:
    feed, _ = played()
    async with running(recorded(), LARGE, feed=feed) as run:
        footer = run.lines()[-1]
        assert "block" not in footer
        assert "p play" in footer
        await run.go("sources")
        await run.press("b")
        assert run.dialog == "MainScreen"
        assert "no packets to preview a rule on" in run.status
        await run.press("1")
        assert run.dialog == "DetailsDialog", "what a proposal does can be read"
    for origin in ("capture", "session"):
        keys = KEY_MAP.footer(200, Here("packets", origin, readonly=True))
        assert "hold" not in [row.name for row in keys]


async def test_a_dialog_without_a_body_is_whole() -> None:
    async with running(snapshot(), (120, 40)) as run:
        run.app.push_screen(DetailsDialog("nothing", []))
        await run.settle()
        (frame,) = run.app.screen.query(Lines)
        assert [strip.text.strip() != "" for strip in frame._strips] == [True] * frame.box.height


async def test_the_key_that_opened_details_closes_them() -> None:
    effective = read_settings([ConfigText("screen.toml", '[keys]\nattacks = ["F5"]\n')])
    async with running(snapshot(), settings=effective) as run:
        await run.press("f5")
        assert run.dialog == "DetailsDialog"
        await run.press("f5")
        assert run.dialog == "MainScreen"


async def test_without_its_guardian_the_footer_offers_no_rule() -> None:
    async with running(replace(provisional(), guardian="lost: the socket closed"), LARGE) as run:
        footer = run.lines()[-1]
        assert not any(word in footer for word in ("block", "pick", "confirm", "remove", "all"))
        assert "help" in footer
        await run.press("b")
        assert "no rule can be changed: the guardian is lost" in run.status


async def test_a_set_is_whole_in_a_narrow_terminal() -> None:
    async with running(vectors(snapshot()), (60, 30)) as run:
        await run.press("A")
        assert run.dialog == "RuleDialog"
        assert "pps match now, clients hit 0.2 %" in run.text()


async def test_a_toast_says_nothing_twice() -> None:
    async with running(calm(), LARGE) as run:
        await run.send(replace(calm(), guardian="lost: the guardian does not answer", started=NOW))
        assert run.text().count("guardian lost: the guardian does not answer") == 1
        assert "guardian lost: guardian lost" not in run.text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "refusing 20.6k/s"),
        ({"early_drop": 90_000}, "evicting 30.0k/s"),
        ({"drop": 0, "early_drop": 0}, "full"),
        ({"count": 1_000, "seconds_to_full": None}, "not growing"),
        ({"count": 1_000, "seconds_to_full": None, "growth_per_s": -90.0}, "draining"),
        ({"count": 234_000, "seconds_to_full": None, "growth_per_s": -400.0}, "draining, normal in ~1 min"),
        ({"count": 1_000, "seconds_to_full": 30.0}, "filling, full in ~30 s"),
    ],
)
async def test_a_full_table_says_what_becomes_of_connections(changes: dict[str, object], words: str) -> None:
    shot = conntrack_full()
    assert shot.conntrack is not None
    async with running(replace(shot, conntrack=replace(shot.conntrack, **changes)), (120, 40)) as run:  # type: ignore[arg-type]
        (row,) = (line for line in run.lines() if "conntrack table" in line)
        assert f" {words} " in row


SYN = Match(protocol=6, dport=80, tcp_flags=(0x12, 0x02), ip_length=Range(40, 40))


@pytest.mark.parametrize(
    ("active", "wanted", "covers"),
    [
        (SYN, replace(SYN, family=4), True),
        (SYN, replace(SYN, sources=(Prefix.parse("192.0.2.1"),)), True),
        (replace(SYN, family=4), SYN, False),
        (SYN, replace(SYN, dport=443), False),
        (replace(SYN, sources=(Prefix.parse("192.0.2.1"),)), SYN, False),
    ],
)
def test_a_wider_rule_covers_a_narrower_one(active: Match, wanted: Match, covers: bool) -> None:
    def rule(match: Match, **changes: object) -> Rule:
        return replace(Rule("7", Kind.XDP, match, "", 600), **changes)  # type: ignore[arg-type]

    assert includes(rule(active), rule(wanted)) is covers
    assert not includes(rule(active, limit=RateLimit(100, 100, 24, 56)), rule(wanted))
    assert not includes(rule(active, kind=Kind.NOTRACK), rule(wanted))
    assert not includes(rule(Match(protocol=6), origin="asn:64500"), rule(wanted)), "of an unknown list"


async def test_a_lost_guardian_cuts_the_reason_and_never_what_helps() -> None:
    why = "lost: the guardian does not answer (it ended before it answered)"
    async with running(replace(provisional(), guardian=why), SMALL) as run:
        assert "quit and start fwtop again  rules expire by themselves" in run.text()
