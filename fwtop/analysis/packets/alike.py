"""Which packets are alike: a flood's packets are, whatever addresses they carry."""

from __future__ import annotations

import numpy as np

from fwtop.analysis.window.traffic import mix
from fwtop.model.traffic.packets import U64, PacketBatch


def like_keys(packets: PacketBatch) -> U64:
    """Return equal numbers for packets of one protocol, destination port, flags, length and kind."""
    first = packets.protocol.astype(np.uint64) << np.uint64(48)
    first |= packets.dport.astype(np.uint64) << np.uint64(32)
    first |= packets.ip_length.astype(np.uint64) << np.uint64(16)
    first |= packets.tcp_flags.astype(np.uint64) << np.uint64(8) | packets.icmp_type
    second = packets.family.astype(np.uint64) << np.uint64(16) | packets.ethertype
    return mix(first, second << np.uint64(8) | packets.fragment)
