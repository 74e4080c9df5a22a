"""All kinds of rules, each a module with its `KIND`, known by being here; what a kind says of a rule."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, RateLimit, Rule
from fwtop.rules.kind import NONE, KernelObjects, Layer, RuleKind, Surroundings
from fwtop.rules.kinds import common, harden

_ORDER = {kind: place for place, kind in enumerate(Kind)}


def _all() -> list[RuleKind]:
    """Read the modules here; those without a kind are shared by others."""
    names = sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))
    modules = (import_module(f"{__name__}.{name}") for name in names)
    made: list[RuleKind] = [module.KIND for module in modules if hasattr(module, "KIND")]
    return sorted(made, key=lambda known: (known.layer, _ORDER[known.kind]))


KINDS = {known.kind: known for known in _all()}  # as a packet meets them


def of(kind: Kind) -> RuleKind:
    """Return what is known of a kind."""
    return KINDS[kind]


def filters(verb: str | None = None) -> list[Kind]:
    """Return the kinds that drop single packets, of a verb if given; those in netfilter's chains first."""
    found = [known for known in KINDS.values() if known.is_filter and verb in (None, *known.verbs)]
    return [known.kind for known in sorted(found, key=lambda known: known.layer < Layer.RAW)]


def alternatives(rule: Rule) -> list[Kind]:
    """Return the kinds of rule that can do the same, from the stack down to the driver."""
    if not of(rule.kind).is_filter:
        return [rule.kind]
    if rule.limit is not None:
        fit = [known for known in KINDS.values() if known.keeps is not None and not known.missing(rule)]
    elif rule.match.payload:
        fit = [known for known in KINDS.values() if known.reads_payload and not known.missing(rule)]
    else:
        by_source = bool(rule.match.sources or rule.origin)
        looked_up = (known for known in KINDS.values() if known.takes_lists)
        fit = [known for known in looked_up if by_source or known.layer < Layer.RAW]
    return [known.kind for known in reversed(fit)]


def drops_nothing(rule: Rule) -> bool:
    """Return whether no packet is dropped because of a rule."""
    return rule.counts_only or all(of(kind).drops_nothing for kind in rule.kinds)


def droppers(rule: Rule, reason: str) -> list[Rule]:
    """Return the parts of a rule, or itself, whose drops have this reason in the kernel."""
    parts = () if rule.counts_only else rule.parts or (rule,)
    return [part for part in parts if of(part.kind).drop_reason == reason]


def has_no_clock(rule: Rule) -> bool:
    """Return whether a part of a rule has no clock in the kernel, as sysctls."""
    return any(of(kind).has_no_clock for kind in rule.kinds)


def why_too_many(kind: Kind, prefixes: Sequence[Prefix]) -> str | None:
    """Return why a rule can't hold so many sources, and what can; None if it can."""
    return (of(kind).too_many or common.too_many)(prefixes)


def why_uncounted(rule: Rule) -> str:
    """Return why a rule can't only count what it would drop; "" if it can."""
    return next((why for part in rule.parts or (rule,) if (why := of(part.kind).uncounted(part))), "")


def build(rule: Rule, around: Surroundings = NONE) -> KernelObjects:
    """Return what a rule is in the kernel. Raises FwtopError (code 2) for what its kind can't do."""
    if rule.counts_only and (why := why_uncounted(rule)):
        raise FwtopError(f"{why}; nothing was changed", 2)
    if rule.parts:
        return harden.together(rule.id, [build(part, around) for part in harden.parts_of(rule)])
    made = of(rule.kind).build(rule, around)
    # Access lists decide at a protected port; all of its lines are behind the allow-list
    made = made if rule.protection is not None else common.unlisted_first(made, rule, around.known)
    return common.counting(made) if rule.counts_only else made


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_MAX_SOURCES = 32  # more would make the line unreadable


def command_line(rule: Rule, *, max_sources: int | None = _MAX_SOURCES) -> str | None:
    """Return the shell command that installs a rule; None if no command can, or it has too many sources.

    The line is always printable.
    """
    match = rule.match
    if max_sources is not None and rule.origin is None and len(match.sources) > max_sources:
        return None
    words = of(rule.kind).words(rule) if match.fragment is not False else None
    if words is None:
        return None
    words = [*words, *(["--count"] * rule.counts_only)]
    line = shlex.join(["fwtop", *words, "--ttl", ttl_option(rule.ttl_seconds)])
    return line if line.isprintable() else None


def ttl_option(seconds: int) -> str:
    """Format a time to live as `--ttl` takes it, exactly: 90s, 10m, 2h, 1d."""
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    return f"{seconds // size}{unit}"


# The limits of rules as the kernel keeps them, and in words

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
