"""The table of keys, from which bindings, footer and help are made."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace
from textual.binding import Binding


class Key(Struct, frozen=True):
    """One row: keys, action, and its words."""

    keys: tuple[str, ...]  # Textual's names
    label: str  # as shown to people
    action: str
    footer: str  # one or two words; "": not in the footer
    help: str
    group: str
    changes: bool = False  # changes rules: not offered in read-only mode
    tab: str = ""  # on this tab only, where it wins over the key's general meaning


KEYS = (
    Key(
        ("b",),
        "b",
        "rule('block')",
        "block",
        "block the selected row; first shows what that stops and harms",
        "Act",
    ),
    Key(
        ("B",),
        "B",
        "block_spared",
        "",
        "block the selected row even if it is a client",
        "Act",
    ),
    Key(("l",), "l", "rule('limit')", "", "limit the rate per source prefix of the selected row", "Act"),
    Key(("s",), "s", "rule('string')", "", "drop packets with the selected payload", "Act"),
    Key(("x",), "x", "rule('xdp')", "", "drop the selected row in the driver (XDP)", "Act"),
    Key(("n",), "n", "rule('notrack')", "", "keep the selected row out of connection tracking", "Act"),
    Key(tuple("123456789"), "1…9", "proposal", "pick", "preview the proposal of that number", "Act"),
    Key(("A",), "A", "protect", "all", "one set of rules against all attacks", "Act", changes=True),
    Key(
        ("y",),
        "y",
        "confirm",
        "confirm",
        "confirm the unconfirmed rules: they stay until they expire",
        "Act",
        changes=True,
    ),
    Key(("f",), "f", "repair", "", "restore the rules that are not in effect", "Act", changes=True),
    Key(
        ("u",),
        "u",
        "undo",
        "remove",
        "remove the selected or last rule; asks if it is confirmed",
        "Act",
        changes=True,
    ),
    Key(
        ("ctrl+r",),
        "Ctrl+R",
        "redo",
        "",
        "install the last removed or expired rule again",
        "Act",
        changes=True,
    ),
    Key(("m",), "m", "go('rules')", "", "the Rules tab: time left, effect, before and after", "Act"),
    Key(
        ("plus", "equals_sign"),
        "+",
        "extend",
        "extend",
        "keep the selected or last rule for longer",
        "Act",
        changes=True,
    ),
    Key(
        ("c",),
        "c",
        "change",
        "change",
        "edit the selected or last rule, without a gap",
        "Act",
        changes=True,
    ),
    Key(("w",), "w", "why", "why", "why the selected or last rule matches too little", "Act"),
    Key(
        ("d",),
        "d",
        "rule('like')",
        "drop alike",
        "on Packets: drop what is like it, by bytes or header fields",
        "Packets",
        tab="packets",
    ),
    Key(
        ("n",),
        "n N",
        "alike(1)",
        "next alike",
        "on Packets: next and previous packet alike",
        "Packets",
        tab="packets",
    ),
    Key(("N",), "", "alike(-1)", "", "", "Packets", tab="packets"),
    Key(
        ("w",),
        "w",
        "write_packets",
        "pcap",
        "on Packets: write those shown as a pcap file",
        "Packets",
        tab="packets",
    ),
    Key(
        ("space",),
        "Space",
        "hold",
        "hold",
        "on Packets: hold the list; again: follow the newest",
        "Packets",
        tab="packets",
    ),
    Key(("up", "k"), "↑ ↓", "move(-1)", "", "select a row (also k and j)", "Look"),
    Key(("down", "j"), "", "move(1)", "", "", "Look"),
    Key(("pageup",), "PgUp PgDn", "page(-1)", "", "select a page up or down", "Look"),
    Key(("pagedown",), "", "page(1)", "", "", "Look"),
    Key(("home",), "Home End", "top", "", "first row, following the greatest; last row", "Look"),
    Key(("end", "G"), "", "bottom", "", "", "Look"),
    Key(("tab", "right"), "Tab", "panel(1)", "panel", "next panel (also →)", "Look"),
    Key(("shift+tab", "left"), "Shift+Tab", "panel(-1)", "", "the panel before (also ←)", "Look"),
    Key(("right_square_bracket",), "[ ]", "tab(1)", "tab", "previous and next tab", "Look"),
    Key(("left_square_bracket",), "", "tab(-1)", "", "", "Look"),
    Key(("0",), "0", "unscope", "", "show all attacks again", "Look"),
    Key(
        ("v",),
        "v",
        "view",
        "view",
        "traffic by source, destination, port, payload, signature",
        "Look",
    ),
    Key(
        ("enter",),
        "Enter",
        "open",
        "open",
        "preview a proposal, look at one attack; into a row, Esc back",
        "Look",
    ),
    Key(("r",), "r", "details", "", "details of the selected row, bytes as hex", "Look"),
    Key(("a",), "a", "attacks", "evidence", "the evidence for each attack", "Look"),
    Key(("slash",), "/", "filter", "filter", "show only rows that contain a text", "Look"),
    Key(("g",), "g", "graph", "", "the history graph in packets or bits", "Look"),
    Key(("o",), "o", "sort", "sort", "change the sort order", "Look"),
    Key(
        ("colon",),
        ":",
        "command",
        "command",
        "commands by name, as in: undo 118, block 192.0.2.0/24",
        "Session",
    ),
    Key(("M",), "M", "mouse", "", "leave the mouse to the terminal, to select text", "Look"),
    Key(("Y",), "Y", "copy", "", "copy the selected row to the clipboard (OSC 52)", "Look"),
    Key(("p", "space"), "p", "pause", "pause", "freeze and resume the display (also Space)", "Session"),
    Key(
        ("full_stop",), ", .", "step(1)", "", "in a recording: pause, and a snapshot back or on", "Recording"
    ),
    Key(("comma",), "", "step(-1)", "", "", "Recording"),
    Key(("greater_than_sign",), "< >", "faster(1)", "", "slower and faster, 0.25× to 64×", "Recording"),
    Key(("less_than_sign",), "", "faster(-1)", "", "", "Recording"),
    Key(
        ("right_curly_bracket",),
        "{ }",
        "skip(1)",
        "",
        "previous and next event; so does a click on the bar",
        "Recording",
    ),
    Key(("left_curly_bracket",), "", "skip(-1)", "", "", "Recording"),
    Key(("e",), "e", "export", "export", "write a report of the session so far", "Session"),
    Key(("question_mark", "f1"), "?", "help", "help", "this page (also F1)", "Session"),
    Key(("q", "ctrl+c"), "q", "leave", "quit", "quit; unconfirmed rules are removed", "Session"),
)

# The order in which keys get into a narrow footer; a tab without its own has the overview's.
_GENERAL = ("help", "leave", "rule('block')", "proposal", "undo", "confirm", "open", "tab(1)", "pause")
FOOTER_ORDER: dict[str, tuple[str, ...]] = {
    "overview": (*_GENERAL, "protect", "panel(1)", "attacks", "filter", "command", "export"),
    "traffic": ("help", "rule('block')", "view", "open", "tab(1)", "filter", "sort", "proposal", "leave"),
    "log": ("help", "open", "filter", "tab(1)", "pause", "export", "leave"),
    "packets": (
        "hold",
        "filter",
        "alike(1)",
        "rule('like')",
        "rule('block')",
        "write_packets",
        "open",
        "help",
        "tab(1)",
        "leave",
    ),
    "trends": ("panel(1)", "open", "rule('block')", "sort", "filter", "tab(1)", "help", "leave", "pause"),
    "rules": ("undo", "extend", "why", "change", "open", "help", "tab(1)", "confirm", "leave"),
}


_PREVIEWS = tuple(row.action for row in KEYS if row.action.startswith("rule("))
# A recording has no newest packets to hold the list against; a session has no packets to preview a rule on.
_USELESS = {
    "capture": ("hold", "why"),
    "session": ("hold", "why", *_PREVIEWS),
    "lost": ("why", "proposal", *_PREVIEWS),  # the guardian
}
_TYPED = ("filter", "command")  # actions after which keys are text
_NAMED_KEY = re.compile(r"\{(\w+)\}")


class KeyMap:
    """The table of keys as the screen uses it: bindings, what a key means on a tab, the footer."""

    def __init__(self, keys: Sequence[Key] = KEYS) -> None:
        self.use(keys)

    def use(self, keys: Sequence[Key]) -> None:
        """Take another table: the operator's."""
        self.keys = tuple(keys)
        self._by_action = {key.action: key for key in keys}

    def label(self, action: str) -> str:
        """Return the first key of an action, for a text that names it, or else its command."""
        from fwtop.ui.key_names import key_text, setting_name

        row = self._by_action[action]
        return key_text(row.keys[0]) if row.keys else f":{setting_name(row)}"

    def words(self, template: str) -> str:
        """Fill keys into a text that names their actions as screen.toml does: "{block} blocks it"."""
        from fwtop.ui.key_names import setting_name

        labels = {setting_name(row): row.action for row in reversed(self.keys)}
        return _NAMED_KEY.sub(lambda found: self.label(labels[found[1]]), template)

    def bindings(self) -> list[Binding]:
        """Return one Textual binding per key, which passes itself on to `press`.

        A key after which one types acts before the next is looked at: a slow link delivers "/udp" at once,
        and none of these letters may be taken for a key.
        """
        names = dict.fromkeys(name for row in self.keys for name in row.keys)
        return [
            Binding(name, f"press({name!r})", show=False, priority=self.begins_text(name)) for name in names
        ]

    def begins_text(self, name: str) -> bool:
        """Return whether keys are text after this one."""
        return any(name in row.keys for row in self.keys if row.action in _TYPED)

    def action(self, name: str, tab: str) -> str:
        """Return what a key does on a tab; a key of that tab wins. "" if nothing."""
        found = [row for row in self.keys if name in row.keys and row.tab in ("", tab)]
        row = max(found, key=lambda row: bool(row.tab), default=None)
        if row is None:
            return ""
        return f"proposal({name})" if row.action == "proposal" else row.action

    def footer(
        self,
        width: int,
        *,
        tab: str = "overview",
        pending: bool,
        readonly: bool = False,
        origin: str = "live",
    ) -> list[Key]:
        """Choose the keys that fit into `width` cells, in the table's order.

        `confirm` is shown only while there is something to confirm, and then first. In read-only mode no
        key that changes rules is shown, nor one that can't do anything with what is watched: live traffic,
        a capture, a stored session, or live traffic with a guardian that is lost.
        """
        order = FOOTER_ORDER.get(tab, FOOTER_ORDER["overview"])
        rows = [row for action in order if (row := self._by_action.get(action)) is not None and row.keys]
        rows = [row for row in rows if not (readonly and row.changes)]
        wanted = [row for row in rows if row.action not in ("confirm", *_USELESS.get(origin, ()))]
        if pending and not readonly:
            wanted = [*(row for row in self.keys if row.action == "confirm" and row.keys), *wanted]
        chosen: set[str] = set()
        used = 1
        for row in wanted:
            size = len(row.label) + 1 + len(row.footer) + 3
            if used + size - 2 <= width:
                chosen.add(row.action)
                used += size
        shown = [row for row in self.keys if row.action in chosen]
        if origin in ("live", "lost"):
            return shown
        return [replace(row, footer="play") if row.action == "pause" else row for row in shown]


KEY_MAP = KeyMap()
