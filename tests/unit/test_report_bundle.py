"""A bundle holds what one hands over; it accuses no forged address, and takes no orders from bytes."""

from __future__ import annotations

import csv
import io
import json
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from stored_samples import POISON, START, attack, evidence, other_rules, poisoned, rule, snapshot, status

from fwtop.cli.sessions.report import write_folder, zipped
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Range
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.report.bundle import bundle_files
from fwtop.report.bundle_rules import ipset_text
from fwtop.report.summary import digest
from fwtop.store.reader import load_session
from fwtop.store.writer import SessionWriter


def bundle_of(directory: Path, ticks: list[Snapshot], host: str = "web-1") -> dict[str, bytes]:
    session = SessionWriter(directory, host=host, interfaces=("eth0",), version="0.1.0")
    for tick in ticks:
        session.write(tick, evidence=evidence(tick))
    assert session.path is not None
    session.close()
    record = load_session(session.path)
    return bundle_files(record, digest(record))


def ticks(*, spoofed: bool) -> list[Snapshot]:
    of = replace(attack(), spoofed=spoofed)
    rules = (rule(), *other_rules())
    return [
        snapshot(at, attacks=(of,), mitigations=tuple(status(one, at) for one in rules))
        for at in (START + second for second in range(40, 60))
    ]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return bundle_of(tmp_path_factory.mktemp("real"), ticks(spoofed=False))


def test_a_bundle_names_its_files(bundle: dict[str, bytes]) -> None:
    readme = bundle["README.txt"].decode()
    for name in bundle:
        assert name == "README.txt" or name.partition("/")[0] in readme
    assert json.loads(bundle["report.json"])["attacks"][0]["sample"]["length"] == 1_500


def test_senders_are_listed_and_told_to_their_networks(bundle: dict[str, bytes]) -> None:
    listed = bundle["blocklist-ipv4.txt"].decode().split()
    rows = list(csv.DictReader(io.StringIO(bundle["senders.csv"].decode())))
    assert sorted(row["address"] for row in rows) == sorted(listed)
    assert len(listed) == 50
    mail = bundle["abuse/AS64500.txt"].decode()
    assert mail.startswith("To: the abuse contact of AS64500 EXAMPLE-NET-0 Example BV\n")
    assert "DNS amplification: 1 machine of yours." in mail
    assert "203.0.0.0" in mail


def test_a_mail_names_no_port_that_was_hit_by_chance(tmp_path: Path) -> None:
    made = []
    for tick in ticks(spoofed=False):
        usual, rest = tick.tables.ports[:2], tick.tables.ports[2:]
        rare = [replace(one, share=replace(one.share, share=0.019)) for one in rest]
        made.append(replace(tick, tables=replace(tick.tables, ports=(*usual, *rare))))
    mail = bundle_of(tmp_path, made)["abuse/AS64500.txt"].decode()
    assert "Ports: udp from 53, udp from 54\n" in mail


def test_a_mail_names_the_ports_of_all_attacks_of_a_kind(tmp_path: Path) -> None:
    first = ticks(spoofed=False)
    none = replace(first[0].judgement, attacks=())
    again = tuple(replace(one, since=one.since + 600) for one in first[0].judgement.attacks)
    calm = [replace(tick, started=tick.started + 60, judgement=none) for tick in first]
    later = [
        replace(
            tick,
            started=tick.started + 600,
            judgement=replace(tick.judgement, attacks=again),
            tables=replace(tick.tables, ports=(replace(tick.tables.ports[0], port=4444),)),
        )
        for tick in first
    ]
    mail = bundle_of(tmp_path, [*first, *calm, *later])["abuse/AS64500.txt"].decode()
    assert "Ports: udp from 53, udp from 4444" in mail


def nobody_is_accused(found: dict[str, bytes]) -> bool:
    return found["blocklist-ipv4.txt"] == b"" and not any(name.startswith("abuse/") for name in found)


def test_sources_that_may_be_forged_are_accused_nowhere(tmp_path: Path) -> None:
    shots = [
        replace(shot, judgement=replace(shot.judgement, attacks=tuple(
            replace(one, uncertain=True) for one in shot.judgement.attacks
        )))
        for shot in ticks(spoofed=False)
    ]  # fmt: skip
    found = bundle_of(tmp_path, shots)
    assert nobody_is_accused(found)
    assert "| Source addresses |" in found["report.md"].decode()
    assert all(b"Senders" not in found[name] for name in ("report.html", "report.md"))


