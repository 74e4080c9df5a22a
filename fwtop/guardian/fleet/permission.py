"""Whether a verified document may act on this machine: its fleet, labels, times, order, and its signers.

Pure: what is compared comes from root's files, the record and the clock. Each refusal is one line that says
what is wrong, what was left untouched, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from fwtop.fleet.document import CLOCK_SECONDS, Action, Document, Refusal, is_meant
from fwtop.guardian.fleet.membership import CLOSED, WIDE, Machine, Restriction, Restrictions
from fwtop.model.addresses.address import Prefix, is_long, listed, sizes
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Level, Rule
from fwtop.render.numbers import utc
from fwtop.rules.kinds import drops_nothing, heeds_limit, of

_WIDE_V4, _WIDE_V6 = 24, 48  # longer prefixes need no second signer
_MOMENT = "%Y-%m-%d %H:%M:%SZ"
_V6_UNIT = 64  # of IPv6, networks of this length are counted as addresses


class Newest(Struct, frozen=True):
    """The highest revision that this machine took from a fleet, and the digest of that document."""

    revision: int = 0
    document: str = ""


def check_place(document: Document, machine: Machine) -> None:
    """Raise FwtopError unless a document is for this machine."""
    if document.fleet != machine.fleet:
        said = f"the document is of fleet {document.fleet}, this machine belongs to {machine.fleet}"
        raise _refused(Refusal.FOREIGN, said, "deliver it there")
    if not is_meant(document.on, machine.all_labels):
        said = f"the document is for {', '.join(document.on)}, this machine is {machine.name}, " + (
            f"labels {', '.join(machine.labels)}" if machine.labels else "without labels"
        )
        raise _refused(Refusal.NOT_MEANT, said, "labels are in machine.toml, root's")


def check_time(document: Document, now: float) -> None:
    """Raise FwtopError for a document of the future or one whose time is over."""
    clock = f"this machine's clock says {utc(now, _MOMENT)}"
    if document.issued > now + CLOCK_SECONDS:
        said = f"the document was signed at {utc(document.issued, _MOMENT)}, {clock}"
        raise _refused(Refusal.CLOCK, said, "set the clock that is wrong")
    if document.not_after <= now:
        said = f"the document counted until {utc(document.not_after, _MOMENT)}, {clock}"
        raise _refused(Refusal.EXPIRED, said, "sign a new one, or set the clock if it is wrong")


def check_order(document: Document, digest: str, newest: Newest) -> None:
    """Raise FwtopError for a revision that is not the next one; the newest document itself may come again."""
    if document.revision == newest.revision and digest != newest.document:
        said = f"another document with revision {document.revision} was here first"
        raise _refused(
            Refusal.CONFLICT, said, "sign it again with a higher revision; find out who signed both"
        )
    if document.revision < newest.revision:
        said = f"the document has revision {document.revision}, this machine took {newest.revision} already"
        raise _refused(Refusal.REPLAYED, said, "sign it again with a higher revision")


def check_signers(
    document: Document, rules: Sequence[Rule], signers: Sequence[str], restrictions: Restrictions
) -> None:
    """Raise FwtopError unless one of the signers may do this, and as many signed as must."""
    held = [restrictions.signer.get(signer, Restriction()) for signer in signers]
    beyond = [_beyond(document, rules, one) for one in held]
    if all(beyond):
        raise _refused(Refusal.BEYOND, f"{signers[0]} {beyond[0]}", "have somebody sign who may")
    asked = {WIDE: any(map(_is_wide, rules)), CLOSED: any(map(_is_closed, rules))}
    why = [f"two must sign what is {word}" for word in restrictions.two_signers if asked[word]]
    why += [f"{name} never signs alone" for name, one in zip(signers, held, strict=True) if one.needs_second]
    if why and len(signers) < 2:
        raise _refused(Refusal.SECOND, why[0], "have another person sign it, too")


def check_target(by: Sequence[str], restrictions: Restrictions, former: Sequence[str]) -> None:
    """Raise FwtopError if all who keep or undo a roll-out are restricted, and none of them signed it."""
    if all(name in restrictions.signer and name not in former for name in by):
        said = f"{by[0]} may keep and undo only what he signed, this was {' and '.join(former)}"
        raise _refused(Refusal.BEYOND, said, "have somebody sign who may")


def check_ceiling(machine: Machine, rules: Iterable[Rule], active: Iterable[Rule]) -> None:
    """Raise FwtopError where the fleet's rules together would block more addresses than this machine lets."""
    total = sum(addresses(rule) for rule in (*rules, *active))
    if total > machine.max_addresses:
        said = (
            f"the fleet's rules would block {total:,} addresses here, "
            f"max_addresses in machine.toml is {machine.max_addresses:,}"
        )
        raise _refused(Refusal.BEYOND, said, "undo others first")


