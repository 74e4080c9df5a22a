"""Answers to a port scan that this host makes: where only arriving packets are seen, they come unasked.

Source: RFC 9293 3.10.7.1: a closed port answers a SYN with RST and ACK and sequence number 0. A scanner asks
from one port of its own, which shows which probe an answer belongs to (nmap's manual, --source-port).
RFC 1122 4.1.3.1: a closed UDP port answers with an ICMP error, which quotes the probe.
"""

from __future__ import annotations

import numpy as np

from fwtop.analysis.window.counting import distinct_values
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import ICMP, TCP, UDP, Traffic, mix, payload, weighted_top
from fwtop.model.traffic.packets import U8, U64, Mask

_EPHEMERAL = 32_768  # Linux: ports that clients take; services listen below
_PORTS = 4  # scans at once
_LEAST = 30
_ONCE = 0.9  # of the answers: each port of a target answers once
_CLOSED = 0.5  # of the answers: hardly a host has more open ports than closed ones
_EACH = 3.0  # answers from each target; forged RSTs come from everywhere
_SPREAD = 0.2  # of the answers come from the same port, at most: a reflection has few services
_MOST_PPS = 50_000.0
_UNREACHABLE, _PORT = 3, 3  # RFC 792: type and code
_QUOTED = 24  # bytes: an IPv4 header without options, and the ports


def answers_to_probes(traffic: Traffic) -> Mask:
    """Mark RSTs and SYN-ACKs of many ports to one port that this host scans from."""
    packets = traffic.packets
    answers = np.zeros(len(traffic), np.bool_)
    six = packets.tcp_flags & 63
    closed = (six == 20) & (packets.tcp_seq == 0)
    pool = traffic.rows((packets.protocol == TCP) & ~traffic.later & (closed | (six == 18)))
    pool = pool[packets.dport[pool] >= _EPHEMERAL]
    if len(pool) < _LEAST:
        return answers
    ports, _ = weighted_top(packets.dport[pool], traffic.weight[pool])
    for port in ports[:_PORTS].tolist():
        rows = pool[packets.dport[pool] == port]
        features = Features(traffic, rows)
        few = features.packets < _EACH * features.likely_sources
        if len(rows) < _LEAST or few or closed[rows].mean() < _CLOSED:
            continue
        probed = mix(traffic.source_key[rows], packets.sport[rows].astype(np.uint64))
        common = int(np.bincount(packets.sport[rows]).max())
        scanned = len(distinct_values(probed)) >= _ONCE * len(rows) and common <= _SPREAD * len(rows)
        answers[rows] = scanned and traffic.pps(rows) <= _MOST_PPS
    return answers


def errors_to_probes(traffic: Traffic) -> Mask:
    """Mark ICMP errors of closed UDP ports that this host scans from one port of its own."""
    packets = traffic.packets
    answers = np.zeros(len(traffic), np.bool_)
    kind = (packets.protocol == ICMP) & (packets.icmp_type == _UNREACHABLE) & (packets.icmp_code == _PORT)
    pool = traffic.rows(kind & (packets.family == 4) & ~traffic.later)
    if len(pool) < _LEAST:
        return answers
    quoted, held = payload(packets, pool, _QUOTED)
    whole = (held == _QUOTED) & (quoted[:, 0] == 0x45) & (quoted[:, 9] == UDP)
    asked_here = _number(quoted[:, 12:16]) == packets.dst_lo[pool] & np.uint64(0xFFFFFFFF)
    answered_there = _number(quoted[:, 16:20]) == packets.src_lo[pool] & np.uint64(0xFFFFFFFF)
    true = whole & asked_here & answered_there
    pool, quoted = pool[true], quoted[true]
    mine, probed = _number(quoted[:, 20:22]), _number(quoted[:, 22:24])
    ports, counts = np.unique(mine, return_counts=True)
    for port in ports[np.argsort(-counts)][:_PORTS]:
        rows = np.flatnonzero(mine == port)
        if port < _EPHEMERAL or len(rows) < _LEAST:
            continue
        distinct = len(distinct_values(mix(packets.src_lo[pool[rows]], probed[rows])))
        if distinct >= _ONCE * len(rows) and traffic.pps(pool[rows]) <= _MOST_PPS:
            answers[pool[rows]] = True
    return answers


def _number(octets: U8) -> U64:
    """Read each row as a number in network byte order."""
    result = np.zeros(len(octets), np.uint64)
    for column in range(octets.shape[1]):
        result = (result << np.uint64(8)) | octets[:, column]
    return result
