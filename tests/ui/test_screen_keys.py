"""Every key of the table does what its line says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from screen_factory import SCENES, calm, provisional, snapshot
from screen_run import LARGE, SMALL, Run, running

from fwtop.model.rule import Kind, Rule
from fwtop.model.snapshot import Snapshot
from fwtop.ui.keys import KEYS, footer_keys
from fwtop.ui.rule_sheet import RuleSheet
from fwtop.ui.sheets import help_lines

Check = Callable[[Run, str], Awaitable[None]]
CHECKS: dict[str, tuple[Callable[[], Snapshot], Check]] = {}


def checks(action: str, scene: Callable[[], Snapshot] = snapshot) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS[action] = (scene, check)
        return check

    return register


def drafted(run: Run) -> Rule:
    assert isinstance(run.app.screen, RuleSheet)
    return run.app.screen.rule


@checks("draft('block')")
async def block(run: Run, key: str) -> None:
    await run.press(key)
    rule = drafted(run)
    assert (rule.kind, [str(prefix) for prefix in rule.match.sources]) == (Kind.IPSET, ["203.0.113.1"])


@checks("draft('limit')")
async def limit(run: Run, key: str) -> None:
    await run.press("tab", key)
    rule = drafted(run)
    assert (rule.kind, rule.match.protocol, rule.match.dport) == (Kind.HASHLIMIT, 17, 27015)
    assert rule.limit is not None
    assert rule.limit.per_second == 1000


@checks("draft('string')")
async def string(run: Run, key: str) -> None:
    await run.press(key)
    assert "select a row of Payloads" in run.status
    await run.press("tab", "tab", key)
    rule = drafted(run)
    assert (rule.kind, rule.match.payload[0].offset) == (Kind.STRING, 0)


@checks("draft('xdp')")
async def xdp(run: Run, key: str) -> None:
    await run.press("tab", "down", key)
    rule = drafted(run)
    assert (rule.kind, rule.match.protocol, rule.match.sport) == (Kind.XDP, 17, 53)


@checks("draft('notrack')")
async def notrack(run: Run, key: str) -> None:
    await run.press("tab", key)
    assert drafted(run).kind is Kind.NOTRACK


@checks("proposal")
async def proposal(run: Run, key: str) -> None:
    await run.press(key)
    if int(key) <= 3:
        assert drafted(run).created_by == f"proposal {key}"
    elif key == "4":
        assert "not something this machine can do" in run.status
    else:
        assert run.status == f"there is no proposal {key}"


@checks("confirm", provisional)
async def confirm(run: Run, key: str) -> None:
    await run.press(key)
    assert run.feed.controls.calls == [("keep", "7")]
    assert "rule 7 is confirmed" in run.status


@checks("undo", provisional)
async def undo(run: Run, key: str) -> None:
    await run.press(key)
    assert run.feed.controls.calls == [("undo", "7")], "the newest active rule goes first"
    assert "rule 7 was taken back" in run.status


@checks("rules", provisional)
async def rules(run: Run, key: str) -> None:
    await run.press(key)
    assert run.dialog == "RulesScreen"


@checks("extend", provisional)
async def extend(run: Run, key: str) -> None:
    await run.press(key, "tab", "enter")
    assert run.feed.controls.calls == [("keep", ("7", 1800))], "the newest active rule goes first"
    assert "rule 7 is extended" in run.status


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


@checks("move(-1)")
async def up(run: Run, key: str) -> None:
    await run.press("down", "down", key)
    assert run.selected_key() == "203.0.113.2"


@checks("move(1)")
async def down(run: Run, key: str) -> None:
    await run.press(key)
    assert run.selected_key() == "203.0.113.2"


@checks("page(-1)")
async def page_up(run: Run, key: str) -> None:
    await run.press("end", key)
    assert run.selected_key() == "203.0.113.30"


@checks("page(1)")
async def page_down(run: Run, key: str) -> None:
    await run.press(key)
    assert run.selected_key() == "203.0.113.11"


@checks("top")
async def top(run: Run, key: str) -> None:
    await run.press("down", key)
    assert run.selected_key() == "203.0.113.1"
    assert run.app.main.panel.rows.followed


@checks("bottom")
async def bottom(run: Run, key: str) -> None:
    await run.press(key)
    assert run.selected_key() == "203.0.113.40"


@checks("panel(1)")
async def next_panel(run: Run, key: str) -> None:
    names = []
    for _ in range(7):
        await run.press(key)
        names.append(run.app.main.panel.spec.name)
    assert names == ["ports", "payloads", "ledger", "conntrack", "proposals", "rules", "sources"]


@checks("panel(-1)")
async def previous_panel(run: Run, key: str) -> None:
    await run.press(key)
    assert run.app.main.panel.spec.name == "rules"


@checks("view")
async def view(run: Run, key: str) -> None:
    names = []
    for _ in range(4):
        await run.press(key)
        names.append(run.app.main.panel.view.name)
    assert names == ["prefix", "asn", "country", "address"]


@checks("details")
async def details(run: Run, key: str) -> None:
    await run.press(key)
    assert run.dialog == "FactsSheet"
    assert "AS64501 Documentation Networks" in run.text()
    await run.press("escape")
    assert run.app.screen is run.app.main


@checks("attacks")
async def attacks(run: Run, key: str) -> None:
    await run.press(key)
    assert "71 % of the packets begin with the same 13 bytes" in run.text()


@checks("filter")
async def filtered(run: Run, key: str) -> None:
    await run.press(key, *"bq", "backspace", "r")
    assert run.app.main.panel.rows.filter == "br", "letters go to the filter, not to the keys"
    assert not run.feed.controls.calls
    await run.press("enter")
    assert {row.country for row in run.app.main.panel.rows.items} == {"BR"}
    assert "hidden" in run.text()
    await run.press("escape")
    assert len(run.app.main.panel.rows.items) == 40


@checks("sort")
async def sort(run: Run, key: str) -> None:
    await run.press(key, key, key)
    assert run.app.main.panel.rows.sort_name == "name"
    assert run.app.main.panel.rows.items[0].key == "2001:db8:15::15"


@checks("pause")
async def pause(run: Run, key: str) -> None:
    await run.press(key)
    assert run.feed.paused == [True]
    assert "PAUSED" in run.lines()[0]
    await run.press(key)
    assert run.feed.paused == [True, False]
    assert "PAUSED" not in run.lines()[0]


@checks("export")
async def export(run: Run, key: str) -> None:
    await run.press(key, "tab", "enter")
    assert run.feed.controls.calls == [("export", "md")]
    assert run.status == "written to /var/lib/fwtop/report.md"


@checks("help")
async def helped(run: Run, key: str) -> None:
    await run.press(key)
    assert "this page" in "\n".join(text for line in help_lines() for text, _ in line)
    assert "block what is selected" in run.text()


@checks("leave")
async def leave(run: Run, key: str) -> None:
    await run.press(key)
    assert run.app.return_code == 0


def test_every_action_of_the_table_is_checked() -> None:
    assert set(CHECKS) == {row.action for row in KEYS}


@pytest.mark.parametrize(("action", "key"), [(row.action, key) for row in KEYS for key in row.keys])
async def test_key(action: str, key: str) -> None:
    scene, check = CHECKS[action]
    async with running(scene(), SMALL) as run:
        await check(run, key)


def test_keys_are_bound_once() -> None:
    names = [key for row in KEYS for key in row.keys]
    assert len(names) == len(set(names))


def test_help_names_every_labelled_key_and_fits_80_columns() -> None:
    written = "\n".join("".join(text for text, _ in line) for line in help_lines())
    assert all(row.label in written and row.help in written for row in KEYS if row.label)
    assert max(len(line) for line in written.splitlines()) <= 76


@pytest.mark.parametrize("width", [60, 80, 132, 200])
@pytest.mark.parametrize("pending", [False, True])
def test_footer_fits_and_shows_the_way_out(width: int, pending: bool) -> None:
    shown = footer_keys(width, pending=pending)
    assert {"help", "leave", "draft('block')"} <= {row.action for row, _ in shown}
    assert ("confirm" in {row.action for row, _ in shown}) is pending
    assert sum(len(row.label) + len(word) + 3 for row, word in shown) <= width


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("scene", sorted(SCENES))
async def test_no_key_breaks_any_scene(scene: str, size: tuple[int, int]) -> None:
    async with running(SCENES[scene](), size) as run:
        for row in KEYS:
            if row.action == "leave":
                continue
            for key in row.keys:
                await run.press(key, "escape")
        assert run.app.is_running
    assert calm().judgement.attacks == ()
