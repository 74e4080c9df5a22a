"""Every key of the table does what its line says."""

from __future__ import annotations

import ast
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from screen_factory import SCENES, calm, provisional, snapshot, spoofed
from screen_fakes import FakeFeed
from screen_packets import flood
from screen_parts import joined, proposals
from screen_run import LARGE, SMALL, Run, running
from traffic_scene import spoofed_syns

from fwtop.dissect.client import Dissection, Layer
from fwtop.model.rule import Kind, Mode, Preview, Rule
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.actions import rule_dialog
from fwtop.ui.actions.dialog import key_lines, short_help
from fwtop.ui.actions.rule_dialog import RuleDialog
from fwtop.ui.keys import ACTIONS, KEY_MAP, Here, KeyMap, key_name
from fwtop.ui.tabs import TABS

Check = Callable[[Run, str], Awaitable[None]]
CHECKS: dict[str, tuple[Callable[[], Snapshot], Check, str]] = {}


def checks(
    action: str, scene: Callable[[], Snapshot] = snapshot, at: str = "sources"
) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS[action] = (scene, check, at)
        return check

    return register


def drafted(run: Run) -> Rule:
    assert isinstance(run.app.screen, RuleDialog)
    return run.app.screen.rule


@checks("block")
async def block(run: Run, key: str) -> None:
    await run.press(key)
    rule = drafted(run)
    assert (rule.kind, [str(prefix) for prefix in rule.match.sources]) == (Kind.IPSET, ["203.0.113.1"])


@checks("block_spared", spoofed_syns)
async def block_spared(run: Run, key: str) -> None:
    await run.press("v", "b")
    assert "B previews a block" in run.status
    await run.press(key)
    rule = drafted(run)
    assert (rule.kind, [str(prefix) for prefix in rule.match.sources]) == (Kind.IPSET, ["192.0.2.33"])


@checks("limit")
async def limit(run: Run, key: str) -> None:
    await run.go("ports")
    await run.press(key)
    rule = drafted(run)
    assert (rule.kind, rule.match.protocol, rule.match.dport) == (Kind.HASHLIMIT, 17, 27015)
    assert rule.limit is not None
    assert rule.limit.per_second == 1000


@checks("string")
async def string(run: Run, key: str) -> None:
    await run.press(key)
    assert "select a row of Payloads" in run.status
    await run.go("payloads")
    await run.press(key)
    rule = drafted(run)
    assert (rule.kind, rule.match.payload[0].offset) == (Kind.STRING, 0)


@checks("xdp")
async def xdp(run: Run, key: str) -> None:
    await run.go("ports")
    await run.press("down", key)
    rule = drafted(run)
    assert (rule.kind, rule.match.protocol, rule.match.sport) == (Kind.XDP, 17, 53)


@checks("notrack")
async def notrack(run: Run, key: str) -> None:
    await run.go("ports")
    await run.press(key)
    assert drafted(run).kind is Kind.NOTRACK


@checks("proposal")
async def proposal(run: Run, key: str) -> None:
    await run.press(key)
    if int(key) <= 3:
        assert drafted(run).created_by == f"proposal {key}"
    elif key == "4":
        assert "this machine can't carry out" in run.status
    else:
        assert run.status == f"there is no proposal {key}"


def two_attacks() -> Snapshot:
    shot = spoofed()
    first, second, *_ = shot.judgement.attacks
    offers = list(proposals())
    offers[0] = replace(offers[0], attack=first.title)
    offers[1] = replace(offers[1], attack=second.title)
    offers[2] = replace(offers[2], attack=second.title)
    return joined(replace(shot, judgement=replace(shot.judgement, proposals=tuple(offers))))


@checks("protect", two_attacks)
async def protect(run: Run, key: str) -> None:
    await run.press(key)
    assert run.dialog == "RuleDialog"
    asked = [rule for verb, rule in run.feed.controls.calls if verb == "preview"]
    assert [part.kind for part in asked[-1].parts] == [Kind.STRING, Kind.IPSET], "counted together, not added"
    assert "0.2 % of client-like packets" in run.text()
    await run.press("enter")
    installed = [value[0].kind for verb, value in run.feed.controls.calls if verb == "apply"]
    assert installed == [Kind.STRING, Kind.IPSET], "the best against each attack"


