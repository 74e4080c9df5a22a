"""What holds for every kind of rule and every header field, whichever there are."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.rules.fields import FIELDS, Field
from fwtop.rules.kinds import KINDS, alternatives, build, filters
from fwtop.rules.words import summarise

SOURCE = Match(sources=(Prefix.parse("192.0.2.1"),))
BYTES = Match(protocol=17, payload=(PayloadMatch(b"x", 0),))


def test_every_kind_has_a_module_and_each_is_asked_in_the_order_of_a_packet() -> None:
    assert set(KINDS) == set(Kind)
    assert [known.layer for known in KINDS.values()] == sorted(known.layer for known in KINDS.values())


def test_the_layer_is_pure() -> None:
    code = "import sys, fwtop.rules.kinds, fwtop.rules.words, fwtop.rules.kinds, fwtop.rules.options\n"
    code += "print([name for name in sys.modules if name.split('.')[0] in ('numpy', 'subprocess', 'socket')"
    code += " or name.startswith(('fwtop.kernel', 'fwtop.guardian', 'fwtop.netfilter'))])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize("kind", filters())
def test_a_filter_builds_summarises_and_costs(kind: Kind) -> None:
    rule = Rule("7", kind, SOURCE, "", 60)
    if KINDS[kind].missing(rule).startswith("match.payload"):
        rule = replace(rule, match=BYTES)
    elif KINDS[kind].missing(rule):
        rule = replace(rule, limit=RateLimit(10, 10))
    made = build(rule)
    assert made.lines or made.instead
    assert "192.0.2.1" in summarise(rule) or "“x”" in summarise(rule)
    assert KINDS[kind].cost_ns > 0
    assert KINDS[kind].bench
    assert kind in alternatives(rule)


def test_alternatives_are_of_the_same_use_from_the_stack_down() -> None:
    assert alternatives(Rule("", Kind.XDP, SOURCE, "", 60)) == ["ipset", "nftables", "tc", "xdp"]
    assert alternatives(Rule("", Kind.STRING, BYTES, "", 60)) == ["string", "nftables", "tc", "xdp"]
    limited = alternatives(Rule("", Kind.XDP, SOURCE, "", 60, limit=RateLimit(10, 10)))
    assert [kind for kind in limited if kind in ("hashlimit", "tc", "xdp", "ipset")] == [
        "hashlimit",
        "tc",
        "xdp",
    ]
    assert alternatives(Rule("", Kind.NOTRACK, Match(), "", 60)) == ["notrack"]


def wanted(field: Field) -> st.SearchStrategy[object]:
    numbers = st.integers(0, field.most)
    if field.is_range:
        return st.tuples(numbers, numbers).map(lambda ends: Range(min(ends), max(ends)))
    if field.name == "tcp_flags":
        return st.tuples(numbers, numbers).map(lambda bits: (bits[0], bits[1] & bits[0]))
    return st.just(True) if field.name == "fragment" else numbers


@pytest.mark.parametrize(
    "field", [field for field in FIELDS if field.name != "fragment"], ids=lambda one: one.name
)
@given(data=st.data())
def test_what_a_field_writes_as_an_option_it_reads_again(field: Field, data: st.DataObject) -> None:
    condition = data.draw(wanted(field))
    option, text = field.written(condition)
    assert option == field.option
    assert field.read(text) == condition
