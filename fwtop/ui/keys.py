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
        ("y",), "y", "confirm", "confirm", "confirm the unconfirmed rules: they stay until they expire", "Act"
    ),
    Key(("u",), "u", "undo", "undo", "take the selected rule back, else the last one", "Act"),
    Key(("up", "k"), "↑ ↓", "move(-1)", "", "select a row (also k and j)", "Look"),
    Key(("down", "j"), "", "move(1)", "", "", "Look"),
    Key(("pageup",), "PgUp PgDn", "page(-1)", "", "select a page up or down", "Look"),
    Key(("pagedown",), "", "page(1)", "", "", "Look"),
    Key(("home", "g"), "Home End", "top", "", "first row, and follow the greatest; last row", "Look"),
    Key(("end", "G"), "", "bottom", "", "", "Look"),
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
    ),
    Key(("a",), "a", "attacks", "", "the evidence for each attack", "Look"),
    Key(("slash",), "/", "filter", "filter", "show only rows that contain a text", "Look"),
    Key(("o",), "o", "sort", "", "change the order of the rows", "Look"),
    Key(("p", "space"), "p", "pause", "pause", "stop and resume taking snapshots (also Space)", "Session"),
    Key(("e",), "e", "export", "export", "write a report of the session so far", "Session"),
    Key(("question_mark", "f1"), "?", "help", "help", "this page (also F1)", "Session"),
    Key(("q", "ctrl+c"), "q", "leave", "quit", "leave; unconfirmed rules are taken back", "Session"),
)

# What the footer shows first where there is little room.
FOOTER_ORDER = (
    "help",
    "leave",
    "draft('block')",
    "undo",
    "confirm",
    "pause",
    "details",
    "panel(1)",
    "proposal",
    "view",
    "filter",
    "export",
)
BY_ACTION = {key.action: key for key in KEYS}


def bindings() -> list[Binding]:
    """Return the table as Textual's bindings; a digit passes itself on."""
    found = []
    for row in KEYS:
        for key in row.keys:
            action = f"proposal({key})" if row.action == "proposal" else row.action
            found.append(Binding(key, action, row.footer or row.help, show=False, priority=False))
    return found


def footer_keys(width: int, *, pending: bool) -> list[Key]:
    """Choose the keys that fit into `width` cells, in the table's order.

    `confirm` is shown only while there is something to confirm, and then before all others.
    """
    wanted = [action for action in FOOTER_ORDER if action != "confirm"]
    if pending:
        wanted.insert(0, "confirm")
    chosen: set[str] = set()
    used = 1
    for action in wanted:
        row = BY_ACTION[action]
        size = len(row.label) + 1 + len(row.footer) + 3
        if used + size - 2 <= width:
            chosen.add(action)
            used += size
    return [row for row in KEYS if row.action in chosen]