@checks("keep", provisional)
async def confirm(run: Run, key: str) -> None:
    await run.press(key)
    assert run.feed.controls.calls == [("keep", "7")]
    assert "rule 7 is confirmed" in run.status


@checks("undo", provisional)
async def undo(run: Run, key: str) -> None:
    await run.press(key)
    assert run.feed.controls.calls == [("undo", "7")], "the newest active rule goes first"
    assert "rule 7 was removed" in run.status


def overridden() -> Snapshot:
    shot = provisional()
    rule = replace(shot.mitigations[0], acting=False, not_acting="nothing jumps to chain FWTOP")
    return replace(shot, mitigations=(rule,))


@checks("repair", overridden)
async def repair(run: Run, key: str) -> None:
    assert "IS NOT IN EFFECT" in run.status
    await run.press(key)
    assert run.feed.controls.calls == [("repair", "7")]
    assert "rule 7 acts again" in run.status


@checks("go_rules", provisional)
async def rules(run: Run, key: str) -> None:
    await run.press(key)
    assert run.app.main.tabs.shown.name == "rules"
    assert run.app.main.tabs.panel.spec.name == "all_rules"


@checks("next_tab")
async def next_tab(run: Run, key: str) -> None:
    run.app.main.tabs.show("traffic")
    names = []
    for _ in TABS:
        await run.press(key)
        names.append(run.app.main.tabs.shown.name)
    place = [tab.name for tab in TABS].index("traffic") + 1
    assert names == [*(tab.name for tab in TABS[place:]), *(tab.name for tab in TABS[:place])]


@checks("previous_tab")
async def previous_tab(run: Run, key: str) -> None:
    run.app.main.tabs.show("traffic")
    await run.press(key)
    assert run.app.main.tabs.shown.name == "overview"


@checks("unscope", at="attacks")
async def unscope(run: Run, key: str) -> None:
    await run.press("enter")
    assert "only A" in run.text()
    await run.press(key)
    assert "only A" not in run.text()
    assert run.status == "all attacks"


@checks("extend", provisional)
async def extend(run: Run, key: str) -> None:
    await run.press(key, "tab", "enter")
    assert run.feed.controls.calls == [("keep", ("7", 1800))], "the newest active rule goes first"
    assert "rule 7 is extended" in run.status


@checks("mode", provisional)
async def mode(run: Run, key: str) -> None:
    await run.press(key)
    assert run.feed.controls.calls == [("mode", ("7", Mode.COUNT))]
    assert "rule 7 counts only" in run.status
    await run.press(key, "tab", "enter")
    assert run.feed.controls.calls[1:] == [("mode", ("7", Mode.DROP))], "after a question"
    assert "rule 7 drops" in run.status


@checks("change", provisional)
async def change(run: Run, key: str) -> None:
    await run.press(key)
    rule = drafted(run)
    assert (rule.id, rule.created_by, len(rule.match.sources)) == ("", "change of rule 7", 3)


@checks("why", provisional)
async def why(run: Run, key: str) -> None:
    await run.press(key)
    assert run.feed.controls.calls == [("why", "7")]
    assert "rule 5 stands above it and takes the same packets." in run.text()


@checks("up")
async def up(run: Run, key: str) -> None:
    await run.press("down", "down", key)
    assert run.selected_key() == "203.0.113.2"


@checks("down")
async def down(run: Run, key: str) -> None:
    await run.press(key)
    assert run.selected_key() == "203.0.113.2"


@checks("page_up")
async def page_up(run: Run, key: str) -> None:
    await run.press("end", key)
    assert run.selected_key() == run.app.main.tabs.panel.rows.items[39 - run.app.main.tabs.panel.page].key


@checks("page_down")
async def page_down(run: Run, key: str) -> None:
    page = run.app.main.tabs.panel.page
    await run.press(key)
    assert run.selected_key() == run.app.main.tabs.panel.rows.items[page].key


@checks("graph", at="attacks")
async def graph(run: Run, key: str) -> None:
    assert "now  g pps" in run.text()
    await run.press(key)
    assert "now  g bit/s ~" in run.text()
    assert "estimated" in run.status
    await run.press(key)
    assert "now  g pps" in run.text()


@checks("top")
async def top(run: Run, key: str) -> None:
    await run.press("down", key)
    assert run.selected_key() == "203.0.113.1"
    assert run.app.main.tabs.panel.rows.followed


