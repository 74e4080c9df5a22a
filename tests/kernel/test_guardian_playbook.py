"""Several rules as one: confirmed, counted, repaired, undone together."""

from __future__ import annotations

import errno
import socket
from collections import Counter
from unittest.mock import Mock

import pytest
from guardian_bench import VARIANTS, Bench, apply, rules_of
from msgspec.structs import replace

from fwtop.guardian.rules import connections
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply, Keep, Plan, Repair, Undo
from fwtop.model.rule import ConnectionLimit, Kind, Match, RateLimit, Rule, Setting
from fwtop.netfilter import ctnetlink
from tests.kernel.wire import inside, let_arrive

pytestmark = pytest.mark.kernel
UDP_TIMEOUT = "net.netfilter.nf_conntrack_udp_timeout"
UDP, TCP = 17, 6
PARTS = (
    Rule("", Kind.SYSCTL, Match(), "", 600, settings=(Setting(UDP_TIMEOUT, 11),)),
    Rule("", Kind.NOTRACK, Match(protocol=UDP, dport=9), "", 600),
    Rule("", Kind.IPSET, Match(sources=(Prefix.parse("10.77.0.2"), Prefix.parse("fd77::2"))), "", 600),
    Rule("", Kind.IPSET, Match(sources=(Prefix.parse("198.51.100.0/24"),)), "", 600),
    Rule("", Kind.HASHLIMIT, Match(protocol=UDP, dport=9), "", 600, limit=RateLimit(50, 50)),
    Rule("", Kind.HASHLIMIT, Match(protocol=UDP, dport=10), "", 600, limit=RateLimit(10, 10)),
    Rule("", Kind.CONNLIMIT, Match(protocol=TCP, dport=80), "", 600, connections=ConnectionLimit(20)),
)
PROXY = Rule("", Kind.SYNPROXY, Match(protocol=TCP, dport=80), "", 600)


def playbook(*parts: Rule, ttl: int = 600) -> Rule:
    return Rule("", Kind.HARDEN, Match(), "several", ttl, playbook="test", parts=parts or PARTS)


def timeout(bench: Bench) -> str:
    return bench.pair.victim.run("sysctl", "-n", UDP_TIMEOUT).stdout.strip()


@pytest.mark.parametrize("variant", VARIANTS)
def test_passes_is_blocked_and_passes_again_with_everything_as_before(bench: Bench, variant: str) -> None:
    if variant == "legacy":
        bench.pair.victim.run("iptables-legacy", "-A", "INPUT", "-p", "tcp", "--dport", "1", "-j", "DROP")
        for program in ("iptables-legacy", "ip6tables-legacy"):  # a legacy table stays once it was read
            bench.pair.victim.run(program, "-t", "raw", "-S")
    before = bench.state()
    assert bench.path(4).passes(wait_s=30)
    assert bench.path(6).passes(wait_s=30)
    with bench.connect() as guardian:
        plan = guardian.demand(Plan(playbook().to_dict())).data
        assert plan["refused"] is None
        assert bench.settled(before) == before
        rule_id = apply(guardian, playbook(), 300)
        assert timeout(bench) == "11"
        assert not bench.path(4).passes()
        assert not bench.path(6).passes()
        guardian.demand(Keep(rule_id, 600))
        status = rules_of(guardian)[rule_id]
        assert status["acting"]
        assert status["state"] == "confirmed"
        assert status["packets"] >= 2
        bench.pair.victim.run("ipset", "flush", f"fwtop-{rule_id}-p24")
        guardian.demand(Repair(rule_id))
        assert not bench.path(4).passes()
        guardian.demand(Undo((rule_id,)))
    assert bench.path(4).passes(wait_s=30)
    assert bench.path(6).passes(wait_s=30)
    assert (bench.state(), timeout(bench)) == (before, "30")


@pytest.mark.parametrize("at_once", [True, False])
def test_entries_of_what_is_no_longer_tracked_are_deleted(bench: Bench, at_once: bool, monkeypatch) -> None:
    """Those of other services stay; where the kernel can't choose them, fwtop does."""
    bench.pair.victim.run("iptables-nft", "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW")
    with inside(bench.netns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for port in (9, 9, 11):
            for number in range(20):
                sender.sendto(b"x", (f"127.0.0.{number + 1}", port))
        let_arrive()
        rule = playbook(replace(PARTS[1], forget=True))
        if not at_once:
            refused = OSError(errno.EINVAL, "no filter here")
            monkeypatch.setattr(ctnetlink, "forget_service", Mock(side_effect=refused))
        assert connections.forget(rule, lambda: None) == 20
        assert Counter(entry.dport for entry in ctnetlink.sample(1000)) == {11: 20}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Rule("", Kind.HARDEN, Match(), "x", 600, playbook="test"), "parts"),
        (playbook(playbook()), "harden can't be one"),
        (playbook(PARTS[0], PARTS[0]), "named twice"),
        (
            playbook(PARTS[6], Rule("", Kind.SYNPROXY, Match(protocol=TCP, dport=80), "", 600)),
            "one SYN proxy or",
        ),
    ],
)
def test_refuses_parts_that_cannot_be_together(bench: Bench, wrong: Rule, said: str) -> None:
    with bench.connect() as guardian, pytest.raises(FwtopError, match=said):
        guardian.demand(Apply(wrong.to_dict(), 0))
