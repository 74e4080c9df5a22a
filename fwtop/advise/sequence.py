"""Counters in payloads: tunnels, calls and streams number their packets, floods don't.

Sources: WireGuard's data message (counter at 8, little-endian), RFC 3550 5.1 (RTP), RFC 3948 (ESP in UDP),
RFC 9147 4 (DTLS), OpenVPN's packet id.
"""

from __future__ import annotations

import numpy as np

from fwtop.advise.traffic import Rows, Traffic, payload

_ROWS = 2_048
_WIDTH = 20
_STEPS = 50  # of random bytes as many all rise once in 2^50
_FORMS = ((">u2", "i2"), ("<u2", "i2"), (">u4", "i4"), ("<u4", "i4"))


def counts_up(traffic: Traffic, rows: Rows) -> bool:
    """Tell whether some number in the first 20 payload bytes rises from packet to packet of each flow."""
    middle = max(0, (len(rows) - _ROWS) // 2)
    rows = rows[middle : middle + _ROWS]
    key = traffic.flow_key[rows]
    order = np.lexsort((traffic.packets.time_ns[rows], key))
    rows, key = rows[order], key[order]
    matrix, length = payload(traffic.packets, rows, _WIDTH)
    pairs = np.flatnonzero((key[1:] == key[:-1]) & (length[1:] >= _WIDTH) & (length[:-1] >= _WIDTH))
    if len(pairs) < _STEPS or len(pairs) < 0.5 * len(rows):
        return False
    for form, signed in _FORMS:
        size = int(form[-1])
        for at in range(_WIDTH - size + 1):
            value = np.ascontiguousarray(matrix[:, at : at + size]).view(form).reshape(-1)
            value = value.astype(f"u{size}")
            step = (value[pairs + 1] - value[pairs]).view(signed)
            if (step > 0).mean() > 0.95:
                return True
    return False