@checks("bottom")
async def bottom(run: Run, key: str) -> None:
    await run.press(key)
    assert run.selected_key() == "203.0.113.40"


@checks("next_panel")
async def next_panel(run: Run, key: str) -> None:
    run.app.main.tabs.show("traffic")
    names = []
    for _ in range(3):
        await run.press(key)
        names.append(run.app.main.tabs.panel.spec.name)
    assert names == ["ports", "payloads", "sources"]


@checks("previous_panel")
async def previous_panel(run: Run, key: str) -> None:
    run.app.main.tabs.show("traffic")
    await run.press(key)
    assert run.app.main.tabs.panel.spec.name == "payloads"


@checks("view")
async def view(run: Run, key: str) -> None:
    names = []
    for _ in range(8):
        await run.press(key)
        names.append(run.app.main.tabs.panel.view.name)
    assert names == ["prefix", "asn", "country", "destination", "port", "payload", "signature", "address"]


@checks("details")
async def details(run: Run, key: str) -> None:
    layer = Layer("UDP", (("dport", "4444"), ("a long name", "x")))
    run.feed.controls.dissection = Dissection((layer,), "and no more")
    await run.press(key)
    assert run.dialog == "DetailsDialog"
    await run.until(lambda: "and no more" in run.text())
    for text in ("AS64501 Documentation Networks", "4444", "a long name: x"):
        assert text in run.text()
    await run.press("escape")
    assert run.app.screen is run.app.main


@checks("open")
async def opened(run: Run, key: str) -> None:
    await run.press(key)
    assert run.app.main.tabs.packet_panel.book.text == "ip.src == 203.0.113.1"
    await run.press("escape")
    assert run.app.main.tabs.panel.spec.name == "sources"
    await run.go("proposals")
    await run.press("down", key)
    assert run.app.main.tabs.panel.spec.name == "proposals"
    assert run.dialog == "RuleDialog"
    assert "preview of proposal 2" in run.text()


@checks("redo", provisional)
async def redo(run: Run, key: str) -> None:
    await run.press(key)
    assert "no rule was removed" in run.status
    await run.press("u")
    assert "Ctrl+R installs it again" in run.status
    await run.send(snapshot())
    await run.press(key)
    assert run.dialog == "RuleDialog"
    await run.press("enter")
    assert run.feed.controls.verbs()[-1] == "apply"


@checks("was_attack", at="attacks")
async def was_attack(run: Run, key: str) -> None:
    await run.press(key)
    assert run.feed.controls.calls[-1] == ("teach", ("attack", snapshot().judgement.attacks[0].id))
    assert "U takes it back" in run.status


@checks("is_normal")
async def is_normal(run: Run, key: str) -> None:
    await run.press(key)
    assert run.feed.controls.calls[-1] == ("teach", ("normal", None))


@checks("unlearn")
async def unlearn(run: Run, key: str) -> None:
    await run.press(key)
    assert run.feed.controls.calls[-1] == ("teach", ("back", None))
    assert run.status.startswith("back was heard")


@checks("attacks")
async def attacks(run: Run, key: str) -> None:
    await run.press(key)
    assert "71 % of the packets begin with the same 13 bytes" in run.text()


@checks("filter")
async def filtered(run: Run, key: str) -> None:
    await run.press(key, *"bq", "backspace", "r")
    assert run.app.main.tabs.panel.rows.filter == "br", "letters go to the filter, not to the keys"
    assert not run.feed.controls.calls
    await run.press("enter")
    assert {row.country for row in run.app.main.tabs.panel.rows.items} == {"BR"}
    assert "hides" in run.text()
    await run.press("escape")
    assert len(run.app.main.tabs.panel.rows.items) == 40


@checks("sort")
async def sort(run: Run, key: str) -> None:
    await run.press(key, key, key)
    assert run.app.main.tabs.panel.rows.sort_name == "name"
    assert run.app.main.tabs.panel.rows.items[0].key == "2001:db8:15::15"


@checks("mouse")
async def mouse(run: Run, key: str) -> None:
    await run.press(key)
    assert run.status == "this terminal has no mouse", "a test's; test_screen_terminal has one"


@checks("copy")
async def copy(run: Run, key: str) -> None:
    await run.press(key)
    assert run.status == "copied, if the terminal allows it: 203.0.113.1"


