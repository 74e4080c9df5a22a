"""UDP between peers: calls, games, tunnels, answers and telemetry, which are no flood however fast.

Sources: RFC 3550 (RTP), RFC 4303 3.3.3 (sequence numbers), RFC 6056 (the ports that clients take).
"""

from __future__ import annotations

import numpy as np

from fwtop.advise import quic, sequence
from fwtop.advise.facts import Facts
from fwtop.advise.services import COLLECTORS
from fwtop.advise.traffic import Traffic, flow_key
from fwtop.model.packets import Mask

_TALK_PACKETS, _TALK_SIZES = 16, 4  # of a flow that is a conversation
_CHOSEN = 10_000  # ports below are hardly ever given to clients
_GLIMPSE = 8  # bytes
_SYNC, _CELL = 0x47, 188
_FEW_PEERS, _PEER_PPS = 20, 5_000.0  # of tunnels and calls: many who are answered may be a query flood
_ANSWERED = 0.5  # answers for each packet
_SERVER_PPS = 1_000.0  # of one server that answers or reports: more is a flood whatever it says


def has_peers(facts: Facts) -> bool:
    """Tell whether the packets are what known or few peers say to this host."""
    return conversation(facts) or answered(facts) or answers(facts) or telemetry(facts) or _video(facts)


def _video(facts: Facts) -> bool:
    """A few senders of MPEG transport streams: packets of 188 bytes that begin with 0x47 (ISO 13818-1)."""
    matrix, held = facts.head
    size = facts.traffic.packets.payload_length[facts.rows]
    begins = (matrix[:, 0] == _SYNC) & (held > 0)
    return facts.sources < _FEW_PEERS and bool(begins.mean() > 0.95 and (size % _CELL == 0).mean() > 0.95)


def conversation(facts: Facts) -> bool:
    """Long flows of packets of many sizes: a tunnel, a game, a call, a download."""
    lengths = facts.top("ip_length")
    varied = lengths.distinct > 10 and lengths.share < 0.8
    matrix, held = facts.head
    download = facts.top("sport").value == 443 and quic.looks_like_quic(matrix, held)
    if facts.flow_singles >= 0.3:
        return False
    if facts.pps_per_source < 5_000 and (varied or download):
        return True
    # A fast tunnel has few sizes, but each of its packets bears a number
    rich = facts.payload_entropy > 6 or (facts.sources < _FEW_PEERS and not alike(facts))
    return rich and sequence.counts_up(facts.traffic, facts.rows)


def answered(facts: Facts) -> bool:
    """A few peers that this host answers about packet for packet, where a capture shows both directions.

    Who is answered as fast as that speaks the protocol, unless what it says is nothing new.
    """
    traffic = facts.traffic
    if not len(traffic.outbound) or facts.sources > _FEW_PEERS:
        return False
    if alike(facts) or (facts.pps_per_source > _PEER_PPS and facts.payload_variety < 0.9):
        return False
    inbound = flow_key(traffic.packets.select(facts.rows))
    answers = flow_key(traffic.outbound, reverse=True)
    met = np.isin(inbound, answers).mean()
    return bool(met > 0.8 and np.isin(answers, inbound).sum() > _ANSWERED * len(inbound))


def answers(facts: Facts) -> bool:
    """Answers of a few servers to ports that this host chose, a new one for each question."""
    packets = facts.traffic.packets
    chosen = float((packets.dport[facts.rows] >= _CHOSEN).mean())
    few = facts.sources < 20 and facts.top("sport").distinct <= 4 and facts.top("sport").value < _CHOSEN
    return few and chosen > 0.95 and facts.pps_per_source < _SERVER_PPS


def telemetry(facts: Facts) -> bool:
    """Records of machines to a collector: syslog, metrics, flows; each differs, none comes that fast."""
    dport = facts.top("dport")
    sized = dport.value in COLLECTORS and dport.share > 0.9 and facts.payload_variety > 0.1
    return sized and facts.pps_per_source < _SERVER_PPS


def hidden(facts: Facts) -> bool:
    """Tell payloads of which the capture holds too little to say what is in them."""
    size = facts.traffic.packets.payload_length[facts.sample]
    return facts.n > 0 and float(((size >= 2 * _GLIMPSE) & (facts.head[1] < _GLIMPSE)).mean()) > 0.5


def alike(facts: Facts) -> bool:
    """Tell payloads that carry nothing: all zeros, all the same, or none."""
    held = facts.head[1] > 0
    if hidden(facts):
        return False
    return not held.any() or facts.zero_bytes > 0.95 or facts.payload_variety < 0.02


def talking_flows(traffic: Traffic, mask: Mask) -> Mask:
    """Tell the flows that are conversations by themselves: many packets of many sizes."""
    rows = traffic.rows(mask)
    flow, lengths = traffic.flow_id[rows], traffic.packets.ip_length[rows]
    packets = np.bincount(flow)
    _, first = np.unique(flow * 65_536 + lengths, return_index=True)
    sizes = np.bincount(flow[first], minlength=len(packets))
    talks = np.zeros(len(traffic), np.bool_)
    talks[rows] = ((packets >= _TALK_PACKETS) & (sizes >= _TALK_SIZES))[flow]
    return talks
