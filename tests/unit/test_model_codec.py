"""Serialisation of snapshots and rules."""

from __future__ import annotations

import json
import typing
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import PayloadMatch, Rule
from fwtop.model.traffic import snapshot as model
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.store.database import (
    decode_value,
    encode_value,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=12)


@st.composite
def prefixes(draw: st.DrawFn) -> Prefix:
    family = draw(st.sampled_from((4, 6)))
    bits = 32 if family == 4 else 128
    value = draw(st.integers(0, (1 << bits) - 1))
    return Prefix.of_columns(family, value >> 64, value & ((1 << 64) - 1), draw(st.integers(0, bits)))


def build(cls: type) -> st.SearchStrategy[typing.Any]:
    """Values of a frozen class with any content that its annotations allow."""
    hints = typing.get_type_hints(cls)
    fields = {name: of_hint(hints[name]) for name in cls.__struct_fields__ if name != "parts"}
    if cls is Rule:  # whose parts have none
        fields["parts"] = st.lists(st.builds(cls, **fields), max_size=2).map(tuple)
    return st.builds(cls, **fields)


def of_hint(hint: typing.Any) -> st.SearchStrategy[typing.Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    plain = {str: TEXT, float: FINITE, bytes: st.binary(max_size=20), Prefix: prefixes()}
    if hint in plain:
        found = plain[hint]
    elif isinstance(hint, type) and issubclass(hint, Struct):
        found = build(typing.cast(type, hint))
    elif origin is dict:
        found = st.dictionaries(TEXT, of_hint(arguments[1]), max_size=2)
    elif origin is Sequence or (origin is tuple and arguments[1:] == (...,)):
        found = st.lists(of_hint(arguments[0]), max_size=2).map(tuple)
    elif origin is tuple:
        found = st.tuples(*map(of_hint, arguments))
    elif arguments:
        found = st.one_of(*map(of_hint, arguments))
    else:
        found = st.integers(-(1 << 63), (1 << 64) - 1) if hint is int else st.from_type(hint)
    return found


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(build(Snapshot))
def test_a_snapshot_round_trips(snapshot: Snapshot) -> None:
    assert decode_value(Snapshot, encode_value(snapshot)) == snapshot


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(build(Rule))
def test_a_rule_round_trips(rule: Rule) -> None:
    assert decode_value(Rule, encode_value(rule)) == rule
    assert Rule.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule


@settings(max_examples=60)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_damaged_bytes_raise_value_error(noise: bytes, at: int) -> None:
    stored = bytearray(zlib.decompress(encode_value(empty())))
    stored[at : at + len(noise)] = noise
    for damaged in (noise, zlib.compress(noise), zlib.compress(bytes(stored)), encode_value(empty())[:-9]):
        try:
            decode_value(Snapshot, damaged)
        except ValueError:
            continue


def empty() -> Snapshot:
    totals = model.Totals(1, 60, 1.0, 480.0, 1, 0)
    tables = model.Tables(totals, model.Sampling(1.0, 1, 0))
    return Snapshot("host", model.Origin("live"), 1.5, 5.0, tables)


def test_a_truncated_value_is_refused() -> None:
    with pytest.raises(ValueError, match="cut short"):
        decode_value(Snapshot, encode_value(empty())[:-9])


def test_bytes_of_a_rule_are_stored_wherever_bytes_are() -> None:
    share = model.Share(3, 9, 0.5, 0.1, 0.0, 0.25)
    payload = model.Payload(PayloadMatch(b"\x00abc").data, "abc", None, None, share, 0.0)
    assert decode_value(model.Payload, encode_value(payload)) == payload


def test_numpy_scalars_become_numbers() -> None:
    share = model.Share(np.int64(3), np.uint32(9), np.float64(0.5), 0.1, 0.0, np.float32(0.25))  # type: ignore[arg-type]
    assert decode_value(model.Share, encode_value(share)) == model.Share(3, 9, 0.5, 0.1, 0.0, 0.25)


def test_fields_of_another_version_are_tolerated() -> None:
    data = msgspec.msgpack.decode(zlib.decompress(encode_value(empty())))
    del data["guardian"]
    data["added_later"] = [1, 2]
    assert decode_value(Snapshot, zlib.compress(msgspec.msgpack.encode(data))) == empty()
