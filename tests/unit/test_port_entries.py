"""Entries of addresses with ports: how they are written, kept, changed and looked up."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fwtop.analysis.proposals.matching import match_rows
from fwtop.cli.rules.list import entries_of as entries_given
from fwtop.model.addresses.keyed_rows import MAX_ELEMENTS
from fwtop.model.addresses.list_rows import rows_of_bytes
from fwtop.model.addresses.named_list import Change, NamedList, check_entries, entries_of
from fwtop.model.addresses.port_rows import PortEntry, PortRows
from fwtop.model.addresses.prefix_file import read_prefix_file
from fwtop.model.addresses.prefix_list import read_sources, sealed
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Fragment, PacketBatch

TEXTS = (
    "10.0.0.0/8:8000-8100/udp",
    "192.0.2.7:256/tcp",
    "192.0.2.7:443/tcp",
    "[2001:db8::/32]:1-65535/udp",
    "[2001:db8::7]:53/udp",
)


def rows(*texts: str) -> PortRows:
    found = entries_of(texts)
    assert isinstance(found, PortRows)
    return found


def texts(found: PortRows) -> list[str]:
    return [str(entry) for entry in found.entries()]


def test_entries_are_written_as_they_are_read_and_kept_in_order() -> None:
    shuffled = random.Random(4).sample(TEXTS, len(TEXTS))
    found = rows(*shuffled, TEXTS[0])
    assert texts(found) == list(TEXTS)
    assert texts(rows_of_bytes(found.tobytes())) == list(TEXTS)
    assert read_sources(sealed(found)) == found
    assert [found.count(4), found.count(6), found.families] == [3, 2, {4, 6}]
    assert [str(prefix) for prefix in found.prefixes] == [
        "10.0.0.0/8",
        "192.0.2.7",
        "2001:db8::/32",
        "2001:db8::7",
    ]
    assert texts(found.of_family(6)) == list(TEXTS[3:])
    assert [str(one) for one in found.meeting(6, 443)] == ["192.0.2.7"]
    assert found.elements == 101 + 2 + 65_535 + 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("192.0.2.7:443", "needs /tcp or /udp"),
        ("192.0.2.7:443/icmp", "needs /tcp or /udp"),
        ("192.0.2.7:0/tcp", "from 1 to 65535"),
        ("192.0.2.7:9-8/tcp", "the first port is above the last"),
        ("[2001:db8::7]:70000/udp", "from 1 to 65535"),
        ("192.0.2.700:9/tcp", "not an address"),
        ("2001:db8::7:9/tcp", r"is not written as .* or \[2001:db8::1\]:53/udp"),
        ("example.com:9/udp", "is not written as 192.0.2.7:443/tcp"),
        ("192.0.2.7:9:9", "not an address"),
    ],
)
def test_what_is_no_entry_is_one_line(text: str, words: str) -> None:
    with pytest.raises(FwtopError, match=rf"{words}.*nothing was changed"):
        entries_of((text,))


@pytest.mark.parametrize("position", range(23))
def test_damaged_bytes_are_refused_or_mean_other_entries(position: int) -> None:
    data = bytearray(rows("10.0.0.0/8:8000-8100/udp").tobytes())
    for value in (0, 1, 200, 255):
        data[4 + position] = value
        try:
            found = rows_of_bytes(bytes(data))
        except ValueError:
            continue
        assert rows(*texts(found)) == found


def test_ranges_become_single_ports_and_only_the_outermost_are_nfts() -> None:
    found = rows("10.0.0.0/8:80-82/tcp", "10.0.0.0/8:82-83/tcp", "10.1.0.0/16:81/tcp", "10.1.0.0/16:81/udp")
    assert texts(found.single.outermost()) == [
        *(f"10.0.0.0/8:{port}/tcp" for port in (80, 81, 82, 83)),
        "10.1.0.0/16:81/udp",
    ]
    assert len(found.single) == 6


def test_a_list_of_ports_changes_like_any_other() -> None:
    chance, model = random.Random(9), {}
    pool = [f"10.{chance.randrange(9)}.0.0/16:{chance.randrange(1, 9) * 100}-900/tcp" for _ in range(40)]
    listed = NamedList("x")
    for step in range(60):
        some = chance.sample(pool, 5)
        end = float(chance.choice((0, step + 5)))
        if chance.random() < 0.5:
            listed = listed.changed(listed.addition(rows(*some), end))
            model |= dict.fromkeys(some, end)
        else:
            listed = listed.changed(listed.removal(rows(*some)))
            model = {text: ends for text, ends in model.items() if text not in some}
        listed = listed.changed(listed.expiry(float(step)))
        model = {text: ends for text, ends in model.items() if not 0 < ends <= step}
        assert sorted(listed.texts()) == sorted({str(PortEntry.parse(text)) for text in model})
        ends = listed.ends if listed.ends is not None else np.zeros(len(listed.rows))
        assert sorted(ends.tolist()) == sorted(
            {str(PortEntry.parse(k)): v for k, v in model.items()}.values()
        )


def test_kinds_are_not_mixed() -> None:
    listed = NamedList("x").changed(Change(rows(*TEXTS)))
    with pytest.raises(FwtopError, match="list x holds addresses with ports"):
        listed.addition(entries_of(("192.0.2.1",)))
    with pytest.raises(FwtopError, match="one kind"):
        entries_of(("192.0.2.1", "192.0.2.1:80/tcp"))
    empty = listed.changed(listed.removal(rows(*TEXTS)))
    assert isinstance(empty.rows, PortRows)
    assert empty.changed(empty.addition(entries_of(("192.0.2.1",)))).texts() == ["192.0.2.1"]
    assert listed.covering("192.0.2.7:443/tcp") == "192.0.2.7:443/tcp"
    assert listed.covering("[2001:db8::7]:53/udp") == "[2001:db8::7]:53/udp"
    assert listed.covering("[2001:db8::7]:53-54/udp") == "[2001:db8::/32]:1-65535/udp"
    assert listed.covering("10.1.2.3:7999/udp") is None
    wide = rows("[2001:db8::/32]:1-65535/udp", *(f"10.{n}.0.0/16:1-65535/tcp" for n in range(4)))
    with pytest.raises(FwtopError, match=f"holds up to {MAX_ELEMENTS:,}"):
        check_entries(wide)


def test_files_hold_either_kind(tmp_path) -> None:
    file = tmp_path / "list"
    file.write_text("# both families\n192.0.2.7:443/tcp  # web\n[2001:db8::/32]:53/udp\n")
    assert texts(entries_given([f"@{file}", "192.0.2.7:80/tcp"])) == [
        "192.0.2.7:80/tcp",
        "192.0.2.7:443/tcp",
        "[2001:db8::/32]:53/udp",
    ]
    with pytest.raises(FwtopError, match="line 2"):
        read_prefix_file(str(file))
    file.write_text("192.0.2.7:443/tcp\n192.0.2.7\n")
    with pytest.raises(FwtopError, match="one kind"):
        entries_given([f"@{file}"])


def test_packets_meet_entries_only_at_their_ports() -> None:
    made = PacketBatch.zeros(5, 0)
    made.family[:], made.src_lo[:] = 4, int.from_bytes(bytes((192, 0, 2, 7)), "big")
    made.protocol[:] = 6, 6, 17, 6, 6
    made.dport[:] = 443, 444, 443, 8050, 443
    made.fragment[:] = 0, 0, 0, 0, Fragment.LATER
    listed = rows("192.0.2.7:443/tcp", "192.0.2.0/24:8000-8100/tcp", "198.51.100.0/24:444/tcp")
    assert match_rows(Match(sources=listed), made).tolist() == [True, False, False, True, False]
