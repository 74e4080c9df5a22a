"""The limits of rules as the kernel keeps them, and in words."""

from __future__ import annotations

from msgspec.structs import replace

from fwtop.model.rule import RateLimit, Rule
from fwtop.rules.kinds import of

_NOTABLE = 0.005  # part of the rate


def heeds_limit(rule: Rule) -> bool:
    """Return whether what stays under a rule's limit passes."""
    return rule.limit is not None and of(rule.kind).keeps is not None


def as_kept(rule: Rule) -> RateLimit | None:
    """Return a rule's limit with the rate that the kernel keeps."""
    limit, keeps = rule.limit, of(rule.kind).keeps
    if limit is None or keeps is None or limit.per_second < 1:
        return limit
    return replace(limit, per_second=round(keeps(limit)))


def is_rounded(rule: Rule) -> bool:
    """Return whether the kernel keeps a rate that differs notably from what was asked for."""
    asked, kept = rule.limit, as_kept(rule)
    if asked is None or kept is None:
        return False
    return abs(kept.per_second - asked.per_second) > _NOTABLE * asked.per_second


def rate_text(rule: Rule) -> str:
    """Describe a rule's limit as the kernel keeps it: 1,000/s per /24 (IPv6 /56)."""
    asked, limit = rule.limit, as_kept(rule)
    if asked is None or limit is None:
        return "any rate"
    unit = " bytes" if limit.in_bytes else ""
    each = " and port" if limit.by_dport else ""
    rate = f"{asked.per_second:,}{unit}/s"
    if is_rounded(rule):
        rate = f"{limit.per_second:,}{unit}/s ({rate} rounded by {of(rule.kind).keeper})"
    return f"{rate} per /{limit.prefix_v4} (IPv6 /{limit.prefix_v6}){each}"


def rounding_text(rule: Rule) -> str:
    """Say which rates the kernel keeps instead of those asked for; "" if none, or the summary says it."""
    told = [rate_text(part) for part in rule.parts or (rule,) if is_rounded(part)]
    return "; ".join(f"limit: {text}" for text in told if text not in rule.summary)
