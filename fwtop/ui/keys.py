"""The one table of actions: keys and their names, words for help and footer, commands, the method of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from textual.binding import Binding
from textual.keys import _character_to_key

from fwtop.analysis.learning import ATTACK, BACK, NORMAL
from fwtop.model.text import safe_text
from fwtop.ui.tabs import TABS

_KEY_NAMES = {
    **{name: name for name in ("up", "down", "left", "right", "home", "end", "insert", "delete", "space")},
    **{name: name for name in ("tab", "enter", "escape", "backspace", "pageup", "pagedown")},
    **{f"f{number}": f"f{number}" for number in range(1, 13)},
    "pgup": "pageup",
    "pgdn": "pagedown",
    "esc": "escape",
    "del": "delete",
}
_SHOWN = {
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "escape": "Esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}
_CHARACTERS = {_character_to_key(chr(code)): chr(code) for code in range(0x21, 0x7F)}
_ARROWS = {shown: name for name, shown in _SHOWN.items() if len(shown) == 1}


RESERVED = ("escape", "ctrl+c", *"123456789")  # these always mean the same


class KeyNameError(ValueError):
    """There is no such key; the text says how keys are written."""


def key_name(text: str) -> str:
    """Return Textual's name of a key written as `b`, `?`, `Ctrl+R`, `F2` or `Space`."""
    if len(text) == 1 and text.isascii() and text.isprintable():
        return "space" if text == " " else _character_to_key(text)
    *modifiers, last = text.split("+") if not text.endswith("++") else [*text[:-2].split("+"), "+"]
    last = _ARROWS.get(last, last.lower() if len(last) > 1 else last)
    base = _KEY_NAMES.get(last)
    if base is None and len(last) == 1 and last.isascii() and last.isalnum() and modifiers:
        base = last.lower()
    lowered = [modifier.lower() for modifier in modifiers]
    if base is None or not set(lowered) <= {"ctrl", "shift", "alt"} or len(set(lowered)) < len(lowered):
        raise KeyNameError(
            f'keys like "x", "?", "Ctrl+X", "F2" or "Space", not "{safe_text(text, limit=20)}"'
        )
    return "+".join([name for name in ("alt", "ctrl", "shift") if name in lowered] + [base])


def key_text(name: str) -> str:
    """Write a key for people: the inverse of `key_name`."""
    *modifiers, last = name.split("+")
    shown = _SHOWN.get(last)
    if shown is None:
        shown = _CHARACTERS.get(last, last.capitalize())
        if modifiers and len(shown) == 1:
            shown = shown.upper()
    return "+".join([*(modifier.capitalize() for modifier in modifiers), shown])


class Action(Struct, frozen=True):
    """One row: what the operator can ask for, by a key, a command (`:`) or a click in the footer."""

    name: str  # in screen.toml and on the command line
    keys: tuple[str, ...]  # Textual's names
    label: str  # the keys as shown to people; "": told with the row before, or there is none
    help: str
    group: str  # in the help
    does: tuple[str | int, ...]  # "part.method" of the screen, and what it gets before a command's argument
    footer: str = ""  # one or two words; "": not in the footer
    takes: str = ""  # what may follow the command's name: one of commands.ARGUMENTS
    tab: str = ""  # on this tab only, where it wins over the key's general meaning
    changes: bool = False  # changes rules: not offered in read-only mode
    useless: str = ""  # what it can do nothing with: a capture, a stored session, a guardian that is lost
    when: str = ""  # what must be there, of Here
    spoken: bool = True  # a command, too

    @property
    def words(self) -> str:
        """What it does, also where the row before says it for both."""
        return self.help or self.name.replace("_", " ")

    @property
    def settable(self) -> bool:
        """Whether screen.toml can give it other keys."""
        return not set(self.keys) <= set(RESERVED)


def _row(
    place: tuple[str, str],
    name: str,
    keys: str,
    help: str = "",
    does: tuple[str | int, ...] = (),
    *,
    label: str = "",
    **more: Any,  # noqa: ANN401 - other fields of an action
) -> Action:
    """Make an action of keys as people write them; without `does` it calls the part's method of its name.

    `place` is its group in the help, and the part.
    """
    group, part = place
    written = keys.split()
    return Action(
        name,
        tuple(map(key_name, written)),
        label or (written[0] if help and written else ""),
        help,
        group,
        does or (f"{part}.{name}",),
        tab="packets" if group == "Packets" else "",
        **more,
    )


