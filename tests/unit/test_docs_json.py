"""docs/JSON.md names every field of an observation, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from stored_samples import START, attack, rule, snapshot, status

from fwtop.model.addresses.address import Prefix
from fwtop.model.harm import ClientHarm
from fwtop.model.rule import Counted, Match, PayloadMatch, Rule
from fwtop.model.service import Service
from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.snapshot import (
    USES,
    Core,
    FilterChain,
    PacketSocket,
    Queue,
    Ring,
    ServiceUse,
    Surroundings,
)
from fwtop.model.wire import Hex
from fwtop.render.observation import observation_json

AROUND = Surroundings(
    (Service("tcp", 80, "nginx", 5.0),),
    (Ring("eth0", 1, 2),),
    (FilterChain("raw", "ip a b", False),),
    cores=(Core(0, 0.5, 9.0, 0.0, 1.0, 7.0),),
    queues=(Queue("eth0", 0, 9.0, 0.0),),
    packet_sockets=(PacketSocket("tcpdump", 7, "eth0", filtered=False),),
)
_DOCUMENT = Path(__file__).parents[2] / "docs" / "JSON.md"
_BY_NAME = {"udp", "tcp"}  # protocols: what is counted, not fields


def _fields(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from part
        part = {name: inner for name, inner in part.items() if name != "rule"}  # as docs/API.md has it
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _fields(inner)


def test_every_field_of_an_observation_is_in_the_document_and_no_other() -> None:
    counts = replace(status(rule(), START + 60), hits=Counted(START))
    full = snapshot(START, attacks=(attack(),), mitigations=(counts,), proposals=True)
    (first, *rest), harm = full.judgement.proposals, ClientHarm(9, 1, 1)
    offered = (replace(first, rule=replace(rule(), predicted_clients=harm)), *rest)
    rates = (1.0,) * len(USES)
    used = (ServiceUse(AROUND.listeners[0], rates, rates),)
    full = replace(full, judgement=replace(full.judgement, proposals=offered, services=used))
    found = set(_fields(observation_json(replace(full, tcp=TcpService(5, 2.0, 9.0), surroundings=AROUND))))
    text = _DOCUMENT.read_text()
    part = text[text.index("## An observation") : text.index("## Other documents")]
    named = set(re.findall(r"`([a-z_]+)`", part)) - {"snapshot", "read", "record", "lab"}
    assert found - _BY_NAME - named == set()
    assert named - found == set()


def test_a_proposal_carries_the_rule_that_apply_takes() -> None:
    """What it leaves out are defaults: also where 0 and false say something."""
    header = Match(family=4, protocol=17, dport=0, fragment=False, payload=(PayloadMatch(Hex(b"a"), 0),))
    made = replace(rule(), match=header, predicted_clients=ClientHarm(9, 1, 1))
    full = snapshot(START, attacks=(attack(),), proposals=True)
    (first, *_) = full.judgement.proposals
    long = Match(sources=tuple(Prefix(4, number, 32) for number in range(5_001)))
    offered = tuple(replace(first, rule=one) for one in (made, None, replace(made, match=long)))
    told = observation_json(replace(full, judgement=replace(full.judgement, proposals=offered)))["proposals"]
    assert Rule.from_dict(told[0]["rule"]) == replace(made, id="", created=0.0, created_by="")
    assert not told[0]["rule"].keys() & {"id", "created", "created_by", "limit", "parts", "key"}
    assert (told[1]["rule"], told[2]["rule"]) == (None, None), "advice, and a list that is too long"
