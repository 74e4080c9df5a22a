"""The table of keys: the bindings, the footer and the help all come from it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class Key:
    """One row: which keys do what, and how that is said."""

    keys: tuple[str, ...]  # Textual's names
    label: str  # as shown to people
    action: str
    footer: str  # one or two words; empty: not in the footer
    help: str
    group: str
    rules: str = ""  # on the screen of rules: one or two words for its footer; empty: not bound there


KEYS = (
    Key(
        ("b",),
        "b",
        "draft('block')",
        "block",
        "block what is selected: shows what it stops and harms first",
        "Act",
    ),
    Key(("l",), "l", "draft('limit')", "", "limit the rate per source prefix of what is selected", "Act"),
    Key(("s",), "s", "draft('string')", "", "drop packets with the selected payload", "Act"),
    Key(("x",), "x", "draft('xdp')", "", "drop what is selected in the driver (XDP)", "Act"),
    Key(("n",), "n", "draft('notrack')", "", "keep what is selected out of connection tracking", "Act"),
    Key(tuple("123456789"), "1…9", "proposal", "propose", "take the proposal of that number", "Act"),
    Key(
        ("y",),
        "y",
        "confirm",
        "confirm",
        "confirm the unconfirmed rules: they stay until they expire",
        "Act",
        "confirm",
    ),
    Key(("u",), "u", "undo", "undo", "take the selected rule back, else the last one", "Act", "undo"),
    Key(
        ("m",),
        "m",
        "rules",
        "rules",
        "all rules on one screen: time left, effect, what changed since",
        "Act",
    ),
    Key(
        ("plus", "equals_sign"),
        "+",
        "extend",
        "",
        "keep the selected rule, else the last one, for longer",
        "Act",
        "extend",
    ),
    Key(
        ("c",),
        "c",
        "change",
        "",
        "edit the selected rule, else the last one, without a gap",
        "Act",
        "change",
    ),
    Key(("w",), "w", "why", "", "why the selected rule, else the last one, does too little", "Act", "why"),
    Key(("up", "k"), "↑ ↓", "move(-1)", "", "select a row (also k and j)", "Look", "select"),
    Key(("down", "j"), "", "move(1)", "", "", "Look", "select"),
    Key(("pageup",), "PgUp PgDn", "page(-1)", "", "select a page up or down", "Look", "page"),
    Key(("pagedown",), "", "page(1)", "", "", "Look", "page"),
    Key(("home", "g"), "Home End", "top", "", "first row, and follow the greatest; last row", "Look", "top"),
    Key(("end", "G"), "", "bottom", "", "", "Look", "bottom"),
    Key(("tab", "right"), "Tab", "panel(1)", "panel", "next panel; Shift+Tab the one before", "Look"),
    Key(("shift+tab", "left"), "", "panel(-1)", "", "", "Look"),
    Key(("v",), "v", "view", "view", "sources by address, prefix, network (ASN), country", "Look"),
    Key(
        ("enter", "r"),
        "Enter",
        "details",
        "details",
        "all facts of the selected row, bytes as hex (also r)",
        "Look",
        "details",
    ),
    Key(("a",), "a", "attacks", "", "the evidence for each attack", "Look"),
    Key(("slash",), "/", "filter", "filter", "show only rows that contain a text", "Look"),
    Key(("o",), "o", "sort", "", "change the order of the rows", "Look"),
    Key(("p", "space"), "p", "pause", "pause", "stop and resume taking snapshots (also Space)", "Session"),
    Key(("e",), "e", "export", "export", "write a report of the session so far", "Session"),
    Key(("question_mark", "f1"), "?", "help", "help", "this page (also F1)", "Session", "help"),
    Key(("q", "ctrl+c"), "q", "leave", "quit", "leave; unconfirmed rules are taken back", "Session"),
)

# What the footer shows first where there is little room.
FOOTER_ORDER = (
    "help",
    "leave",
    "draft('block')",
    "proposal",
    "undo",
    "confirm",
    "rules",
    "details",
    "panel(1)",
    "pause",
    "view",
    "filter",
    "export",
)
RULES_FOOTER_ORDER = ("undo", "extend", "why", "change", "details", "help", "confirm")
BY_ACTION = {key.action: key for key in KEYS}
_BACK = Key(("escape",), "Esc", "back", "back", "", "", "back")


def bindings(*, rules: bool = False) -> list[Binding]:
    """Return the table as Textual's bindings; a digit passes itself on."""
    found = []
    for row in KEYS:
        if rules and not row.rules:
            continue
        for key in row.keys:
            action = f"proposal({key})" if row.action == "proposal" else row.action
            found.append(Binding(key, action, row.footer or row.help, show=False, priority=False))
    return found


def footer_keys(width: int, *, pending: bool, rules: bool = False) -> list[tuple[Key, str]]:
    """Choose the keys that fit into `width` cells, in the table's order, each with its word.

    `confirm` is shown only while there is something to confirm, and then before all others.
    """
    order = RULES_FOOTER_ORDER if rules else FOOTER_ORDER
    wanted = [action for action in order if action != "confirm"]
    if pending:
        wanted.insert(0, "confirm")
    table = (*KEYS, _BACK) if rules else KEYS
    words = {row.action: row.rules if rules else row.footer for row in table}
    chosen = {"back"} if rules else set()
    used = 1 + (len("Esc back") + 3) * rules
    for action in wanted:
        size = len(BY_ACTION[action].label) + 1 + len(words[action]) + 3
        if used + size - 2 <= width:
            chosen.add(action)
            used += size
    return [(row, words[row.action]) for row in table if row.action in chosen]
