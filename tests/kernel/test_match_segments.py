"""The constants of many floods (IP id, TCP window, TCP header) in each kind of rule that can ask for them."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from guardian_bench import Bench, apply, inside, rules_of
from msgspec.structs import replace
from xdp_bench import XdpBench

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from frames import ipv4, tcp

from fwtop.client.discovery import GuardianClient
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Undo
from fwtop.model.rule import Kind, Match, Range, Rule
from tests.kernel.wire import received

pytestmark = pytest.mark.kernel
BENCH = XdpBench
Poll = Callable[..., object]
KINDS = (Kind.IPSET, Kind.XDP, Kind.TC, Kind.NFTABLES)


class Segments:
    """TCP segments as a tool writes them, from the attacker to the victim, told by their sequence number."""

    def __init__(self, bench: Bench, family: int) -> None:
        self.family, self.number = family, count(2)
        self.pair = bench.pair
        kind = socket.AF_INET if family == 4 else socket.AF_INET6
        with inside(bench.pair.attacker.netns):
            self.sender = socket.socket(kind, socket.SOCK_RAW, 255 if family == 4 else 6)
        with inside(bench.pair.victim.netns):
            self.receiver = socket.socket(kind, socket.SOCK_RAW, 6)

    def passes(
        self,
        *,
        window: int = 512,
        options: bytes = b"",
        ident: int = 0x1234,
        number: int | None = None,
        wait_s: float = 0.1,
    ) -> bool:
        """Say whether one with such fields arrives within `wait_s`."""
        number = next(self.number) if number is None else number
        segment = tcp(1234, 80, 2, seq=number, window=window, options=options)
        ends = self.pair.attacker, self.pair.victim
        if self.family == 4:
            whole = ipv4(segment, 6, ends[0].ipv4, ends[1].ipv4, ident=ident, frag=0x4000)
            self.sender.sendto(whole, (ends[1].ipv4, 0))
        else:
            self.sender.sendto(segment, (ends[1].ipv6, 0))
        while (found := received(self.receiver, wait_s)) is not None:
            if self._sequence(found[0]) == number:
                return True
        return False

    def _sequence(self, packet: bytes) -> int:
        start = 20 if self.family == 4 else 0
        return int.from_bytes(packet[start + 4 : start + 8], "big")

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


@pytest.mark.one_each("ipset", "xdp", "nftables")
@pytest.mark.parametrize("kind", KINDS)
def test_only_what_has_all_the_constants_is_dropped(bench: Bench, kind: Kind, poll_until: Poll) -> None:
    with bench.connect() as guardian:
        for family in (4, 6):
            match = Match(family=family, protocol=6, tcp_window=Range(512, 600), tcp_header=Range(20, 20))
            match = replace(match, tcp_seq=Range(2, 0xFFFF_FFF0))
            if family == 4:
                match = replace(match, ip_id=Range(0x1234, 0x1234))
            if kind is Kind.IPSET:
                match = replace(match, sources=(Prefix.parse(bench.attacker(family)),))
            with closing(Segments(bench, family)) as segments:
                drops_these(segments, guardian, Rule("", kind, match, "a flood's constants", 600), poll_until)


def drops_these(segments: Segments, guardian: GuardianClient, rule: Rule, poll_until: Poll) -> None:
    assert segments.passes(wait_s=30)
    rule_id = apply(guardian, rule, force=True)  # Windows has such a window, too
    assert not segments.passes()
    assert not segments.passes(window=600)
    assert segments.passes(window=511, wait_s=30)
    assert segments.passes(window=601, wait_s=30)
    assert segments.passes(options=b"\2\4\5\xb4", wait_s=30)
    assert segments.passes(number=1, wait_s=30)
    assert segments.family == 6 or segments.passes(ident=0x1235, wait_s=30)
    poll_until(lambda: rules_of(guardian)[rule_id]["packets"] == 2)  # the guardian reads at its own pace
    guardian.demand(Undo((rule_id,)))
    assert segments.passes(wait_s=30)


def test_an_ip_id_alone_is_one_of_ipv4(bench: Bench) -> None:
    """IPv6 packets have none, so a rule without a family lets them pass."""
    assert bench.path(6).passes(wait_s=30)
    with bench.connect() as guardian:
        for kind in (Kind.NFTABLES, Kind.XDP):
            rule_id = apply(
                guardian, Rule("", kind, Match(ip_id=Range(0, 0xFFFF)), "any IP id", 600), force=True
            )
            assert not bench.path(4).passes()
            assert bench.path(6).passes(wait_s=30)
            guardian.demand(Undo((rule_id,)))
            assert bench.path(4).passes(wait_s=30)
