"""Rules of a report, loaded with nft and iptables, give the verdicts that fwtop's own matcher gives."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fwtop.analysis.proposals.matching import match_rows
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, Rule
from fwtop.parse.packets import parse_packets
from fwtop.report.bundle_rules import ipset_text, iptables_text, nftables_text
from fwtop.report.effects import RuleEffect
from tests.kernel.conftest import NetnsPair
from tests.kernel.wire import checksummed, inside

pytestmark = pytest.mark.kernel

SEEN = """
table inet probe {
  set seen { typeof ip id; flags dynamic; }
  chain in {
    type filter hook prerouting priority -200; policy accept;
    ip saddr 10.0.0.0/8 add @seen { ip id }
  }
}
"""
RULES = (
    Match(sources=(Prefix.parse("10.77.0.0/30"), Prefix.parse("10.9.0.0/16"), Prefix.parse("10.9.1.0/24"))),
    Match(family=4, protocol=17, dport=27015, ip_length=Range(40, 60)),
    Match(family=4, protocol=6, dport=443, tcp_flags=(0x12, 0x02), tcp_window=Range(512, 1024)),
    Match(family=4, protocol=17, ttl=Range(60, 64), payload=(PayloadMatch(b"pulse", 2),)),
    Match(destinations=(Prefix.parse("10.77.0.1"),), protocol=17, sport=53),
    Match(family=4, protocol=1, icmp_type=8),
)


def udp(sport: int, dport: int, payload: bytes = b"") -> bytes:
    return struct.pack("!HHHH", sport, dport, 8 + len(payload), 0) + payload


def tcp(dport: int, flags: int, window: int) -> bytes:
    return struct.pack("!HHIIBBHHH", 4000, dport, 7, 0, 0x50, flags, window, 0, 0)


def frames(victim: bytes) -> list[bytes]:
    """Packets around the edges of each rule's conditions; each has an IP id of its own."""
    bodies = [
        (17, udp(4000, 27015, b"x" * 20)), (17, udp(4000, 27015, b"x" * 40)),
        (17, udp(4000, 27016, b"x" * 20)),
        (6, tcp(443, 0x02, 512)), (6, tcp(443, 0x02, 511)), (6, tcp(443, 0x12, 512)), (6, tcp(80, 0x02, 512)),
        (17, udp(4000, 9, b"a pulse")), (17, udp(4000, 9, b"pulse a")), (17, udp(53, 9, b"answer")),
        (1, b"\x08\0\0\0\0\0\0\0"), (1, b"\0\0\0\0\0\0\0\0"),
    ]  # fmt: skip
    made = []
    for source in ("10.77.0.2", "10.77.0.9", "10.9.1.7"):
        for ttl in (59, 60, 64, 65):
            for protocol, body in bodies:
                number = len(made) + 1
                head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), number, 0, ttl, protocol, 0)
                addresses = socket.inet_aton(source) + socket.inet_aton("10.77.0.1")
                made.append(victim + b"\2" * 6 + b"\x08\0" + checksummed(head + addresses, 10) + body)
    return made


def passed(pair: NetnsPair, sent: list[bytes]) -> set[int]:
    """Send the frames and return the IP ids of those that nothing dropped."""
    with inside(pair.attacker.netns):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sender.bind((pair.attacker.interface, 0))
    for frame in sent:
        sender.send(frame)
    sender.close()
    listed = json.loads(pair.victim.run("nft", "-j", "list", "set", "inet", "probe", "seen").stdout)
    elements = next(item["set"] for item in listed["nftables"] if "set" in item).get("elem", [])
    return {item if isinstance(item, int) else item["elem"]["val"] for item in elements}


@pytest.fixture(scope="module")
def probed(shared_pair: NetnsPair) -> tuple[NetnsPair, list[bytes]]:
    path = Path(f"/sys/class/net/{shared_pair.victim.interface}/address")
    mac = bytes.fromhex(shared_pair.victim.run("cat", str(path)).stdout.strip().replace(":", ""))
    return shared_pair, frames(mac)


def effect_of(rule: Rule) -> RuleEffect:
    """Return what is told of a rule that dropped a packet."""
    return RuleEffect(rule, None, None, None, "", 1, 60, 1.0, (), ())


def expected(match: Match, sent: list[bytes]) -> set[int]:
    width = max(map(len, sent))
    data = np.zeros((len(sent), width), np.uint8)
    for row, frame in enumerate(sent):
        data[row, : len(frame)] = np.frombuffer(frame, np.uint8)
    lengths = np.array([len(frame) for frame in sent])
    batch = parse_packets(
        data,
        lengths.astype(np.uint16),
        link=1,
        length=lengths.astype(np.uint32),
        time_ns=np.zeros(len(sent), np.int64),
        weight=np.ones(len(sent)),
        hook=1,
    )
    return {number + 1 for number in np.flatnonzero(~match_rows(match, batch))}