def check_frozen(document: Document, machine: Machine) -> None:
    """Raise FwtopError for what a frozen machine does not take."""
    if machine.frozen and document.action is not Action.UNDO:
        said = "this machine is frozen: machine.toml says so"
        raise _refused(Refusal.FROZEN, said, "only undo is taken until root changes that")


def addresses(rule: Rule) -> int:
    """Return how many addresses a rule blocks by its sources; of IPv6, networks of /64."""
    return sum(
        _size(part)
        for part in rule.parts or (rule,)
        if of(part.kind).is_filter and not drops_nothing(part) and not heeds_limit(part)
    )


def _beyond(document: Document, rules: Sequence[Rule], held: Restriction) -> str:
    """Return what of a document is beyond a restriction, "" if nothing is."""
    if held.labels and any(set(held.labels).isdisjoint(item.split("+")) for item in document.on):
        return f"may sign for {', '.join(held.labels)} only, not for {', '.join(document.on)}"
    total = sum(map(_size, rules))
    if held.max_addresses is not None and total > held.max_addresses:
        return f"may sign for {held.max_addresses:,} addresses at most, these are {total:,}"
    return next(filter(None, (_beyond_rule(rule, held) for rule in rules)), "")


def _beyond_rule(rule: Rule, held: Restriction) -> str:
    limited = held.max_addresses is not None or held.widest_ipv4 or held.widest_ipv6
    least = {4: held.widest_ipv4, 6: held.widest_ipv6}
    sources = rule.match.sources if rule.list_name is None else ()
    wider = next((one for one in _shortest(sources) if one.length < least[one.family]), None)
    checks = {
        f"may sign rules of the kinds {', '.join(held.kinds)} only, not {rule.kind.value}": (
            bool(held.kinds) and not {kind.value for kind in rule.kinds} <= set(held.kinds)
        ),
        "may sign only what counts": held.count_only and not rule.counts_only,
        f"may sign rules of {held.max_ttl_seconds:,} s at most, this one has {rule.ttl_seconds:,}": (
            rule.ttl_seconds > held.max_ttl_seconds
        ),
        "may sign only rules that name their sources": (bool(limited) and (bool(rule.parts) or not sources)),
        f"may sign for sources of /{held.widest_ipv4} and /{held.widest_ipv6} and longer only, not {wider}": (
            wider is not None
        ),
    }
    return next((said for said, is_so in checks.items() if is_so), "")


def _size(rule: Rule) -> int:
    """Return how many addresses a rule's sources are, whatever it does with them."""
    if is_long(rule.match.sources):
        networks = sizes(rule.match.sources, 6) >> 128 - _V6_UNIT
        return sizes(rule.match.sources, 4) + max(networks, rule.match.sources.count(6))
    return sum(
        2 ** max(0, (32 if source.family == 4 else _V6_UNIT) - source.length) for source in rule.match.sources
    )


def _is_wide(rule: Rule) -> bool:
    if rule.list_name is not None:  # what it holds is this machine's
        return False
    return any(
        one.length < (_WIDE_V4 if one.family == 4 else _WIDE_V6) for one in _shortest(rule.match.sources)
    )


def _shortest(sources: Sequence[Prefix]) -> Sequence[Prefix]:
    return [one for family in (4, 6) if (one := listed(sources).shortest(family)) is not None]


def _is_closed(rule: Rule) -> bool:
    return rule.protection is not None and rule.protection.level is Level.CLOSED


def _refused(reason: Refusal, said: str, advice: str) -> FwtopError:
    return FwtopError(f"{said}; nothing was changed; {advice}", reason=reason)
