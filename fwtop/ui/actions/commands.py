"""The command line (`:`): its language as pure functions, and the dialog that completes and runs a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct, field
from textual import events
from textual.binding import BindingType

from fwtop.model.errors import FwtopError
from fwtop.model.rule import ACTIVE_STATES
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Proposal, Snapshot, Source
from fwtop.ui.actions.dialog import Dialog, bound, hints
from fwtop.ui.actions.row_actions import ALL
from fwtop.ui.actions.row_rules import check_targets
from fwtop.ui.graph import UNITS
from fwtop.ui.keys import Action
from fwtop.ui.lists.panel import Panel
from fwtop.ui.lists.traffic import spared
from fwtop.ui.style import ACCENT, BAD, DIM, SELECTED, STRONG, TEXT, THEMES, TITLE, Line
from fwtop.ui.tabs import TABS

MAX_LENGTH = 200
_MOST_SOURCES = 20


class CommandError(ValueError):
    """The line is no command; the text says why."""


class Choice(Struct, frozen=True):
    """A word that completes a line, with what it means."""

    word: str
    help: str = ""
    key: str = ""  # that does the same
    hint: str = ""  # of what may follow


class Argument(Struct, frozen=True):
    """What may follow a command's name: one of the words on offer, or with `free` any."""

    hint: str = ""
    free: str = ""
    needed: bool = False


# What Action.takes names.
ARGUMENTS = {
    "": Argument(),
    "sources": Argument("SOURCE …", "PREFIX … or asn:N or country:CC"),
    "rule": Argument("RULE"),
    "proposal": Argument("NUMBER", needed=True),
    "text": Argument("TEXT", "TEXT"),
    "column": Argument("COLUMN"),
    "view": Argument("NAME"),
    "unit": Argument("UNIT"),
    "theme": Argument("NAME", needed=True),
    "switch": Argument("on|off", needed=True),
    "tab": Argument("NAME", needed=True),
    "attack": Argument("LETTER", needed=True),
}
Offer = Mapping[str, Sequence[Choice]]  # the words that each kind of argument can be now
Call = tuple[Action, str]  # and its argument


class Command(Struct, frozen=True):
    """An action by its name, with the words that may follow it now."""

    action: Action
    choices: Sequence[Choice] = ()

    @property
    def name(self) -> str:
        """The first word of its line."""
        return self.action.name

    @property
    def argument(self) -> Argument:
        """What may follow."""
        return ARGUMENTS[self.action.takes]


def offer(
    snapshot: Snapshot, panel: Panel, sources: Sequence[Struct], proposals: Sequence[Proposal]
) -> Offer:
    """Return what can be named on the screen: of the sources those that no rule would cut off by mistake."""
    judgement = snapshot.judgement
    active = (status for status in snapshot.mitigations if status.state in ACTIVE_STATES)
    shown = [item for item in sources[:_MOST_SOURCES] if isinstance(item, Source) and not spared(item)]
    return {
        "sources": _words(str(item.prefix) for item in shown if item.prefix is not None),
        "rule": [Choice(status.rule.id, status.rule.summary) for status in active],
        "proposal": [Choice(str(item.number), item.summary) for item in proposals],
        "column": _words((*(name for name, _ in panel.rows.row.sorts), "packets")),
        "view": _words(view.name for view in panel.spec.views if view.name),
        "unit": _words(UNITS),
        "theme": [Choice(theme.name, theme.help) for theme in THEMES.values()],
        "switch": _words(("on", "off")),
        "tab": [Choice(tab.name, tab.title) for tab in TABS],
        "attack": [
            *(Choice(item.letter, item.title) for item in judgement.attacks),
            Choice(ALL, "all attacks"),
        ],
    }


def _words(words: Iterable[str]) -> list[Choice]:
    return [Choice(word) for word in words]


def commands(actions: Iterable[Action], offered: Offer) -> tuple[Command, ...]:
    """Return all actions that are commands, too, first those that take something."""
    found = [Command(row, offered.get(row.takes, ())) for row in actions if row.spoken]
    return tuple(sorted(found, key=lambda command: not command.action.takes))