@checks("pause")
async def pause(run: Run, key: str) -> None:
    await run.press(key)
    assert "PAUSED" in run.lines()[0]
    verdict, listed = run.lines()[1], run.lines()[10:18]
    await run.send(spoofed())
    assert run.lines()[1] != verdict
    assert run.lines()[10:18] == listed
    await run.press(key)
    await run.send(spoofed())
    assert "PAUSED" not in run.lines()[0]
    assert run.lines()[10:18] != listed


@checks("next_step")
@checks("previous_step")
@checks("faster")
@checks("slower")
@checks("next_event")
@checks("previous_event")
async def played(run: Run, key: str) -> None:
    await run.press(key)
    assert "recordings" in run.status, "test_screen_player.py plays one"


@checks("like")
@checks("next_alike")
@checks("previous_alike")
@checks("write_packets")
@checks("hold")
async def packets(run: Run, key: str) -> None:
    run.feed.controls.recent = flood()
    await run.press(*":packets", "enter", key)
    assert run.app.main.tabs.shown.name == "packets", "test_screen_packets.py tries what they do there"


@checks("command")
async def command(run: Run, key: str) -> None:
    await run.press(key, *"rules", "enter")
    assert run.app.main.tabs.shown.name == "rules"


@checks("export")
async def export(run: Run, key: str) -> None:
    await run.press(key, "tab", "enter")
    assert run.feed.controls.calls == [("export", "md")]
    assert run.status == "written to /var/lib/fwtop/report.md"


@checks("help")
async def helped(run: Run, key: str) -> None:
    await run.press(key)
    assert all(ask in run.text() for ask in ("What hits me?", "How much reaches me?", "What do I press?"))
    assert "preview the proposal of that number" in run.text()
    await run.press(key)
    assert re.search(r"keys for (Overview|Traffic): Traffic", run.text())
    assert "block the selected row" in run.text(), "works on this row"
    assert "confirm the unconfirmed rules" not in run.text(), "there are none"
    await run.press(key)
    assert "all keys" in run.text()
    await run.press(key)
    assert run.dialog == "MainScreen"


@checks("quit")
async def leave(run: Run, key: str) -> None:
    await run.press(key)
    assert run.app.return_code == 0


def test_every_action_of_the_table_is_checked() -> None:
    assert set(CHECKS) == {row.name for row in ACTIONS if row.keys}


@pytest.mark.parametrize(("action", "key"), [(row.name, key) for row in ACTIONS for key in row.keys])
async def test_each_key_does_what_its_action_says(action: str, key: str) -> None:
    scene, check, at = CHECKS[action]
    async with running(scene(), SMALL) as run:
        await run.go(at)
        await check(run, key)


def test_a_key_means_one_thing_on_a_tab() -> None:
    names = [(key, row.tab) for row in ACTIONS for key in row.keys]
    assert len(names) == len(set(names))


def test_help_names_every_labelled_key_and_fits_80_columns() -> None:
    written = "\n".join("".join(text for text, _ in line) for line in key_lines(lambda _: True))
    assert all(row.label in written and row.help in written for row in ACTIONS if row.label)
    written += "\n" + "\n".join("".join(text for text, _ in line) for line in short_help())
    assert max(len(line) for line in written.splitlines()) <= 76


async def test_who_is_new_is_told_once_what_to_do_in_an_attack() -> None:
    feed = FakeFeed()
    feed.is_new = True
    async with running(calm(), feed=feed) as run:
        assert run.status == "In an attack: 1…9 preview a defence, Enter tries it for 30 s, y keeps it"
        await run.press("down")
        assert "In an attack" not in run.text()
    assert not feed.is_new, "it is remembered"
    async with running(calm(), feed=feed) as run:
        assert "In an attack" not in run.text()


@pytest.mark.parametrize("width", [60, 80, 132, 200])
@pytest.mark.parametrize("has", [(), ("trial", "rule", "any_rule", "row", "packet", "like")])
@pytest.mark.parametrize("tab", [tab.name for tab in TABS])
def test_footer_fits_and_shows_the_way_out(tab: str, width: int, has: tuple[str, ...]) -> None:
    shown = KEY_MAP.footer(width, Here(tab, has=frozenset(("block", *has))))
    assert {"help", "quit"} <= {row.name for row in shown}
    assert tab != "overview" or "block" in {row.name for row in shown}
    assert ("keep" in {row.name for row in shown}) is bool(has)
    assert sum(len(row.label) + len(row.footer) + 3 for row in shown) <= width


