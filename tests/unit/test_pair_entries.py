"""Pairs of networks: how they are written, kept, changed, looked up, and told to kernels."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fwtop.analysis.proposals.matching import match_rows
from fwtop.cli.rules.list import entries_of as entries_given
from fwtop.model.addresses.list_rows import rows_of_bytes
from fwtop.model.addresses.named_list import NamedList, check_entries, entries_of
from fwtop.model.addresses.pair_rows import PairEntry, PairRows
from fwtop.model.addresses.prefix_file import read_prefix_file
from fwtop.model.addresses.prefix_list import pack_prefixes, read_sources, sealed, unpack_prefixes
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import PacketBatch
from fwtop.policy.document import read
from fwtop.policy.exports import documents
from fwtop.rules.nft_objects import elements_of, listed_as, why_crossing

TEXTS = (
    "10.0.0.0/8,0.0.0.0/0",
    "10.0.0.0/8,192.0.2.0/24",
    "192.0.2.7,198.51.100.9",
    "2001:db8::/32,2001:db8:1::/48",
    "2001:db8::7,2001:db8::8",
)


def rows(*texts: str) -> PairRows:
    found = entries_of(texts)
    assert isinstance(found, PairRows)
    return found


def texts(found: PairRows) -> list[str]:
    return [str(entry) for entry in found.entries()]


def test_entries_are_written_as_they_are_read_and_kept_in_order() -> None:
    found = rows(*random.Random(4).sample(TEXTS, len(TEXTS)), TEXTS[0])
    assert texts(found) == list(TEXTS)
    assert texts(rows_of_bytes(found.tobytes())) == list(TEXTS)
    assert read_sources(sealed(found)) == found
    assert unpack_prefixes(bytes(pack_prefixes(found))) == found
    assert [found.count(4), found.count(6), found.families] == [3, 2, {4, 6}]
    assert [str(prefix) for prefix in found] == ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "2001:db8::7"]
    assert texts(found.of_family(6)) == list(TEXTS[3:])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("192.0.2.7,2001:db8::1", "addresses of both families"),
        ("192.0.2.7,", "not an address"),
        (",192.0.2.7", "not an address"),
        ("192.0.2.7,10.0.0.1,10.0.0.2", "not an address"),
        ("192.0.2.7,10.0.0.1/8", "host bits"),
        ("192.0.2.7:80/tcp,10.0.0.1", "not an address"),
    ],
)
def test_what_is_no_pair_is_one_line(text: str, words: str) -> None:
    with pytest.raises(FwtopError, match=rf"{words}.*nothing was changed"):
        entries_of((text,))


def test_everybody_may_be_a_destination_and_no_source() -> None:
    everywhere = rows("192.0.2.7,0.0.0.0/0")
    check_entries(everywhere)
    assert texts(everywhere.single) == ["192.0.2.7,0.0.0.0/1", "192.0.2.7,128.0.0.0/1"]
    assert everywhere.elements == len(everywhere.single)
    with pytest.raises(FwtopError, match="/0 is everybody"):
        check_entries(rows("0.0.0.0/0,192.0.2.7"))


@pytest.mark.parametrize("position", range(35))
def test_damaged_bytes_are_refused_or_mean_other_entries(position: int) -> None:
    data = bytearray(rows("10.0.0.0/8,192.0.2.0/24").tobytes())
    for value in (0, 1, 200, 255):
        data[4 + position] = value
        try:
            found = rows_of_bytes(bytes(data))
        except ValueError:
            continue
        assert rows(*texts(found)) == found


def test_a_list_of_pairs_changes_like_any_other_and_keeps_its_kind() -> None:
    chance, model = random.Random(9), set[str]()
    pool = [f"10.{chance.randrange(9)}.0.0/16,192.0.{chance.randrange(9)}.0/24" for _ in range(40)]
    listed = NamedList("x")
    for _ in range(60):
        some = set(chance.sample(pool, 5))
        added = chance.random() < 0.5
        listed = listed.changed((listed.addition if added else listed.removal)(rows(*some)))
        model = model | some if added else model - some
        assert sorted(listed.texts()) == sorted(model)
    with pytest.raises(FwtopError, match="list x holds pairs of networks, as 192"):
        listed.addition(entries_of(("192.0.2.1:80/tcp",)))
    with pytest.raises(FwtopError, match="one kind"):
        entries_of(("192.0.2.1", "192.0.2.1,10.0.0.1"))
    held = NamedList("x").changed(NamedList("x").addition(rows(*TEXTS)))
    assert held.covering("10.1.2.3,192.0.2.9") == "10.0.0.0/8,192.0.2.0/24"
    assert held.covering("10.1.2.3,8.8.8.8") == "10.0.0.0/8,0.0.0.0/0"
    assert held.covering("11.1.2.3,192.0.2.9") is None


def test_files_and_words_of_a_command_line_hold_pairs(tmp_path) -> None:
    file = tmp_path / "pairs.txt"
    file.write_text("# ours\n" + "\n".join(TEXTS[:3]) + "  # one\n")
    assert texts(read_prefix_file(str(file), for_list=True)) == list(TEXTS[:3])
    assert texts(entries_given([f"@{file}", *TEXTS[3:]])) == list(TEXTS)
    with pytest.raises(FwtopError, match="one kind"):
        entries_given([f"@{file}", "192.0.2.1"])
    with pytest.raises(FwtopError, match="line 2"):
        read_prefix_file(str(file))


def some_pairs(chance: random.Random, count: int) -> PairRows:
    """Return pairs that often lie in each other, or overlap."""

    def network() -> str:
        length = chance.choice((8, 9, 10, 12))
        second = chance.randrange(16) << 4 & 0xFF << 16 - length
        return f"{chance.randrange(16) << 4}.{second}.0.0/{length}"

    return rows(*(f"{network()},{network()}" for _ in range(count)))


def test_packets_meet_pairs_as_the_definition_says() -> None:
    chance = random.Random(3)
    listed = some_pairs(chance, 60)
    made = PacketBatch.zeros(4000, 0)
    made.family[:] = 4
    for column in (made.src_lo, made.dst_lo):
        column[:] = [chance.randrange(1 << 32) & 0xF0F0_FFFF for _ in range(len(made))]
    hit = match_rows(Match(sources=listed), made)
    spans = [
        (pair.prefix.value, pair.to.value, 32 - pair.prefix.length, 32 - pair.to.length)
        for pair in listed.entries()
    ]
    wanted = [
        any(int(src) >> a == one >> a and int(dst) >> b == other >> b for one, other, a, b in spans)
        for src, dst in zip(made.src_lo, made.dst_lo, strict=True)
    ]
    assert 0 < sum(wanted) < len(wanted)
    assert np.array_equal(hit, wanted)


def test_nft_gets_the_outermost_pairs_and_none_that_cross() -> None:
    inside = rows("10.0.0.0/8,192.0.2.0/24", "10.1.0.0/16,192.0.2.0/24", "10.1.0.0/16,192.0.2.9")
    assert elements_of(inside) == ["10.0.0.0/8 . 192.0.2.0/24"]
    assert listed_as("10.0.0.0/8 . 192.0.2.0/24") == "10.0.0.0/8,192.0.2.0/24"
    crossing = rows("10.0.0.0/8,192.0.2.9", "10.1.0.0/16,192.0.2.0/24")
    assert "as 10.0.0.0/8,192.0.2.9 and 10.1.0.0/16,192.0.2.0/24 do: use ipset" in (
        why_crossing(crossing) or ""
    )
    chance = random.Random(5)
    for _ in range(60):
        listed = some_pairs(chance, 8)
        entries = list(listed.entries())
        around = {one for one in entries for other in entries if other != one and _holds(other, one)}
        assert set(listed.outermost().entries()) == set(entries) - around
        kept = [one for one in entries if one not in around]
        crosses = any(_overlap(one, other) for one in kept for other in kept if one != other)
        assert (why_crossing(listed) is not None) == crosses


def _overlap(one: PairEntry, other: PairEntry) -> bool:
    return all(
        mine.contains(theirs) or theirs.contains(mine)
        for mine, theirs in ((one.prefix, other.prefix), (one.to, other.to))
    )


POLICY = """
schema = 1
[list.tenants]
entries = ["192.0.2.0/24,198.51.100.7", "2001:db8:1::/48,2001:db8:9::/64"]
[[block]]
list = "tenants"
"""


def test_a_policy_of_pairs_is_exported_as_both_kernels_have_them(tmp_path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    policy = read(tmp_path / "policy.toml")
    files = documents(policy, "x", "nft", tmp_path / "allow") | documents(
        policy, "x", "iptables", tmp_path / "allow"
    )
    text = {name: "\n".join(lines) for name, lines in files.items()}
    nft = next(text[name] for name in text if "nft" in name)
    assert "list-tenants-4 { type ipv4_addr . ipv4_addr; flags interval; }" in nft
    assert "list-tenants-4 { 192.0.2.0/24 . 198.51.100.7 }" in nft
    assert "ip6 saddr . ip6 daddr @list-tenants-6 counter drop" in nft
    assert "create policy-tenants-4 hash:net,net family inet " in text["policy.ipset"]
    assert "add policy-tenants-6 2001:db8:1::/48,2001:db8:9::/64" in text["policy.ipset"]
    assert "--match-set policy-tenants-4 src,dst" in text["policy.iptables"]


def _holds(one: PairEntry, other: PairEntry) -> bool:
    return one.prefix.contains(other.prefix) and one.to.contains(other.to)