def parse(line: str, known: Sequence[Command]) -> Call:
    """Parse a line; an unambiguous beginning of a name will do. Raises CommandError."""
    name, _, argument = line.strip().partition(" ")
    argument = argument.strip()
    if name.isdigit() and not argument:
        name, argument = "proposal", name
    command = _named(name.lower(), known)
    action = command.action
    if not argument:
        if command.argument.needed:
            raise CommandError(f"{action.name} needs one of: {_listed(command)}")
        return action, ""
    if not action.takes:
        raise CommandError(f"{action.name} takes nothing more")
    chosen = _chosen(argument, command)
    if action.takes == "sources":
        try:
            check_targets(argument.split())
        except FwtopError as error:
            raise CommandError(str(error)) from None
    return action, chosen


def _named(name: str, known: Sequence[Command]) -> Command:
    exact = [command for command in known if command.name == name]
    begin = exact or [command for command in known if command.name.startswith(name)]
    if len(begin) == 1:
        return begin[0]
    shown = safe_text(name, limit=30)
    if not begin:
        raise CommandError(f"there is no command {shown!r}; Tab lists them")
    raise CommandError(f"{shown!r} could be {', '.join(command.name for command in begin[:6])}")


def _chosen(argument: str, command: Command) -> str:
    if command.argument.free:
        return argument
    words = [choice.word for choice in command.choices]
    same = [word for word in words if word.lower() == argument.lower()]
    begin = same or [word for word in words if word.lower().startswith(argument.lower())]
    if len(begin) == 1 and (same or command.action.takes != "rule"):  # rule 11 is not rule 118
        return begin[0]
    shown = safe_text(argument, limit=30)
    raise CommandError(f"{command.name}: there is no {shown!r}; there are: {_listed(command)}")


def _listed(command: Command) -> str:
    words = [choice.word for choice in command.choices]
    more = f" and {len(words) - 8} more" if len(words) > 8 else ""
    return ", ".join(words[:8]) + more if words else command.argument.free or "nothing at present"


class Completion(Struct, frozen=True):
    """A whole line that what was typed may become."""

    line: str
    shown: Choice


def complete(line: str, known: Sequence[Command]) -> list[Completion]:
    """Return what a line may become, the likeliest first."""
    typed = line.lstrip()
    name, space, argument = typed.partition(" ")
    if not space:
        found = [
            Choice(command.name, command.action.words, command.action.label, command.argument.hint)
            for command in known
        ]
        found += [choice for command in known if command.name == "proposal" for choice in command.choices]
        more = {command.name for command in known if command.choices or command.argument.free}
        return [
            Completion(choice.word + " " * (choice.word in more), choice) for choice in ranked(name, found)
        ]
    try:
        command = _named(name.lower(), known)
    except CommandError:
        return []
    done, _, last = argument.rpartition(" ")
    free = command.argument.free
    before = f"{command.name} {done} " if done and free else f"{command.name} "
    wanted = last if free else argument
    return [Completion(before + choice.word, choice) for choice in ranked(wanted, command.choices)]


def ranked(pattern: str, choices: Iterable[Choice]) -> list[Choice]:
    """Return the choices that match, best first; equally good ones keep their order."""
    scored = [(score, choice) for choice in choices if (score := fuzzy(pattern, choice.word)) is not None]
    return [choice for _, choice in sorted(scored, key=lambda item: item[0])]


def fuzzy(pattern: str, word: str) -> int | None:
    """Return how far a word is from a pattern, whose characters it must have in order; None: too far."""
    wanted, text = pattern.lower(), word.lower()
    if text.startswith(wanted):
        return 0
    if wanted in text:
        return 1
    place, gaps = -1, 0
    for character in wanted:
        found = text.find(character, place + 1)
        if found < 0:
            return None
        gaps += found - place - 1
        place = found
    return 2 + gaps


class History(Struct):
    """The lines entered in this session, and a walk through them."""

    lines: list[str] = field(default_factory=list)
    _place: int = 0
    _typed: str = ""  # what was being typed when the walk began

    def add(self, line: str) -> None:
        """Remember a line; a repeated one moves to the end."""
        self.lines = [*[item for item in self.lines if item != line][-49:], line]
        self.start()

    def start(self) -> None:
        """Begin after the newest line."""
        self._place = len(self.lines)

    def walk(self, delta: int, typed: str) -> str:
        """Return the line before or after the present one; after the newest comes what was typed."""
        if self._place == len(self.lines):
            self._typed = typed
        self._place = max(min(self._place + delta, len(self.lines)), 0)
        return self.lines[self._place] if self._place < len(self.lines) else self._typed


# Textual's CommandPalette has no Tab completion, no history, and no errors: a query there just finds nothing.


_NAME = 16  # cells of a completion's word


