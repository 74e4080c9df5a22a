"""The rate that a limit really keeps: none has every rate, as a packet costs a whole number of credits.

Sources: iptables, extensions/libxt_hashlimit.c (parse_rate, bytes_to_cost); net/netfilter/xt_hashlimit.c
(user2credits, user2credits_byte) since revision 2, which iptables takes where the kernel has it (Linux 4.8);
bpf/xdp_limit.h. Revision 1 is coarser (10,000 instead of a million parts of a second), but iptables refuses
rates that it can't have.
"""

from __future__ import annotations

import time

from fwtop.model.rule import RateLimit

LIMIT_SECOND = 64 * 10**9  # a second in units of over_limit in bpf/xdp_limit.h
_SCALE = 1_000_000  # XT_HASHLIMIT_SCALE_v2
_WHOLE = (1 << 32) - 1
_CHUNK_BYTES = 16  # 1 << XT_HASHLIMIT_BYTE_SHIFT
_CLOCK_MONOTONIC_COARSE = 6  # linux/time.h; its resolution is a tick of the kernel


def compiled_rate(limit: RateLimit) -> float:
    """Return the packets or bytes a second that a compiled rule lets pass."""
    return LIMIT_SECOND / compiled_cost(limit)


def hashlimit_rate(limit: RateLimit) -> float:
    """Return the packets or bytes a second that hashlimit lets pass."""
    return _hashlimit_bytes(limit.per_second) if limit.in_bytes else _hashlimit_packets(limit.per_second)


def compiled_cost(limit: RateLimit) -> int:
    """Return what a packet, or a byte, costs in a compiled rule, of LIMIT_SECOND a second."""
    return max(1, LIMIT_SECOND // limit.per_second)


def _hashlimit_packets(asked: int) -> float:
    return _SCALE / max(1, _SCALE // asked)


def iptables_bytes(asked: int) -> int:
    """Return the bytes a second that iptables makes of a rate; it takes no smaller burst."""
    return (_WHOLE // _cost(asked) - 1) * _CHUNK_BYTES


def _cost(asked: int) -> int:
    """Return what 16 bytes cost, of 2^32 a second (bytes_to_cost)."""
    return _WHOLE // (asked // _CHUNK_BYTES + 1)


def _hashlimit_bytes(asked: int) -> float:
    """Return it as the kernel converts that cost to credits, of which each tick brings a power of 2."""
    ticks = round(1 / time.clock_getres(_CLOCK_MONOTONIC_COARSE))
    credits = ticks * (1 << (_WHOLE // ticks).bit_length() - 1)  # gained in a second
    cost = _cost(asked) * credits >> 32
    return _CHUNK_BYTES * credits / max(1, cost)
