"""The dialog before every change: what a rule stops, what it harms, what exactly would be run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from fwtop.model.errors import FwtopError
from fwtop.model.preview import PlanView, Preview
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.ui.cells import Line
from fwtop.ui.drafts import choices_of
from fwtop.ui.feed import Controls
from fwtop.ui.format import number, percent
from fwtop.ui.palette import ACCENT, BAD, BUTTON, BUTTON_BAD, DIM, GOOD, STRONG, TEXT, TITLE, WARN
from fwtop.ui.sheet import Sheet, labelled, paragraph
from fwtop.ui.verdict_panels import HARM_LIMIT, harm

FORCE_WORD = "install"
_SHOWN_COMMANDS = 200


@dataclass(frozen=True, slots=True)
class Decision:
    """The operator said yes."""

    rule: Rule
    force: bool


class RuleSheet(Sheet[Decision | None], inherit_bindings=False):
    """Previews one rule, frozen when the dialog was opened; Enter does what the marked button says."""

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
        self.rule = rule
        self.preview: Preview | None = None
        self.plan: PlanView | None = None
        self.failure = ""
        self.typed = ""
        self._controls = controls
        self._parts = [*(choice.name for choice in choices_of(rule)), "install", "cancel"]
        self._part = "cancel"
        self._default_set = False

    def on_mount(self) -> None:
        """Ask for the preview and the plan while the dialog is already there."""
        super().on_mount()
        self._ask()

    def title_line(self) -> str:
        """Return what the rule does."""
        return self.rule.summary

    @property
    def part(self) -> str:
        """What is marked: a choice's name, "install" or "cancel"."""
        return self._part

    @property
    def may_install(self) -> bool:
        """Whether Install would do anything."""
        if self.plan is None or self.failure or self.plan.refused:
            return False
        return not self.plan.needs_force or self.typed == FORCE_WORD

    def _ask(self) -> None:
        self.preview, self.plan, self.failure = None, None, ""
        self.run_worker(self._fetch(self.rule), exclusive=True, exit_on_error=True)

    async def _fetch(self, rule: Rule) -> None:
        try:
            rule = await self._controls.expand(rule)
            preview = await self._controls.preview(rule)
            self.rule = replace(
                rule,
                predicted_pps=preview.total_pps,
                predicted_attack_share=preview.attack_share,
                predicted_collateral_share=preview.collateral_share,
            )
            self.preview = preview
            self.draw()
            self.plan = await self._controls.plan(self.rule)
        except FwtopError as error:
            self.failure = safe_text(error)
        self._set_default()
        self.draw()

    def _set_default(self) -> None:
        if self._default_set:
            return
        self._default_set = True
        harmless = self.preview is not None and self.preview.collateral_share < HARM_LIMIT
        self._part = "install" if harmless and self.may_install else "cancel"

    def action_focus_part(self, delta: int) -> None:
        """Mark the next part."""
        self._default_set = True
        self._part = self._parts[(self._parts.index(self._part) + delta) % len(self._parts)]
        self.draw()

    def action_turn(self, delta: int) -> None:
        """Change the marked choice, or go to the other button."""
        for choice in choices_of(self.rule):
            if choice.name == self._part:
                changed = choice.step(self.rule, delta)
                if changed != self.rule:
                    self.rule = changed
                    self._ask()
                self.draw()
                return
        self.action_focus_part(delta if self._part == ("install" if delta > 0 else "cancel") else 0)

    def action_choose(self) -> None:
        """Do what is marked."""
        if self._part == "cancel":
            self.dismiss(None)
        elif self._part == "install":
            if self.may_install and self.plan is not None:
                self.dismiss(Decision(self.rule, force=bool(self.plan.needs_force)))
        else:
            self._part = "install"
            self.draw()

    def on_key(self, event: events.Key) -> None:
        """Collect the typed confirmation that a broad rule needs."""
        if self.plan is None or not self.plan.needs_force:
            return
        if event.key == "backspace":
            self.typed = self.typed[:-1]
        elif event.character and event.character.isalpha():
            self.typed = (self.typed + event.character)[-len(FORCE_WORD) :]
            if self.typed == FORCE_WORD:
                self._part = "install"
        else:
            return
        event.stop()
        self.draw()

    def body(self, width: int) -> list[Line]:
        """Write effect, harm, warnings and commands."""
        lines: list[Line] = []
        if self.failure:
            lines += paragraph(self.failure, width, BAD)
        elif self.preview is None:
            lines.append([("counting on the samples …", DIM)])
        if self.preview is not None:
            lines += _effect(self.preview)
        if self.plan is not None and self.plan.refused:
            lines += [[], *paragraph(f"Refused: {safe_text(self.plan.refused)}", width, BAD)]
        for warning in self._warnings():
            lines += paragraph(f"! {safe_text(warning)}", width, WARN)
        if self.plan is not None and self.plan.commands:
            lines += [[], [("would run", DIM)]]
            shown = self.plan.commands[:_SHOWN_COMMANDS]
            for command in shown:
                lines += [
                    [("  ", TEXT), *line] for line in paragraph(safe_text(command, limit=2000), width - 2)
                ]
            if len(self.plan.commands) > len(shown):
                lines.append([(f"  … and {len(self.plan.commands) - len(shown)} more", DIM)])
        return lines

    def _warnings(self) -> list[str]:
        found = list(self.preview.warnings) if self.preview is not None else []
        return found + [text for text in (self.plan.warnings if self.plan else ()) if text not in found]

    def foot(self, width: int) -> list[Line]:
        """Write the choices, what happens next, and the buttons."""
        lines: list[Line] = []
        for choice in choices_of(self.rule):
            marked = choice.name == self._part
            shown = choice.show(choice.read(self.rule))
            value: Line = [(f"‹ {shown} ›", BUTTON)] if marked else [(f"  {shown}  ", TEXT)]
            lines.append(labelled(choice.name, [*value, ("  ← → change" if marked else "", DIM)]))
        if self.plan is not None and self.plan.needs_force:
            lines += paragraph(safe_text(self.plan.needs_force), width, WARN)
            lines.append([(f"type {FORCE_WORD} to allow it: ", STRONG), (f"{self.typed}▏", ACCENT)])
        else:
            seconds = self._controls.confirm_seconds
            lines.append([(f"taken back after {seconds} s unless you press ", DIM), ("y", TITLE)])
        lines.append([])
        lines.append([*self._button("install"), ("   ", TEXT), *self._button("cancel"), *_HINT])
        return lines

    def _button(self, name: str) -> Line:
        text = f" {name.capitalize()} "
        if name == "install" and not self.may_install:
            return [(f"▸{text}" if self._part == name else f" {text}", DIM)]
        if self._part != name:
            return [(f" {text}", TEXT)]
        risky = self.preview is not None and self.preview.collateral_share >= HARM_LIMIT
        return [(f"▸{text}", BUTTON_BAD if name == "install" and risky else BUTTON)]


_HINT: Line = [
    ("     Enter", TITLE),
    (" chooses  ", DIM),
    ("Tab", TITLE),
    (" moves  ", DIM),
    ("Esc", TITLE),
    (" cancels", DIM),
]


def _effect(preview: Preview) -> list[Line]:
    stops: Line = [(percent(preview.attack_share), STRONG), (" of the attack, ", TEXT)]
    stops += [(number(preview.attack_pps), STRONG), (" packets a second", TEXT)]
    harms: Line = [*harm(preview.collateral_share, guess=False), (" of normal traffic, ", TEXT)]
    harms += [(f"{number(preview.collateral_pps)} packets a second", TEXT)]
    lines = [labelled("stops", stops), labelled("harms", harms)]
    if preview.guess:
        lines.append(labelled("", [("a guess: nothing was seen before the attack", WARN)]))
    for number_of, example in enumerate(preview.examples):
        line: Line = [(safe_text(example), TEXT)]
        lines.append(labelled("such as" if number_of == 0 else "", line))
    if not preview.examples and preview.collateral_share == 0:
        lines.append(labelled("", [("no normal packet seen would be hit", GOOD)]))
    lines.append(labelled("in all", [(f"{number(preview.total_pps)} packets a second match now", DIM)]))
    return lines
