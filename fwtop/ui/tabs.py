"""The tabs: which panels and texts each holds, and where they stand in a room of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from fwtop.ui.layout import LEFT_COLUMN, WIDE, Box, columns

Boxes = dict[str, Box]
_LEAST = 3  # lines of a panel: less is not worth a place
_TWO_COLUMNS = 16  # lines of the overview from which there are two
_WITH_PACKETS = 22  # lines beside the decisions from which the newest packets are among them
_STAGES = 13  # lines of the path: its title and head, all stages, a text of two lines


class Content(Struct, frozen=True):
    """What a tab has to show, in lines, as far as its layout depends on it."""

    attacks: int = 0
    proposals: int = 0
    rules: int = 0
    all_rules: int = 0
    effect: int = 0
    services: int = 0  # these only in calm, in place of what is done about attacks
    past: int = 0
    setup: int = 0
    packets: bool = False  # the newest are worth a list, and what it costs
    payloads: bool = True  # some have bytes in common
    trends: bool = False  # hours and days before this are stored, or may be
    focused: str = ""  # the panel that keys refer to; where only one fits, it is this one

    @property
    def is_calm(self) -> bool:
        """Whether there is nothing to decide."""
        return not (self.attacks or self.proposals or self.rules)


class Arrangement(Struct, frozen=True):
    """Boxes of what is visible; `slots` names the panels that share a visible panel's place."""

    boxes: Boxes
    slots: dict[str, tuple[str, ...]] = field(default_factory=dict)


class TabSpec(Struct, frozen=True):
    """A tab: its panels in the order of the Tab key, and its layout."""

    name: str
    title: str
    panels: tuple[str, ...]
    arrange: Callable[[Box, Content], Arrangement]


def _one_slot(room: Box, panels: Sequence[str], focused: str) -> Arrangement:
    """Show one panel, the focused one, and the names of the others in its title."""
    shown = focused if focused in panels else panels[0]
    return Arrangement({shown: room}, {shown: tuple(panels)})


def stack(room: Box, parts: Sequence[tuple[str, int]]) -> Boxes:
    """Divide a room by weights from top to bottom; an empty line follows each part but the last."""
    boxes: Boxes = {}
    total = sum(weight for _, weight in parts)
    y, left = room.y, room.height
    for place, (name, weight) in enumerate(parts):
        height = left * weight // total
        last = place == len(parts) - 1
        boxes[name] = Box(room.x, y, room.width, height if last else height - 1)
        left -= height
        total -= weight
        y += height
    return boxes


def _known(content: Content, *parts: tuple[str, int]) -> list[tuple[str, int]]:
    """Return the parts that have something to show."""
    return [part for part in parts if content.payloads or part[0] != "payloads"]


OVERVIEW = ("attacks", "proposals", "rules", "services", "past", "sources", "payloads", "ports")
_WITH_TRENDS = 30  # lines in calm from which hours and days before are below what is now


def overview(room: Box, content: Content) -> Arrangement:
    """Attacks, what to do about them, and the rules; what else there is room for."""
    if room.height < 2 * _LEAST + 1:
        return _one_slot(room, OVERVIEW[:3], content.focused)
    if content.is_calm and content.trends and room.height >= _WITH_TRENDS:
        now = Box(room.x, room.y, room.width, room.height - _TRAFFIC_LINES - 1)
        before = Box(room.x, now.y + now.height + 1, room.width, _TRAFFIC_LINES)
        return Arrangement(overview(now, content).boxes | {"trend_traffic": before})
    if room.width >= WIDE[0] and room.height >= _TWO_COLUMNS:
        left, right = columns(room, LEFT_COLUMN)
        boxes = _calm(left, content) if content.is_calm else _decisions(left, content)
        seen = "ports" if "sources" in boxes else "sources"  # rules and their effect may leave them no room
        if content.packets and right.height >= _WITH_PACKETS:
            boxes |= stack(right, _known(content, (seen, 28), ("payloads", 22), ("packets", 50)))
        else:
            boxes |= stack(right, _known(content, (seen, 42), ("payloads", 58)))
        return Arrangement(boxes)
    return Arrangement(_calm(room, content) if content.is_calm else _decisions(room, content))


