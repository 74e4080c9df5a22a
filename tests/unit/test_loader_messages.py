"""Messages between guardian and loaders survive encoding, and malformed ones are refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer, ProtocolError, encode_answer, parse_answer
from fwtop.model.rule import Kind, Match, RateLimit, Rule
from fwtop.observe import messages as observe
from fwtop.xdp import messages as xdp
from fwtop.xdp.maps import COMPILED_PREFIXES

ALLOW = (Prefix.parse("192.0.2.0/24"), Prefix.parse("2001:db8::/32"))
LIMITED = Rule("7", Kind.TC, Match(protocol=17, dport=53), "x", 60, limit=RateLimit(10, 20, 24))
LISTED = Rule(
    "8",
    Kind.XDP,
    Match(sources=tuple(Prefix.parse(f"10.0.{number}.0/24") for number in range(COMPILED_PREFIXES + 1))),
    "y",
    60,
)
RULES = (xdp.RequestedRule.of(0, LIMITED), xdp.RequestedRule.of(3, LISTED, report_hits=True))


@pytest.mark.parametrize(
    "request_",
    [
        xdp.Apply(RULES, ALLOW, ("eth0",), {"slots": 5, "rings": 6}, {"8": 7}),
        xdp.Compile(RULES, ALLOW, at_tc=True),
        xdp.Open(),
        xdp.Clear(),
        xdp.Sweep(),
    ],
)
def test_requests_to_the_xdp_loader_survive_encoding(request_: xdp.Request) -> None:
    assert xdp.decode_request(*xdp.encode_request(request_)) == request_


def test_a_long_list_travels_without_its_sources() -> None:
    _, listed = RULES
    assert (listed.listed, listed.families, listed.rule.match.sources) == (True, (4,), ())


@pytest.mark.parametrize("text", [b"", b"[]", b'{"verb": "fly", "fds": []}'])
def test_malformed_requests_to_the_xdp_loader_are_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        xdp.decode_request(text, [])


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ends
    for end in ends:
        end.close()


def test_requests_and_replies_carry_descriptors(pair: tuple[socket.socket, socket.socket]) -> None:
    mine, theirs = pair
    with open(os.devnull) as file:
        xdp.send_request(mine, xdp.Apply(RULES, ALLOW, (), {"slots": file.fileno()}))
        received = xdp.receive_request(theirs)
        assert isinstance(received, xdp.Apply)
        assert received.rules == RULES
        assert os.path.sameopenfile(received.maps["slots"], file.fileno())
        attachment = xdp.Attachment(2, "eth0", "native")
        xdp.send_reply(theirs, xdp.Loaded((attachment,), {"slots": file.fileno()}, {"8": file.fileno()}))
        loaded = xdp.receive_reply(mine)
    assert (loaded.attachments, set(loaded.maps), set(loaded.hits)) == ((attachment,), {"slots"}, {"8"})
    for descriptor in (*received.maps.values(), *loaded.maps.values(), *loaded.hits.values()):
        os.close(descriptor)
    xdp.send_reply(theirs, Answer(False, "no", 3))
    with pytest.raises(FwtopError, match="no"):
        xdp.receive_reply(mine)


def test_an_observation_survives_encoding() -> None:
    point = observe.AttachPoint("netfilter", 0, 2, 1, 5)
    made = observe.Observation(
        interfaces=(observe.Interface("eth0", 2, True),),
        max_watched=4,
        watched=(2,),
        own_addresses=("192.0.2.1",),
        beside_netfilter=(4,),
        warnings=(),
        reasons={2: "NOT_SPECIFIED"},
        reason_slots=129,
        counts_connections=True,
        cpus=2,
        ring_bytes=4096,
        ingress="tcx",
        accepted="netfilter",
        attachments=(observe.Attachment("program:0", "link:0:0", point),),
        log_one_in=64,
    )
    answer, descriptors = observe.encode_reply(made, {"ring": 4, "held:scope": 5})
    answer = parse_answer(encode_answer(answer))
    assert observe.decode_reply(answer, descriptors) == (made, {"ring": 4, "held:scope": 5})
    with pytest.raises(ProtocolError, match="missing"):
        observe.decode_reply(answer, descriptors[1:])
    with pytest.raises(ProtocolError):
        observe.decode_observation({**answer.data, "attachments": [{}]})


def test_a_request_to_attach_survives_encoding() -> None:
    request = observe.AttachRequest(("eth0",), 1, {"slots": 4})
    assert observe.decode_request(*observe.encode_request(request)) == request
    with pytest.raises(ProtocolError):
        observe.decode_request(b"{}", [])


def test_the_messages_are_light() -> None:
    """The guardian imports them, and has to stay small."""
    code = "import sys, fwtop.xdp.messages, fwtop.observe.messages; print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "False\n"
