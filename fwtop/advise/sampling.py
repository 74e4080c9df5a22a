"""Captures that hold one packet in many and don't say so: what sFlow collectors and thinned mirrors write.

There nearly every packet is alone in its flow, which elsewhere is the mark of forged packets. What tells
them apart are packets that floods don't imitate: those with TCP timestamps (RFC 7323), of which in real
connections some are FINs.
"""

from __future__ import annotations

import numpy as np

from fwtop.advise.facts import header_words
from fwtop.advise.tcpview import TcpView
from fwtop.advise.traffic import Traffic

_WORDS = 8  # of a TCP header with NOP, NOP, timestamps
_ENOUGH = 30
_ALONE = 0.3  # of packets are the only one of their flow
_ENDS = (0.003, 0.4)  # FINs among them


def looks_sampled(traffic: Traffic, tcp: TcpView) -> bool:
    """Tell whether packets of real connections are there, but hardly two of the same one."""
    rows = traffic.rows(tcp.tcp & ~tcp.syn & ~tcp.odd)
    if len(rows) < _ENOUGH:
        return False
    rows = rows[header_words(traffic, rows) == _WORDS]
    if len(rows) < _ENOUGH:
        return False
    counts = np.bincount(traffic.flow_id[tcp.tcp])  # with its SYN: that is seen where all is
    ends = float(tcp.fin[rows].mean())
    alone = float((counts[traffic.flow_id[rows]] == 1).mean())
    return alone > _ALONE and _ENDS[0] <= ends <= _ENDS[1]