def _seen(run: Run) -> tuple[object, ...]:
    """All that a key may change, but for the status line, which also says why a key does nothing."""
    main = run.app.main
    return (run.lines()[:-2], run.dialog, main.tabs.focused, main.tabs.filter_line.display, run.app._exit,
            len(run.feed.controls.calls), main.session.paused, main.tabs.panel.rows.sort_name)  # fmt: skip


OFFERING: dict[str, Callable[[], Snapshot]] = {
    "calm": calm,
    "vectors": SCENES["vectors"],
    "trial": SCENES["trial"],
    "readonly": provisional,
    "lost": lambda: replace(provisional(), guardian="lost: the socket closed"),
}


@pytest.mark.one_each(
    "calm-log",
    "vectors-overview",
    "vectors-trends",
    "trial-rules",
    "trial-packets",
    "readonly-path",
    "lost-traffic",
)  # those with most keys
@pytest.mark.parametrize("tab", [tab.name for tab in TABS])
@pytest.mark.parametrize("state", OFFERING)
async def test_every_key_of_the_footer_does_something(state: str, tab: str) -> None:
    feed, shot = FakeFeed(), OFFERING[state]()
    feed.controls.recent = flood(60)
    feed.controls.readonly = "started with --readonly" if state == "readonly" else ""
    async with running(shot, SMALL, feed=feed) as run:
        main = run.app.main
        main.tabs.show(tab)
        if tab == "packets":
            await run.until(lambda: bool(main.tabs.packet_panel.rows.items))
        panels = main.tabs.reachable()
        for panel in panels:
            await run.go(panel) if len(panels) > 1 else None
            main.tabs.show(tab)
            await run.settle()
            for row in KEY_MAP.footer(LARGE[0], main.view.here()):
                if row.name in ("quit", "next_alike") or not KEY_MAP.works(row, main.view.here()):
                    continue
                before = _seen(run)
                await run.press(row.keys[0])
                done = run.status
                said = any(words in done for words in ("written", "graph"))
                assert said or _seen(run) != before, f"{row.name} on {panel}: {done}"
                await run.press_at_once("escape", "escape")
                if main.session.paused:
                    await run.press("p")
                main.tabs.show(tab)
                await run.go(panel) if len(panels) > 1 else None
                await run.send(shot)


@pytest.mark.one_each("harm", "trial")
@pytest.mark.parametrize("scene", sorted(SCENES))
async def test_no_key_breaks_any_scene(scene: str) -> None:
    async with running(SCENES[scene](), LARGE if scene in ("spoofed", "trial") else SMALL) as run:
        for row in ACTIONS:
            if row.name == "quit":
                continue
            for key in row.keys:
                await run.press(key, "escape")
        assert run.app.is_running
    assert calm().judgement.attacks == ()


@pytest.mark.parametrize(
    ("first", "second", "installed"),
    [
        ((0.99, 0.96), (0.0, 1.0), [Kind.STRING]),
        ((0.99, 0.5), (0.0, 1.0), [Kind.STRING, Kind.IPSET]),
        ((0.99, 0.5), (1.0, 0.5), [Kind.STRING]),
    ],
)
async def test_a_set_leaves_out_what_its_rules_stop_without_it(
    first: tuple[float, float], second: tuple[float, float], installed: list[Kind]
) -> None:
    """Shares of two attacks that the first and the second rule stop."""
    feed = FakeFeed()
    answers = {Kind.STRING: first, Kind.IPSET: second}

    async def preview(rule: Rule) -> Preview:
        shares = tuple(zip(("SYN flood", "UDP flood"), answers.get(rule.kind, first), strict=True))
        return replace(feed.controls.preview_answer, attacks=shares)

    feed.controls.preview = preview  # type: ignore[method-assign]
    async with running(two_attacks(), feed=feed) as run:
        await run.press("A")
        assert ("left out: the rules above stop what it would" in run.text()) == (len(installed) == 1)
        await run.press("enter")
        assert [value[0].kind for verb, value in feed.controls.calls if verb == "apply"] == installed