class CommandDialog(Dialog[Call | None], inherit_bindings=False):
    """Reads a command; `known` is asked again for every line, because rules and sources change."""

    WIDTH = 84
    BINDINGS: ClassVar[list[BindingType]] = bound("""
        tab complete(1)   shift+tab complete(-1)   up walk(-1)   down walk(1)   pageup scroll(-8)
        pagedown scroll(8)   enter run   ctrl+u clear   ctrl+w erase_word   escape,ctrl+c close
    """)

    def __init__(self, known: Callable[[], Sequence[Command]], history: History) -> None:
        super().__init__("command")
        self.line = ""
        self.error = ""
        self._known = known
        self._history = history
        self._found: list[Completion] = []
        self._marked = -1  # the completion that Tab has put into the line
        history.start()
        self._search()

    def _search(self) -> None:
        self._marked, self._top = -1, 0
        self._found = complete(self.line, self._known())

    def _type(self, line: str) -> None:
        self.line, self.error = line[:MAX_LENGTH], ""
        self._search()
        self.draw()

    # -- keys

    def on_key(self, event: events.Key) -> None:
        """Collect what is typed."""
        if event.key == "backspace":
            self._type(self.line[:-1])
        elif event.character and event.character.isprintable():
            self._type(self.line + safe_text(event.character))
        else:
            return
        event.stop()

    def on_paste(self, event: events.Paste) -> None:
        """Take the first line of what is pasted."""
        event.stop()
        self._type(self.line + safe_text(event.text.strip().partition("\n")[0], limit=MAX_LENGTH))

    def action_clear(self) -> None:
        """Empty the line."""
        self._type("")

    def action_erase_word(self) -> None:
        """Delete the last word."""
        self._type(self.line.rstrip().rpartition(" ")[0])

    def action_walk(self, delta: int) -> None:
        """Go through the lines entered before."""
        self._type(self._history.walk(delta, self.line))

    def action_complete(self, delta: int) -> None:
        """Complete the line; pressed again, take the next completion."""
        if not self._found:
            return
        self._marked = (self._marked + delta) % len(self._found) if self._marked >= 0 or delta > 0 else -1
        self.line, self.error = self._found[self._marked].line, ""
        if len(self._found) == 1:
            self._search()
        self.draw()

    def action_run(self) -> None:
        """Run the line, or say what is wrong with it."""
        if not self.line.strip():
            self.dismiss(None)
            return
        try:
            call = parse(self.line, self._known())
        except CommandError as error:
            self.error = safe_text(error, limit=300)
            self.draw()
            return
        self._history.add(self.line.strip())
        self.dismiss(call)

    # -- drawing

    def draw(self) -> None:
        """Keep the marked completion in sight."""
        if self._marked >= 0 and self.readable:
            body, foot = self._parts()
            room = max(min(len(body), self.app.size[1] - 3 - len(foot)), 1)
            self._top = min(max(self._top, self._marked - room + 1), self._marked)
        super().draw()

    def body(self, width: int) -> list[Line]:
        """List what the line may become."""
        name = max([_NAME, *(len(_hinted(item)) for item in self._found)])
        lines = [self._row(item, min(name, width // 2), place) for place, item in enumerate(self._found)]
        return lines or [[("no completion", DIM)]]

    def _row(self, item: Completion, name: int, place: int) -> Line:
        shown = item.shown
        if place == self._marked:
            return [("▸ ", ACCENT), (_hinted(item).ljust(name), SELECTED), (f" {shown.help}", TEXT)]
        hint = shown.hint.ljust(max(name - len(shown.word), 1))
        line: Line = [("  ", TEXT), (f"{shown.word} ", STRONG), (hint, DIM)]
        return [*line, (f"{shown.key:<7}", TITLE), (shown.help, DIM)]

    def foot(self, width: int, room: int) -> list[Line]:  # noqa: ARG002
        """Write the line, and below it the error or the keys."""
        typed = self.line if len(self.line) < width - 3 else "…" + self.line[-(width - 5) :]
        line: Line = [(":", TITLE), (typed, TEXT), ("▏", ACCENT)]
        keys = hints("Tab completes", "↑ earlier ones", "Enter runs it", "Esc closes")
        return [line, [(self.error, BAD)] if self.error else keys]


def _hinted(item: Completion) -> str:
    """Return a completion's word with a hint of what may follow."""
    return f"{item.shown.word} {item.shown.hint}".rstrip()
