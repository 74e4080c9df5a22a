"""The dialog before every change: what the rule stops and harms, and the commands it would run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace
from textual import events
from textual.binding import Binding, BindingType

from fwtop.model.errors import FwtopError
from fwtop.model.rule import PlanView, Preview, Rule
from fwtop.model.text import safe_text
from fwtop.rules.kinds import drops_nothing, of
from fwtop.ui.dialogs.dialog import Dialog
from fwtop.ui.dialogs.editor import Editor
from fwtop.ui.dialogs.preview_lines import example_lines, preview_lines, relief_lines, text_lines
from fwtop.ui.drawing.style import ACCENT, BAD, BUTTON, BUTTON_BAD, DIM, STRONG, TEXT, TITLE, WARN, Line
from fwtop.ui.drawing.text import paragraph
from fwtop.ui.feed import Controls
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.attacks import HARM_LIMIT

FORCE_WORD = "install"
INSTALL, CANCEL = "install", "cancel"
_SHOWN_COMMANDS = 200
_SHOWN_COMMAND_LINES = 400


class Decision(Struct, frozen=True):
    """The operator chose Install."""

    rule: Rule
    force: bool


class RuleDialog(Dialog[Decision | None], inherit_bindings=False):
    """Preview one rule, which the operator may edit; Enter presses the marked button.

    Enter while the preview is still counting arms the dialog: it installs as soon as the numbers are in,
    provided the harm is below HARM_LIMIT. `conflict` returns why a rule must not go in, such as the id of
    the active rule that does the same; "" if nothing speaks against it. `known` returns how many client-like
    packets harm is measured on.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,down", "mark(1)", show=False),
        Binding("shift+tab,up", "mark(-1)", show=False),
        Binding("left", "turn(-1)", show=False),
        Binding("right", "turn(1)", show=False),
        Binding("pageup", "scroll(-8)", show=False),
        Binding("pagedown", "scroll(8)", show=False),
        Binding("enter", "choose", show=False),
        Binding("escape,ctrl+c", "close", show=False),
    ]

    def __init__(
        self,
        rule: Rule,
        controls: Controls,
        *,
        conflict: Callable[[Rule], str] = lambda _: "",
        known: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__()
        self.editor = Editor.of(rule)
        self.preview: Preview | None = None
        self.plan: PlanView | None = None
        self.failure = ""
        self.word = ""  # typed confirmation of an overly broad rule
        self.measuring = True  # the numbers shown don't belong to the rule as edited
        self.armed = False  # install as soon as the numbers are in
        self.disarmed = ""  # why an armed dialog did not install
        self._controls = controls
        self._conflict = conflict
        self._known = known
        self._marked = CANCEL
        self._default_set = False

    def on_mount(self) -> None:
        """Request the preview and the plan; the dialog is shown meanwhile."""
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
    def marked(self) -> str:
        """The marked field's name, "install" or "cancel"."""
        return self._marked

    @property
    def refusal(self) -> str:
        """Why nothing the operator answers could install the rule as it is; "" if something could."""
        if self._controls.readonly:
            return f"read-only: {self._controls.readonly}"
        if self.measuring:
            return ""
        return self._conflict(self.rule) or (self.plan.refused if self.plan else "") or self.failure

    @property
    def may_install(self) -> bool:
        """Whether Install would install."""
        if self.measuring or self.plan is None or not self.readable or self.refusal:
            return False
        return not self.plan.needs_force or self.word == FORCE_WORD

    @property
    def harmless(self) -> bool:
        """Whether the rule may be the default: little harm, and everything that warns of it is visible."""
        if self.preview is None or self.preview.collateral_share >= HARM_LIMIT:
            return False
        if of(self.rule.kind).untracks and self.plan is not None and self.plan.warnings:
            return False  # other rules need connection tracking: they would drop what it let in
        return self.may_install and self.shows_essentials

    # -- measuring

    def _ask(self) -> None:
        self.measuring, self.word = True, ""
        self.begin(self._fetch, self.rule, group="fetch", exclusive=True)

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
                predicted_guess=preview.guess,
            )
            plan = await self._controls.plan(rule)
        except FwtopError as error:
            failure = safe_text(error)
        except Exception as error:  # the dialog must not go on counting
            failure = self.survive(error)
        # All at once: a dialog that grows twice is hard to read.
        self.editor.rule, self.preview, self.plan, self.failure = rule, preview, plan, failure
        self.measuring = False
        self._set_default()
        if self.armed:
            self._fire()
        self.draw()

    def _set_default(self) -> None:
        if not self._default_set:
            self._default_set = True
            self._marked = INSTALL if self.harmless else CANCEL
        elif self._marked == INSTALL and self.refusal:
            self._marked = CANCEL

    def _fire(self) -> None:
        """Install if the counted numbers allow it unseen; otherwise leave the decision to the operator."""
        self.armed = False
        if self.harmless and self.plan is not None and not self.plan.needs_force:
            self.dismiss(Decision(self.rule, force=False))
            return
        self._marked = CANCEL
        self.disarmed = "" if self.refusal else "not installed yet: read the harm first"

    # -- keys

    def _targets(self) -> list[str]:
        return [*self.editor.names, *([] if self.refusal else [INSTALL]), CANCEL]

    def action_mark(self, delta: int) -> None:
        """Mark the next field or button; typed text is committed first."""
        if not self._commit():
            return
        self._default_set, self.armed = True, False
        targets = self._targets()
        present = targets.index(self._marked) if self._marked in targets else len(targets) - 1
        self._marked = targets[(present + delta) % len(targets)]
        self.draw()

    def action_turn(self, delta: int) -> None:
        """Change the marked field, or go to the other button."""
        if self._marked in (INSTALL, CANCEL):
            self.action_mark(delta if self._marked == (INSTALL if delta > 0 else CANCEL) else 0)
            return
        before = self.rule
        if self.editor.step(self._marked, delta) and self.rule != before:
            self._ask()
        self.draw()

    def action_choose(self) -> None:
        """Press the marked button; while the preview is counting, arm instead."""
        if self._marked not in (INSTALL, CANCEL):
            if self.editor.typed is None:
                self._marked = CANCEL if self.refusal else INSTALL
            else:
                self._commit()
        elif self.measuring and self.readable and not self.refusal and not self._chose_cancel:
            self.armed = True
        elif self._marked == CANCEL:
            self.dismiss(None)
            return
        elif self.may_install and self.plan is not None:
            self.dismiss(Decision(self.rule, force=bool(self.plan.needs_force)))
            return
        self.draw()

    def buttons(self) -> Sequence[str]:
        """Return the buttons that are shown."""
        return ("Close",) if self.refusal else ("Install", "Cancel")

    def press_button(self, text: str) -> None:
        """Choose a button, as Enter does on it."""
        self._marked = INSTALL if text == "Install" else CANCEL
        self.action_choose()

    @property
    def _chose_cancel(self) -> bool:
        return self._default_set and self._marked == CANCEL

    def action_close(self) -> None:
        """Discard what is being typed, or else cancel."""
        if self.editor.typed is None:
            self.dismiss(None)
            return
        self.editor.drop()
        self.draw()

    def _commit(self) -> bool:
        before = self.rule
        understood = self.editor.commit(self._marked)
        if self.rule != before:
            self._ask()
        self.draw()
        return understood

    def on_key(self, event: events.Key) -> None:
        """Collect what is typed into the marked field, or the confirmation of an overly broad rule."""
        character = event.character if event.character and event.character.isprintable() else ""
        if event.key != "backspace" and not character:
            return
        if self._marked in self.editor.names:
            if event.key == "backspace":
                self.editor.erase(self._marked)
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
                self._marked = INSTALL

    # -- drawing

    def body(self, width: int) -> list[Line]:
        """Write any refusal, then effect, harm, warnings, examples and commands."""
        if self.preview is None and self.measuring:
            return [[("counting on the samples …", DIM)]]
        return [*self._essentials(width), *self._rest(width)]

    def essential(self, body: Sequence[Line]) -> int:
        """Keep the refusal, stops, harms and warnings in sight."""
        counted = len(self._essentials(self._width() - 4)) if self.preview is not None else 1
        return min(counted, len(body))

    def _essentials(self, width: int) -> list[Line]:
        lines: list[Line] = []
        refusal = self.refusal
        if refusal and not self._controls.readonly:
            prefix = "" if refusal == self.failure else "Refused: "
            lines += paragraph(f"{prefix}{safe_text(refusal, limit=1000)}", width, BAD)
        if self.preview is not None:
            lines += (
                relief_lines(self.rule, width)
                if drops_nothing(self.rule)
                else preview_lines(self.preview, self._known())
            )
        for warning in self._warnings():
            lines += paragraph(f"! {safe_text(warning)}", width, WARN)
        return lines

    def _rest(self, width: int) -> list[Line]:
        lines: list[Line] = []
        if self.preview is not None and not drops_nothing(self.rule):
            lines += example_lines(self.preview)
        if self.plan is None or not self.plan.commands:
            return lines
        lines += [[], [("Commands", DIM)]]
        room = len(lines) + _SHOWN_COMMAND_LINES
        for number, command in enumerate(self.plan.commands):
            if number == _SHOWN_COMMANDS or len(lines) >= room:
                lines.append([(f"  … and {len(self.plan.commands) - number} more", DIM)])
                break
            lines += [[("  ", TEXT), *line] for line in text_lines(command, width - 2)]
        return lines

    def _warnings(self) -> list[str]:
        found = list(self.preview.warnings) if self.preview is not None else []
        return found + [text for text in (self.plan.warnings if self.plan else ()) if text not in found]

    def position(self, room: int, total: int) -> str:
        """Say in the line above the foot that the numbers are being counted again."""
        return "counting again …" if self.measuring and self.preview else super().position(room, total)

    def foot(self, width: int, room: int) -> list[Line]:
        """Write the fields, what happens next and the buttons; the fields collapse where room is short."""
        fields, end = self.editor.lines(self._marked, width), self._outlook(width)
        buttons = [[*self._buttons(), *_HINT]]
        if len(fields) + len(end) + 2 <= room:
            return [*fields, *end, [], *buttons]
        if len(end) + 2 <= room or self._marked in self.editor.names:
            return [self.editor.collapsed(self._marked), *end, *buttons]
        return [*end, *buttons]

    def _outlook(self, width: int) -> list[Line]:
        if self.armed:
            return [[("installs when counted, ", WARN), ("Esc", TITLE), (" stops", WARN)]]
        if self._controls.readonly:
            return paragraph(f"{self.refusal}: nothing can be installed", width, WARN)
        if self.refusal:
            return [[("it can't be installed like this: change it, or close", DIM)]]
        if self.plan is not None and self.plan.needs_force:
            typed: Line = [(f"type {FORCE_WORD} to allow it: ", STRONG), (f"{self.word}▏", ACCENT)]
            return [*paragraph(safe_text(self.plan.needs_force), width, WARN), typed]
        if self.disarmed:
            return [[(self.disarmed, WARN)]]
        seconds = self._controls.confirm_seconds
        return [[(f"removed after {seconds} s unless you press ", DIM), (KEY_MAP.label("keep"), TITLE)]]

    def _buttons(self) -> Line:
        install = [] if self.refusal else [*self._button(INSTALL), ("   ", TEXT)]
        return [*install, *self._button(CANCEL)]

    def _button(self, name: str) -> Line:
        text = " Close " if name == CANCEL and self.refusal else f" {name.capitalize()} "
        if name == INSTALL and not self.may_install:
            return [(f"▸{text}" if self._marked == name else f" {text}", DIM)]
        if self._marked != name or not (self._default_set or self.refusal):
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
