"""The list of proposals: each in one line, the selected one with its reasons, what may wait folded."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.traffic.snapshot import Proposal
from fwtop.render.rows.defence import PROPOSAL
from fwtop.rules.kinds import drops_nothing
from fwtop.rules.words import brief
from fwtop.ui.format import nanoseconds, percent, wrap
from fwtop.ui.lists.attacks import clients_hit, how_to_turn, of_one
from fwtop.ui.lists.numbers import HARMED, LESSER, OTHERS, PAUSED, RELIEF, STOPPED
from fwtop.ui.lists.rows import Fold
from fwtop.ui.lists.table import Cell, CellContext, View, columns_of
from fwtop.ui.style import ACCENT, DIM, STRONG, TEXT, TITLE, WARN, Line, width_of

_WIDE = 100  # cells of the list from which the costs have a column
_TITLE = 37  # cells of a title at 80 columns
_DETAILS = 2  # lines
_BETTER = "▲ better  "
_ALONE = {RELIEF: "relief, drops nothing", HARMED: "like a rule that did harm"}
_WAITS = {
    STOPPED: ("doesn't reach you", "don't reach you"),
    PAUSED: ("paused",) * 2,
    LESSER: ("is no attack", "are no attacks"),
    OTHERS: ("not shown",) * 2,
}


def in_brief(item: Proposal, room: int) -> str:
    """Write a proposal in so many cells, as far as that goes; first of all what it closes."""
    if item.rule is None:
        return item.summary.partition(":")[0]
    closing = f"{item.reach.closing}: " if item.reach.closes else ""
    return f"{closing}{brief(item.rule, room - len(closing))}"


def _summary(item: Proposal | Fold, context: CellContext, width: int) -> Line:
    if isinstance(item, Fold):
        return _relief(item, width) if item.key == RELIEF and not item.is_open else _folded(item)
    if item.key in context.proposals.gone:
        return [("gone  ", WARN), (in_brief(item, width - 6), DIM)]
    if item.key == context.proposals.numbers.better:
        return [(_BETTER, ACCENT), (in_brief(item, width - len(_BETTER)), TEXT)]
    return [(in_brief(item, width), TEXT)]


def _relief(fold: Fold, width: int) -> Line:
    """Write those that drop nothing on one line, each with its number."""
    line: Line = [("relief:", DIM)]
    for place, item in enumerate(fold.rows):
        more = len(fold.rows) - place
        one: Line = [(f" {item.number} ", STRONG), (in_brief(item, width), TEXT), (" ", TEXT)]
        rest = ", ".join(str(other.number) for other in fold.rows[place:])
        if place and width_of([*line, *one]) + len(rest) * (more > 1) > width:
            return [*line, (" also ", DIM), (rest, STRONG)]  # "5 more" would be a number of proposals
        line += one
    return line


def _folded(fold: Fold) -> Line:
    """Write what stands aside in one line, and how to see it."""
    many = f"{len(fold.rows)} proposal{'s' * (len(fold.rows) > 1)}"
    why = _ALONE.get(fold.key)
    if why is None:
        why = f"{', '.join(fold.letters)} {_WAITS[fold.key][len(fold.letters) > 1]}"
    return [(f"{why}: ", DIM), (many, STRONG), *how_to_turn(fold)]


def _reasons(item: Proposal | Fold, context: CellContext, room: int) -> list[Line]:
    """Write below the selected proposal why it is one, how it is evaded, and what it costs."""
    if isinstance(item, Fold):
        return []
    rule, said = item.rule, item.summary
    others = sorted(context.proposals.shared.get(item.key, ""))
    told = [f"against {' and '.join(others)}, too" if others else "", item.bystanders, item.reach.covers]
    if rule is not None and said.endswith(")") and rule.summary in said:
        why = said.partition(f"{rule.summary} (")[2]
        known = (*told, "drops nothing")
        told += [part for part in why.removesuffix(")").split("; ") if part not in known]
    else:
        told.append(said.partition(": ")[2])
    if item.cost_ns is not None and item.cost_measured:
        told.append(f"{nanoseconds(item.cost_ns)} a packet")
    text = " · ".join(part for part in told if part)
    rows = wrap(text, room) if text else []
    if len(rows) > _DETAILS:
        rows = [*rows[: _DETAILS - 1], f"{rows[_DETAILS - 1][: room - 1]}…"]
    return [[(row, DIM)] for row in rows]


def drops(item: Proposal) -> bool:
    """Whether it is known what a proposal drops: not of what others have to do, or drops nothing."""
    return item.attack_share > 0 if item.rule is None else not drops_nothing(item.rule)


def _stops(item: Proposal, *_: object) -> Line:
    """Write what a proposal stops, with "+" what it adds to other rules that are active."""
    if not drops(item):
        return [("–", DIM)]
    if item.already_share:
        return [(f"+{percent(item.attack_share - item.already_share)}", STRONG)]
    return [(percent(item.attack_share), STRONG)]


def _hits(item: Proposal, *_: object) -> Line:
    return clients_hit(item) if drops(item) else [("–", DIM)]


def _against(item: Proposal, context: CellContext, _: int) -> Line:
    attack = context.snapshot.judgement.incident(item.incident) if context.attacks[1:] else None
    return [(attack.letter, TITLE)] if attack is not None else []


def _cost(item: Proposal, context: CellContext, _: int) -> Line:
    if item.cost_ns is None or not item.cost_measured or context.width < _WIDE:
        return []
    return [(nanoseconds(item.cost_ns), DIM)]


_CELLS: dict[str, Cell] = {
    "n": lambda item, *_: [(str(item.number), STRONG)],
    "attack": _against,
    "attack_share": _stops,
    "collateral_share": _hits,
    "cost_ns": _cost,
}
_COLUMNS = columns_of(
    PROPOSAL, {"summary": _summary, **{name: of_one(cell) for name, cell in _CELLS.items()}}
)
PROPOSAL_VIEW = View("", _COLUMNS, PROPOSAL, empty="none", numbered=True, below=_reasons)


def against_words(context: CellContext) -> str:
    """Title the proposals with the attacks that they are against, and with what rules do already."""
    covered = context.proposals.covered
    letters = sorted({*context.proposals.letters(), *covered})
    if not letters:
        return "proposals"
    words = f"protect against {_spoken(letters)}"
    if not covered:
        return words
    rules = sorted(set(covered.values()))
    enough = context.proposals.stopped_by_rules.issuperset(covered)
    one, more = ("does it", "do it") if enough else ("is in force", "are in force")
    done = f"rule {rules[0]} {one}" if len(rules) == 1 else f"{len(rules)} rules {more}"
    part = "" if len(covered) == len(letters) else _spoken(sorted(covered))
    whole = f"{words}{'; ' * bool(part)}{part}: {done}"
    if context.width >= _WIDE or len(whole) <= _TITLE:
        return whole
    return f"against {part or _spoken(letters)}: {done}"  # which matters more than against what


def _spoken(letters: Sequence[str]) -> str:
    return ", ".join(letters) if len(letters) <= 2 else f"{letters[0]}–{letters[-1]}"
