"""The dialog before every change: what rules stop and harm, and the commands they would run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace
from textual import events
from textual.binding import BindingType

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Mode, Preview, Rule
from fwtop.model.text import safe_text
from fwtop.rules.kinds import drops_nothing, of
from fwtop.rules.overlap import as_one
from fwtop.rules.words import with_mode
from fwtop.ui.actions.dialog import Dialog, bound, hints
from fwtop.ui.actions.editor import Editor
from fwtop.ui.bars import working
from fwtop.ui.feed import Controls
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.attacks import (
    Part,
    adds_nothing,
    command_lines,
    example_lines,
    part_lines,
    preview_lines,
    relief_lines,
    stopped,
    sum_lines,
    total_harm,
)
from fwtop.ui.lists.numbers import HARM_LIMIT
from fwtop.ui.style import (
    ACCENT,
    BAD,
    BUTTON,
    BUTTON_BAD,
    DIM,
    STRONG,
    TEXT,
    TITLE,
    WARN,
    Line,
    paragraph,
    width_of,
)

FORCE_WORD = "install"
INSTALL, CANCEL = "install", "cancel"
_SPIN_SECONDS = 0.25
_SAID = ("proposal", "change of")  # who made a rule, where that is worth a title


class Decision(Struct, frozen=True):
    """The operator chose Install."""

    rules: tuple[Rule, ...]
    force: bool


class RuleDialog(Dialog[Decision | None], inherit_bindings=False):
    """Preview one rule, which the operator may edit, or several as a set; Enter presses the marked button.

    Enter while the previews are still counting arms the dialog: it installs as soon as the numbers are in,
    provided the harm is below HARM_LIMIT. `conflict` returns why a rule must not go in, such as the id of
    the active rule that does the same; "" if nothing speaks against it. `changes` returns the id of the rule
    that becomes the edited one in place; "" if that is a new one.

    Rules come with the letters of their attacks. One of a set that adds nothing to active ones and those
    before it is left out: each costs every packet time.
    """

    BINDINGS: ClassVar[list[BindingType]] = bound("""
        tab commands   down mark(1)   shift+tab,up mark(-1)   left turn(-1)   right turn(1)
        pageup scroll(-8)   pagedown scroll(8)   enter choose   c count   escape,ctrl+c close
    """)

    def __init__(
        self,
        rules: Sequence[tuple[Rule, str]],
        controls: Controls,
        *,
        conflict: Callable[[Rule], str] = lambda _: "",
        changes: Callable[[Rule], str] = lambda _: "",
    ) -> None:
        super().__init__()
        self._wanted = tuple(rules)
        self._is_set = len(self._wanted) > 1
        self._changes = changes
        self.editor = Editor(rules[0][0], ()) if self._is_set else Editor.of(rules[0][0])
        self.parts: tuple[Part, ...] = ()
        self.whole: Preview | None = None  # of what Install installs
        self.word = ""  # typed confirmation of an overly broad rule
        self.measuring = True  # the numbers shown don't belong to the rule as edited
        self.armed = False  # install as soon as the numbers are in
        self.shows_commands = False
        self.disarmed = ""  # why an armed dialog did not install
        self._since = 0.0  # when counting began
        self._controls = controls
        self._conflict = conflict
        self.marked = CANCEL  # or INSTALL, or the name of a field
        self._default_set = False

    def on_mount(self) -> None:
        """Request previews and plans; the dialog is shown meanwhile."""
        super().on_mount()
        self.set_interval(_SPIN_SECONDS, self._spin)
        self._ask()

    def _spin(self) -> None:
        if self.measuring:
            self.draw()

    def title_line(self) -> str:
        """Return what is previewed."""
        if self._is_set:
            return "protect against all attacks"
        made = self.rule.created_by
        return f"preview of {made}" if made.startswith(_SAID) else "preview"

    @property
    def rule(self) -> Rule:
        """The rule as edited so far; the first of a set."""
        return self.editor.rule

    @property
    def _install(self) -> str:
        if self._is_set:
            return "Install all"
        return "Change" if self._changes(self.rule) else "Install"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What Install installs."""
        return tuple(part.rule for part in self.parts if not part.left_out)

    @property
    def _first(self) -> Part:
        return self.parts[0] if self.parts else Part(self.rule)

    @property
    def _needs_force(self) -> str:
        return "" if self._is_set else self._first.plan.needs_force

    @property
    def refusal(self) -> str:
        """Why nothing the operator answers could install anything as it is; "" if something could."""
        if self._controls.readonly:
            return f"read-only: {self._controls.readonly}"
        if self.measuring:
            return ""
        if self._is_set:
            return "" if self.rules else "no rule is left to install"
        return self._conflict(self.rule) or self._first.plan.refused or self._first.left_out

    @property
    def may_install(self) -> bool:
        """Whether Install would install."""
        if self.measuring or not self.rules or not self.readable or self.refusal:
            return False
        return not self._needs_force or self.word == FORCE_WORD

    @property
    def harmless(self) -> bool:
        """Whether Install may be the default: little harm, and everything that warns of it is visible."""
        if self.rule.counts_only:
            return self.may_install and self.shows_essentials
        if total_harm(self.whole) >= HARM_LIMIT or (self.whole is None and self._is_set):
            return False
        if of(self.rule.kind).untracks and self._first.plan.warnings:
            return False  # other rules need connection tracking: they would drop what it let in
        return self.may_install and self.shows_essentials

    # -- measuring

    def _ask(self) -> None:
        self.measuring, self.word, self._since = True, "", time.monotonic()
        wanted = self._wanted if self._is_set else ((self.rule, ""),)
        self.begin(self._fetch, wanted, group="fetch", exclusive=True)

    async def _fetch(self, wanted: Sequence[tuple[Rule, str]]) -> None:
        parts: list[Part] = []
        for rule, letter in wanted:
            parts.append(await self._measured(rule, letter, parts))
        # All at once: a dialog that grows twice is hard to read.
        whole = await self._together([part for part in parts if not part.left_out])
        self.parts, self.whole, self.measuring = tuple(parts), whole, False
        self.editor.rule = parts[0].rule
        self._set_default()
        if self.armed:
            self._fire()
        self.draw()

    async def _together(self, parts: Sequence[Part]) -> Preview | None:
        """Count on whom the rules of a set act together; None if that can't be told."""
        if len(parts) < 2:
            return parts[0].preview if parts else None
        try:
            return await self._controls.preview(as_one([part.rule for part in parts]))
        except FwtopError:
            return None
        except Exception as error:
            self.survive(error)
            return None

    async def _measured(self, rule: Rule, letter: str, before: Sequence[Part]) -> Part:
        part = Part(rule, letter)
        if self._is_set and (covered := self._conflict(rule)):
            return replace(part, left_out=covered)
        try:
            rule = await self._controls.expand(rule)
            preview = await self._controls.preview(with_mode(rule, Mode.DROP))
            predicted = replace(
                rule,
                predicted_pps=preview.total_pps,
                predicted_attack_share=preview.attack_share,
                predicted_collateral_share=preview.collateral_share,
                predicted_clients=preview.clients,
                predicted_guess=preview.guess,
            )
            part = Part(predicted, letter, preview)
            if self._is_set and (idle := _idle(preview, before)):
                return replace(part, left_out=idle)
            follows = any(other.plan.commands for other in before)
            plan = await self._controls.plan(predicted, follows=follows)
        except FwtopError as error:
            return replace(part, left_out=safe_text(error))
        except Exception as error:  # the dialog must not go on counting
            return replace(part, left_out=self.survive(error))
        left_out = plan.refused or plan.needs_force if self._is_set else ""
        return replace(part, plan=plan, left_out=left_out)

    def _set_default(self) -> None:
        if not self._default_set:
            self._default_set = True
            self.marked = INSTALL if self.harmless else CANCEL
        elif self.marked == INSTALL and self.refusal:
            self.marked = CANCEL

    def _fire(self) -> None:
        """Install if the counted numbers allow it unseen; otherwise leave the decision to the operator."""
        self.armed = False
        if self.harmless and not self._needs_force:
            self.dismiss(Decision(self.rules, force=False))
            return
        self.marked = CANCEL
        self.disarmed = "" if self.refusal else "not installed yet: read the harm first"

    # -- keys

    def action_count(self) -> None:
        """Have the rules only count what they would drop, or drop."""
        mode = Mode.DROP if self.rule.counts_only else Mode.COUNT
        self._wanted = tuple((with_mode(rule, mode), letter) for rule, letter in self._wanted)
        self.editor.rule = with_mode(self.rule, mode)
        self._default_set, self.armed = False, False
        self._ask()
        self.draw()

    def action_mark(self, delta: int) -> None:
        """Mark the next field or button; typed text is committed first."""
        if not self._commit():
            return
        self._default_set, self.armed = True, False
        targets = [*self.editor.names, *([] if self.refusal else [INSTALL]), CANCEL]
        present = targets.index(self.marked) if self.marked in targets else len(targets) - 1
        self.marked = targets[(present + delta) % len(targets)]
        self.draw()

    def action_commands(self) -> None:
        """Show or hide the commands; in the fields, go to the next one."""
        if self.marked in self.editor.names:
            self.action_mark(1)
            return
        self.shows_commands = not self.shows_commands
        body = self.body(self._width() - 4)
        self._top = len(body) - len(self._commands(self._width() - 4)) if self.shows_commands else 0
        self.draw()

    def action_turn(self, delta: int) -> None:
        """Change the marked field, or go to the other button."""
        if self.marked in (INSTALL, CANCEL):
            self.action_mark(delta if self.marked == (INSTALL if delta > 0 else CANCEL) else 0)
            return
        before = self.rule
        if self.editor.step(self.marked, delta) and self.rule != before:
            self._ask()
        self.draw()

    def action_choose(self) -> None:
        """Press the marked button; while the preview is counting, arm instead."""
        if self.marked not in (INSTALL, CANCEL):
            if self.editor.typed is not None:
                self._commit()
            else:
                self.marked = CANCEL if self.refusal else INSTALL
        elif (
            self.measuring
            and self.readable
            and not self.refusal
            and not (self._default_set and self.marked == CANCEL)
        ):
            self.armed = True
        elif self.marked == CANCEL:
            self.dismiss(None)
            return
        elif self.may_install:
            self.dismiss(Decision(self.rules, force=bool(self._needs_force)))
            return
        self.draw()

    def buttons(self) -> Sequence[str]:
        """Return the buttons that are shown."""
        return ("Close",) if self.refusal else (self._install, "Cancel")

    def press_button(self, text: str) -> None:
        """Choose a button, as Enter does on it."""
        self.marked = INSTALL if text == self._install else CANCEL
        self.action_choose()

    def action_close(self) -> None:
        """Discard what is being typed, or else cancel."""
        if self.editor.typed is None:
            self.dismiss(None)
            return
        self.editor.drop()
        self.draw()

    def _commit(self) -> bool:
        before = self.rule
        understood = self.editor.commit(self.marked)
        if self.rule != before:
            self._ask()
        self.draw()
        return understood

    def on_key(self, event: events.Key) -> None:
        """Collect what is typed into the marked field, or the confirmation of an overly broad rule."""
        character = event.character if event.character and event.character.isprintable() else ""
        if event.key != "backspace" and not character:
            return
        if self.marked in self.editor.names:
            if event.key == "backspace":
                self.editor.erase(self.marked)
            else:
                self.editor.type(safe_text(character))
        elif self._default_set and self._needs_force and character != "c":  # in no letter of the word
            self._type_word(event.key, character)
        else:
            return
        event.stop()
        self.draw()

    def _type_word(self, key: str, character: str) -> None:
        if key == "backspace":
            self.word = self.word[:-1]
        elif character.isalpha():
            self.word = (self.word + character)[-len(FORCE_WORD) :]
            if self.word == FORCE_WORD:
                self.marked = INSTALL

    # -- drawing

    def body(self, width: int) -> list[Line]:
        """Write any refusal, what is done, effect, harm, warnings, and examples or the rules of a set."""
        if not self.parts:
            return [*self._does(width), working("counting on the samples …", time.monotonic() - self._since)]
        lines = self._essentials(width)
        preview, told = self._first.preview, set[str]()
        if self._is_set:
            for part in self.parts:
                lines += [[], *part_lines(part, width, told)]
        elif preview is not None and not self._relieves:
            lines += example_lines(preview)
        return [*lines, *self._commands(width)]

    def _does(self, width: int) -> list[Line]:
        """Write what is decided on."""
        if not self._is_set:
            return paragraph(safe_text(self.rule.summary, limit=1000), width, STRONG)
        parts = [part for part in self.parts if not part.left_out] or [Part(*one) for one in self._wanted]
        against = ", ".join(sorted(part.letter for part in parts))
        return [[(f"install {_count(len(parts))} against {against}", STRONG)]]

    @property
    def _relieves(self) -> bool:
        """Whether the rule would drop nothing even if it did more than count."""
        return drops_nothing(replace(self.rule, mode=Mode.DROP))

    @property
    def _plan(self) -> list[str]:
        return [command for part in self.parts if not part.left_out for command in part.plan.commands]

    def _commands(self, width: int) -> list[Line]:
        if not self.shows_commands:
            return []
        changed = self._changes(self.rule)
        instead = f"# what rule {changed} is in the kernel becomes, in one step, what these would make:"
        return command_lines([*[instead] * bool(changed), *self._plan], width)

    def essential(self, body: Sequence[Line]) -> int:
        """Keep the refusal, stops, harms and warnings in sight."""
        counted = len(self._essentials(self._width() - 4)) if self.parts else len(body)
        return min(counted, len(body))

    def _essentials(self, width: int) -> list[Line]:
        lines: list[Line] = []
        refusal = self.refusal
        if refusal and not self._controls.readonly:
            others = () if self._is_set else (self._first.plan.refused, self._first.left_out)
            words = f"{'Refused: ' if refusal in others[:1] else ''}{safe_text(refusal, limit=1000)}"
            lines += paragraph(words, width, BAD if refusal in others else WARN)
        lines += self._does(width)
        if self._is_set:
            return [*lines, *(sum_lines(self.parts, self.whole) if self.rules else [])]
        preview = self._first.preview
        if preview is not None:
            lines += relief_lines(self.rule, width) if self._relieves else preview_lines(preview)
        warnings = (*(preview.warnings if preview is not None else ()), *self._first.plan.warnings)
        for warning in dict.fromkeys(warnings):
            lines += paragraph(f"! {safe_text(warning)}", width, WARN)
        return lines

    def position(self, room: int, total: int) -> str:
        """Say in the line above the foot that the numbers are being counted again."""
        again = working("counting again …", time.monotonic() - self._since)
        is_again = self.measuring and bool(self.parts)
        return "".join(text for text, _ in again) if is_again else super().position(room, total)

    def foot(self, width: int, room: int) -> list[Line]:
        """Write the fields, what happens next and the buttons; the fields collapse where room is short."""
        end = self._outlook(width)
        moves, number = self.marked in self.editor.names, len(self._plan)
        tab = "Tab moves" if moves else "Tab commands"
        many = f"{tab} ({number})" if number and not moves else tab
        count = f"c {'drops' if self.rule.counts_only else 'counts only'}"
        for enter, tabs, escape, indent in (
            ("Enter chooses", many, "Esc cancels", 5),
            ("Enter chooses", many, "Esc", 3),
            ("Enter chooses", tab, "Esc", 3),
            ("Enter", tab, "Esc", 3),
        ):
            buttons = [[*self._buttons(), *hints(enter, tabs, count, escape, indent=indent)]]
            if width_of(buttons[0]) <= width:
                break
        if not self.editor.names:
            return [*end, [], *buttons] if len(end) + 2 <= room else [*end, *buttons]
        fields = self.editor.lines(self.marked, width)
        if len(fields) + len(end) + 2 <= room:
            return [*fields, *end, [], *buttons]
        if len(end) + 2 <= room or self.marked in self.editor.names:
            return [self.editor.collapsed(self.marked), *end, *buttons]
        return [*end, *buttons]

    def _outlook(self, width: int) -> list[Line]:
        if self.armed:
            return [[("installs when counted, ", WARN), ("Esc", TITLE), (" stops", WARN)]]
        if self._controls.readonly:
            return paragraph(f"{self.refusal}: nothing can be installed", width, WARN)
        if self.refusal:
            return [] if self._is_set else [[("it can't be installed like this: change it, or close", DIM)]]
        if self._needs_force:
            typed: Line = [(f"type {FORCE_WORD} to allow it: ", STRONG), (f"{self.word}▏", ACCENT)]
            return [*paragraph(safe_text(self._needs_force), width, WARN), typed]
        if self.disarmed or self.rule.counts_only:
            counts = ("nothing is dropped, only counted: no trial", DIM)
            return [[(self.disarmed, WARN) if self.disarmed else counts]]
        several = len(self.rules) or len(self._wanted)
        removed = (
            f"{_count(several)} {'is' if several == 1 else 'are'} removed" if self._is_set else "removed"
        )
        if changed := self._changes(self.rule):
            removed = f"rule {changed} keeps its counters, and is as before"
        after = f"{removed} after {self._controls.confirm_seconds} s unless you press "
        return [[(after, DIM), (KEY_MAP.label("keep"), TITLE)]]

    def _buttons(self) -> Line:
        if self.refusal:
            return self._button(CANCEL, "Close")
        return [*self._button(INSTALL, self._install), ("   ", TEXT), *self._button(CANCEL, "Cancel")]

    def _button(self, name: str, words: str) -> Line:
        if name == INSTALL and not self.may_install:
            return [(f"▸ {words} " if self.marked == name else f"  {words} ", DIM)]
        if self.marked != name or not (self._default_set or self.refusal):
            return [(f"  {words} ", TEXT)]
        risky = name == INSTALL and not self.rule.counts_only and total_harm(self.whole) >= HARM_LIMIT
        return [(f"▸ {words} ", BUTTON_BAD if risky else BUTTON)]


def _count(rules: int) -> str:
    return "1 rule" if rules == 1 else f"{rules} rules"


def _idle(preview: Preview, before: Sequence[Part]) -> str:
    """Return why a rule adds nothing to those that are active or come before it in a set; "" if it does."""
    active = dict(preview.already)
    if adds_nothing(preview, active):
        return "active rules stop what it would"
    return "the rules above stop what it would" if adds_nothing(preview, active | stopped(before)) else ""
