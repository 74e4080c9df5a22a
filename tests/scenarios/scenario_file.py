"""Scenarios as TOML: what was sent, and the rows that the tables must then have.

A `[[packets]]` block sends `count` packets; `src` is an address, a list of them (taken in turn) or a
prefix (its addresses in turn, or any when `random_src`). What is not given has a plain default.
"""

import ipaddress
import random
import tomllib
from collections.abc import Iterator
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

from frames import ethernet, extension, fragment6, ipv4, ipv6, tcp, udp

from fwtop.model.traffic.counters import Counters, DropCount, RuleCount
from fwtop.model.traffic.packets import Hook, NoOrigin, PacketBatch
from fwtop.model.traffic.snapshot import Share, Tables
from fwtop.stats.engine import Engine

FLAGS = {"F": 1, "S": 2, "R": 4, "P": 8, "A": 16}


def load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def sources(spec: dict[str, Any], chance: random.Random) -> Iterator[str]:
    given = spec.get("src", "192.0.2.1")
    if isinstance(given, list):
        return cycle(given)
    if "/" not in given:
        return cycle([given])
    network = ipaddress.ip_network(given)
    if spec.get("random_src"):
        return (str(network[chance.randrange(network.num_addresses)]) for _ in count())
    return (str(network[i % network.num_addresses]) for i in count())


def payload_of(spec: dict[str, Any], chance: random.Random) -> bytes:
    if "payload_hex" in spec:
        data = bytes.fromhex(spec["payload_hex"])
    elif "dns" in spec:
        name = b"".join(bytes([len(label)]) + label.encode() for label in spec["dns"].split("."))
        head = chance.randbytes(2) + bytes.fromhex("81800001000100000000")
        data = head + name + b"\0" + b"\0\xff\0\1"
    else:
        data = spec.get("payload", "").encode()
    return data + chance.randbytes(spec.get("random_bytes", 0))


def frame_of(spec: dict[str, Any], src: str, chance: random.Random) -> bytes:
    payload = payload_of(spec, chance)
    sport = chance.randrange(1024, 65536) if spec.get("sport") == "random" else spec.get("sport", 40000)
    protocol = spec.get("protocol", "udp")
    six = ":" in src
    number = {"udp": 17, "tcp": 6, "icmp": 58 if six else 1, "gre": 47}[protocol]
    if protocol == "udp":
        body = udp(sport, spec.get("dport", 80), payload)
    elif protocol == "tcp":
        flags = sum(FLAGS[letter] for letter in spec.get("flags", "S"))
        body = tcp(sport, spec.get("dport", 80), flags, payload)
    else:
        body = bytes([spec.get("icmp_type", 8), 0, 0, 0, 0, 0, 0, 0]) + payload
    later = spec.get("fragment") == "later"
    if six:
        dst = spec.get("dst", "2001:db8:ffff::1")
        if later:
            packet = ipv6(fragment6(number, 20, 0) + body, 44, src, dst)
        elif spec.get("extension_headers"):
            packet = ipv6(extension(60) + extension(number) + body, 0, src, dst)
        else:
            packet = ipv6(body, number, src, dst)
    else:
        frag = 185 if later else 0x2000 if spec.get("fragment") == "first" else 0
        packet = ipv4(body, number, src, spec.get("dst", "203.0.113.1"), frag=frag)
    tags = tuple(
        (0x88A8 if i == 0 and len(spec["vlan"]) > 1 else 0x8100, tag)
        for i, tag in enumerate(spec.get("vlan", []))
    )
    return ethernet(packet, 0x86DD if six else 0x0800, tags)


def frames_of(scenario: dict[str, Any]) -> list[tuple[bytes, int]]:
    """All frames with their hook."""
    chance = random.Random(scenario.get("seed", 1))
    out = []
    for spec in scenario["packets"]:
        hook = Hook[spec.get("hook", "ingress").upper()]
        senders = islice(sources(spec, chance), spec["count"])
        out += [(frame_of(spec, src, chance), int(hook)) for src in senders]
    chance.shuffle(out)
    return out


def counters_of(scenario: dict[str, Any]) -> Counters | None:
    given = scenario.get("counters")
    if given is None:
        return None
    return Counters(
        given["seconds"],
        given["arrived"],
        given.get("arrived_bytes", 0),
        given.get("accepted"),
        drops=tuple(DropCount(**drop) for drop in given.get("drops", [])),
        rules=tuple(RuleCount(rule["id"], rule["packets"], 0) for rule in given.get("rules", [])),
        one_in=given.get("one_in", 1.0),
    )


def tables_of(scenario: dict[str, Any], batch: PacketBatch) -> Tables:
    live = "counters" in scenario
    engine = Engine(NoOrigin(), window_seconds=5.0 if live else None, live=live)
    engine.feed(batch, counters_of(scenario), 1_700_000_000.0)
    return engine.tables()


def row_of(tables: Tables, table: str, wanted: dict[str, Any]) -> Any:
    """Find the row that an expectation is about."""
    if table in ("address", "prefix"):
        rows = [row for row in getattr(tables.sources, table) if row.key == wanted["key"]]
    elif table == "ports":
        names = ("protocol", "side", "port")
        rows = [row for row in tables.ports if all(getattr(row, name) == wanted[name] for name in names)]
    elif table == "payloads":
        names = [name for name in ("text", "dns_name") if name in wanted]
        rows = [row for row in tables.payloads if all(getattr(row, name) == wanted[name] for name in names)]
    else:
        rows = [
            row for row in tables.ledger if row.layer == wanted["layer"] and row.rule == wanted.get("rule")
        ]
    assert len(rows) == 1, f"{table}: {wanted} should be one row, found {len(rows)}"
    return rows[0]


def check(tables: Tables, expected: dict[str, Any]) -> None:
    """Compare tables with the expectation."""
    for name in ("packets", "accepted", "dropped"):
        if name in expected:
            assert getattr(tables.totals, name) == expected[name], name
    for name, packets in expected.get("protocols", {}).items():
        assert tables.protocols[name].packets == packets, name
    for table in ("address", "prefix", "ports", "payloads", "ledger"):
        for wanted in expected.get(table, []):
            row = row_of(tables, table, wanted)
            share: Share | None = getattr(row, "share", None)
            packets = share.packets if share else row.packets
            if "packets" in wanted:
                assert abs(packets - wanted["packets"]) <= wanted.get("within", 0), (wanted, packets)
            for name in ("service", "offset", "reason"):
                if name in wanted:
                    assert getattr(row, name) == wanted[name]
            if "dropped_share" in wanted:
                assert abs(row.dropped_share - wanted["dropped_share"]) < 0.02, row.dropped_share
    if "only_prefixes" in expected:
        assert [row.key for row in tables.sources.prefix] == expected["only_prefixes"]
    if "payload_rows" in expected:
        assert len(tables.payloads) == expected["payload_rows"]
