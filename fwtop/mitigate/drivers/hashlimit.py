"""Limit the rate of each source prefix: xt_hashlimit, which keeps a token bucket a prefix.

The kernel keeps the first parameters given under a table's name, so the name holds the rule's number and a
changed rate is a new rule with a new table (net/netfilter/xt_hashlimit.c, htable_find_get).
"""

from __future__ import annotations

from fwtop.mitigate.artifacts import Artifacts, ChainLine
from fwtop.mitigate.drivers.common import base, field_args
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import RateLimit, Rule

MAX_PACKETS_PER_SECOND = 1_000_000  # XT_HASHLIMIT_SCALE_v2: iptables refuses more
MIN_BYTES_PER_SECOND = 64  # below 16, its unit, iptables 1.8.9 divides by zero
MAX_BYTES_PER_SECOND = (1 << 32) - 1
_TABLE_MAX = 262_144  # source prefixes remembered; beyond that the kernel drops (hotdrop)
_EXPIRE_MS = 10_000


def build(rule: Rule, exceptions: tuple[Prefix, ...]) -> Artifacts:
    """Return the lines that drop what a source prefix sends above the limit."""
    if rule.limit is None:
        raise FwtopError("a limit needs a rate; nothing was installed", 2)
    clock = base(rule, exceptions)
    lines = tuple(
        ChainLine(
            family,
            (*field_args(rule.match, family), *asks, *limit_args(rule.id, rule.limit, family)),
            ("-j", "DROP"),
        )
        for family, asks in clock.asks.items()
    )
    return Artifacts(clock.sets, lines)


def limit_args(rule_id: str, limit: RateLimit, family: int) -> tuple[str, ...]:
    """Return the match for packets above the limit; raises FwtopError (code 2) on impossible rates."""
    most = MAX_BYTES_PER_SECOND if limit.in_bytes else MAX_PACKETS_PER_SECOND
    least = MIN_BYTES_PER_SECOND if limit.in_bytes else 1
    if not least <= limit.per_second <= most:
        raise FwtopError(f"hashlimit takes {least} to {most:,} a second; nothing was installed", 2)
    above = f"{limit.per_second}b/s" if limit.in_bytes else f"{limit.per_second}/sec"
    # Counted in bytes, the bucket must hold a second's worth and one packet: iptables refuses less.
    fullest = max(limit.burst, limit.per_second + limit.per_second // 16 + 1500)
    burst = f"{fullest}b" if limit.in_bytes else str(limit.burst)
    return (
        "-m", "hashlimit",
        "--hashlimit-above", above,
        "--hashlimit-burst", burst,
        "--hashlimit-mode", "srcip,dstport" if limit.by_dport else "srcip",
        "--hashlimit-srcmask", str(limit.prefix_v4 if family == 4 else limit.prefix_v6),
        "--hashlimit-htable-max", str(_TABLE_MAX),
        "--hashlimit-htable-expire", str(_EXPIRE_MS),
        "--hashlimit-name", f"fwtop-{rule_id}-{family}",
    )  # fmt: skip
