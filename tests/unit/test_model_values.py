"""The shared values: addresses, batches, rules and protocol messages."""

import ipaddress
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix, format_address
from fwtop.model.messages import (
    Answer,
    NumberedRequest,
    ProtocolError,
    encode_answer,
    encode_request,
    parse_answer,
    parse_request,
)
from fwtop.model.protocol import Apply, Hello, Keep, Plan, Status, Undo, Watch
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.model.traffic.packets import PacketBatch


@given(st.ip_addresses(v=4), st.integers(0, 32))
def test_ipv4_prefixes_agree_with_the_standard_library(address, length):
    network = ipaddress.ip_network((address, length), strict=False)
    prefix = Prefix.parse(str(network))
    assert prefix.network == network
    if network.network_address != address:
        with pytest.raises(ValueError, match=f"has host bits: the network is {network}, the host {address}"):
            Prefix.parse(f"{address}/{length}")
    assert Prefix.of_columns(4, 0, int(address), length) == prefix
    assert str(prefix) == (str(address) if length == 32 else str(network))


@given(st.ip_addresses(v=6), st.integers(0, 128))
def test_ipv6_prefixes_agree_with_the_standard_library(address, length):
    number = int(address)
    network = ipaddress.ip_network((address, length), strict=False)
    built = Prefix.of_columns(6, number >> 64, number & (1 << 64) - 1, length)
    assert built.network == network
    assert format_address(6, number >> 64, number & (1 << 64) - 1) == str(ipaddress.IPv6Address(number))


def test_mapped_addresses_become_ipv4():
    assert str(Prefix.parse("::ffff:192.0.2.7")) == "192.0.2.7"
    assert str(Prefix.parse("::ffff:192.0.2.0/120")) == "192.0.2.0/24"


@pytest.mark.parametrize("text", ["", "1.2.3", "1.2.3.4/33", "eth0", "1.2.3.4; rm -rf /", "\x1b[31m"])
def test_other_text_is_no_prefix(text):
    with pytest.raises(ValueError, match="is not an address or prefix"):
        Prefix.parse(text)


def test_containment_and_overlap():
    wide, narrow = Prefix.parse("10.0.0.0/8"), Prefix.parse("10.1.0.0/16")
    assert wide.contains(narrow)
    assert not narrow.contains(wide)


def test_concat_pads_data_to_the_widest_batch():
    wide, narrow = PacketBatch.zeros(2, 8), PacketBatch.zeros(3, 4)
    narrow.data[:] = 7
    narrow.sport[:] = 53
    joined = PacketBatch.concat([wide, narrow])
    assert joined.data.shape == (5, 8)
    assert joined.data[2:].tolist() == [[7, 7, 7, 7, 0, 0, 0, 0]] * 3
    assert len(joined.select(joined.sport == 53)) == 3
    assert joined.select(np.array([4])).sport.tolist() == [53]


RULE = Rule(
    "7",
    Kind.STRING,
    Match(
        sources=(Prefix.parse("192.0.2.0/24"), Prefix.parse("2001:db8::/48")),
        protocol=17,
        dport=53,
        ip_length=Range(60, 90),
        tcp_flags=(0x12, 0x02),
        tcp_window=Range(512, 600),
        ip_id=Range(0, 0),
        payload=(PayloadMatch(b"\x03www\x00", 12, b"\xff" * 5, "www"), PayloadMatch(b"\xff\x00")),
    ),
    "a rule with everything",
    600,
    limit=RateLimit(1000, 100, 24, 48),
    origin="asn:64500",
    predicted_pps=12.5,
)


def test_a_rule_round_trips_through_json():
    assert Rule.from_dict(json.loads(json.dumps(RULE.to_dict()))) == RULE


def test_a_rule_of_an_older_version_is_read():
    stored = RULE.to_dict()
    for name in ("ip_id", "tcp_window", "tcp_header"):
        del stored["match"][name]
    assert Rule.from_dict(stored).match == replace(RULE.match, ip_id=None, tcp_window=None)


@pytest.mark.parametrize(
    "request_",
    [
        Hello("console", "abc", readonly=True),
        Watch(("eth0", "eth1")),
        Plan(RULE.to_dict()),
        Apply(RULE.to_dict(), 5, force=True),
        Keep("7"),
        Keep("7", 60),
        Undo(("1", "2")),
        Undo(all=True),
        Status(finished=True),
    ],
)
def test_requests_round_trip(request_):
    assert parse_request(encode_request(request_, 7, 2.5)) == NumberedRequest(request_, 7, 2.5)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'"x"',
        b"{}",
        b'{"verb": "shutdown"}',
        b'{"verb": []}',
        b'{"verb": "keep"}',
        b'{"verb": "keep", "id": 7}',
        b'{"verb": "keep", "id": "7", "ttl_seconds": true}',
        b'{"verb": "undo", "ids": [1]}',
        b'{"verb": "status", "extra": 1}',
        b'{"verb": "status", "number": -1}',
        b'{"verb": "status", "number": true}',
        b'{"verb": "status", "seconds": 0}',
        b'{"verb": "status", "seconds": 1e9}',
        b'{"verb": "status", "seconds": NaN}',
        b"[" * 100_000,
    ],
)
def test_other_messages_are_refused(message):
    with pytest.raises(ProtocolError):
        parse_request(message)


def test_answers_round_trip():
    answer = Answer(ok=False, error="no", code=3, data={"a": [1]}, reason="no_access", field="b")
    assert parse_answer(encode_answer(answer)) == answer
    with pytest.raises(ProtocolError):
        parse_answer(b'{"what": 1}')