_act = partial(_row, ("Act", "rows"))
_preview = partial(_act, useless="session lost")
_packets = partial(_row, ("Packets", "packets"))
_look = partial(_row, ("Look", "rows"))
_tabs = partial(_row, ("Look", "tabs"))
_move = partial(_tabs, spoken=False)
_session = partial(_row, ("Session", "session"))
_recording = partial(_row, ("Recording", "session"), when="recording")
_STORED = "capture session"
_command = partial(_row, ("", ""))


# fmt: off
ACTIONS = (
    _preview("block", "b", "block the selected row; first shows what that stops and harms",
             ("rows.rule", "block"), footer="block", takes="sources", when="block"),
    _act("block_spared", "B", "block the selected row even if it is a client", footer="block client",
         when="spared"),
    _preview("limit", "l", "limit the rate per source prefix of the selected row",
             ("rows.rule", "limit"), takes="sources", when="match"),
    _preview("string", "s", "drop packets with the selected payload", ("rows.rule", "string"),
             when="payload"),
    _preview("xdp", "x", "drop the selected row in the driver (XDP)", ("rows.rule", "xdp"), takes="sources",
             when="block"),
    _preview("notrack", "n", "keep the selected row out of connection tracking",
             ("rows.rule", "notrack"), takes="sources", when="match"),
    _act("proposal", "1 2 3 4 5 6 7 8 9", "preview the proposal of that number", label="1…9",
         footer="pick", takes="proposal", useless="lost", when="proposal"),
    _act("protect", "* A", "one set of rules against all attacks", footer="all", changes=True,
         useless="session lost", when="drops"),
    _act("keep", "y", "confirm the unconfirmed rules: they stay until they expire",
         ("rules.on_rule", "keep"), footer="keep", changes=True, takes="rule", when="trial"),
    _act("repair", "f", "restore the rules that are not in effect", ("rules.on_rule", "repair"),
         changes=True, takes="rule", when="broken"),
    _act("undo", "u", "remove the selected or last rule; asks if it is confirmed",
         ("rules.on_rule", "undo"), footer="remove", changes=True, takes="rule", when="rule"),
    _act("redo", "Ctrl+R", "install the last removed or expired rule again",
         ("rules.on_rule", "redo"), changes=True, when="ended"),
    _act("go_rules", "m", "the Rules tab: time left, effect, before and after",
         ("tabs.go", "rules"), spoken=False),
    _act("extend", "+ =", "keep the selected or last rule for longer", ("rules.on_rule", "extend"),
         footer="extend", changes=True, takes="rule", when="rule"),
    _act("change", "c", "edit the selected or last rule: in place where it can be",
         ("rules.on_rule", "change"), footer="change", changes=True, takes="rule", when="rule"),
    _act("mode", "C", "have the selected or last rule drop, or only count", ("rules.on_rule", "mode"),
         footer="count", changes=True, takes="rule", when="any_rule"),
    _act("why", "w", "why the selected or last rule matches too little", ("rules.on_rule", "why"),
         footer="why", useless="capture session lost", takes="rule", when="rule"),
    _packets("like", "d", "on Packets: drop what is like it, by bytes or header fields",
             ("rows.rule", "like"), footer="drop alike", useless="session lost", when="like"),
    _packets("next_alike", "n", "on Packets: next and previous packet alike", ("packets.alike", 1),
             label="n N", footer="next alike", when="packet"),
    _packets("previous_alike", "N", "", ("packets.alike", -1)),
    _packets("write_packets", "w", "on Packets: write those shown as a pcap file", footer="pcap",
             when="packet"),
    _packets("hold", "Space", "on Packets: hold the list; again: follow the newest", footer="hold",
             useless="capture session"),
    _move("up", "↑ k", "select a row", ("tabs.move", -1), label="↑ ↓"),
    _move("down", "↓ j", "", ("tabs.move", 1)),
    _move("page_up", "PgUp", "select a page up or down", ("tabs.page", -1), label="PgUp PgDn"),
    _move("page_down", "PgDn", "", ("tabs.page", 1)),
    _move("top", "Home", "first row, following the greatest; last row", label="Home End"),
    _move("bottom", "End G"),
    _move("next_panel", "Tab →", "next panel", ("tabs.next_panel", 1), footer="panel",
          when="panels"),
    _move("previous_panel", "Shift+Tab ←", "the panel before", ("tabs.next_panel", -1),
          when="panels"),
    _tabs("next_tab", "]", "previous and next tab", ("tabs.turn", 1), label="[ ]"),
    _tabs("previous_tab", "[", "", ("tabs.turn", -1)),
    _look("unscope", "0", "show all attacks again", when="scope"),
    _tabs("view", "v", "traffic by source, destination, port, payload, signature", footer="view",
          takes="view", when="views"),
    _look("open", "Enter", "preview a proposal, look at one attack; into a row, Esc back", footer="open",
          when="row"),
    _look("details", "r", "details of the selected row, bytes as hex", when="row"),
    _look("attacks", "a", "the evidence for each attack", footer="evidence", when="attack"),
    _tabs("filter", "/", "show only rows that contain a text", footer="filter", takes="text"),
    _look("graph", "g", "the history graph in packets, bits, or on a log scale", ("graph",), takes="unit"),
    _tabs("sort", "o", "change the sort order", footer="sort", takes="column", when="row"),
    _session("command", ":", "commands by name, as in: undo 118, block 192.0.2.0/24", ("command",),
             footer="command", spoken=False),
    _look("mouse", "M", "leave the mouse to the terminal, to select text", ("mouse",)),
    _look("was_attack", "F", "this was an attack: forget what was learned of it",
          ("rows.teach", ATTACK), useless=_STORED),
    _look("is_normal", "L", "this is normal: learn the selected attack, or what waits",
          ("rows.teach", NORMAL), useless=_STORED),
    _look("unlearn", "U", "take back the last word on what is normal", ("rows.teach", BACK), useless=_STORED),
    _look("copy", "Y", "copy the selected row to the clipboard (OSC 52)", when="row"),
    _session("pause", "p Space", "hold the lists still, or let them go on", footer="pause"),
    _recording("next_step", ".", "in a recording: pause, and a snapshot back or on",
               ("session.player", "step", 1), label=", ."),
    _recording("previous_step", ",", "", ("session.player", "step", -1)),
    _recording("faster", ">", "slower and faster, 0.25× to 64×", ("session.faster", 1), label="< >"),
    _recording("slower", "<", "", ("session.faster", -1)),
    _recording("next_event", "}", "previous and next event; so does a click on the bar",
               ("session.player", "skip", 1), label="{ }"),
    _recording("previous_event", "{", "", ("session.player", "skip", -1)),
    _session("export", "e", "write a report of the session so far", footer="export", when="stored"),
    _session("help", "? F1", "first steps, the keys that work here, all keys", ("help",), footer="help"),
    _session("quit", "q Ctrl+C", "quit; unconfirmed rules are removed", ("session.leave",), footer="quit"),
    _command("theme", "", "change the colours", ("theme",), takes="theme"),
    _command("slow", "", "send less to the terminal", ("slow",), takes="switch"),
    _command("tab", "", "go to a tab", ("tabs.go",), takes="tab"),
    _command("only", "", "show one attack on all tabs", ("rows.only",), takes="attack"),
    *(_command(tab.name, "", f"the {tab.title} tab", ("tabs.go", tab.name)) for tab in TABS),
)
# fmt: on

