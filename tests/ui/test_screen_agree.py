"""One quantity is one number: whatever the screen says twice at one moment agrees, in every scene."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from screen_factory import SCENES, harm, later, snapshot, trial
from screen_parts import NOW
from screen_past import remembering
from screen_run import LARGE, SMALL, Run

from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.session import flow_of
from fwtop.model.traffic.snapshot import LedgerRow, Snapshot
from fwtop.ui.format import number

_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_VALUE = r"([\d.]+)([kMG]?)"
# What stands at several places: the quantity, and how each place writes it.
_SAID = {
    "arrives": (r"arrives {}", r"NIC +█+ +{}"),
    "reaches you": (r"REACHES(?: YOU)? {}", r"accepted +█+ +{}"),
    "clients": (r"│ clients {}/s", r"→ {}/s(?= since)", r"now {}/s"),
    "rule 8": (r"rule 8 drops {}", r"my rules {}", r"(?m)^[▸▹ ]+8 .*? {} +[\d.]+[kMG]? +[\d.]+[kMG]?\s*$"),
    "conntrack": (r"conntrack +{} %", r"{} % full"),
    "UDP flood": (r"UDP flood.*? {} pps", r"(?m)A +UDP flood +\S+ +\S+ +{}"),
}


def values(text: str, name: str) -> set[float]:
    patterns = [re.compile(pattern.replace("{}", _VALUE)) for pattern in _SAID[name]]
    found = [match.groups() for pattern in patterns for match in pattern.finditer(text)]
    return {float(digits) * _UNITS[unit] for digits, unit in found}


def lost() -> Snapshot:
    base = SCENES["few_sources"]()
    rate = base.tables.totals.pps
    parts = (("socket", "SOCKET_RCVBUFF", 0.3), ("ip", "NO_SOCKET", 0.1), ("delivered", "accepted", 0.6))
    book = tuple(LedgerRow(layer, why, round(3 * part * rate), part * rate) for layer, why, part in parts)
    return replace(base, tables=replace(base.tables, ledger=book))


ALL = {**SCENES, "harm_trial": lambda: harm(trial()), "lost": lost}


async def shown(run: Run) -> dict[str, str]:
    texts = {}
    for tab in ("overview", "path", "rules"):
        run.app.main.tabs.show(tab)
        await run.settle()
        texts[tab] = run.text()
    return texts


def disagreeing(text: str) -> Iterator[tuple[str, set[float]]]:
    for name in _SAID:
        found = values(text, name)
        if found and max(found) - min(found) > 0.006 * max(found):  # three digits
            yield name, found


@pytest.mark.one_each
@pytest.mark.parametrize("size", [SMALL, (120, 40), LARGE])
@pytest.mark.parametrize("scene", ALL)
async def test_what_is_said_twice_agrees(scene: str, size: tuple[int, int]) -> None:
    shot = ALL[scene]()
    async with remembering(shot, size) as run:
        texts = await shown(run)
    assert not list(disagreeing("\n".join(texts.values())))
    for name in ("arrives", "reaches you"):
        assert values(texts["overview"], name) | values(texts["path"], name), "it is said"
    flow = flow_of(shot)
    assert flow is not None
    header = texts["path"].splitlines()[2]
    if flow.lost > 0:
        assert re.search(rf"lost( at [\w ]+)? {re.escape(number(flow.lost))}|lost\+rest ", header)
    _, *parts = header.split("│")
    found = [
        re.search(rf"^ \D+ {_VALUE} ", part) for part in parts if not re.match(" (clients|known|hand)", part)
    ]
    sizes = [float(one[1]) * _UNITS[one[2]] for one in found if one]
    assert sum(sizes) == pytest.approx(flow.arrives, rel=0.01), "the parts add up"


@pytest.mark.parametrize("size", [SMALL, (120, 40), LARGE])
async def test_a_rule_that_was_taken_back_is_of_the_past_and_the_header_of_now(size: tuple[int, int]) -> None:
    """The alarm once said "→ 0/s" as if it were so, beside 44/s in the header."""
    async with remembering(harm(trial()), size) as run:
        before = run.text()
        assert values(before, "clients") == {0.0}
        run.clock[0] = NOW + 3
        await run.send(replace(later(snapshot(), 3.0), tcp=TcpService(2, 44.0, 1_200.0)))
        text = run.text()
    assert "with it clients of 80/tcp 105/s → 0/s." in text
    assert values(text, "clients") == {44.0}
