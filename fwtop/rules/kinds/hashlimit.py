"""Limit the rate of each source prefix: xt_hashlimit, which keeps a token bucket for each."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, RateLimit, Rule
from fwtop.rules.fields import limit_words
from fwtop.rules.kind import KernelObjects, Layer, RuleKind, Surroundings
from fwtop.rules.kinds.common import base, filter_lines
from fwtop.rules.xtables import HASHLIMIT_EXPIRE_MS, HASHLIMIT_MAX, hashlimit_rate

_MAX_COUNTED = 10_000  # source prefixes
_MAY_FILL = (
    f"the limit remembers {HASHLIMIT_MAX:,} source prefixes a family: if more send within "
    f"{HASHLIMIT_EXPIRE_MS // 1000} s, packets of every new client are dropped; --via xdp forgets the oldest "
    "instead"
)

_FULL_DROPS = (
    "hashlimit drops packets of new clients once its table is full, even if it only counts: count this with "
    "--via xdp or tc"
)


def build(rule: Rule, around: Surroundings) -> KernelObjects:
    """Return the lines that drop what a source prefix sends above the limit."""
    if rule.limit is None:
        raise FwtopError("a limit needs a rate; nothing was installed", 2)
    enabled = base(rule, around.exceptions)
    notes = (_MAY_FILL,) if _may_fill(rule, rule.limit) else ()
    return KernelObjects(enabled.sets, filter_lines(rule, enabled), notes)


def _may_fill(rule: Rule, limit: RateLimit) -> bool:
    return any(_most(rule.match.sources, limit, family) > HASHLIMIT_MAX for family in rule.match.families)


def _uncounted(rule: Rule) -> str:
    """A full table drops what it can't count (hotdrop in xt_hashlimit.c), whatever the line's target is."""
    return _FULL_DROPS if rule.limit is not None and _may_fill(rule, rule.limit) else ""


def _burst(limit: RateLimit) -> int:
    """In bytes, iptables requires a bucket of at least one second's worth and one packet."""
    rate = limit.per_second
    return max(limit.burst, rate + rate // 16 + 1500) if limit.in_bytes else limit.burst


def _most(sources: Sequence[Prefix], limit: RateLimit, family: int) -> int:
    """Return how many entries a family's table may get at most, by the sources' prefixes alone."""
    bits = limit.prefix_v4 if family == 4 else limit.prefix_v6
    if len(sources) > _MAX_COUNTED:
        return HASHLIMIT_MAX + 1  # not worth the time to know
    mine = [prefix for prefix in sources if prefix.family == family]
    prefixes = sum(1 << max(0, bits - prefix.length) for prefix in mine) if sources else 1 << bits
    return prefixes << 16 if limit.by_dport else prefixes


KIND = RuleKind(
    Kind.HASHLIMIT, Layer.RAW, build, limit_words,
    missing=lambda rule: "" if rule.limit is not None else "limit: hashlimit needs one",
    is_filter=True, reads_payload=True, is_part=True,
    keeps=hashlimit_rate, keeper="hashlimit", burst=_burst, table=HASHLIMIT_MAX,
    on_bridges="--via xdp or tc meets them at the ports",
    evaded="evaded by: more and slower sources", ladder="by rate (hashlimit)",
    probes={
        "hashlimit": "-m hashlimit --hashlimit-name fwtop --hashlimit-above 1000/sec --hashlimit-mode srcip "
        "--hashlimit-srcmask 24 -j DROP"
    },
    uncounted=_uncounted, verbs=("limit",), cost_ns=530.0, bench="limit {port} --per 24 --rate 1000/s",
)  # fmt: skip
