"""Windows in, incidents out: the tracker on charts of a second a character.

A line is what one kind of packets does: its name, its port, and # for each second in which it is sent. The
tracker gets windows of three seconds, one a second, as the live judgement does. What comes out is written as
letter, name, when it began and ended (– while it is on, ~ with its last packet while it pauses), and notes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fwtop.analysis.sighting import PAUSE_SECONDS, Presence, Sighting
from fwtop.incidents.tracker import Tracked, Tracker
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Interval
from fwtop.model.traffic.snapshot import Incident

WINDOW_SECONDS = 3
Shows = Callable[[list[list[str]], int], list[Sighting]]  # of a chart, in the window that ends then
SEEN = Presence(1_000.0, 0.9)


def runs(chart: str, begin: int, end: int) -> list[tuple[float, float]]:
    """Return the pulses of a chart within a window; a gap too short to be a pause is none."""
    found: list[tuple[float, float]] = []
    for second in range(max(begin, 0), end):
        if second < len(chart) and chart[second] == "#":
            if found and second - found[-1][1] <= PAUSE_SECONDS:
                found[-1] = found[-1][0], second + 1.0
            else:
                found.append((float(second), second + 1.0))
    return found


def sightings(lines: list[list[str]], end: int) -> list[Sighting]:
    """Return what the window before `end` shows."""
    found = []
    for name, port, chart in lines:
        if pulses := runs(chart, end - WINDOW_SECONDS, end):
            match = Match(protocol=6, dport=int(port)) if port != "*" else Match(protocol=6)
            targets = ((f"tcp/{port}", 1.0),) if port != "*" else (("tcp", 1.0),)
            over = end - pulses[-1][1] > PAUSE_SECONDS
            found.append(Sighting(name, name, tuple(pulses), 1.0, "", match, targets, SEEN, over))
    return sorted(found, key=lambda one: one.pulses[0])


def named(lines: list[list[str]], end: int) -> list[Sighting]:
    """Return what a window is said to show: packets in all of it."""
    whole = "#" * end
    return sightings([[name, port, whole] for name, port, chart in lines if chart[end - 1] == "#"], end)


def watch(
    chart: str, *, known: tuple[Incident, ...] = (), shows: Shows = sightings, blind: str = ""
) -> list[str]:
    """Follow a chart; return every incident that there was; `blind` marks lost polls by ?."""
    rows = [line.split() for line in chart.strip().splitlines()]
    lines = [[name, port, seconds.strip("|")] for name, port, seconds in rows]
    tracker, every = Tracker(known), dict[int, Tracked]()
    for end in range(1, max(len(one[2]) for one in lines) + 1):
        seen = blind[end - 1 : end] != "?"
        polls = [Interval(end - 1.0, 1.0, 0 if seen else 10**6, 0)]
        tracker.take(end - 3.0, float(end), shows(lines, end) if seen else [], polls)
        every |= {one.id: one for one in tracker.open}
    return [told(one) for one in every.values()]


def told(one: Tracked) -> str:
    """Write an incident."""
    end = f"{one.ended:g}" if one.ended is not None else f"~{one.paused:g}" if one.paused is not None else "–"
    waves = f", {one.waves} pulses" if one.waves > 1 else ""
    return f"{one.letter} {one.kind} {one.target}: {one.began:g} to {end}{waves}" + (
        f", after {one.follows}" if one.follows else ""
    )


@pytest.mark.parametrize(
    ("chart", "expected"),
    [
        pytest.param("syn 80 |..########|", ["A syn tcp/80: 2 to –"], id="it goes on"),
        pytest.param(
            "syn 80 |######.................|", ["A syn tcp/80: 0 to 6"], id="its end is its last packet"
        ),
        pytest.param("syn 80 |########......|", ["A syn tcp/80: 0 to ~8"], id="it pauses, and stays listed"),
        pytest.param(
            "syn 80 |#####.....#####.....#####|",
            ["A syn tcp/80: 0 to –, 3 pulses"],
            id="pulses as long as its pauses are one",
        ),
        pytest.param(
            "syn 80 |##.........##.........##|",
            ["A syn tcp/80: 0 to 2", "B syn tcp/80: 11 to 13", "C syn tcp/80: 22 to –"],
            id="a pause longer than its pulses ends it",
        ),
        pytest.param(
            "syn 80 |####################..............########|",
            ["A syn tcp/80: 0 to 20", "B syn tcp/80: 34 to –"],
            id="the first pause of a long one may last ten seconds",
        ),
        pytest.param(
            """
            syn 80  |##########................|
            syn 443 |............##############|
            """,
            ["A syn tcp/80: 0 to 10", "B syn tcp/443: 12 to –"],
            id="the same kind on another port two seconds later is another",
        ),
        pytest.param(
            """
            syn 80 |##########................|
            udp 80 |..........################|
            """,
            ["A syn tcp/80: 0 to 10", "B udp tcp/80: 10 to –, after syn"],
            id="a change of vector",
        ),
        pytest.param(
            """
            syn   80 |######..........|
            flood 80 |...#############|
            """,
            ["A syn tcp/80: 0 to 6", "B flood tcp/80: 3 to –"],
            id="another kind beside it is another",
        ),
    ],
)
def test_windows_in_incidents_out(chart: str, expected: list[str]) -> None:
    assert watch(chart) == expected


@pytest.mark.parametrize(
    ("chart", "expected"),
    [
        pytest.param(
            """
            syn   80 |###.##..####|
            flood 80 |...#..##....|
            """,
            ["A syn tcp/80: 0 to –"],
            id="the same packets under another name near a threshold",
        ),
        pytest.param(
            """
            syn 80  |##########....................|
            syn 443 |##########....................|
            syn *   |..........####################|
            """,
            ["A syn tcp: 0 to –", "B syn tcp/443: 0 to 10"],
            id="two that merge go on as the first",
        ),
        pytest.param(
            """
            syn *   |##########..........|
            syn 80  |..........##########|
            syn 443 |..........##########|
            """,
            ["A syn tcp/443: 0 to –", "B syn tcp/80: 8 to –"],
            id="one that splits goes on as one of its parts",
        ),
    ],
)
def test_findings_under_other_names(chart: str, expected: list[str]) -> None:
    assert watch(chart, shows=named) == expected


def mixed(lines: list[list[str]], end: int) -> list[Sighting]:
    """Return what a window shows if packets of one kind are one finding, whatever their ports."""
    found: dict[str, list[Sighting]] = {}
    for one in sightings(lines, end):
        found.setdefault(one.kind, []).append(one)
    return [
        alike[0]
        if len(alike) == 1
        else replace(
            alike[0],
            pulses=((min(one.pulses[0][0] for one in alike), max(one.pulses[-1][1] for one in alike)),),
            match=Match(protocol=6),
            targets=tuple((one.targets[0][0], 1 / len(alike)) for one in alike),
            over=False,
        )
        for alike in found.values()
    ]


@pytest.mark.parametrize("pause", [0, 1, 2])
def test_the_next_attack_of_a_kind_is_another_though_windows_show_both_as_one(pause: int) -> None:
    chart = f"""
        syn 80 |##########{"." * pause}............|
        syn 22 |..........{"." * pause}############|
        """
    first, second = watch(chart, shows=mixed)
    assert first in {"A syn tcp/80: 0 to 10", "A syn tcp/80: 0 to ~10"}
    assert second.removesuffix(", after syn") == f"B syn tcp/22: {10 + pause} to –"


def test_what_nobody_watched_is_no_pause() -> None:
    chart, blind = "syn 80 |###............####|", "   ????????????    "
    assert watch(chart, blind=blind) == ["A syn tcp/80: 0 to –"]


def test_a_reload_goes_on_with_what_was_there() -> None:
    before = Incident(
        "syn", "syn", 1.0, 9.0, 1.0, False, (), 1.0, 5.0, target="tcp/80", id=7, letter="C", last=6.0
    )
    goes_on = watch("syn 80 |......####|\nudp 53 |........##|", known=(before,))
    assert goes_on == ["C syn tcp/80: 1 to –", "A udp tcp/53: 8 to –"]
    assert watch("udp 53 |..................#|", known=(before,))[0] == "C syn tcp/80: 1 to 6"


def test_the_time_until_another_observation_begins_is_no_pause() -> None:
    known = Incident("syn", "syn", 1.0, 9.0, 1.0, False, (), 1.0, target="tcp/80", id=7, letter="C", last=2.0)
    seen = Sighting("syn", "syn", ((20.0, 23.0),), targets=(("tcp/80", 1.0),), presence=SEEN)
    (one,) = Tracker((known,)).take(20.0, 23.0, [seen], [Interval(20.0, 3.0, 3_000, 100)])
    assert (one.id, one.began, one.waves) == (7, 1.0, 1)


def test_a_letter_is_free_again_ten_minutes_after_the_end() -> None:
    tracker = Tracker()
    letters = []
    for begin in (0.0, 100.0, 800.0):
        one = Sighting(
            "syn", "syn", ((begin, begin + 1),), 1.0, match=Match(dport=int(begin) + 1), presence=SEEN
        )
        letters += [
            found.letter for found in tracker.take(begin, begin + 1, [one], [Interval(begin, 1.0, 0, 0)])
        ]
        for end in range(2, 40):
            tracker.take(begin, begin + end, [], [Interval(begin + end - 1, 1.0, 0, 0)])
    assert letters == ["A", "B", "A"]


def test_a_full_table_replaces_nothing_and_has_no_pulses() -> None:
    tracker = Tracker()
    (flood,) = tracker.take(0.0, 10.0, [Sighting("udp", "udp", ((0.0, 10.0),))])
    for end in (10.5, 14.0, 18.0):  # slow ticks
        _, full = tracker.take(
            end - 3,
            end,
            [Sighting("udp", "udp", ((end - 3, end),)), Sighting("full", "full", ((end, end),), state=True)],
        )
    assert (full.began, full.waves, full.follows, flood.until) == (10.5, 1, "", 18.0)
    *_, syn = tracker.take(
        15.0,
        25.0,
        [Sighting("full", "full", ((25.0, 25.0),), state=True), Sighting("syn", "syn", ((18.5, 25.0),))],
    )
    assert syn.follows == "udp"


def test_between_two_judgements_the_counters_tell_how_long_it_went_on() -> None:
    tracker, seen = Tracker(), Sighting("syn", "syn", ((10.0, 13.0),), presence=SEEN)
    (one,) = tracker.take(10.0, 13.0, [seen])
    tracker.observe(Interval(at, 1.0, 900 if at < 15 else 50, 0) for at in (13.0, 14.0, 15.0, 16.0))
    tracker.take(17.0, 20.0, [], [Interval(at, 1.0, 900, 500) for at in (17.0, 18.0, 19.0)])
    assert (one.until, one.paused) == (15.0, 15.0), "what came later shows in samples to be something else"


def test_a_proven_pause_ends_by_a_name_not_by_packets_that_clients_may_send() -> None:
    """A rule cuts a flood off; clients go on on the port that it hit."""
    tracker = Tracker()
    seen = Sighting("http", "http", ((0.0, 13.0),), presence=SEEN)
    (one,) = tracker.take(0.0, 13.0, [seen])
    polls = [Interval(at, 1.0, 100, 0) for at in (13.0, 14.0, 15.0)]
    tracker.take(13.0, 16.0, [], polls)
    assert one.paused == 13.0
    tracker.take(14.0, 17.0, [], [Interval(16.0, 1.0, 100, 100)], lasting=lambda _: 17.0)
    assert one.paused == 13.0
    tracker.take(15.0, 18.0, [replace(seen, pulses=((17.2, 18.0),))], [Interval(17.0, 1.0, 5_000, 900)])
    assert (one.paused, one.waves) == (None, 2)


def test_packets_like_its_own_are_not_its_own_once_judgement_has_not_named_it_for_a_while() -> None:
    tracker, listed = Tracker(), []
    seen = Sighting("http", "http", ((10.0, 13.0),), presence=Presence(2.0, 0.5))  # too few to prove a pause
    tracker.take(10.0, 13.0, [seen])
    for end in range(14, 40):
        polls = [Interval(end - 1.0, 1.0, 3, 3)]
        tracker.take(end - 3.0, float(end), [], polls, lasting=lambda _, at=float(end): at)
        listed.append([one.ended is None for one in tracker.open])
    assert listed[0] == [True], "near a threshold it is named in one window and not in the next"
    assert listed[-1] == []


@pytest.mark.parametrize(
    ("rule_until", "senders_until", "ended_by"),
    [(999, 40, 101), (60, 999, 61), (0, 999, 15)],
    ids=["its senders give up", "the rule is removed", "without a rule"],
)
def test_what_a_rule_holds_off_has_not_ended_while_its_senders_go_on(
    rule_until: int, senders_until: int, ended_by: int
) -> None:
    """Their retries come with longer and longer gaps."""
    tracker, open_until = Tracker(), 0
    seen = Sighting("http", "http", ((0.0, 8.0),), presence=SEEN)
    (one,) = tracker.take(0.0, 8.0, [seen])
    for end in range(9, 120):
        retries = 5.0 if end <= senders_until and end % 10 == 2 else 0.0
        pps = retries if end <= rule_until else None
        polls = [Interval(end - 1.0, 1.0, 5, 5)]
        tracker.take(end - 3.0, float(end), [], polls, held=lambda _, pps=pps: pps)
        open_until = end if one.ended is None else open_until
    assert (open_until, one.ended) == (pytest.approx(ended_by, abs=9), 8.0), "its last packet is its end"
