"""Detect rules that are narrow each, and overly broad together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.rules.breadth import why_broad
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.coverage import of_ports
from fwtop.model.rule import RANGES, Match, Range, Rule
from fwtop.rules.kinds import drops_nothing
from fwtop.rules.overlap import is_wider


def why_broad_together(rule: Rule, others: Sequence[Rule], allow: AllowList) -> str | None:
    """Return why rules that act together need force, as one rule that does what they do would.

    What the others do without `rule` was judged before.
    """
    parts = [part for other in others for part in other.parts or (other,)]
    for own in rule.parts or (rule,):
        for whole in _joined(own, parts):
            if why := why_broad(whole, allow):
                return f"together with the active rules of screens, {why}"
    return None


def _joined(rule: Rule, others: Sequence[Rule]) -> Iterator[Rule]:
    """Yield what a rule is part of: rules with the sources, or the range in one field, of several."""
    for base in (rule, *others):
        if not base.match.sources or not _drops_as(rule, base):
            continue
        alike = [item for item in (rule, *others) if _drops_as(item, base)]
        lists = [item.match.sources for item in alike if not of_ports(item.match.sources)]
        yield replace(base, match=replace(base.match, sources=_union(lists)), origin=None)
    for name in RANGES:
        spans = [span for item in (rule, *others) if (span := _span_in(item, rule, name)) is not None]
        if len(spans) > 1 and (hull := _hull(spans)) is not None:
            yield replace(rule, match=_with(rule.match, name, hull))


def _drops_as(rule: Rule, base: Rule) -> bool:
    """Whether a rule does to its sources at least what a base does to its own."""
    limits = ((rule.limit, base.limit), (rule.connections, base.connections))
    alike = drops_nothing(rule) == drops_nothing(base) and all(own in (None, its) for own, its in limits)
    return alike and bool(rule.match.sources) and is_wider(rule.match, base.match)


def _span_in(item: Rule, rule: Rule, name: str) -> Range | None:
    """Return a rule's range in a field that alone tells it from another one."""
    same = item.limit == rule.limit and _with(item.match, name, None) == _with(rule.match, name, None)
    span: Range | None = getattr(item.match, name) if same else None
    return span


def _hull(spans: Sequence[Range]) -> Range | None:
    """Return the range around some, None where they leave more than half of it free."""
    low, high = min(span.low for span in spans), max(span.high for span in spans)
    held, end = 0, low - 1
    for span in sorted(spans, key=lambda item: item.low):
        held += max(0, span.high - max(end, span.low - 1))
        end = max(end, span.high)
    return Range(low, high) if 2 * held >= high - low + 1 else None


def _with(match: Match, name: str, span: Range | None) -> Match:
    changes: dict[str, Any] = {name: span}
    return replace(match, **changes)


def _union(lists: Sequence[Sequence[Prefix]]) -> Sequence[Prefix]:
    if all(isinstance(item, tuple) for item in lists):
        return tuple(prefix for item in lists for prefix in item)
    from fwtop.model.addresses.prefix_rows import PrefixRows  # for long lists

    return PrefixRows.union(lists)
