"""Where everything goes for a terminal of a given size: a pure function, so that it can be tested.

Four designs: wide shows every panel at once; tall has an upper slot with tabs over proposals and rules;
compact has an upper and a lower slot with tabs; small has one slot.
Below the minimum there is only a message.
"""

from __future__ import annotations

from dataclasses import dataclass

from fwtop.ui.panels import PANELS

MINIMUM = (60, 15)
WIDE = (132, 34)
TALL = 34  # rows: narrow, but with room for proposals and rules at once
ONE_SLOT_BELOW = 20  # rows

UPPER = tuple(spec.name for spec in PANELS if not spec.low)
LOWER = tuple(spec.name for spec in PANELS if spec.low)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in cells."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Boxes of what is visible; `tabs` names the panels that share a visible panel's slot."""

    boxes: dict[str, Box]
    tabs: dict[str, tuple[str, ...]]


def arrange(width: int, height: int, shown: dict[str, str]) -> Arrangement | None:
    """Lay the screen out; None if the terminal is too small.

    `shown` names the visible panel of each slot ("upper", "lower", "only").
    """
    if width < MINIMUM[0] or height < MINIMUM[1]:
        return None
    if width >= WIDE[0] and height >= WIDE[1]:
        return _wide(width, height)
    banner = 1 if height < ONE_SLOT_BELOW else 2 if height < TALL else 3
    boxes = _frame(width, height, banner)
    top = 2 + banner
    room = height - top - 2
    if height < ONE_SLOT_BELOW:
        boxes[shown["only"]] = Box(0, top, width, room)
        return Arrangement(boxes, {shown["only"]: UPPER + LOWER})
    if height >= TALL:
        return _tall(boxes, Box(0, top, width, room), shown["upper"])
    low = max(room // 3, 5)
    boxes[shown["upper"]] = Box(0, top, width, room - low)
    boxes[shown["lower"]] = Box(0, top + room - low, width, low)
    return Arrangement(boxes, {shown["upper"]: UPPER, shown["lower"]: LOWER})


def _tall(boxes: dict[str, Box], room: Box, upper: str) -> Arrangement:
    proposals, rules = room.height * 27 // 100, max(room.height // 5, 5)
    rest = room.height - proposals - rules
    boxes[upper] = Box(0, room.y, room.width, rest - 1)
    boxes["proposals"] = Box(0, room.y + rest, room.width, proposals - 1)
    boxes["rules"] = Box(0, room.y + rest + proposals, room.width, rules)
    return Arrangement(boxes, {upper: UPPER})


def arrange_rules(width: int, height: int) -> dict[str, Box] | None:
    """Lay the screen of rules out: the list over the facts of the selected one."""
    if width < MINIMUM[0] or height < MINIMUM[1]:
        return None
    boxes = _frame(width, height, 1)
    room = height - 3 - 2
    facts = max(min(room - 6, 13), 4)
    boxes["rules"] = Box(0, 3, width, room - facts)
    boxes["facts"] = Box(0, 3 + room - facts, width, facts)
    return boxes


def _frame(width: int, height: int, banner: int) -> dict[str, Box]:
    return {
        "header": Box(0, 0, width, 2),
        "banner": Box(0, 2, width, banner),
        "status": Box(0, height - 2, width, 1),
        "footer": Box(0, height - 1, width, 1),
    }


def _wide(width: int, height: int) -> Arrangement:
    boxes = _frame(width, height, 3)
    top, bottom = 6, height - 2
    left = (width - 3) * 57 // 100
    right = width - left - 3
    _stack(boxes, Box(0, top, left, bottom - top), (("sources", 62), ("payloads", 38)))
    conntrack = 7
    room = bottom - top - conntrack
    parts = (("proposals", 28), ("rules", 20), ("ledger", 28), ("ports", 24))
    _stack(boxes, Box(left + 3, top, right, room), parts)
    boxes["conntrack"] = Box(left + 3, top + room, right, conntrack)
    return Arrangement(boxes, {})


def _stack(boxes: dict[str, Box], column: Box, parts: tuple[tuple[str, int], ...]) -> None:
    """Divide a column by weights; an empty line follows each panel."""
    total = sum(weight for _, weight in parts)
    y, left = column.y, column.height
    for name, weight in parts:
        height = left * weight // total
        boxes[name] = Box(column.x, y, column.width, height - 1)
        left -= height
        total -= weight
        y += height
