"""The addresses that an attack spread over many is aimed at, and the prefix that covers them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fwtop.analysis.window.counting import among, numbered
from fwtop.analysis.window.traffic import Traffic, weighted_top
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import F64

_STRAY = 0.1  # of what the median target receives: less is a packet of something else


class Targets(NamedTuple):
    """What an attack's targets receive, the busiest first, and the smallest prefix that covers them."""

    weights: F64  # packets
    prefix: Prefix  # of the family that most packets are of


def targets_of(traffic: Traffic, rows: NDArray[np.intp]) -> Targets:
    """Return the targets of an attack's packets, of which there must be one.

    An address that sends more of them than it gets is no target: on a machine that forwards, what answers an
    attack may look like it.
    """
    key, number = traffic.dest_key[rows], numbered(traffic.dest_key[rows])
    weights = np.asarray(np.bincount(number, traffic.weight[rows]), np.float64)
    keys = np.zeros(len(weights), np.uint64)
    keys[number] = key
    theirs = rows[among(traffic.source_key[rows], keys)]
    senders, sent = weighted_top(traffic.source_key[theirs], traffic.weight[theirs])
    sent_by = dict(zip(senders.tolist(), sent.tolist(), strict=True))
    aimed = np.array([sent_by.get(one, 0.0) for one in keys.tolist()]) <= weights
    if not aimed.any():
        aimed[:] = True
    aimed &= weights >= _STRAY * float(np.median(weights[aimed]))
    mine = rows[aimed[number]]
    six = traffic.packets.family[mine] == 6
    weight = traffic.weight[mine]
    is_six = bool(six.all()) or float(weight[six].sum()) > float(weight[~six].sum())
    busiest_first = np.sort(weights[aimed])[::-1]
    return Targets(busiest_first, _covering(traffic, mine[six == is_six], 6 if is_six else 4))


def _covering(traffic: Traffic, rows: NDArray[np.intp], family: int) -> Prefix:
    hi, lo = traffic.packets.dst_hi[rows], traffic.packets.dst_lo[rows]
    low = int(hi.min()) << 64 | int(lo[hi == hi.min()].min())
    high = int(hi.max()) << 64 | int(lo[hi == hi.max()].max())
    bits = 32 if family == 4 else 128
    free = (low ^ high).bit_length()
    return Prefix(family, low >> free << free, bits - free)
