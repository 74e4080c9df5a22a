"""Editing a rule before it goes in: what is understood is measured again, what isn't is explained."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from screen_factory import snapshot
from screen_parts import NOW, QUERY, block_rule
from screen_run import Run, running

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.ui.actions.editor import Field, InvalidInput, fields_of
from fwtop.ui.actions.rule_dialog import RuleDialog

PORT = Rule("", Kind.XDP, Match(protocol=17, dport=53), "drop UDP to port 53 in the driver", 600, NOW)
TCP = replace(PORT, match=Match(protocol=6, dport=443))
LIMIT = replace(PORT, kind=Kind.HASHLIMIT, limit=RateLimit(1000, 1000, 24, 56))
BYTES = replace(PORT, kind=Kind.STRING, match=Match(protocol=17, payload=(PayloadMatch(b"flood:", 0),)))
ONE = replace(block_rule(), match=Match(sources=(Prefix.parse("203.0.113.7"),)))


def field(rule: Rule, name: str) -> Field:
    return next(item for item in fields_of(rule) if item.name == name)


def names(rule: Rule) -> list[str]:
    return [item.name for item in fields_of(rule)]


@pytest.mark.parametrize(
    ("rule", "name", "typed", "summary"),
    [
        (ONE, "source", "203.0.113.0/24", "block 203.0.113.0/24"),
        (ONE, "source", " 2001:db8::1 ", "block 2001:db8::1"),
        (ONE, "protocol", "udp", "block UDP from 203.0.113.7"),
        (block_rule(), "each as", "24", "block 203.0.113.0/24"),
        (PORT, "to port", "any", "drop UDP in the driver"),
        (PORT, "from port", "123", "drop UDP from port 123 to port 53 in the driver"),
        (PORT, "length", "60-70", "drop UDP to port 53 of 60 to 70 bytes in the driver"),
        (PORT, "protocol", "TCP", "drop TCP to port 53 in the driver"),
        (PORT, "via", "tc", "drop UDP to port 53 at tc ingress"),
        (PORT, "via", "NFTables", "drop UDP to port 53 at netdev ingress"),
        (ONE, "via", "xdp", "drop 203.0.113.7 in the driver"),
        (TCP, "flags", "syn,ack/syn", "drop TCP to port 443 with SYN but no ACK, in the driver"),
        (TCP, "flags", "all/none", "drop TCP to port 443 with no flags, in the driver"),
        (TCP, "flags", "any", "drop TCP to port 443 in the driver"),
        (LIMIT, "rate", "5k", "limit UDP to port 53 to 5,000/s per /24 (IPv6 /56)"),
        (LIMIT, "rate", "250/s", "limit UDP to port 53 to 250/s per /24 (IPv6 /56)"),
        (LIMIT, "via", "xdp", "limit UDP to port 53 to 1,000/s per /24 (IPv6 /56) in the driver"),
        (LIMIT, "per", "32", "limit UDP to port 53 to 1,000/s per /32 (IPv6 /64)"),
        (LIMIT, "per", "/16/40", "limit UDP to port 53 to 1,000/s per /16 (IPv6 /40)"),
        (BYTES, "at byte", "any", "drop UDP with “flood:”"),
        (BYTES, "bytes", "5", "drop UDP with “flood” at byte 0"),
    ],
)
def test_what_was_typed_becomes_the_rule_and_its_summary(
    rule: Rule, name: str, typed: str, summary: str
) -> None:
    changed = field(rule, name).write(rule, typed)
    assert changed.summary == summary
    again = field(rule, name).write(changed, field(rule, name).read(changed))
    assert again == changed, "what is shown can be typed"


@pytest.mark.parametrize(
    ("rule", "name", "typed", "says"),
    [
        (ONE, "source", "203.0.113", "an address or a prefix"),
        (ONE, "source", "0.0.0.0/0", "everybody"),
        (block_rule(), "each as", "33", "from 1 to 32"),
        (PORT, "to port", "65536", "from 0 to 65,535"),
        (PORT, "to port", "٣", "from 0 to 65,535"),
        (PORT, "protocol", "icmp", "the ports to any, first"),
        (PORT, "protocol", "upd", "tcp, udp, icmp"),
        (PORT, "length", "70-60", "upper end"),
        (PORT, "via", "string", "nftables, tc, xdp"),
        (TCP, "flags", "syn/ack", "the mask must contain every flag"),
        (TCP, "flags", "sin", "syn,ack/syn"),
        (replace(ONE, kind=Kind.XDP), "to port", "53", "ports need udp or tcp"),
        (LIMIT, "rate", "0", "from 1"),
        (LIMIT, "rate", "9" * 60, "from 1"),
        (LIMIT, "per", "24/", ""),
        (BYTES, "bytes", "7", "from 1 to 6"),
        (BYTES, "at byte", "-1", "a place"),
        (PORT, "for", "forever", "30s, 10m, 2h, 1d"),
        (PORT, "for", "0s", "30s, 10m, 2h, 1d"),
        (PORT, "for", "31d", "up to 30d"),
    ],
)
def test_what_means_nothing_is_explained(rule: Rule, name: str, typed: str, says: str) -> None:
    if not says:
        assert field(rule, name).write(rule, typed).limit == LIMIT.limit
        return
    with pytest.raises(InvalidInput, match=says):
        field(rule, name).write(rule, typed)


@pytest.mark.parametrize(("typed", "seconds"), [("30s", 30), ("10 min", 600), ("2h", 7200), ("1 d", 86400)])
def test_a_time_is_read_with_its_unit(typed: str, seconds: int) -> None:
    assert field(PORT, "for").write(PORT, typed).ttl_seconds == seconds


def test_arrows_widen_one_source_and_come_back() -> None:
    step = field(ONE, "source").step
    assert step is not None
    wide = step(step(ONE, -1), -1)
    assert str(wide.match.sources[0]) == "203.0.0.0/16"
    assert step(step(wide, 1), 1).match.sources == ONE.match.sources, "the address is not forgotten"


def test_widening_many_sources_joins_them_and_keeps_ipv6_apart() -> None:
    sources = tuple(Prefix.parse(text) for text in ("203.0.113.7", "203.0.113.9", "2001:db8::1"))
    rule = replace(ONE, match=Match(sources=sources))
    wide = field(rule, "each as").write(rule, "24")
    assert [str(prefix) for prefix in wide.match.sources] == ["203.0.113.0/24", "2001:db8::/56"]
    assert wide.summary == "block 2 sources"
    assert field(rule, "each as").write(wide, "32").match.sources == sources


def test_fields_follow_the_kind() -> None:
    assert names(ONE) == ["source", "protocol", "to port", "via", "for"]
    assert "flags" in names(TCP)
    assert "flags" not in names(PORT)
    assert names(LIMIT) == ["protocol", "from port", "to port", "rate", "per", "via", "for"]
    assert names(BYTES) == ["at byte", "bytes", "protocol", "to port", "via", "for"]
    name = replace(BYTES, match=Match(payload=(PayloadMatch(QUERY, 12, None, "example.org"),)))
    assert "bytes" not in names(name), "a DNS name that is cut is no name"
    country = replace(ONE, origin="country:NL")
    assert "source" not in names(country)
    assert field(country, "protocol").write(country, "udp").summary == "block UDP from NL"


def test_range_of_ttl_and_flags_stay_in_the_words() -> None:
    odd = replace(PORT, match=Match(protocol=6, dport=80, ttl=Range(50, 60), tcp_flags=(0x12, 0x02)))
    assert "ttl" in names(odd)
    assert not {"window", "ip id", "header"} & set(names(odd))
    changed = field(odd, "to port").write(odd, "443")
    assert changed.summary == "drop TCP to port 443 with TTL 50 to 60 and SYN but no ACK, in the driver"
    with pytest.raises(InvalidInput, match="TCP headers"):
        field(odd, "protocol").write(replace(odd, match=replace(odd.match, dport=None)), "udp")


def test_constants_of_a_flood_can_be_widened() -> None:
    match = Match(protocol=6, ip_id=Range(7, 7), tcp_window=Range(512, 512), tcp_header=Range(20, 20))
    odd = replace(PORT, match=match)
    assert field(odd, "window").read(odd) == "512"
    wider = field(odd, "ip id").write(field(odd, "window").write(odd, "500-600"), "any")
    assert wider.match == replace(match, ip_id=None, tcp_window=Range(500, 600))
    assert wider.summary == "drop TCP with window 500 to 600 and no TCP options, in the driver"
    with pytest.raises(InvalidInput, match="header"):
        field(odd, "header").write(odd, "61")


def dialog(run: Run) -> RuleDialog:
    assert isinstance(run.app.screen, RuleDialog)
    return run.app.screen


async def test_typed_source_is_measured_again_and_installed() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("b", *["up"] * 5)
        assert dialog(run).marked == "source"
        await run.press(*"203.0.113.0/25", "enter")
        assert "block 203.0.113.0/25" in run.text()
        assert run.feed.controls.verbs().count("preview") == 2
        await run.press("enter", "enter")
        ((rule, _),) = [value for verb, value in run.feed.controls.calls if verb == "apply"]  # type: ignore[misc]
        assert str(rule.match.sources[0]) == "203.0.113.0/25"


async def test_bad_input_is_explained_in_place_and_holds_the_mark() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("b", "up", *"5 years", "tab")
        assert dialog(run).marked == "for"
        assert "a time is a number with s, m, h or d" in run.text()
        assert dialog(run).rule.ttl_seconds == 600
        await run.press("escape")
        assert run.dialog == "RuleDialog", "the first Escape drops what was typed"
        assert "10 min" in run.text()
        await run.press("escape")
        assert run.app.screen is run.app.main


async def test_letters_and_backspace_edit_the_marked_field_only() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("b", "q", "x", "y")
        assert run.dialog == "RuleDialog"
        assert dialog(run).editor.typed is None, "a button takes no letters"
        await run.press("up", "backspace")
        assert dialog(run).editor.typed == "10 mi"
        await run.press("n", "enter")
        assert dialog(run).rule.ttl_seconds == 600


async def test_poison_typed_into_a_field_is_harmless() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("b", "up", *"[@click=app.quit]x[/]")
        assert "[@click=app.quit]x[/]" in run.text()
        await run.press("enter")
        assert "a time is a number" in run.text()
