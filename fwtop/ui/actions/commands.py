"""The language of the command line (`:`): commands, parsing and completion, as pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.ui.actions.rule_from_row import check_targets
from fwtop.ui.key_names import setting_name
from fwtop.ui.keys import Key

MAX_LENGTH = 200
RULE_COMMANDS = ("keep", "undo", "extend", "change", "why", "repair")
TARGET_COMMANDS = ("block", "limit", "xdp", "notrack")
_MOVES = ("up", "down", "page_up", "page_down", "top", "bottom", "next_panel", "previous_panel", "command")


class CommandError(ValueError):
    """The line is no command; the text says why."""


class Choice(Struct, frozen=True):
    """A word that completes a line, with what it means."""

    word: str
    help: str = ""
    key: str = ""  # that does the same
    hint: str = ""  # of what may follow


class Command(Struct, frozen=True):
    """One command. Without `choices` and `free` it takes no argument; `optional` ones may be left out."""

    name: str
    help: str
    action: str = ""  # of the table of keys, that runs without an argument
    key: str = ""
    choices: tuple[Choice, ...] = ()
    free: str = ""  # what an argument beyond the choices is, as TEXT or PREFIX
    optional: bool = False
    hint: str = ""  # of the argument, in one word


class Call(Struct, frozen=True):
    """A parsed line."""

    command: Command
    argument: str = ""


class Present(Struct, frozen=True):
    """What can be named at the moment, apart from actions."""

    tabs: tuple[Choice, ...] = ()
    rules: tuple[Choice, ...] = ()
    proposals: tuple[Choice, ...] = ()
    sorts: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    themes: tuple[Choice, ...] = ()
    sources: tuple[str, ...] = ()
    scopes: tuple[Choice, ...] = ()


def commands(rows: Sequence[Key], present: Present) -> tuple[Command, ...]:
    """Return all commands: tabs, those with an argument, and every other action of the table of keys."""
    found = {command.name: command for command in _with_arguments(present)}
    for row in rows:
        name = setting_name(row)
        if not name or name in _MOVES or name.startswith("go_"):
            continue
        words = row.help or name.replace("_", " ")
        special = found.get(name)
        if special is None:
            found[name] = Command(name, words, row.action, row.label)
        elif special.optional:
            found[name] = _joined(special, row, words)
    for tab in present.tabs:
        found.setdefault(tab.word, Command(tab.word, f"the {tab.help} tab", f"go({tab.word!r})"))
    return tuple(found.values())


def _joined(special: Command, row: Key, words: str) -> Command:
    """Add to a command what its key does, which is what it does without an argument."""
    return Command(
        special.name,
        words,
        row.action,
        row.label,
        special.choices,
        special.free,
        special.optional,
        special.hint,
    )


def _with_arguments(present: Present) -> Iterable[Command]:
    sources = tuple(Choice(source) for source in present.sources)
    for name in TARGET_COMMANDS:
        free = "PREFIX … or asn:N or country:CC"
        yield Command(name, "", choices=sources, free=free, optional=True, hint="SOURCE …")
    for name in RULE_COMMANDS:
        yield Command(name, "", choices=present.rules, optional=True, hint="RULE")
    yield Command("proposal", "preview a proposal", choices=present.proposals, hint="NUMBER")
    yield Command("filter", "", free="TEXT", optional=True, hint="TEXT")
    yield Command("sort", "", choices=_words(present.sorts), optional=True, hint="COLUMN")
    yield Command("view", "", choices=_words(present.views), optional=True, hint="NAME")
    yield Command("graph", "", choices=_words(("packets", "bits")), optional=True, hint="UNIT")
    yield Command("theme", "change the colours", choices=present.themes, hint="NAME")
    yield Command("slow", "send less to the terminal", choices=_words(("on", "off")), hint="on|off")
    yield Command("tab", "go to a tab", choices=present.tabs, hint="NAME")
    yield Command("only", "show one attack on all tabs", choices=present.scopes, hint="LETTER")


def _words(words: Iterable[str]) -> tuple[Choice, ...]:
    return tuple(Choice(word) for word in words)


def parse(line: str, known: Sequence[Command]) -> Call:
    """Parse a line; an unambiguous beginning of a name will do. Raises CommandError."""
    name, argument = split(line)
    if name.isdigit() and not argument:
        name, argument = "proposal", name
    command = _named(name.lower(), known)
    if not argument:
        if command.action:
            return Call(command)
        raise CommandError(f"{command.name} needs one of: {_listed(command)}")
    if not command.choices and not command.free and not command.optional:
        raise CommandError(f"{command.name} takes nothing more")
    chosen = _chosen(argument, command)
    if command.name in TARGET_COMMANDS:
        try:
            check_targets(argument.split())
        except FwtopError as error:
            raise CommandError(str(error)) from None
    return Call(command, chosen)


def split(line: str) -> tuple[str, str]:
    """Split a line into the command's name and its argument."""
    name, _, argument = line.strip().partition(" ")
    return name, argument.strip()


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
    if command.free:
        return argument
    words = [choice.word for choice in command.choices]
    same = [word for word in words if word.lower() == argument.lower()]
    begin = same or [word for word in words if word.lower().startswith(argument.lower())]
    if len(begin) == 1 and (same or command.name not in RULE_COMMANDS):  # rule 11 is not rule 118
        return begin[0]
    shown = safe_text(argument, limit=30)
    raise CommandError(f"{command.name}: there is no {shown!r}; there are: {_listed(command)}")


def _listed(command: Command) -> str:
    words = [choice.word for choice in command.choices]
    more = f" and {len(words) - 8} more" if len(words) > 8 else ""
    return ", ".join(words[:8]) + more if words else command.free or "nothing at present"


class Completion(Struct, frozen=True):
    """A whole line that what was typed may become."""

    line: str
    shown: Choice


def complete(line: str, known: Sequence[Command]) -> list[Completion]:
    """Return what a line may become, the likeliest first."""
    typed = line.lstrip()
    name, space, argument = typed.partition(" ")
    if not space:
        found = [Choice(command.name, command.help, command.key, command.hint) for command in known]
        found += [choice for command in known if command.name == "proposal" for choice in command.choices]
        return [Completion(_with_room(choice.word, known), choice) for choice in ranked(name, found)]
    try:
        command = _named(name.lower(), known)
    except CommandError:
        return []
    done, _, last = argument.rpartition(" ")
    before = f"{command.name} {done} " if done and command.free else f"{command.name} "
    wanted = last if command.free else argument
    return [Completion(before + choice.word, choice) for choice in ranked(wanted, command.choices)]


def _with_room(word: str, known: Sequence[Command]) -> str:
    command = next((command for command in known if command.name == word), None)
    return f"{word} " if command is not None and (command.choices or command.free) else word


def ranked(pattern: str, choices: Iterable[Choice]) -> list[Choice]:
    """Return the choices that match, best first; equally good ones keep their order."""
    scored = [(score, choice) for choice in choices if (score := fuzzy(pattern, choice.word)) is not None]
    scored.sort(key=lambda item: item[0])
    return [choice for _, choice in scored]


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
