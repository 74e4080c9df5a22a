"""The dialog before every change: what a rule stops, what it harms, what exactly would be run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from fwtop.model.errors import FwtopError
from fwtop.model.preview import PlanView, Preview
from fwtop.model.rule import Kind, Rule
from fwtop.model.text import safe_text
from fwtop.ui.cells import Line
from fwtop.ui.editor import Editor
from fwtop.ui.effect_facts import effect_of, relief
from fwtop.ui.feed import Controls
from fwtop.ui.palette import ACCENT, BAD, BUTTON, BUTTON_BAD, DIM, STRONG, TEXT, TITLE, WARN
from fwtop.ui.sheet import Sheet, paragraph
from fwtop.ui.verdict_panels import HARM_LIMIT

FORCE_WORD = "install"
INSTALL, CANCEL = "install", "cancel"
_SHOWN_COMMANDS = 200


@dataclass(frozen=True, slots=True)
class Decision:
    """The operator said yes."""

    rule: Rule
    force: bool


class RuleSheet(Sheet[Decision | None], inherit_bindings=False):
    """Previews one rule, which the operator may edit; Enter does what the marked button says."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,down", "focus_part(1)", show=False),
        Binding("shift+tab,up", "focus_part(-1)", show=False),
        Binding("left", "turn(-1)", show=False),
        Binding("right", "turn(1)", show=False),
        Binding("pageup", "scroll(-8)", show=False),
        Binding("pagedown", "scroll(8)", show=False),
        Binding("enter", "choose", show=False),
        Binding("escape,ctrl+c", "close", show=False),
    ]

    def __init__(self, rule: Rule, controls: Controls) -> None:
        super().__init__()
        self.editor = Editor.of(rule)
        self.preview: Preview | None = None
        self.plan: PlanView | None = None
        self.failure = ""
        self.word = ""  # typed confirmation of a broad rule
        self.measuring = True  # what is shown does not belong to the rule as it is now
        self._controls = controls
        self._part = CANCEL
        self._default_set = False

    def on_mount(self) -> None:
        """Ask for the preview and the plan while the dialog is already there."""
        super().on_mount()
        self._ask()

    def title_line(self) -> str:
        """Return what the rule does."""
        return self.rule.summary

    @property
    def rule(self) -> Rule:
        """The rule as edited so far."""
        return self.editor.rule

    @property
    def part(self) -> str:
        """What is marked: a field's name, "install" or "cancel"."""
        return self._part

    @property
    def refused(self) -> bool:
        """Whether no answer of the operator could install it as it is."""
        return not self.measuring and bool(self.failure or (self.plan and self.plan.refused))

    @property
    def may_install(self) -> bool:
        """Whether Install would do anything."""
        if self.measuring or self.plan is None or self.refused:
            return False
        return not self.plan.needs_force or self.word == FORCE_WORD

    # -- measuring

    def _ask(self) -> None:
        self.measuring, self.word = True, ""
        self.run_worker(self._fetch(self.rule), exclusive=True, exit_on_error=True)

    async def _fetch(self, rule: Rule) -> None:
        preview: Preview | None = None
        plan: PlanView | None = None
        failure = ""
        try:
            rule = await self._controls.expand(rule)
            preview = await self._controls.preview(rule)
            rule = replace(
                rule,
                predicted_pps=preview.total_pps,
                predicted_attack_share=preview.attack_share,
                predicted_collateral_share=preview.collateral_share,
            )
            plan = await self._controls.plan(rule)
        except FwtopError as error:
            failure = safe_text(error)
        # All at once: a dialog that grows twice is hard to read.
        self.editor.rule, self.preview, self.plan, self.failure = rule, preview, plan, failure
        self.measuring = False
        self._set_default()
        self.draw()

    def _set_default(self) -> None:
        if self._default_set:
            return
        self._default_set = True
        harmless = self.preview is not None and self.preview.collateral_share < HARM_LIMIT
        if self.rule.kind is Kind.NOTRACK and self.plan is not None and self.plan.warnings:
            harmless = False  # other rules need the tracking: what they let in would be shut out
        self._part = INSTALL if harmless and self.may_install else CANCEL

    # -- keys

    def _parts(self) -> list[str]:
        return [*self.editor.names, *([] if self.refused else [INSTALL]), CANCEL]

    def action_focus_part(self, delta: int) -> None:
        """Mark the next part; what was typed is taken over first."""
        if not self._settle():
            return
        self._default_set = True
        parts = self._parts()
        present = parts.index(self._part) if self._part in parts else len(parts) - 1
        self._part = parts[(present + delta) % len(parts)]
        self.draw()

    def action_turn(self, delta: int) -> None:
        """Change the marked field, or go to the other button."""
        if self._part in (INSTALL, CANCEL):
            self.action_focus_part(delta if self._part == (INSTALL if delta > 0 else CANCEL) else 0)
            return
        before = self.rule
        if self.editor.step(self._part, delta) and self.rule != before:
            self._ask()
        self.draw()

    def action_choose(self) -> None:
        """Do what is marked; before the first measurement nothing is, as nobody has read it."""
        if self._part not in (INSTALL, CANCEL):
            if self.editor.typed is None:
                self._part = CANCEL if self.refused else INSTALL
            else:
                self._settle()
            self.draw()
        elif not self._default_set:
            return
        elif self._part == CANCEL:
            self.dismiss(None)
        elif self.may_install and self.plan is not None:
            self.dismiss(Decision(self.rule, force=bool(self.plan.needs_force)))

    def action_close(self) -> None:
        """Drop what is being typed, else leave without doing anything."""
        if self.editor.typed is None:
            self.dismiss(None)
            return
        self.editor.drop()
        self.draw()

    def _settle(self) -> bool:
        before = self.rule
        understood = self.editor.settle(self._part)
        if self.rule != before:
            self._ask()
        self.draw()
        return understood

    def on_key(self, event: events.Key) -> None:
        """Collect what is typed into the marked field, or the word that a broad rule needs."""
        character = event.character if event.character and event.character.isprintable() else ""
        if event.key != "backspace" and not character:
            return
        if self._part in self.editor.names:
            if event.key == "backspace":
                self.editor.erase(self._part)
            else:
                self.editor.type(safe_text(character))
        elif self._default_set and self.plan is not None and self.plan.needs_force:
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
                self._part = INSTALL

    # -- drawing

    def body(self, width: int) -> list[Line]:
        """Write the refusal, if any, then effect, harm, warnings and commands."""
        if self.preview is None and self.measuring:
            return [[("counting on the samples …", DIM)]]
        lines: list[Line] = []
        if self.failure:
            lines += paragraph(self.failure, width, BAD)
        if self.plan is not None and self.plan.refused:
            lines += [*paragraph(f"Refused: {safe_text(self.plan.refused)}", width, BAD), []]
        if self.preview is not None:
            lines += relief() if self.rule.kind is Kind.NOTRACK else effect_of(self.preview)
        for warning in self._warnings():
            lines += paragraph(f"! {safe_text(warning)}", width, WARN)
        return lines + self._commands(width)

    def _commands(self, width: int) -> list[Line]:
        if self.plan is None or not self.plan.commands:
            return []
        lines: list[Line] = [[], [("would run", DIM)]]
        shown = self.plan.commands[:_SHOWN_COMMANDS]
        for command in shown:
            lines += [[("  ", TEXT), *line] for line in paragraph(safe_text(command, limit=2000), width - 2)]
        if len(self.plan.commands) > len(shown):
            lines.append([(f"  … and {len(self.plan.commands) - len(shown)} more", DIM)])
        return lines

    def _warnings(self) -> list[str]:
        found = list(self.preview.warnings) if self.preview is not None else []
        return found + [text for text in (self.plan.warnings if self.plan else ()) if text not in found]

    def position(self, room: int, total: int) -> str:
        """Say on the line over the foot that the numbers are being counted anew."""
        return "counting again …" if self.measuring and self.preview else super().position(room, total)

    def foot(self, width: int) -> list[Line]:
        """Write the fields, what happens next, and the buttons."""
        lines = self.editor.lines(self._part, width)
        if self.plan is not None and self.plan.needs_force and not self.refused:
            lines += paragraph(safe_text(self.plan.needs_force), width, WARN)
            lines.append([(f"type {FORCE_WORD} to allow it: ", STRONG), (f"{self.word}▏", ACCENT)])
        elif self.refused:
            lines.append([("it can't be installed like this: change it, or close", DIM)])
        else:
            seconds = self._controls.confirm_seconds
            lines.append([(f"taken back after {seconds} s unless you press ", DIM), ("y", TITLE)])
        buttons = [] if self.refused else [*self._button(INSTALL), ("   ", TEXT)]
        return [*lines, [], [*buttons, *self._button(CANCEL), *_HINT]]

    def _button(self, name: str) -> Line:
        text = " Close " if name == CANCEL and self.refused else f" {name.capitalize()} "
        if name == INSTALL and not self.may_install:
            return [(f"▸{text}" if self._part == name else f" {text}", DIM)]
        if self._part != name or not self._default_set:
            return [(f" {text}", TEXT)]
        risky = self.preview is not None and self.preview.collateral_share >= HARM_LIMIT
        return [(f"▸{text}", BUTTON_BAD if name == INSTALL and risky else BUTTON)]


_HINT: Line = [
    ("     Enter", TITLE),
    (" chooses  ", DIM),
    ("Tab", TITLE),
    (" moves  ", DIM),
    ("Esc", TITLE),
    (" cancels", DIM),
]