async def test_a_set_leaves_out_what_active_rules_stop() -> None:
    feed = FakeFeed()
    attacks, active = (("SYN flood", 0.99), ("UDP flood", 1.0)), (("SYN flood", 0.98),)
    together = (("SYN flood", 0.995),)

    async def preview(rule: Rule) -> Preview:
        mine = attacks[:1] if rule.kind is Kind.STRING else attacks[1:]
        return replace(feed.controls.preview_answer, attacks=mine, already=active, together=together)

    feed.controls.preview = preview  # type: ignore[method-assign]
    async with running(two_attacks(), feed=feed) as run:
        await run.press("A")
        assert "left out: active rules stop what it would" in run.text()
        assert "99.5 % of SYN flood" in run.text()
        await run.press("enter")
        assert [value[0].kind for verb, value in feed.controls.calls if verb == "apply"] == [Kind.IPSET]


def _stored(shot: Snapshot) -> Snapshot:
    return replace(shot, origin=replace(shot.origin, kind="session", file="s.db"))


@pytest.mark.parametrize(
    ("scene", "readonly"),
    [
        *((scene, "") for scene in ("calm", "few_sources", "vectors", "harm", "poison", "stored")),
        *((scene, "started with --readonly") for scene in ("spoofed", "vectors", "trial", "stored")),
    ],
)
async def test_every_key_that_the_screen_names_is_bound_there(
    scene: str, readonly: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of another tab, or one that read-only or a recording refuses, is never offered."""
    shot = _stored(provisional()) if scene == "stored" else SCENES[scene]()
    feed, named = FakeFeed(), set[str]()
    feed.controls.readonly = readonly
    label = type(KEY_MAP).label

    def noted(table: KeyMap, name: str) -> str:
        named.add(name)
        return label(table, name)

    monkeypatch.setattr(KeyMap, "label", noted)
    async with running(shot, LARGE, feed=feed) as run:
        main = run.app.main
        for tab in TABS:
            main.tabs.show(tab.name)
            await run.settle()
            named.clear()
            main.view.redraw()
            here = main.view.here()
            assert named, "the line of the tabs names keys"
            for row in (KEY_MAP[name] for name in named):
                bound = KEY_MAP.action(row.keys[0], tab.name) is row
                refused = here.origin in row.useless.split() or (row.changes and bool(readonly))
                assert bound, f"{row.name} is named on {tab.name}, where its key does something else"
                assert not refused, f"{row.name} is named on {tab.name}, where it says why it does nothing"


@pytest.mark.parametrize("size", [SMALL, (120, 40), LARGE])
@pytest.mark.parametrize("scene", ["calm", "vectors"])
async def test_where_a_view_is_offered_its_key_turns_one_of_this_tab(
    scene: str, size: tuple[int, int]
) -> None:
    offered = set()
    async with running(SCENES[scene](), size) as run:
        tabs = run.app.main.tabs
        for tab in TABS:
            tabs.show(tab.name)
            await run.settle()
            if not any(row.name == "view" for row in KEY_MAP.footer(250, run.app.main.view.here())):
                continue
            offered.add(tab.name)
            before = {name: panel.view.name for name, panel in tabs.panels.items()}
            await run.press("v")
            assert tabs.shown is tab
            assert [name for name, panel in tabs.panels.items() if panel.view.name != before[name]] == [
                tabs.focused
            ]
    assert offered - {"overview"} == {"traffic", "trends"}


_ASKED = re.compile(r"(?:[Pp]ress|[Kk]ey|[Kk]eys) `([^`]{1,8})`")
_LITERAL = re.compile(
    r"(?<![\w{'%])([A-Za-z*+]|Ctrl\+\w) "
    r"(?:adds|blocks|closes|confirms|drops|ends|folds|goes|holds|installs|keeps|previews|removes|restores|says|"
    r"shows|starts|stops|takes|unfolds)\b"
)


def test_keys_that_texts_and_documents_name_are_bound() -> None:
    """Texts get their keys from the table, which settings change; documents name those it begins with."""
    root = Path(__file__).parents[2]
    bound = {key for row in ACTIONS for key in row.keys}
    bound |= {binding.key for name in vars(rule_dialog).values() for binding in getattr(name, "BINDINGS", ())}
    pages = [root / "README.md", root / "CHANGELOG.md", *(root / "docs").glob("*.md")]
    asked = [(page.name, key) for page in pages for key in _ASKED.findall(page.read_text())]
    assert len(asked) > 3
    assert not [found for found in asked if key_name(found[1]) not in bound]
    literals = [
        (path.name, node.value)
        for path in (root / "fwtop" / "ui").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _LITERAL.search(node.value)
    ]
    assert not literals
