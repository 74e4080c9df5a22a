"""Addresses that are nobody's on the internet: those of the IANA's special-purpose registries (RFC 6890)."""

from __future__ import annotations

import ipaddress

import numpy as np

from fwtop.model.traffic.packets import U8, U64, Mask

# The entries that are not globally reachable, and multicast. Addresses of transition relays (2001::/32,
# 2002::/16) lead to hosts of somebody, and so do 2001:20::/28 and 2001:30::/28.
_FOUR = """
0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3
"""
_SIX = """
::/64 64:ff9b:1::/48 100::/64 2001:2::/48 2001:10::/28 2001:db8::/32 3fff::/20 5f00::/16 fc00::/7 fe80::/10
ff00::/8
"""
NETWORKS = tuple(map(ipaddress.ip_network, f"{_FOUR}{_SIX}".split()))


def _bounds(family: int, shift: int) -> U64:
    """Return where a family's networks begin and end, in order, without the lower bits."""
    own = [network for network in NETWORKS if network.version == family]
    bounds = [(int(one[0]) >> shift, (int(one[-1]) >> shift) + 1) for one in own]
    return np.array(bounds, object).ravel()[:-1].astype(np.uint64)  # the last one reaches the last address


_BOUNDS4, _BOUNDS6 = _bounds(4, 0), _bounds(6, 64)


def special_purpose(family: U8, hi: U64, lo: U64) -> Mask:
    """Return which of n addresses lie in a special-purpose network."""
    six = np.flatnonzero(family == 6)
    place = np.searchsorted(_BOUNDS4, lo, "right")
    place[six] = np.searchsorted(_BOUNDS6, hi[six], "right")
    inside: Mask = place % 2 == 1
    return inside