def _calm(room: Box, content: Content) -> Boxes:
    """Stack what is usual here, the last attacks and what to set up; sources fill the rest."""
    wanted = (
        ("attacks", 1, 1),
        ("services", 1 + content.services, max(_LEAST, room.height * 2 // 5)),
        ("past", 1 + content.past, max(1, room.height // 5)),
        ("setup", content.setup, max(1, room.height // 5)),
        ("sources", room.height, room.height),
    )
    gap, left = int(room.height >= 20), room.height
    heights: dict[str, int] = {}
    for name, lines, most in wanted:
        height = min(lines, most, left)
        if height > (_LEAST if name == "sources" else 0):
            heights[name] = height
            left -= height + gap
    boxes: Boxes = {}
    y = room.y
    for name, lines, _ in wanted:
        if name in heights:
            more = min(max(left, 0), lines - heights[name])  # what sources have no room in
            boxes[name] = Box(room.x, y, room.width, heights[name] + more)
            left -= more
            y += boxes[name].height + gap
    return boxes


def _decisions(room: Box, content: Content) -> Boxes:
    """Stack attacks, proposals, rules and the effect of the selected rule; sources fill the rest."""
    wanted: list[tuple[str, int]] = [("attacks", 1 + content.attacks if content.attacks else 2)]
    if content.proposals:
        wanted.append(("proposals", 1 + content.proposals))
    if content.rules:
        wanted.append(("rules", 1 + content.rules))
    if content.effect:
        wanted.append(("effect", content.effect))
    wanted.append(("sources", room.height))
    heights: dict[str, int] = {}
    gap, left = int(room.height >= 20), room.height
    limits = {"attacks": max(_LEAST, left // 3), "rules": max(_LEAST - 1, left // 4)}
    reserved = {"rules": min(1 + content.rules, limits["rules"])} if content.rules else {}
    for name, lines in wanted:
        reserved.pop(name, None)
        height = min(lines, limits.get(name, lines), left - sum(reserved.values()))
        least = {"effect": content.effect, "sources": 6}.get(name, 2)
        if height < least:
            continue
        heights[name] = height
        left -= height + gap
    boxes: Boxes = {}
    y = room.y
    for name, lines in wanted:
        if name in heights:
            more = min(max(left, 0), lines - heights[name])  # what others have no use for
            boxes[name] = Box(room.x, y, room.width, heights[name] + more)
            left -= more
            y += boxes[name].height + gap
    return boxes


TRAFFIC = ("sources", "ports", "payloads")


def traffic(room: Box, content: Content) -> Arrangement:
    """Sources in all their views, ports and payloads."""
    parts = _known(content, ("sources", 54), ("payloads", 24), ("ports", 22))
    if room.height < 24 and room.width < WIDE[0]:
        return _one_slot(room, [name for name in TRAFFIC if name in dict(parts)], content.focused)
    if room.width < WIDE[0]:
        return Arrangement(stack(room, parts))
    left, right = columns(room, LEFT_COLUMN)
    return Arrangement({"sources": left} | stack(right, _known(content, ("ports", 45), ("payloads", 55))))


PATH = ("path", "ledger", "conntrack")
_TABLE = 7  # lines of the connection table
_DETAILS = 12  # of a stage


def path(room: Box, content: Content) -> Arrangement:
    """Show the stages that packets pass, all drops, and the connection table."""
    if room.height < _STAGES + _LEAST:
        return _one_slot(room, PATH, content.focused)
    below = Box(room.x, room.y + _STAGES, room.width, room.height - _STAGES)
    boxes = {"path": Box(room.x, room.y, room.width, _STAGES)}
    if room.width < WIDE[0] and below.height < 2 * _TABLE:
        shared = _one_slot(below, PATH[1:], content.focused)
        return Arrangement(boxes | shared.boxes, shared.slots)
    return Arrangement(boxes | _drops_and_table(below))


def _drops_and_table(room: Box) -> Boxes:
    """Drops over or beside the connection table; details of the selected stage where there is room."""
    if room.width >= WIDE[0] and room.height < _TABLE + _DETAILS:
        left, right = columns(room, 60)
        return {"ledger": left, "conntrack": right}
    last = _DETAILS if room.width >= WIDE[0] else _TABLE
    drops = Box(room.x, room.y, room.width, room.height - last - 1)
    below = Box(room.x, room.y + room.height - last, room.width, last)
    if room.width < WIDE[0]:
        return {"ledger": drops, "conntrack": below}
    left, right = columns(below, 40)
    return {"ledger": drops, "stage": left, "conntrack": right}


RULES = ("all_rules", "machine_rules")
_EFFECT = 13  # lines of what a rule does
_MACHINE = 8  # lines of everybody's rules, below which they share a place with fwtop's


def rules(room: Box, content: Content) -> Arrangement:
    """List fwtop's rules over the effect of the selected one, and everybody's rules below."""
    effect = min(_EFFECT, max(content.effect, 1), room.height - 4)
    own = min(max(content.all_rules + 3, 4), max(room.height // 3, 4))
    left = room.height - own - effect - 1
    if left < _MACHINE:
        return _rules_in_one_place(room, content)
    boxes = {"all_rules": Box(room.x, room.y, room.width, own)}
    boxes["effect"] = Box(room.x, room.y + own, room.width, effect)
    boxes["machine_rules"] = Box(room.x, room.y + own + effect + 1, room.width, left)
    return Arrangement(boxes)


def _rules_in_one_place(room: Box, content: Content) -> Arrangement:
    """Show those rules that keys refer to; the effect belongs to fwtop's."""
    if content.focused == "machine_rules":
        return _one_slot(room, RULES, content.focused)
    least = min(_EFFECT, room.height - 4)
    height = min(max(content.all_rules + 3, 4), room.height - least)
    lists = _one_slot(Box(room.x, room.y, room.width, height), RULES, content.focused)
    below = Box(room.x, room.y + height, room.width, room.height - height)
    return Arrangement(lists.boxes | {"effect": below}, lists.slots)


def log(room: Box, _: Content) -> Arrangement:
    """List all events."""
    return Arrangement({"log": room})


PACKETS = ("packets",)
_LIST = 8  # lines of the list of packets, below which the selected one isn't taken apart


def packets(room: Box, _: Content) -> Arrangement:
    """List packets over the selected one's layers and bytes."""
    pane = min(room.height * 2 // 5, 16)
    if room.height - pane < _LIST:
        return Arrangement({"packets": room})
    lists = Box(room.x, room.y, room.width, room.height - pane)
    return Arrangement({"packets": lists, "packet": Box(room.x, room.y + lists.height, room.width, pane)})


TRENDS = (
    "trend_traffic",
    "trend_country",
    "trend_network",
    "trend_port",
    "trend_service",
    "trend_dark",
    "trend_city",
)
_TRAFFIC_LINES = 9  # title, head and seven rows
_LIST_LINES = 6  # of a list of parts, with a line below


def trends(room: Box, content: Content) -> Arrangement:
    """List all traffic over its parts, as many lists as there is room for; the last place is shared."""
    if room.height < _TRAFFIC_LINES + 1 + _LIST_LINES:
        return _one_slot(room, TRENDS, content.focused)
    boxes = {"trend_traffic": Box(room.x, room.y, room.width, _TRAFFIC_LINES)}
    below = Box(room.x, room.y + _TRAFFIC_LINES + 1, room.width, room.height - _TRAFFIC_LINES - 1)
    sides = columns(below, 50) if room.width >= WIDE[0] else (below,)
    rows = min(max(below.height // _LIST_LINES, 1), -(-len(TRENDS[1:]) // len(sides)))
    places = [
        stack(side, [(str(row), 1) for row in range(rows)])[str(row)] for row in range(rows) for side in sides
    ]
    alone, rest = TRENDS[1 : len(places)], TRENDS[len(places) :]
    boxes |= dict(zip(alone, places, strict=False))
    if len(rest) == 1:
        return Arrangement(boxes | {rest[0]: places[-1]})
    shared = _one_slot(places[-1], rest, content.focused)
    return Arrangement(boxes | shared.boxes, shared.slots)


TABS = (
    TabSpec("overview", "Overview", OVERVIEW, overview),
    TabSpec("traffic", "Traffic", TRAFFIC, traffic),
    TabSpec("packets", "Packets", PACKETS, packets),
    TabSpec("path", "Path", PATH, path),
    TabSpec("rules", "Rules", RULES, rules),
    TabSpec("trends", "Trends", TRENDS, trends),
    TabSpec("log", "Log", ("log",), log),
)
TAB = {spec.name: spec for spec in TABS}
