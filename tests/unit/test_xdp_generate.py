"""The C generated from rules: only the needed tests, lists without overlap, and refused rules."""

import errno
import ipaddress
import random
import re

import pytest
from frames import batch_of, ethernet, ipv4, udp

from fwtop.analysis.proposals.matching import match_rows
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, PayloadMatch, Rule
from fwtop.rules.kinds.compiled import check_xdp
from fwtop.xdp.build import _numbered, is_too_large, lookup_lines, program_text, variants
from fwtop.xdp.ipv6_lists import build_list6
from fwtop.xdp.maps import List4, List6, SlotRule, Table6, disjoint


def body_of(text: str, function: str) -> str:
    return text[text.index(f" {function}(") :].partition("\n}")[0]


def test_a_rule_tests_only_its_conditions() -> None:
    text = program_text([SlotRule(3, Match(protocol=17, sport=161), {})], ())
    body = body_of(text, "any_rule_3")
    assert "p->protocol == 17" in body
    assert "p->sport == 161" in body
    assert not re.search(r"ttl|ip_length|payload|src_", body)
    assert "if (any_rule_3(f, p) && is_enabled(counters, 3))" in text


def test_many_prefixes_are_compiled_without_the_fast_path() -> None:
    """Code for 30 rules of 50 prefixes took 10 s to compile, and its jumps were too long for the kernel."""
    fifty = tuple(Prefix.parse(f"10.0.{place}.0/24") for place in range(50))
    rules = [SlotRule(slot, Match(sources=fifty), {}) for slot in range(20)]
    assert variants(rules) == (True, False)
    assert variants([*rules, SlotRule(20, Match(destinations=fifty), {})]) == (False,)
    listed = {("src", 4): List4(1, 2, 3, 0, 0)}
    assert variants([*rules, SlotRule(20, Match(sources=fifty), listed)]) == (True, False)
    tables = tuple(Table6(length, 0, 0, 4, 1, (1, 1), (0, 0)) for length in range(20, 121))
    assert variants([SlotRule(0, Match(), {("src", 6): List6(1, tables[:100])})]) == (True, False)
    assert variants([SlotRule(0, Match(), {("src", 6): List6(1, tables)})]) == (False,)


def test_a_change_of_an_ipv6_list_gives_the_same_code() -> None:
    """So that the compiled code is in the cache; what differs goes into it as values."""
    texts, values = [], []
    for count in (20, 3000):
        entries = [Prefix(6, (0x2A00 << 112) + (number << 80), 48) for number in range(count)]
        entries += [Prefix(6, (0x2A01 << 112) + number, 128) for number in range(count)]
        _, tables = build_list6(PrefixRows.of(entries), 0)
        maps: dict[int, int] = {}
        rule = SlotRule(0, Match(), {("src", 6): List6(9, tables)}, counted=2 * count, hits=8)
        texts.append(program_text([_numbered(rule, maps)], ()))
        values.append(maps)
        assert {seed for table in tables for seed in table.seeds} <= set(maps.values())
    assert texts[0] == texts[1]
    assert values[0].keys() == values[1].keys()


def test_programs_that_are_too_long_are_distinguished_from_wrong_ones() -> None:
    far = "fwtop_xdp: Invalid argument: jump out of range from insn 12 to -30007 | processed 0 insns"
    assert is_too_large(OSError(errno.E2BIG, "Argument list too long"))
    assert is_too_large(OSError(errno.EINVAL, far))
    assert not is_too_large(OSError(errno.EINVAL, "fwtop_xdp: Invalid argument: unknown opcode 00"))


def test_known_fields_are_not_tested() -> None:
    match = Match(protocol=17, sport=161, fragment=False, sources=(Prefix.parse("10.0.0.0/8"),))
    text = program_text([SlotRule(0, match, {})], ())
    body = body_of(text, "plain_4_17_rule_0")
    assert "BE16(p->transport + 0) == 161" in body
    assert not re.search(r"protocol|fragment|family", body)
    assert "plain_4_6_rule_0" not in text  # TCP can't meet it
    assert "plain_6_17_rule_0" not in text  # nor can IPv6


