"""What says nothing isn't shown: unknown columns, empty lists, ranks of forged sources; and what can't be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from screen_factory import SCENES, calm, snapshot, spoofed, trial
from screen_parts import NOW, attack, share
from screen_run import LARGE, SMALL, running
from screen_vectors import vectors
from test_screen_player import STATE

from fwtop.model.traffic.snapshot import Port, Sampling, Snapshot
from fwtop.render.rows import ROW_TYPES
from fwtop.render.rows.field import Unit
from fwtop.ui.bars import time_bar
from fwtop.ui.format import shortened
from fwtop.ui.header.lines import HeaderState, header_lines, verdict_line
from fwtop.ui.lists.history import History
from fwtop.ui.lists.table import WRITTEN
from fwtop.ui.lists.traffic import traffic_items
from fwtop.ui.style import Line


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def test_forged_sources_have_no_rank_by_country_or_network() -> None:
    for view in ("asn", "country"):
        assert traffic_items(snapshot(), view)
        assert not traffic_items(spoofed(), view)
    few = replace(spoofed().judgement, attacks=(attack(spoofed=True, share=0.1),))
    assert traffic_items(replace(spoofed(), judgement=few), "address")


async def test_the_empty_rank_says_why() -> None:
    async with running(spoofed(), (120, 40)) as run:
        run.app.main.tabs.panels["sources"].show_view("country")
        await run.settle()
        assert "no country is known; forged sources have none" in run.text()


async def test_columns_without_any_figure_are_left_out() -> None:
    async with running(snapshot(), LARGE) as run:
        assert "CPU/pkt" not in run.text(), "not measured"
        assert "ns a packet" not in run.text()
        assert "trend 5m" not in run.text(), "less than a minute"
        assert "±95 %" not in run.text(), "on the Overview"
        assert "rules ready" not in run.text()
        await run.press("]")
        assert "±95 %" in run.text()
    proposals = [replace(item, cost_measured=True) for item in snapshot().judgement.proposals]
    measured = replace(snapshot().judgement, proposals=tuple(proposals))
    async with running(snapshot(judgement=measured), LARGE) as run:
        assert "CPU/pkt" in run.text()
        assert "410 ns a packet" in run.text()


async def test_a_list_of_what_is_folded_alone_has_no_columns_of_others() -> None:
    shown = vectors(snapshot())
    reliefs = tuple(one for one in shown.judgement.proposals if one.kind in ("notrack", "sysctl"))
    async with running(replace(shown, judgement=replace(shown.judgement, proposals=reliefs))) as run:
        assert "relief: " in run.text()
        assert "CPU/pkt" not in run.text()


@pytest.mark.parametrize("size", [SMALL, (120, 40), LARGE])
async def test_a_list_of_payloads_without_any_has_no_place(size: tuple[int, int]) -> None:
    shown = snapshot()
    none = replace(shown, tables=replace(shown.tables, payloads=()))
    none = replace(none, judgement=replace(none.judgement, payloads=()))
    async with running(none, size) as run:
        await run.press("]")
        assert "Payloads" not in run.text()
        await run.send(shown)
        assert "Payloads" in run.text()
        await run.send(none)
        assert "Payloads" in run.text(), "it stays while the attack goes on"
        await run.send(replace(calm(), tables=none.tables, judgement=replace(calm().judgement, payloads=())))
        assert "Payloads" not in run.text()


def test_source_ports_of_clients_are_not_listed() -> None:
    ports = (Port("tcp", "src", 41822, None, share(0.3)), Port("udp", "src", 53, "domain", share(0.2)))
    ports += (Port("tcp", "dst", 41822, None, share(0.3)),)
    shown = replace(snapshot(), tables=replace(snapshot().tables, ports=ports))
    assert traffic_items(shown, "port") == [*ports[1:]]


@pytest.mark.parametrize(
    ("one_in", "words"),
    [(1.0, "every packet"), (1.02, "nearly every packet"), (1.3, "sample 1:1.3"), (4e5, "sample 1:400k")],
)
def test_sampling_is_told_in_words_that_mean_something(one_in: float, words: str) -> None:
    shown = snapshot()
    tables = replace(shown.tables, sampling=Sampling(one_in, 100, 0))
    first = text(header_lines(replace(shown, tables=tables), History(), HeaderState(NOW), 120)[0])
    assert f" {words} " in first


def test_nothing_equals_a_bound() -> None:
    for scene in (trial, *SCENES.values()):
        shown: Snapshot = scene()
        rules = tuple(replace(item, pps=shown.tables.totals.pps) for item in shown.mitigations)
        line = text(verdict_line(replace(shown, mitigations=rules), HeaderState(NOW), 200, []))
        assert "= >" not in line
        assert "= <" not in line


def test_a_recording_offers_what_it_can_do() -> None:
    ended = replace(STATE, playing=False, position=STATE.ends)
    for state, key in ((STATE, "p pause"), (replace(STATE, playing=False), "p play"), (ended, "")):
        shown = text(time_bar(state, 200))
        assert [word for word in ("p pause", "p play") if word in shown] == ([key] if key else [])


@pytest.mark.parametrize(
    ("title", "width", "short"),
    [
        ("Slow headers (Slowloris)", 24, "Slow headers (Slowloris)"),
        ("Slow headers (Slowloris)", 23, "Slow headers"),
        ("Slow headers (Slowloris)", 11, "Slow…"),
        ("Carpet bombing of 1,024 addresses", 17, "Carpet bombing…"),
        ("Slowloris", 5, "Slow…"),
        ("DNS random-subdomain attack on www.example", 20, "DNS random-subdomai…"),
    ],
)
def test_titles_are_cut_between_words(title: str, width: int, short: str) -> None:
    assert shortened(title, width) == short


@given(st.text(alphabet="ab ()", max_size=30), st.integers(0, 30))
def test_a_shortened_text_fits(title: str, width: int) -> None:
    assert len(shortened(title, width)) <= width


COLUMNS = {
    (field.heading, field.unit, field.width)
    for row in ROW_TYPES.values()
    for field in map(row.field, row.columns.split())
    if field.heading and field.unit in WRITTEN and field.unit is not Unit.TEXT
}


@given(st.one_of(st.floats(0, 1e12), st.integers(0, 10**12).map(float)))
def test_no_figure_is_wider_than_its_column(value: float) -> None:
    for heading, unit, width in COLUMNS:
        shown = value / 1e12 if unit is Unit.SHARE else value
        assert len(WRITTEN[unit](shown)) <= width, heading


def test_no_heading_is_cut() -> None:
    assert len(COLUMNS) > 10
    assert not [heading for heading, _, width in COLUMNS if len(heading) > width]
