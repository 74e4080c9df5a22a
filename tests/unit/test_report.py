"""Reports say what happened, in every format, and no text in them becomes anything but text."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
from collections.abc import Iterable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from stored_samples import (
    POISON,
    START,
    attack,
    evidence,
    other_rules,
    poisoned,
    rule,
    session_ticks,
    snapshot,
    status,
)

from fwtop.dissect.client import Dissection, Layer
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.harm import ClientLoss
from fwtop.model.traffic.session import AttackTick, Event, EventKind, SessionRecord
from fwtop.model.traffic.snapshot import Judgement, LedgerRow, Snapshot
from fwtop.render.numbers import duration_words, percent, si
from fwtop.render.observation import observation_json
from fwtop.report import FORMATS, export_snapshot, render
from fwtop.report.chart import nice_ceiling
from fwtop.report.formats import snapshot_csv
from fwtop.report.html import STYLE
from fwtop.report.summary import digest
from fwtop.report.sums import attack_packets, resample
from fwtop.report.text import escape
from fwtop.report.wording import clock
from fwtop.rules.costs import Costs
from fwtop.rules.kinds import command_line
from fwtop.store.reader import load_session
from fwtop.store.writer import SessionWriter


def record_of(directory: Path, ticks: Iterable[Snapshot], **named: object) -> SessionRecord:
    given = {
        "host": "web-1",
        "interfaces": ("eth0",),
        "version": "0.1.0",
        "geoip": "a.mmdb (3 days old)",
        **named,
    }
    session = SessionWriter(directory, **given)  # type: ignore[arg-type]
    for tick in ticks:
        session.write(tick, evidence=evidence(tick))
    assert session.problem == ""
    assert session.path is not None
    session.close()
    return load_session(session.path)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> SessionRecord:
    return record_of(tmp_path_factory.mktemp("report"), session_ticks())


@pytest.fixture(scope="module")
def poison(tmp_path_factory: pytest.TempPathFactory) -> SessionRecord:
    ticks = [poisoned(START + second) for second in range(5)]
    named = {"host": POISON, "interfaces": (POISON,), "netns": POISON, "version": POISON, "geoip": POISON}
    return record_of(tmp_path_factory.mktemp("poison"), ticks, **named)


def test_the_digest_of_the_sample_session(record: SessionRecord) -> None:
    found = digest(record)
    assert found.headline == "DNS amplification, 1 min 20 s"
    (span,) = found.spans
    assert (span.began - START, (span.ended or 0) - START) == (20, 100)
    assert (span.peak_pps, span.share) == (185_000, 0.93)
    assert span.evidence == attack().evidence
    (effect,) = found.effects
    assert (effect.applied or 0) - START == 30
    assert (effect.confirmed or 0) - START == 40
    assert ((effect.ended or 0) - START, effect.ending) == (110, "removed")
    assert effect.actual_pps == 178_000
    changes = {change.name: (change.before, change.after) for change in effect.changes}
    assert changes["dropped"] == (40, 178_000)
    assert changes["arrived"] == (200_000, 200_000)
    assert changes["delivered"] == (199_960, 22_000)
    assert effect.commands[0].startswith("ipset create")
    assert found.sums.packets == pytest.approx(80 * 200_000 + 44 * 9_000)
    assert found.sums.dropped == pytest.approx(68 * 178_000 + 56 * 40)
    assert (found.sums.peak_pps, found.sums.conntrack_peak) == (200_000, 120_000)
    top = found.tops.tables["address"][0]
    assert found.tops.during_attack
    assert (top.share, top.packets) == (pytest.approx(0.5), pytest.approx(80 * 100_000))
    averages = {measure.name: value for measure, value in top.averages().items()}
    assert averages["dropped_share"] == pytest.approx(0.9)


def test_an_attack_counts_in_full_whatever_windows_its_rates_are_of(record: SessionRecord) -> None:
    """Of 20 s at 5,000/s, named 1.5 s late: windows of 3 and 4 s, looks 1 and 2 s apart."""
    windows, at = [], 101.5
    while at < 122.0:
        windows.append((at, 3.0 + len(windows) % 2))
        at += 1.0 + len(windows) % 2
    held = [max(min(at, 120.0) - max(at - window, 100.0), 0.0) for at, window in windows]
    rates = [5_000 * seconds / window for seconds, (_, window) in zip(held, windows, strict=True)]
    short = replace(
        record,
        info=replace(record.info, started=99.5),
        events=(Event(100.0, EventKind.ATTACK_BEGAN, "syn_flood", "", 1),),
        ticks=tuple(replace(record.ticks[0], at=at) for at in (100.0, *(at for at, _ in windows))),
        attacks=tuple(
            AttackTick(at, "syn_flood", pps, 1.0, 1.0, incident=1)
            for (at, _), pps in zip(windows, rates, strict=True)
        ),
    )
    shots = [replace(snapshot(at), started=at - window, seconds=window) for at, window in windows]
    assert sum(attack_packets(short, shots).values()) == pytest.approx(100_000, rel=0.01)


def test_what_a_rule_dropped_before_the_recording_is_no_part_of_it(tmp_path: Path) -> None:
    """Its counter goes on, and begins anew where its lines were put back."""
    was, new = rule(1, created=START - 60), rule(2, created=START + 1)
    counts = ((900_000, 0), (901_000, 400), (100, 500), (250, 700))
    ticks = [
        replace(
            snapshot(START + second),
            mitigations=(
                replace(status(was, START), packets=of_was),
                *([replace(status(new, START), packets=of_new)] if second else []),
            ),
        )
        for second, (of_was, of_new) in enumerate(counts)
    ]
    found = {effect.rule.id: effect.packets for effect in digest(record_of(tmp_path, ticks)).effects}
    assert found == {"1": 1_150, "2": 700}


def test_the_first_page_tells_what_users_felt_and_how_long_nothing_helped(record: SessionRecord) -> None:
    found = digest(record)
    protection = found.protection
    assert (protection.attacked, protection.unprotected, protection.protected) == (80, 12, 68)
    assert protection.stopped_after == 12
    assert protection.packets == pytest.approx(80 * 185_000)
    assert protection.mine == pytest.approx(68 * 185_000 * 0.96)
    assert protection.reached == pytest.approx(protection.packets - protection.mine)
    handshakes, segments = found.user_figures
    assert (handshakes.normal, handshakes.worst, segments.worst) == (100, 60, 400)
    assert handshakes.attacked == pytest.approx((12 * 60 + 68 * 100) / 80, rel=0.01)
    assert found.state == "The attack was over; no rule of fwtop active."
    assert found.effects[0].users == (("TCP handshakes", 1.0), ("acknowledged segments", 1.0))
    for name in ("html", "md", "txt"):
        text = render(record, name)
        assert all(words in text for words in ("Unprotected", "12 s", "Next steps", "usual: 100/s"))


def test_an_attack_has_tables_of_its_own_and_a_packet(record: SessionRecord) -> None:
    (span,) = digest(
        record, dissect=lambda data, link: Dissection((Layer("IP", (("len", str(len(data))),)),))
    ).spans
    assert span.detail.tables["address"][0].share == pytest.approx(0.5)
    assert span.detail.shown is not None
    assert span.detail.dissection.layers[0].fields == (("len", "60"),)
    assert len(record.packets) <= 64, "few are kept"
    assert record.packets[0].at < START + 40 < START + 80 < record.packets[-1].at, "over all of its time"


def test_an_attack_that_pauses_is_one_and_one_that_lasts_is_open(tmp_path: Path) -> None:
    paused = replace(attack(), pps=0.0, share=0.0, paused=START + 12)
    ticks = [
        snapshot(START + second, busy=False, attacks=(paused if second in range(12, 18) else attack(),))
        for second in range(4, 40)
    ]
    (span,) = digest(record_of(tmp_path, ticks)).spans
    assert (span.began, span.ended, span.until) == (START + 4, None, START + 39)
    assert "until" not in span.title
    assert "still on when the recording ended" in digest(record_of(tmp_path, ticks)).state


def test_a_session_that_was_not_judged_is_not_called_calm(tmp_path: Path) -> None:
    quiet = [snapshot(START + second, busy=False) for second in range(9)]
    blind = [replace(one, judgement=Judgement(not_judged="judging failed (x)")) for one in quiet]
    over = digest(record_of(tmp_path, [*quiet[:3], *blind[3:6], *quiet[6:]]))
    assert over.headline == "No attack seen, but not all was judged, in 13 s"
    assert over.state.startswith("Calm; ")
    told = [
        event.text for event in over.events if event.kind in {EventKind.NOT_JUDGED, EventKind.JUDGED_AGAIN}
    ]
    assert told == ["judging failed (x)", "the traffic is judged again"]
    last = digest(record_of(tmp_path, [*quiet[:3], *blind[3:]]))
    assert last.state.startswith("It is not known whether there was an attack at the end")


def test_a_calm_and_a_tiny_session(tmp_path: Path) -> None:
    calm = digest(record_of(tmp_path, [snapshot(START + second, busy=False) for second in range(90)]))
    assert calm.headline == "No attack in 1 min 34 s"
    assert calm.state.startswith("Calm; ")
    tiny = record_of(tmp_path, [snapshot(START, busy=False)])
    for name in FORMATS:
        assert render(tiny, name)
    assert "Too short for a timeline" in render(tiny, "html")


class Page(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        self.attributes |= given.keys()
        self.values += [value or "" for value in given.values()]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""


DECODED = Dissection((Layer(POISON, ((POISON, POISON),)),), f"decoded too long {POISON}")
KNOWN_TAGS = (
    "html head meta title style body main p h1 h2 h3 h4 dl div dt dd small section svg rect line path "
    "text ul ol li i span table tr th td pre figure footer"
)
KNOWN_ATTRIBUTES = (
    "lang charset http-equiv content name class viewbox role aria-label x y x1 x2 y1 y2 rx width height "
    "d style"
)


@pytest.mark.parametrize("which", ["record", "poison"])
def test_html_holds_only_its_own_markup(which: str, request: pytest.FixtureRequest) -> None:
    text = render(request.getfixturevalue(which), "html", dissect=lambda _data, _link: DECODED)
    assert "decoded too long" in text
    page = Page(text)
    assert page.tags <= set(KNOWN_TAGS.split())
    assert page.attributes <= set(KNOWN_ATTRIBUTES.split())
    assert page.policy.startswith("default-src 'none'")
    assert not re.search(r"https?:|url\(|@import|<script|<img", text)
    assert not any("expression" in value or "url" in value for value in page.values)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_the_style_uses_no_colour_that_it_does_not_name() -> None:
    assert set(re.findall(r"var\((--[\w-]+)\)", STYLE)) == set(re.findall(r"[{;\s](--[\w-]+):", STYLE))


def test_html_tells_the_story(record: SessionRecord) -> None:
    text = render(record, "html")
    for words in (
        "DNS amplification, 1 min 20 s",
        "41 reflectors answer with the same name",
        "block 203.0.113.0/24 and 1 more",
        "180 kpps",
        "178 kpps",
        "isc.org",
        "fwtop block 203.0.113.0/24 198.51.100.7",
        "rule 1 removed",
        "prefers-color-scheme:dark",
        "@media print",
        "Countries and networks: a.mmdb (3 days old)",
    ):
        assert words in text
    assert not re.search(r"\d·", text)  # the placeholder of characters that can't be shown
    assert "&nbsp;" in text
    assert text.count('class="attack"') == 5  # the band in the timeline, both rates and both gauges
    assert len(text) < 150_000


def test_the_curves_are_whole(record: SessionRecord) -> None:
    paths = re.findall(r'<path class="([\w-]+)" d="([^"]*)"', render(record, "html"))
    assert {name for name, _ in paths} == {
        "arrived", "delivered", "dropped", "other", "mine", "series", "gauge", "gauge-line"
    }  # fmt: skip
    for _, drawn in paths:
        assert re.fullmatch(r"M[\d. L]+Z?", drawn)


def test_markdown_has_no_markup_of_others(poison: SessionRecord) -> None:
    from markdown_it import MarkdownIt

    text = render(poison, "md")
    tokens = MarkdownIt("gfm-like", {"html": True}).parse(text)
    inline = [child for token in tokens for child in token.children or []]
    kinds = {token.type for token in (*tokens, *inline)}
    assert "strong_open" in kinds
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "code_inline", "em_open", "s_open"}
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_plain_text_has_columns_and_no_control_characters(
    record: SessionRecord, poison: SessionRecord
) -> None:
    text = render(record, "txt")
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("Senders "))
    first = next(line for line in lines if line.startswith("203.0.0.0 ") and line.endswith("50 %"))
    assert len(head) == len(first), "numbers stand below their heading"
    assert "predicted  ░" in text
    assert "What users felt" not in text, "there is nothing to say without the curves"
    assert "fwtop block 203.0.113.0/24 198.51.100.7" in text
    assert all(line.isprintable() for line in render(poison, "txt").splitlines())


def test_markdown_escapes_whatever_could_be_markup() -> None:
    assert escape("a|b *c* <d> [e](f) `g` #h") == r"a\|b \*c\* \<d\> \[e\]\(f\) \`g\` \#h"
    assert escape("see https://evil.example, www.evil.example or a@b.example") == (
        r"see https:\//evil.example, www\.evil.example or a\@b.example"
    )
    assert "\n" not in escape("a\n# b")


def test_json_is_complete(record: SessionRecord, poison: SessionRecord) -> None:
    data = json.loads(render(record, "json"))
    assert data["schema"] == 1
    assert data["session"]["id"] == "2026-11-21T03-12-39Z-eth0"
    assert data["attacks"][0]["kind"] == "dns_amplification"
    assert data["rules"][0]["predicted_pps"] == 180_000
    assert len(data["timeline"]) == 120
    assert data["peak"]["totals"]["pps"] == 200_000
    assert data["tops"]["address"][0]["share"] == pytest.approx(0.5)
    assert {event["kind"] for event in data["events"]} >= {"attack_began", "rule_confirmed", "attack_ended"}
    assert json.loads(render(poison, "json"))["session"]["state"] == "clean"


def shell_runs(script: str, directory: Path) -> list[list[str]]:
    """Run a script with an `fwtop` that writes down its arguments, and nothing else to run."""
    log = directory / "log"
    fake = directory / "fwtop"
    fake.write_text(f"#!/bin/sh\nprintf '%s\\037' \"$@\" >>{log}\nprintf '\\036' >>{log}\n")
    fake.chmod(0o755)
    path = {"PATH": str(directory)}
    done = subprocess.run(
        ["/bin/sh", "-s"],
        input=script,
        text=True,
        capture_output=True,
        timeout=120,
        env=path,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    runs = log.read_text().split("\x1e")[:-1] if log.exists() else []
    log.unlink(missing_ok=True)
    return [run.split("\x1f")[:-1] for run in runs]


def test_the_script_puts_back_what_helped(record: SessionRecord, tmp_path: Path) -> None:
    script = render(record, "sh")
    assert "#   by hand: ipset create fwtop-1 hash:net timeout 600" in script
    expected = ["block", "203.0.113.0/24", "198.51.100.7", "--via", "ipset", "--ttl", "10m", "--yes"]
    assert shell_runs(script, tmp_path) == [expected]


def test_the_script_of_a_namespaces_session_acts_there(record: SessionRecord, tmp_path: Path) -> None:
    inside = replace(record, info=replace(record.info, netns="lab one"))
    (words,) = shell_runs(render(inside, "sh"), tmp_path)
    assert words[-3:] == ["--netns", "lab one", "--yes"]


def test_a_script_of_poison_runs_nothing_else(poison: SessionRecord, tmp_path: Path) -> None:
    assert shell_runs(render(poison, "sh"), tmp_path) == []
    evil = "asn:1; reboot `reboot` $(reboot) ' reboot"
    line = command_line(replace(rule(), origin=evil))
    assert shell_runs(line + "\n", tmp_path) == [["block", evil, "--via", "ipset", "--ttl", "10m"]]
    assert command_line(replace(rule(), origin="asn:1\nreboot")) is None


def test_rules_as_command_lines() -> None:
    limit, strings, xdp, notrack, by_asn = other_rules()
    assert (
        command_line(limit)
        == "fwtop limit --proto udp --dport 53 --per 24 --per6 56 --rate 1000/s --burst 2000 --ttl 10m"
    )
    assert command_line(strings) is None, "two strings of one rule have no command line"
    one = replace(strings, match=replace(strings.match, payload=strings.match.payload[:1]))
    assert command_line(one) == """fwtop match --dns 'evil'"'"'.com' --offset 12 --proto udp --ttl 10m"""
    assert command_line(xdp) is None
    whole = replace(xdp, match=replace(xdp.match, fragment=None))
    assert (
        command_line(whole)
        == "fwtop drop --proto tcp --sport 80 --tcp-flags syn,ack/syn,ack --via xdp --ttl 1m"
    )
    assert command_line(notrack) == "fwtop notrack --proto udp --dport 53 --ttl 2h"
    assert command_line(by_asn) == "fwtop block asn:64500 --via ipset --ttl 10m"


def test_an_unknown_format_is_one_line(record: SessionRecord, tmp_path: Path) -> None:
    with pytest.raises(FwtopError, match="nothing was written"):
        render(record, "pdf\x1b")
    with pytest.raises(FwtopError, match="json or csv"):
        export_snapshot(snapshot(START), "xls")
    with pytest.raises(FwtopError, match="nothing was written"):
        export_snapshot(snapshot(START), "json", [tmp_path / "none"])


def test_exports_never_overwrite(tmp_path: Path) -> None:
    first = Path(export_snapshot(snapshot(START), "json", [tmp_path]))
    second = Path(export_snapshot(snapshot(START, busy=False), "json", [tmp_path]))
    assert (first.name, second.name) == ("fwtop-2026-11-21T03-12-44.json", "fwtop-2026-11-21T03-12-44-2.json")
    assert json.loads(first.read_text()) == observation_json(snapshot(START))
    assert first.stat().st_mode & 0o777 == 0o600


def test_a_csv_export_has_the_totals_and_all_tables(tmp_path: Path) -> None:
    path = Path(export_snapshot(snapshot(START, 200_000.0), "csv", [tmp_path]))
    rows = list(csv.reader(io.StringIO(path.read_text())))
    assert ["totals", "pps", "200000.0"] in rows
    sources = [row for row in rows if row[:1] == ["sources.address"]]
    assert len(sources) == 50
    assert sources[0][1] == "203.0.0.0"


def test_csv_cells_are_no_formulas() -> None:
    for start in ("=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1"):
        evil = poisoned(START)
        entry = replace(evil.tables.sources.asn[0], as_name=start)
        sources = replace(evil.tables.sources, asn=(entry,))
        tables = replace(evil.tables, sources=sources)
        text = snapshot_csv(replace(evil, tables=tables))
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert not [
            cell for cell in cells if cell.lstrip()[:1] in "=+-@" and cell.strip() and not is_number(cell)
        ]
        assert "\x1b" not in text


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def test_numbers_and_times_are_written_for_people() -> None:
    assert [si(number) for number in (0, 5, 999, 999.9, 1_234_567, 178_000)] == [
        "0",
        "5",
        "999",
        "1.00 k",
        "1.23 M",
        "178 k",
    ]
    assert (si(5, "pps"), si(178_000, "pps")) == ("5 pps", "178 kpps")
    assert [percent(share, None) for share in (0, 0.00001, 0.002, 0.034, 0.5, 1)] == [
        "0 %",
        "<0.01 %",
        "0.20 %",
        "3.4 %",
        "50 %",
        "100 %",
    ]
    assert [duration_words(seconds) for seconds in (0, 59.6, 80, 3600, 3725, 90_000)] == [
        "0 s",
        "1 min",
        "1 min 20 s",
        "1 h",
        "1 h 2 min",
        "1 d 1 h",
    ]
    assert [nice_ceiling(value) for value in (0, 1, 9, 306_000, 410)] == [1, 1, 10, 400_000, 500]


def test_resampling_keeps_peaks(record: SessionRecord) -> None:
    few = resample(record.ticks, 10)
    assert len(few) <= 10
    assert max(tick.pps for tick in few) == 200_000
    assert [tick.at for tick in few] == sorted(tick.at for tick in few)


def test_a_long_list_of_commands_stays_readable(tmp_path: Path) -> None:
    many = tuple(Prefix(4, (10 << 24) + place * 256, 24) for place in range(5_000))
    huge = replace(rule(), match=replace(rule().match, sources=many))
    held = [snapshot(START + at, busy=False, mitigations=(status(huge, START + at),)) for at in range(40)]
    record = record_of(tmp_path, held)
    assert len(render(record, "html")) < 80_000
    assert len(render(record, "md")) < 20_000
    (run,) = shell_runs(render(record, "sh"), tmp_path)
    assert run[1:5_001] == [str(prefix) for prefix in many]


def test_costs_measured_here_are_a_ladder_and_others_are_not_there(record: SessionRecord) -> None:
    measured = {"xdp": 100.0, "ipset": 500.0, "notrack": 50.0}
    page = render(record, "html", Costs(f"CPU {POISON}", "6.18", "2026-11-21T10:00:00Z", measured))
    ladder = page[page.index("What this machine can drop") :]
    assert ladder.index("(XDP)") < ladder.index("10.0 Mpps") < ladder.index("(ipset)")
    assert ladder.index("(ipset)") < ladder.index("2.00 Mpps")
    assert 'style="width:20.0%"' in ladder
    assert "notrack" not in ladder.split("</section>")[0]
    assert "<script" not in page
    assert "What this machine can drop" not in render(record, "html")


# -- what a report must not mislead about


def ledger_of(*rules: str) -> tuple[LedgerRow, ...]:
    pps = {rule: 100_000.0 / (at + 1) for at, rule in enumerate(rules)}
    return tuple(LedgerRow("netfilter", "NETFILTER_DROP", round(p * 5), p, rule) for rule, p in pps.items())


def test_drops_of_rules_with_one_reason_are_told_apart(tmp_path: Path) -> None:
    ticks = []
    for second in range(10):
        shot = snapshot(START + second, attacks=(attack(),), dropped=200_000)
        ticks.append(replace(shot, tables=replace(shot.tables, ledger=ledger_of("88", "93", "91", "95"))))
    record = record_of(tmp_path, ticks)
    rows = {row.key: round(row.peak_pps) for row in digest(record).tops.tables["ledger"]}
    assert rows == {
        "rule 88 · netfilter · NETFILTER_DROP": 100_000,
        "rule 93 · netfilter · NETFILTER_DROP": 50_000,
        "rule 91 · netfilter · NETFILTER_DROP": 33_333,
        "rule 95 · netfilter · NETFILTER_DROP": 25_000,
    }
    for name in ("html", "md"):
        assert all(number in render(record, name) for number in ("rule 88", "rule 93", "rule 91", "rule 95"))


def test_forged_sources_are_called_forged(tmp_path: Path) -> None:
    forged = replace(attack(), spoofed=True, title="SYN flood on port 443")
    record = record_of(tmp_path, [snapshot(START + second, attacks=(forged,)) for second in range(10)])
    for name in ("html", "md"):
        text = render(record, name)
        assert "Sources were forged" in text
        assert "no senders are listed" in text
        assert not re.search("Source addresses|Senders</th>|Networks \\(AS", text), "they are never ranked"
    assert json.loads(render(record, "json"))["tops"]["forged"] == ["SYN flood on port 443"]


def test_real_and_forged_floods_of_one_name_are_told_apart(tmp_path: Path) -> None:
    floods = (
        replace(attack(), title="SYN flood", since=START),
        replace(attack(), title="SYN flood", since=START, spoofed=True, id=2),
    )
    ticks = [snapshot(START + second, attacks=floods) for second in range(10)]
    steps = " ".join(digest(record_of(tmp_path, ticks)).next_steps)
    began = clock(floods[0].since)
    assert f"addresses in SYN flood of {began}" in steps
    assert f"senders of SYN flood of {began}" in steps


def test_senders_that_are_real_are_ranked(record: SessionRecord) -> None:
    assert {"Source addresses", "Senders"} <= set(re.findall("<th>([^<]*)</th>", render(record, "html")))
    assert json.loads(render(record, "json"))["tops"]["forged"] == []


def test_estimated_harm_is_marked_as_estimated(tmp_path: Path) -> None:
    made = replace(rule(), predicted_guess=True)
    ticks = [
        snapshot(
            START + second,
            attacks=(attack(),),
            mitigations=(status(made, START + second),) if second > 3 else (),
        )
        for second in range(10)
    ]
    record = record_of(tmp_path, ticks)
    for name in ("html", "md"):
        assert "estimated" in render(record, name)
    assert json.loads(render(record, "json"))["rules"][0]["predicted_guess"] is True


def test_proposals_made_at_once_are_one_line(record: SessionRecord) -> None:
    proposed = tuple(
        Event(START + at / 10, EventKind.RULE_PROPOSED, "", f"block no {at}") for at in range(40)
    )
    began = Event(START, EventKind.ATTACK_BEGAN, "udp_flood", "UDP flood")
    found = digest(replace(record, events=(began, *proposed, began, proposed[0])))
    assert [event.kind for event in found.events] == [
        EventKind.ATTACK_BEGAN,
        EventKind.RULE_PROPOSED,
        EventKind.ATTACK_BEGAN,
        EventKind.RULE_PROPOSED,
    ]
    assert found.events[1].text == "40 rules: block no 0; block no 1; block no 2; and 37 more"
    assert found.events[3].text == "block no 0"


def test_markers_are_as_wide_as_their_numbers(tmp_path: Path) -> None:
    made = replace(rule(), id="123456")
    ticks = [
        snapshot(START + second, mitigations=(status(made, START + second),) if second > 3 else ())
        for second in range(10)
    ]
    page = render(record_of(tmp_path, ticks), "html")
    width = re.search(r'<rect class="rule-dot"[^>]* width="([0-9.]+)"', page)
    assert width is not None
    assert float(width[1]) >= len("123456") * 7


def test_markers_of_rules_at_one_time_stand_side_by_side(tmp_path: Path) -> None:
    rules = [status(replace(rule(), id=str(number)), START + 4) for number in (101, 102, 103)]
    ticks = [snapshot(START + second, mitigations=tuple(rules) if second > 3 else ()) for second in range(10)]
    page = render(record_of(tmp_path, ticks), "html")
    found = re.findall(r'<rect class="rule-dot" x="([0-9.]+)"[^>]* width="([0-9.]+)"', page)
    pills = sorted((float(x), float(width)) for x, width in found)
    assert len(pills) == 3
    assert all(x + width <= after + 0.11 for (x, width), (after, _) in pairwise(pills)), pills


def test_harm_that_was_measured_is_told_with_its_rule(tmp_path: Path) -> None:
    made = rule()
    ticks = []
    for second in range(10):
        shot = snapshot(START + second, mitigations=(status(made, START + second),) if 3 < second < 8 else ())
        lost = (ClientLoss(made.id, "80/tcp", 105.0, 0.0, 0.97),) if second in (6, 7) else ()
        ticks.append(replace(shot, losses=lost))
    record = record_of(tmp_path, ticks)
    words = "clients of 80/tcp 105/s → 0/s since it is in"
    assert json.loads(render(record, "json"))["rules"][0]["harm"] == words
    for name in ("html", "md"):
        text = render(record, name)
        assert f"HARM: {words}." in text
        assert text.count(words) == 2, "in the list of events, too"
