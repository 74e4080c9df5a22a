"""Who sent each packet, as far as this host knows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.packets.recent import Texts
from fwtop.analysis.proposals.matching import in_prefixes
from fwtop.analysis.standing import ATTACK, CLIENT, Standing, like_keys
from fwtop.analysis.window.tcp_view import view_tcp
from fwtop.analysis.window.traffic import Traffic, mix
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import WHO, AllowedPeer
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import FLAG_OUTBOUND, Mask, PacketBatch
from fwtop.model.traffic.window import Window

_MOST = 0.5  # of a source's packets decide who it is, as in tables of sources


def who_of(packets: PacketBatch, peers: Iterable[AllowedPeer], standing: Standing) -> Texts:
    """Return who each source is: names of allow-listed peers first, then attack or client; "" is unknown.

    What was judged is a moment old. So packets like those of an attack are its packets, too, and sources of
    real connections among these packets are clients.
    """
    who = np.full(len(packets), "", f"<U{max(len(name) for name in (*WHO.values(), ATTACK, CLIENT))}")
    keys = mix(packets.src_hi, packets.src_lo)
    judged = mix(standing.hi, standing.lo)
    who[np.isin(like_keys(packets), standing.attack_keys)] = ATTACK
    who[np.isin(keys, keys[_real(packets)])] = CLIENT
    who[np.isin(keys, judged[standing.client])] = CLIENT
    attacking = (standing.claimed > 0) & (standing.claimed >= _MOST * standing.weight)
    who[np.isin(keys, judged[attacking])] = ATTACK
    by_name: dict[str, list[Prefix]] = {}
    for peer in peers:
        by_name.setdefault(WHO[peer.role], []).append(peer.prefix)
    for name in reversed(WHO.values()):  # the first ones win
        if name in by_name:
            who[in_prefixes(packets.family, packets.src_hi, packets.src_lo, by_name[name])] = name
    return who


def _real(packets: PacketBatch) -> Mask:
    """Mark the TCP packets of real connections."""
    if not len(packets):
        return np.zeros(0, np.bool_)
    empty, every = PacketBatch.empty(), replace(packets, flags=packets.flags & ~np.uint8(FLAG_OUTBOUND))
    window = Window(0.0, 1.0, every, empty, empty, Counters(1.0, len(packets), 0))
    return view_tcp(Traffic.of(window, AdviseConfig())).real