# The order in which keys get into a narrow footer; a tab without its own has the overview's. Those of tabs
# stand in the line of the tabs.
_FOOTERS = {
    "overview": "block proposal undo open pause protect next_panel attacks view filter command export",
    "traffic": "block block_spared view open filter sort proposal",
    "log": "open filter pause export",
    "packets": "hold filter next_alike like block block_spared write_packets open",
    "trends": "next_panel view open block block_spared sort filter pause",
    "rules": "undo extend why change mode open proposal next_panel protect pause",
}
_TYPED = ("filter", "command")  # actions after which keys are text
_NAMED = re.compile(r"\{(\w+)\}")


def remapped(rows: Sequence[Action], keys: Mapping[str, tuple[str, ...]]) -> tuple[Action, ...]:
    """Return the table with keys that were set; an action loses the keys that were set for another."""
    tabs = {row.name: row.tab for row in rows}
    found: list[Action] = []
    for row in rows:
        if row.name in keys:
            left = (*keys[row.name], *(key for key in row.keys if key in RESERVED))
        else:
            taken = {key for name, given in keys.items() if tabs[name] == row.tab for key in given}
            left = tuple(key for key in row.keys if key not in taken)
        if left == row.keys:
            found.append(row)
            continue
        found.append(replace(row, keys=left, label=_label(left), help=row.words))
        if not row.label and found[-2].help:  # the row before named these keys, too
            found[-2] = replace(found[-2], label=_label(found[-2].keys))
    return tuple(found)


