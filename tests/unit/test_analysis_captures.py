"""Attacks in four public captures are named; skipped where these are absent (capture_files.py)."""

from __future__ import annotations

import pytest
from analysis_factory import make_tables, make_window
from capture_files import CAPTURES

from fwtop.analysis.proposals.matching import match_rows
from fwtop.capture.reader import read_capture
from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.packets import PacketBatch
from fwtop.model.traffic.snapshot import Judgement

pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not on this machine")


def judge(name: str) -> tuple[Judgement, PacketBatch]:
    batch = PacketBatch.concat(list(read_capture(CAPTURES / name).batches()))
    seconds = float(batch.time_ns.max() - batch.time_ns.min()) / 1e9
    window = make_window(batch, seconds)
    return Advisor().judge(window, make_tables(window)), batch


@pytest.mark.parametrize(
    ("name", "kind", "share", "spoofed"),
    [
        ("pkt.TCP.synflood.spoofed.pcap", "syn_flood", 1.0, True),
        ("amp.TCP.reflection.SYNACK.pcap", "syn_ack_reflection", 0.959, False),
        ("amp.UDP.snmp.src161.pcapng", "snmp_amplification", 0.933, False),
        ("amp.dns.RRSIG.fragmented.pcap", "dns_amplification", 0.283, False),
    ],
)
def test_capture_is_named_rightly(name: str, kind: str, share: float, spoofed: bool) -> None:
    judgement, _ = judge(name)
    assert [(attack.kind, attack.spoofed) for attack in judgement.attacks] == [(kind, spoofed)]
    assert judgement.attacks[0].share == pytest.approx(share, abs=0.005)
    assert judgement.proposals[0].attack_share >= 0.95


def test_fragments_belong_to_the_answers_and_a_proposal_spares_ordinary_packets() -> None:
    judgement, batch = judge("amp.dns.RRSIG.fragmented.pcap")
    attack = judgement.attacks[0]
    answers = (batch.protocol == 17) & (batch.sport == 53)
    later = (batch.protocol == 17) & (batch.fragment == 2)
    assert attack.share * len(batch) == pytest.approx((answers | later).sum(), rel=0.03)
    ordinary = batch.protocol == 6
    good = 0
    for proposal in judgement.proposals:
        assert proposal.rule is not None
        hit = match_rows(proposal.rule.match, batch)
        stops = hit[answers | later].mean()
        good += bool(stops >= 0.94 and hit[ordinary].mean() <= 0.005)
    assert good >= 1
    assert any("RRSIG" in sentence for sentence in attack.evidence)
    assert any("pizzaseo.com" in sentence for sentence in attack.evidence)


def test_the_forged_requests_are_read_from_icmp_errors() -> None:
    judgement, _ = judge("amp.UDP.snmp.src161.pcapng")
    assert any(
        "quote the spoofed requests to port 161" in sentence for sentence in judgement.attacks[0].evidence
    )