def test_payload_searches_are_compiled_once() -> None:
    text = program_text([SlotRule(0, Match(dport=53, payload=(PayloadMatch(b"evil"),)), {})], ())
    assert text.count("for (u32 i") == 1
    assert "return NOT_PLAIN;" in body_of(text, "plain_4_17_verdict")


def lookup(lines: list[str], hi: int, lo: int) -> bool:
    """Run the generated decision tree."""
    code = "\n".join(lines).replace("ULL", "").replace("&&", " and ").replace("||", " or ")
    depth, out = 0, []
    for line in code.splitlines():
        word = line.strip().rstrip(";")
        if word.startswith("if"):
            out.append("    " * depth + re.sub(r"^if \((.*)\) \{$", r"if (\1):", word))
            depth += 1
        elif word == "}":
            depth -= 1
        else:
            out.append("    " * depth + word)
    scope: dict[str, object] = {}
    body = "\n".join(f"    {line}" for line in out)
    exec(f"def found(hi, lo):\n{body}", scope)  # noqa: S102 - our own generated comparisons
    return bool(scope["found"](hi, lo))


@pytest.mark.parametrize("family", [4, 6])
def test_the_tree_agrees_with_a_linear_search(family: int) -> None:
    chance = random.Random(family)
    bits = 32 if family == 4 else 128
    for _ in range(30):
        prefixes = [_prefix(chance, family, bits) for _ in range(chance.randrange(1, 20))]
        lines = lookup_lines(prefixes)
        for _ in range(40):
            address = chance.choice(prefixes).value ^ chance.choice((0, 1, 1 << (bits - 9), 1 << 3))
            wanted = any(p.contains(Prefix(family, address, bits)) for p in prefixes)
            assert lookup(lines, address >> 64, address & (1 << 64) - 1) == wanted


def _prefix(chance: random.Random, family: int, bits: int) -> Prefix:
    length = chance.choice((8, 9, bits // 2, bits - 4, bits))
    value = chance.choice((10, 11)) << (bits - 8) | chance.randrange(4) << 2
    return Prefix(family, value >> (bits - length) << (bits - length), length)


def test_prefixes_within_others_are_left_out() -> None:
    texts = ("10.0.0.0/8", "10.1.0.0/16", "9.0.0.1", "10.0.0.0/8")
    assert disjoint(map(Prefix.parse, texts)) == [Prefix.parse("9.0.0.1"), Prefix.parse("10.0.0.0/8")]
    assert ipaddress.ip_network("10.0.0.0/8") == disjoint(map(Prefix.parse, texts))[1].network


@pytest.mark.parametrize(
    ("match", "words"),
    [
        (Match(payload=(PayloadMatch(bytes(129)),)), "first 128 bytes"),
        (Match(payload=(PayloadMatch(b"x", 2048),)), "up to byte 2048"),
        (Match(destinations=(Prefix(4, 0, 8),) * 1025), "1024 destinations"),
    ],
)
def test_rules_that_cant_be_compiled(match: Match, words: str) -> None:
    with pytest.raises(FwtopError, match=words) as caught:
        check_xdp(Rule("", Kind.XDP, match, "", 60))
    assert caught.value.code == 2


def test_previews_treat_case_and_later_fragments_as_rules_do() -> None:
    name = PayloadMatch(b"\x04evil\x00", 0, None, "evil.")
    frames = [
        ethernet(ipv4(udp(1, 53, b"\x04EvIl\x00"), 17), 0x0800),
        ethernet(ipv4(udp(1, 53, b"\x04evi1\x00"), 17), 0x0800),
        ethernet(ipv4(b"\x04evil\x00" + bytes(20), 17, frag=5), 0x0800),
    ]
    assert match_rows(Match(payload=(name,)), batch_of(frames)).tolist() == [True, False, False]