def _label(keys: Sequence[str]) -> str:
    return " ".join(key_text(key) for key in keys[:2])


class Here(Struct, frozen=True):
    """Where a key is pressed, and what there is for it to act on."""

    tab: str = "overview"
    origin: str = "live"  # what is watched: live, capture, session, or live with a guardian that is lost
    readonly: bool = False
    has: frozenset[str] = frozenset()  # as `when` of actions


class KeyMap:
    """The table of actions as the screen uses it: bindings, what a key means on a tab, the footer."""

    def __init__(self) -> None:
        self.use(ACTIONS)

    def use(self, actions: Sequence[Action]) -> None:
        """Take another table: the operator's."""
        self.actions = tuple(actions)
        self._by_name = {row.name: row for row in actions}

    def __getitem__(self, name: str) -> Action:
        """Return an action by its name."""
        return self._by_name[name]

    def label(self, name: str) -> str:
        """Return the first key of an action, for a text that names it, or else its command."""
        keys = self[name].keys
        return key_text(keys[0]) if keys else f":{name}"

    def words(self, template: str) -> str:
        """Fill keys into a text that names their actions: "{block} blocks it"."""
        return _NAMED.sub(lambda found: self.label(found[1]), template)

    def bindings(self) -> list[Binding]:
        """Return one Textual binding per key, which passes itself on to `press`.

        A key after which one types acts before the next is looked at: a slow link delivers "/udp" at once,
        and none of these letters may be taken for a key.
        """
        names = dict.fromkeys(name for row in self.actions for name in row.keys)
        return [
            Binding(name, f"press({name!r})", show=False, priority=self.begins_text(name)) for name in names
        ]

    def begins_text(self, key: str) -> bool:
        """Return whether keys are text after this one."""
        return any(key in self._by_name[name].keys for name in _TYPED)

    def action(self, key: str, tab: str) -> Action | None:
        """Return what a key does on a tab; a key of that tab wins."""
        found = [row for row in self.actions if key in row.keys and row.tab in ("", tab)]
        return max(found, key=lambda row: bool(row.tab), default=None)

    def works(self, row: Action, here: Here) -> bool:
        """Whether the key of an action does something here, other than to say why it doesn't."""
        useless = here.origin in row.useless.split() or (row.changes and here.readonly)
        meant = bool(row.keys) and self.action(row.keys[0], here.tab) is row
        return meant and not useless and (not row.when or row.when in here.has)

    def footer(self, width: int, here: Here) -> list[Action]:
        """Choose the keys that fit into `width` cells and work here, in the table's order.

        `keep` is there only while there is something to confirm, and then first; the way out is always there.
        """
        names = ["keep", "help", "quit", *_FOOTERS.get(here.tab, _FOOTERS["overview"]).split()]
        chosen: set[str] = set()
        used = 1
        for row in (self._by_name[name] for name in names):
            size = len(row.label) + 1 + len(row.footer) + 3
            if self.works(row, here) and used + size - 2 <= width:
                chosen.add(row.name)
                used += size
        shown = [row for row in self.actions if row.name in chosen]
        word = (
            "play/pause" if here.origin not in ("live", "lost") else "resume" if "paused" in here.has else ""
        )
        return [replace(row, footer=word) if row.name == "pause" and word else row for row in shown]


KEY_MAP = KeyMap()