@pytest.mark.one_each
@pytest.mark.parametrize("tool", ["nft", "iptables"])
@pytest.mark.parametrize("match", RULES, ids=range(len(RULES)))
def test_exported_rules_drop_what_fwtop_would(
    tool: str, match: Match, probed: tuple[NetnsPair, list[bytes]], tmp_path: Path
) -> None:
    pair, sent = probed
    kind = Kind.STRING if match.payload else Kind.XDP
    effect = effect_of(Rule("7", kind, match, "a rule", 600))
    digest = SimpleNamespace(effects=(effect,), info=SimpleNamespace(id="session"))
    run, want = pair.victim.run, expected(match, sent)
    everything = set(range(1, len(sent) + 1))
    assert want
    assert want < everything, "some packets match, others don't"
    run("nft", SEEN)
    try:
        if tool == "nft":
            (tmp_path / "rules.nft").write_text(nftables_text(digest))
            run("nft", "-f", str(tmp_path / "rules.nft"))
            run("nft", "-f", str(tmp_path / "rules.nft"))  # once more: it replaces itself
        else:
            (tmp_path / "rules.ipset").write_text(ipset_text(digest))
            run("ipset", "-exist", "restore", "-f", str(tmp_path / "rules.ipset"))
            (tmp_path / "rules.iptables").write_text(iptables_text(digest, 4))
            run("iptables-restore", "--noflush", str(tmp_path / "rules.iptables"))
        assert passed(pair, sent) == want
        if tool == "nft":
            run("nft", "delete", "table", "inet", "fwtop-report")
        else:
            run("iptables", "-t", "raw", "-D", "PREROUTING", "-j", "FWTOP-REPORT")
        assert passed(pair, sent) == everything, "without the rules everything passes again"
    finally:
        run("nft", "delete", "table", "inet", "probe")
        run("iptables", "-t", "raw", "-F", check=False)
        run("iptables", "-t", "raw", "-X", check=False)
        run("ipset", "destroy", check=False)


def test_all_kinds_load(probed: tuple[NetnsPair, list[bytes]], tmp_path: Path) -> None:
    from fwtop.model.rule import RateLimit

    pair, _ = probed
    effects = []
    for number, family in enumerate((4, 6)):
        for by_dport, in_bytes in ((False, False), (True, True)):
            limit = RateLimit(1_000, 2_000, 24, 56, by_dport=by_dport, in_bytes=in_bytes)
            match = Match(family=family, protocol=17, dport=53)
            made = Rule(str(10 + 2 * number + by_dport), Kind.HASHLIMIT, match, "limit", 600, limit=limit)
            effects.append(effect_of(made))
    notrack = Rule("20", Kind.NOTRACK, Match(protocol=17, dport=53), "notrack", 600)
    effects.append(effect_of(notrack))
    both = tuple(map(Prefix.parse, ("192.0.2.0/24", "2001:db8::/32", "192.0.2.7", "2001:db8:1::/48")))
    single = tuple(map(Prefix.parse, ("198.51.100.1", "2001:db8:2::1")))
    per_prefix = RateLimit(1_000, 1_000, 32, 128)
    others = (
        Rule("21", Kind.XDP, Match(sources=both, destinations=both, protocol=17), "sets", 600),
        Rule("22", Kind.TC, Match(sources=single, destinations=single), "single", 600, limit=per_prefix),
        Rule("23", Kind.NFTABLES, Match(protocol=47), "protocol", 600),
        Rule("24", Kind.SYSCTL, Match(), "settings", 600),
        Rule("25", Kind.XDP, Match(sources=both), "a list", 600, origin="list:bad"),
        Rule("26", Kind.IPSET, Match(family=4), "an empty list", 600, origin="list:none"),
    )
    effects += [effect_of(made) for made in others]
    digest = SimpleNamespace(effects=tuple(effects), info=SimpleNamespace(id="session"))
    sets = tmp_path / "sets"
    sets.write_text(ipset_text(digest))
    pair.victim.run("ipset", "-exist", "restore", "-f", str(sets))
    path = tmp_path / "rules"
    path.write_text(nftables_text(digest))
    pair.victim.run("nft", "-c", "-f", str(path))
    for program, family in (("iptables-restore", 4), ("ip6tables-restore", 6)):
        path.write_text(iptables_text(digest, family))
        assert "can't do this" not in path.read_text()
        pair.victim.run(program, "--test", "--noflush", str(path))
    pair.victim.run("ipset", "destroy")
