"""More sources than a rate limit remembers: a full hashlimit bars new clients, the driver's table doesn't."""

from __future__ import annotations

import socket
import struct

import pytest
from guardian_bench import PORT, apply, inside
from xdp_bench import XdpBench

from fwtop.model.rule import Kind, Match, RateLimit, Rule
from fwtop.rules.xtables import HASHLIMIT_MAX, limit_args
from fwtop.xdp.maps import BUCKETS

pytestmark = pytest.mark.kernel
BENCH = XdpBench
LIMIT = RateLimit(per_second=1000, burst=1000)


def forge(bench: XdpBench, sources: int) -> None:
    """Send one packet from each of so many addresses of 10/8."""
    with inside(bench.pair.attacker.netns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    target = socket.inet_aton(bench.pair.victim.ipv4)
    datagram = struct.pack("!HHHH", 4000, PORT + 1, 8, 0)  # the port of the rule, not the receiver's
    with sender:
        for number in range(sources):
            source = struct.pack("!I", 0x0A000001 + number)
            head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, 17, 0, source, target)
            sender.sendto(head + datagram, (bench.pair.victim.ipv4, 0))


def hashlimit(bench: XdpBench, most: int) -> None:
    """Put fwtop's own hashlimit into the victim, with another size of the table."""
    words = [str(most) if word == str(HASHLIMIT_MAX) else word for word in limit_args("1", LIMIT, 4)]
    words += ["--hashlimit-htable-size", "16"]
    bench.pair.victim.run("iptables", "-t", "raw", "-F")
    bench.pair.victim.run("iptables", "-t", "raw", "-A", "PREROUTING", "-p", "udp", *words, "-j", "DROP")


def test_a_full_hashlimit_table_drops_a_new_client_far_below_the_rate(bench: XdpBench) -> None:
    path = bench.path(4)
    assert path.passes(wait_s=30)
    hashlimit(bench, 64)
    forge(bench, 40)
    assert path.passes(wait_s=30)  # there is still room: its prefix is remembered from here on
    hashlimit(bench, 32)
    forge(bench, 40)
    assert not path.passes()


def test_the_driver_s_table_forgets_the_oldest_and_lets_a_new_client_pass(bench: XdpBench) -> None:
    path = bench.path(4)
    assert path.passes(wait_s=30)
    rule = Rule("", Kind.XDP, Match(family=4, protocol=17), "limit", 600, limit=LIMIT)
    with bench.connect() as guardian:
        apply(guardian, rule)
        forge(bench, BUCKETS + 4096)
        assert path.passes(wait_s=30)
