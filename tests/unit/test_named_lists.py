"""Named lists: the model of their changes, their record, and what the command line takes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from fwtop.cli.main import main
from fwtop.cli.rules import list as list_verb
from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.found import Session
from fwtop.guardian.records.list_files import ListFiles, Recorded
from fwtop.guardian.rules import guard
from fwtop.guardian.rules.validate import rule_of_wire
from fwtop.model.addresses.address import MAX_NAME, Prefix, check_name
from fwtop.model.addresses.list_rows import positions
from fwtop.model.addresses.named_list import NEVER, NamedList, check_entries
from fwtop.model.addresses.prefix_list import detach_sources
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.addresses.roles import AllowedPeer
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply
from fwtop.model.rule import Kind, Match, Rule
from fwtop.rehearsal.host import Host
from fwtop.rehearsal.operators import around_sessions, exceptions
from fwtop.rehearsal.rehearse import Rehearsal
from fwtop.rules.kinds import command_line
from fwtop.rules.xtables import list_set_name


def prefixes(*texts: str) -> tuple[Prefix, ...]:
    return tuple(map(Prefix.parse, texts))


def listed(*texts: str, end: float = NEVER) -> NamedList:
    named = NamedList("x")
    return named.changed(named.addition(prefixes(*texts), end))


def random_entry(rng: random.Random) -> Prefix:
    family, lengths = rng.choice(((4, (8, 24, 30, 32)), (6, (16, 32, 64, 120, 128))))
    bits, length = (32, rng.choice(lengths)) if family == 4 else (128, rng.choice(lengths))
    value = rng.getrandbits(4) << bits - 4 | rng.getrandbits(2) << bits // 2 | rng.getrandbits(3)
    return Prefix(family, value >> bits - length << bits - length, length)


def test_random_changes_give_what_a_dictionary_gives() -> None:
    rng = random.Random(3)
    named, model = NamedList("x"), dict[Prefix, float]()
    for _ in range(500):
        given = [random_entry(rng) for _ in range(rng.randrange(8))]
        end = rng.choice((NEVER, rng.uniform(1, 100)))
        match rng.randrange(4):
            case 0:
                change = named.addition(given, end)
                assert set(named.new_of(change)) == set(given) - model.keys()
                model.update(dict.fromkeys(given, end))
            case 1:
                change = named.removal(given)
                assert set(change.removed) == set(given) & model.keys()
                model = {entry: at for entry, at in model.items() if entry not in given}
            case 2:
                change = named.replacement(given, end)
                model = dict.fromkeys(given, end)
            case _:
                now = rng.uniform(0, 100)
                change = named.expiry(now)
                model = {entry: at for entry, at in model.items() if at == NEVER or at > now}
        named = named.changed(change)
        assert list(named.rows) == sorted(model)
        assert {entry: named.end_of(str(entry)) for entry in model} == model
        assert named.timed == sum(end != NEVER for end in model.values())
        assert named.next_end == min((end for end in model.values() if end != NEVER), default=None)
        wanted = random_entry(rng)
        around = [entry for entry in model if entry.contains(wanted)]
        longest = max(around, key=lambda entry: entry.length, default=None)
        assert named.covering(str(wanted)) == (str(longest) if longest is not None else None)


def test_prefixes_of_one_address_are_different_entries() -> None:
    named = listed("10.0.0.0/8", "10.0.0.0/24", "2001:db8::/32", "2001:db8::/48")
    assert positions(named.rows, PrefixRows.of(prefixes("10.0.0.0/16", "10.0.0.0/24"))).tolist() == [-1, 1]
    named = named.changed(named.removal(prefixes("10.0.0.0/24", "2001:db8::/32")))
    assert list(named.rows) == list(prefixes("10.0.0.0/8", "2001:db8::/48"))


@pytest.mark.parametrize("name", ["a", "spam-haus_1.2", "x" * MAX_NAME])
def test_names_fit_into_an_ipset(name: str) -> None:
    assert check_name(name) == name
    assert len(list_set_name(name, 4)) <= 31


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "x" * (MAX_NAME + 1), "é", "a\n"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(FwtopError, match="no name for a list"):
        check_name(name)


def test_everybody_is_no_entry() -> None:
    check_entries(prefixes("128.0.0.0/1"))
    for text in ("0.0.0.0/0", "::/0"):
        with pytest.raises(FwtopError, match="everybody"):
            check_entries(prefixes("10.0.0.0/8", text))


def recorded(files: ListFiles) -> Recorded:
    (found,) = files.load()
    return found


def written(directory: Path, *texts: str) -> tuple[ListFiles, Recorded]:
    files, first = ListFiles(directory, "boot"), Recorded(listed(*texts), 3, 5)
    files.write(first)
    return files, first


def change_to(files: ListFiles, before: Recorded, *texts: str, end: float = NEVER) -> Recorded:
    """Begin a change, and return the list after it."""
    named = before.named.changed(before.named.replacement(prefixes(*texts), end))
    after = Recorded(named, before.number, before.stamp + 1)
    files.begin(after)
    return after


def test_record_gives_the_list_again(tmp_path: Path) -> None:
    files, now = written(tmp_path, "10.0.0.0/8", "2001:db8::/32")
    for number in range(20):
        now = change_to(files, now, f"10.0.0.{number}", "2001:db8::1", end=float(number))
        files.finish("x")
        found = recorded(ListFiles(tmp_path, "boot"))
        assert (found, list(found.named.rows)) == (now, list(now.named.rows))
        assert found.named.end_of("2001:db8::1") == number


def test_change_without_its_end_is_dropped(tmp_path: Path) -> None:
    files, first = written(tmp_path, "10.0.0.0/8")
    change_to(files, first, "203.0.113.0/24", "2001:db8::/32")
    found = recorded(ListFiles(tmp_path, "boot"))
    assert list(found.named.rows) == list(prefixes("10.0.0.0/8"))
    assert found.unfinished
    assert len(list(tmp_path.iterdir())) == 1
    assert not recorded(ListFiles(tmp_path, "boot")).unfinished


def test_abandoned_change_is_not_recorded(tmp_path: Path) -> None:
    files, first = written(tmp_path, "10.0.0.0/8")
    change_to(files, first, "203.0.113.0/24")
    files.abandon("x")
    assert recorded(ListFiles(tmp_path, "boot")) == first
    files.drop("x")
    assert not list(ListFiles(tmp_path, "boot").load())


def test_record_of_another_boot_is_gone(tmp_path: Path) -> None:
    written(tmp_path, "10.0.0.0/8")
    assert not list(ListFiles(tmp_path, "later").load())
    assert not list(tmp_path.iterdir())


def damage(data: bytes) -> bytes:
    return data[:20] + bytes([data[20] ^ 1]) + data[21:]


@pytest.mark.parametrize("spoil", [damage, lambda _: b"", lambda data: data[:10], lambda data: data[:-1]])
def test_damaged_record_is_skipped(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    written(tmp_path, "10.0.0.0/8")
    path = next(tmp_path.iterdir())
    path.write_bytes(spoil(path.read_bytes()))
    assert not list(ListFiles(tmp_path, "boot").load())


def on_list(kind: Kind = Kind.IPSET, **options) -> Rule:
    return Rule("", kind, Match(**options), "block list x", 600, origin="list:x")


def test_rules_on_lists_come_without_sources() -> None:
    for kind in (Kind.IPSET, Kind.XDP, Kind.TC, Kind.NFTABLES):
        assert rule_of_wire(on_list(kind).to_dict()).list_name == "x"
    for wrong in (on_list(sources=prefixes("10.0.0.1")), on_list(Kind.STRING), on_list(Kind.NOTRACK)):
        with pytest.raises(FwtopError, match="not a rule"):
            rule_of_wire(wrong.to_dict())
    with pytest.raises(FwtopError, match="no name for a list"):
        rule_of_wire(on_list().to_dict() | {"origin": "list:a b"})


def test_client_leaves_out_a_lists_entries() -> None:
    many = tuple(Prefix(4, 10 << 24 | number, 32) for number in range(6000))
    request, attached = detach_sources(Apply({}), on_list(sources=many))
    assert attached is None
    assert request.rule["match"]["sources"] == []


def test_rule_on_a_list_as_a_command() -> None:
    assert command_line(on_list()) == "fwtop block --list x --via ipset --ttl 10m"
    assert command_line(on_list(Kind.XDP, family=6)) == "fwtop block --list x -6 --via xdp --ttl 10m"


def test_entries_come_from_words_and_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("10.0.0.1\n# nothing\n2001:db8::/32  # 5m left\n")
    found = list_verb.entries_of([f"@{tmp_path / 'a'}", "198.51.100.0/24"])
    assert list(found) == list(prefixes("10.0.0.1", "198.51.100.0/24", "2001:db8::/32"))
    assert list_verb.entries_of(["10.0.0.9"]) == prefixes("10.0.0.9")
    with pytest.raises(FwtopError, match="not an address or prefix"):
        list_verb.entries_of(["10.0.0.9", "ten"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("create", "needs the name of a list"),
        ("add x", "needs prefixes or @FILE"),
        ("replace x", "needs prefixes or @FILE"),
        ("delete x 10.0.0.1", "takes no entries"),
        ("show x 10.0.0.1", "takes no entries"),
        ("test x", "needs one address or prefix"),
        ("test x 10.0.0.1 10.0.0.2", "needs one address or prefix"),
        ("remove x 10.0.0.1 --ttl 10m", "--ttl does not go with"),
        ("show --output f", "--output goes with"),
        ("add a/b 10.0.0.1", "no name for a list"),
        ("add x 10.0.0.1/33", "not an address or prefix"),
        ("empty x", "invalid choice"),
    ],
)
def test_wrong_use_of_the_verb(capsys: pytest.CaptureFixture[str], words: str, line: str) -> None:
    assert main(["list", *words.split()]) == 2
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "give sources to block, or one list"),
        ("10.0.0.1 --list x", "give sources to block, or one list"),
        ("--list x --replace 3", "--list does not go with --replace"),
        ("--list a/b", "no name for a list"),
    ],
)
def test_wrong_use_of_a_list_in_block(capsys: pytest.CaptureFixture[str], words: str, line: str) -> None:
    assert main(["block", *words.split(), "--yes"]) == 2
    assert line in capsys.readouterr().err


def test_a_list_is_shown_with_counts_memory_rules_and_busiest_entries() -> None:
    told = {"name": "x", "ipv4": 1_000_000, "ipv6": 2, "timed": 0, "ports": True, "rules": ["3", "4"]}
    sizes = {"bytes": 5 << 20, "kernel_bytes": 2048}
    _, line, entry = list_verb.show_lines([told | sizes | {"busiest": {"10.0.0.1": 7}}])
    assert line.split() == [
        "x",
        "1,000,000",
        "2",
        "0",
        "5.0",
        "MiB",
        "2.0",
        "KiB",
        "3,",
        "4",
        "(with",
        "ports)",
    ]
    assert entry.split() == ["10.0.0.1", "7", "packets"]
    assert "fwtop list create" in list_verb.show_lines([])[0]


LOGIN = Session(Prefix.parse("233.252.0.9"), 40000, 22).allowed("logged in")
ALLOW = AllowList((AllowedPeer(Prefix.parse("198.51.100.7"), reason="operator"), LOGIN))


def test_list_may_hold_what_the_operator_allows_as_that_passes() -> None:
    rule = on_list(sources=prefixes("198.51.100.0/24"))
    assert guard.judge(rule, Host(ALLOW), 0) == Rehearsal()
    assert exceptions(rule, ALLOW) == ()


def test_list_that_holds_a_session_is_refused_and_never_cut() -> None:
    rule = on_list(sources=prefixes("233.252.0.0/24", "203.0.113.1"))
    refused = guard.judge(rule, Host(ALLOW), 0).refused
    assert refused is not None
    assert "233.252.0.0/24 would match 233.252.0.9" in refused
    assert around_sessions(rule, ALLOW) == (rule, ())


def test_empty_list_is_not_everybody() -> None:
    assert guard.judge(on_list(), Host(ALLOW), 0) == Rehearsal()
    broad = guard.judge(on_list(sources=prefixes("96.0.0.0/4")), Host(ALLOW), 0).broad
    assert broad is not None
    assert "96.0.0.0/4 is broader than /8" in broad