def test_nobody_is_accused_of_what_was_seen_twice(tmp_path: Path) -> None:
    assert nobody_is_accused(bundle_of(tmp_path, ticks(spoofed=False)[:2]))


def test_forged_sources_are_accused_nowhere(tmp_path: Path) -> None:
    found = bundle_of(tmp_path, ticks(spoofed=True))
    assert nobody_is_accused(found)
    assert b"203.0.1.5" not in b"".join(
        content for name, content in found.items() if name != "report.json"
    ), "not even in the report's tables"
    assert "The sources look forged" in found["provider.txt"].decode()


def test_samples_are_a_capture(bundle: dict[str, bytes]) -> None:
    data = bundle["packets/dns_amplification.pcap"]
    magic, *_, link = struct.unpack_from("<IHHiIII", data)
    assert (magic, link) == (0xA1B23C4D, 1)
    _, _, captured, length = struct.unpack_from("<IIII", data, 24)
    assert (captured, length, data[40:100]) == (60, 1_500, bytes(range(60)))


def test_what_a_tool_cannot_say_stands_there_as_a_comment(bundle: dict[str, bytes]) -> None:
    nft, iptables, flowspec = (bundle[f"rules.{name}"].decode() for name in ("nft", "iptables", "flowspec"))
    assert "nftables can't do this: netdev ingress finds bytes at an offset only" in nft
    assert "ip saddr @r1-src4" in nft
    assert "--match-set report-1-4 src" in iptables
    assert "No FlowSpec route can say this." in flowspec
    assert "source 203.0.113.0/24;" in flowspec


def test_a_set_for_ipset_holds_everybody_as_two_halves() -> None:
    """hash:net refuses /0, and a restore would end there."""
    everybody = replace(rule(), kind=Kind.XDP, match=Match(sources=(Prefix.parse("0.0.0.0/0"),), protocol=17))
    effect = SimpleNamespace(rule=replace(everybody, id="7"), packets=1, dropped=1, left_out="")
    lines = ipset_text(SimpleNamespace(effects=(effect,))).splitlines()
    assert lines[1:] == ["add report-7-4 0.0.0.0/1", "add report-7-4 128.0.0.0/1"]


def test_hostile_bytes_stay_bytes_in_every_file(tmp_path: Path) -> None:
    match = Match(protocol=17, ttl=Range(3, 3))
    bad = replace(rule(), id="9$(reboot)\n", summary=POISON, kind=Kind.XDP, match=match)
    shots = [
        replace(poisoned(START + second), mitigations=(status(bad, START + second + 60),))
        for second in range(5)
    ]
    found = bundle_of(tmp_path, shots, host=POISON)
    for name, content in found.items():
        if name.startswith("packets/"):
            continue
        text = content.decode()
        allowed = {"\n", "\r"} if name.endswith(".csv") else {"\n"}
        assert all(letter.isprintable() or letter in allowed for letter in text), name
    for name in ("rules.nft", "rules.iptables", "rules.ip6tables", "rules.flowspec", "rules.sh"):
        orders = [line for line in found[name].decode().split("\n") if not line.lstrip().startswith("#")]
        assert not any(part in line for line in orders for part in ("reboot", "script", "cmd", "`")), name
    for row in csv.reader(io.StringIO(found["senders.csv"].decode())):
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row)


def test_a_folder_is_new_and_an_archive_is_whole(tmp_path: Path, bundle: dict[str, bytes]) -> None:
    write_folder(tmp_path / "made", bundle)
    for name, content in bundle.items():
        assert (tmp_path / "made" / name).read_bytes() == content
    with pytest.raises(FwtopError, match="is there already and was not changed"):
        write_folder(tmp_path / "made", {"other.txt": b""})
    with zipfile.ZipFile(io.BytesIO(zipped(bundle))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == bundle


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", ".bashrc", "a/b/c", "a/../b", "a\nb", ""])
def test_a_reader_that_was_taken_over_names_no_other_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(FwtopError, match="no bundle has; nothing was written"):
        write_folder(tmp_path / "made", {name: b""})
    assert not (tmp_path / "made").exists()
