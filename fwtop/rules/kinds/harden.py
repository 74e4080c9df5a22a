"""Several rules as one: the kernel objects of a playbook's parts, which begin and end together.

All of its parts hang on the same enable sets, so one flush ends all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Rule
from fwtop.rules.kind import BESIDE, ChainLine, KernelObjects, Layer, RuleKind, SetSpec, Surroundings
from fwtop.rules.xtables import UNLISTED, set_name


def parts_of(rule: Rule) -> tuple[Rule, ...]:
    """Return a playbook's parts as rules under its own id, clock and mode."""
    own = {"id": rule.id, "ttl_seconds": rule.ttl_seconds, "mode": rule.mode}
    return tuple(replace(part, **own) for part in rule.parts)


def together(rule_id: str, parts: Sequence[KernelObjects]) -> KernelObjects:
    """Return one set of kernel objects; raises FwtopError (code 2) where two parts exclude each other."""
    others = [part.instead for part in parts if part.instead is not None]
    if len(others) > 1:
        raise FwtopError("a playbook has one SYN proxy or one limit of connections; nothing was changed", 2)
    apart = [_apart(rule_id, number, part) for number, part in enumerate(parts)]
    sets = {spec.name: spec for part in apart for spec in part.sets}
    return KernelObjects(
        tuple(sets.values()),
        tuple(line for part in apart for line in part.lines),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        settings=tuple(item for part in parts for item in part.settings),
        needs=tuple(dict.fromkeys(item for part in parts for item in part.needs)),
        untracked=tuple(match for part in parts for match in part.untracked),
        instead=next(iter(others), None),
    )


def _apart(rule_id: str, number: int, part: KernelObjects) -> KernelObjects:
    """Give a part's sets and hashlimit tables names of their own; the enable sets stay common."""
    common = {set_name(rule_id, family, role) for family in (4, 6) for role in ("on", UNLISTED, BESIDE)}
    before, after = f"fwtop-{rule_id}-", f"fwtop-{rule_id}-p{number}"

    def named(text: str) -> str:
        return text if text in common or not text.startswith(before) else after + text.removeprefix(before)

    def renamed(spec: SetSpec) -> SetSpec:
        return replace(spec, name=named(spec.name))

    def reworded(line: ChainLine) -> ChainLine:
        return replace(line, match=tuple(map(named, line.match)))

    return replace(part, sets=tuple(map(renamed, part.sets)), lines=tuple(map(reworded, part.lines)))


def _build(rule: Rule, _: Surroundings) -> KernelObjects:
    raise FwtopError(f"playbook {rule.playbook} has no parts; nothing was changed", 2)


KIND = RuleKind(
    Kind.HARDEN, Layer.NOWHERE, _build, lambda rule: ["harden", rule.playbook, "--apply"],
    own={"parts": "a playbook's", "playbook": "a playbook's"}, verbs=("harden",),
    fixed="it is several rules in one",
    evaded="one rule to confirm and to undo",
)  # fmt: skip
