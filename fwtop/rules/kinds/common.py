"""What all iptables backends share: the sets whose timeouts end a rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix, listed, of_family, says_more
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.rules import xtables
from fwtop.rules.kind import ChainLine, KernelObjects, SetSpec, Surroundings
from fwtop.rules.nft_objects import NftRule

DROP = ("-j", "DROP")
IPSET_PREFIXES = 5_000_000  # ipset takes 50 to 100 bytes of kernel memory for each


def too_many(prefixes: Sequence[Prefix]) -> str | None:
    """Return why an ipset can't hold a list, and what can; None if it can."""
    if len(prefixes) <= IPSET_PREFIXES:
        return None
    return f"{len(prefixes):,} prefixes, but an ipset takes up to {IPSET_PREFIXES:,}: --via xdp takes more"


class Base(Struct, frozen=True):
    """The sets of a rule and, for each family, the matches that ask them first."""

    sets: tuple[SetSpec, ...]
    asks: dict[int, tuple[str, ...]]


def base(rule: Rule, exceptions: tuple[Prefix, ...], *, side: str = "src") -> Base:
    """Return the sets whose elements' timeouts end the rule without any process.

    With sources the set holds them; without, and beside a long list, an enable set holds both halves of the
    address space. Several destinations are a set too. `exceptions` are allow-listed: what lies inside them
    is left out, and where they lie inside a source they become `nomatch` elements.
    """
    sets: list[SetSpec] = []
    asks: dict[int, tuple[str, ...]] = {}
    for family in families_asked(rule):
        if rule.list_name is not None:
            spec = _list_set(rule.list_name, rule, family)
        elif rule.match.sources:
            spec = _source_set(rule, family, exceptions)
            if not spec.elements:
                continue
        else:
            spec = _enable_set(rule, family)
        ask = ["-m", "set", "--match-set", spec.name, f"{side},dst" if says_more(spec.elements) else side]
        if not spec.timed:  # the list first: most packets are not on it, and the enable set is not looked up
            switch = _enable_set(rule, family)
            ask += ["-m", "set", "--match-set", switch.name, side]
        targets = tuple(prefix for prefix in rule.match.destinations if prefix.family == family)
        if rule.match.destinations and not targets:
            continue
        sets += [spec] if spec.timed else [spec, switch]
        if len(targets) == 1:
            ask += ["-d" if side == "src" else "-s", str(targets[0])]
        elif targets:
            sets.append(SetSpec(xtables.set_name(rule.id, family, "dst"), family, targets))
            ask += ["-m", "set", "--match-set", sets[-1].name, "dst" if side == "src" else "src"]
        asks[family] = tuple(ask)
    if not asks:
        raise FwtopError("no address is left to match after the allow-list; nothing was installed")
    return Base(tuple(sets), asks)


def drop_all(rule: Rule, around: Surroundings) -> KernelObjects:
    """Return the sets of a rule and the lines that drop all packets that match."""
    asked = base(rule, around.exceptions)
    return KernelObjects(asked.sets, filter_lines(rule, asked))


def filter_lines(rule: Rule, clock: Base) -> tuple[ChainLine, ...]:
    """Return the lines that drop what matches a rule, or of that what is above its limit."""
    return tuple(
        ChainLine(
            family,
            (
                *xtables.field_args(rule.match, family, protocol),
                *xtables.with_payload(rule, family, protocol, asks),
                *(xtables.limit_args(rule.id, rule.limit, family) if rule.limit is not None else ()),
            ),
            DROP,
        )
        for family, asks in clock.asks.items()
        for protocol in xtables.match_protocols(rule)
    )


def families_asked(rule: Rule) -> tuple[int, ...]:
    """Return the families whose packets a rule is about: on a named list also one that it has none of yet."""
    if rule.list_name is None:
        return rule.match.families
    return replace(rule.match, sources=()).families


def _list_set(name: str, rule: Rule, family: int) -> SetSpec:
    rows = list_elements(rule.match.sources, family)
    return SetSpec(xtables.list_set_name(name, family), family, rows, timed=False, shared=True)


def list_elements(sources: Sequence[Prefix], family: int) -> Sequence[Prefix]:
    """Return what a named list's set of a family holds: prefixes, or prefixes with single ports."""
    return sources.single.of_family(family) if says_more(sources) else of_family(sources, family, ())


def unlisted_first(objects: KernelObjects, rule: Rule, known: Iterable[Prefix]) -> KernelObjects:
    """Mark the lines that drop only sources outside the allow-list: they need not wait for its lookup.

    `known` are all prefixes of the allow-list, in whatever role. A named list may change at any time, so
    rules on one wait.
    """
    if rule.list_name is not None:
        return objects
    if not rule.match.sources:
        return _sparing(objects, rule, tuple(known))
    index = listed(rule.match.sources)
    met = {prefix.family for prefix in known if index.overlapping(prefix) is not None}
    lines = tuple(
        replace(line, unlisted=line.family not in met and line.target == DROP) for line in objects.lines
    )
    return replace(objects, lines=lines)


def counting(objects: KernelObjects) -> KernelObjects:
    """Return the same sets and matches without a verdict: lines count, and the packet goes on."""
    lines = tuple(replace(line, target=()) if line.target == DROP else line for line in objects.lines)
    instead = objects.instead
    if isinstance(instead, NftRule):
        counts = (replace(one, statement=one.statement.removesuffix(" drop")) for one in instead.lines)
        instead = replace(instead, lines=tuple(counts))
    return replace(objects, lines=lines, instead=instead)


def _sparing(objects: KernelObjects, rule: Rule, known: tuple[Prefix, ...]) -> KernelObjects:
    """Let one lookup tell a rule for all sources both whether it is on and whom it spares.

    The allow-list's prefixes are `nomatch` elements of the enable set. So each line becomes two: one before
    the allow-list, for all others, and one behind the roles, for its prefixes outside their role.
    """
    if any(line.target != DROP for line in objects.lines):
        return objects
    names = {
        xtables.set_name(rule.id, family, "on"): xtables.set_name(rule.id, family, xtables.UNLISTED)
        for family in (4, 6)
    }
    sets = tuple(
        _spared(spec, names[spec.name], known) if spec.name in names else spec for spec in objects.sets
    )
    lines: list[ChainLine] = []
    for line in objects.lines:
        match = tuple(names.get(word, word) for word in line.match)
        side = match.index(xtables.set_name(rule.id, line.family, xtables.UNLISTED)) + 1
        only_spared = (*match[: side + 1], "--return-nomatch", *match[side + 1 :])
        lines += [replace(line, match=match, unlisted=True), replace(line, match=only_spared, listed=True)]
    return replace(objects, sets=sets, lines=tuple(lines))


def _spared(spec: SetSpec, name: str, known: tuple[Prefix, ...]) -> SetSpec:
    exceptions = tuple(prefix for prefix in known if prefix.family == spec.family)
    return replace(spec, name=name, exceptions=exceptions)


def _enable_set(rule: Rule, family: int) -> SetSpec:
    return SetSpec(xtables.set_name(rule.id, family, "on"), family, xtables.halves(family))


def _source_set(rule: Rule, family: int, exceptions: tuple[Prefix, ...]) -> SetSpec:
    spared = tuple(prefix for prefix in exceptions if prefix.family == family)
    kept = of_family(rule.match.sources, family, spared)
    timed = len(kept) <= xtables.TIMED_ELEMENTS
    return SetSpec(xtables.set_name(rule.id, family), family, kept, spared, timed=timed, counted=True)
