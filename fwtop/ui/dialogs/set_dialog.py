"""The dialog of a combined set: one rule for each attack, previewed and installed together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace
from textual.binding import Binding, BindingType

from fwtop.model.errors import FwtopError
from fwtop.model.rule import PlanView, Preview, Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Proposal, Snapshot
from fwtop.rules.kinds import drops_nothing
from fwtop.ui.dialogs.dialog import ChoiceDialog
from fwtop.ui.drawing.format import number, percent
from fwtop.ui.drawing.style import DIM, STRONG, TEXT, TITLE, WARN, Line
from fwtop.ui.drawing.text import LABEL, labelled, paragraph
from fwtop.ui.feed import Controls
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.attacks import HARM_LIMIT, clients_hit

_INDENT = "   "  # below the letter of the attack
_ENOUGH = 0.95  # of an attack: who stops so much leaves other rules nothing to add
INSTALL_SET, CANCEL_SET = "Install all", "Cancel"


def best_of_each(snapshot: Snapshot) -> tuple[Proposal, ...]:
    """Return the first proposal against each attack that drops packets; they come best first."""
    found: dict[str, Proposal] = {}
    for proposal in snapshot.judgement.proposals:
        if proposal.rule is not None and not drops_nothing(proposal.rule):
            found.setdefault(proposal.attack, proposal)
    return tuple(found.values())


class Part(Struct, frozen=True):
    """One rule of the set with its preview and plan; `refused` says why it is left out."""

    rule: Rule
    letter: str
    preview: Preview | None = None
    plan: PlanView | None = None
    refused: str = ""


def _stopped(parts: Sequence[Part]) -> dict[str, float]:
    """Return the share of each attack, by title, that the best of the rules stops beside active ones."""
    stopped: dict[str, float] = {}
    for part in parts:
        for title, share in _shares(part.preview) if part.preview and not part.refused else ():
            stopped[title] = max(stopped.get(title, 0.0), share)
    return stopped


def _shares(preview: Preview) -> tuple[tuple[str, float], ...]:
    """Return what is stopped of each attack, by the rule and whatever is active."""
    return tuple((dict(preview.attacks) | dict(preview.together)).items())


def _adds_nothing(preview: Preview, stopped: Mapping[str, float]) -> bool:
    """Check whether without a rule enough is stopped of each attack that it would stop."""
    together = dict(preview.together)
    aimed = [(title, together.get(title, share)) for title, share in preview.attacks if share > 0]
    return bool(aimed) and all(stopped.get(title, 0.0) >= min(share, _ENOUGH) for title, share in aimed)


class SetDialog(ChoiceDialog, inherit_bindings=False):
    """Previews each rule, adds up what they stop and harm, and returns the rules to install.

    A rule that adds nothing to active ones and those before it is left out: each costs every packet time.
    What they stop together is at least what the best of them stops; the harm is at most the sum.
    """

    WIDTH = 92
    BINDINGS: ClassVar[list[BindingType]] = [
        *ChoiceDialog.BINDINGS,
        Binding("pageup", "scroll(-8)", show=False),
        Binding("pagedown", "scroll(8)", show=False),
    ]

    def __init__(
        self,
        parts: Sequence[tuple[Rule, str]],
        controls: Controls,
        conflict: Callable[[Rule], str],
        known: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__("protect against all attacks", "", (CANCEL_SET,))
        self._wanted = tuple(parts)
        self._controls = controls
        self._conflict = conflict
        self._known = known
        self.parts: tuple[Part, ...] = ()
        self.armed = False  # install as soon as everything is counted, if the harm is small

    def on_mount(self) -> None:
        """Ask for previews and plans; Textual calls the base class's handler as well."""
        self.begin(self._fetch, group="fetch", exclusive=True)

    async def _fetch(self) -> None:
        parts: list[Part] = []
        for rule, letter in self._wanted:
            parts.append(await self._measured(rule, letter, parts))
        self.parts = tuple(parts)
        if self.rules:
            self._answers = [INSTALL_SET, CANCEL_SET]
            self._marked = 0 if self.harm < HARM_LIMIT else 1
            if self.armed and self._marked == 0 and self.readable:
                self.dismiss(INSTALL_SET)
                return
        self.armed = False
        self.draw()

    async def _measured(self, rule: Rule, letter: str, before: Sequence[Part]) -> Part:
        covered = self._conflict(rule)
        if covered:
            return Part(rule, letter, refused=covered)
        try:
            preview = await self._controls.preview(rule)
            active = dict(preview.already)
            if _adds_nothing(preview, active):
                return Part(rule, letter, refused="active rules stop what it would")
            if _adds_nothing(preview, active | _stopped(before)):
                return Part(rule, letter, refused="the rules above stop what it would")
            rule = replace(
                rule,
                predicted_pps=preview.total_pps,
                predicted_attack_share=preview.attack_share,
                predicted_collateral_share=preview.collateral_share,
                predicted_guess=preview.guess,
            )
            follows = any(part.plan is not None for part in before)
            plan = await self._controls.plan(rule, follows=follows)
        except FwtopError as error:
            return Part(rule, letter, refused=safe_text(error))
        except Exception as error:  # the others may be measured
            return Part(rule, letter, refused=self.survive(error))
        return Part(rule, letter, preview, plan, plan.refused or plan.needs_force)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that can be installed without a further question."""
        return tuple(part.rule for part in self.parts if not part.refused)

    @property
    def harm(self) -> float:
        """The share of normal traffic that the set drops at most, 0 to 1."""
        found = (part.preview.collateral_share for part in self.parts if part.preview and not part.refused)
        return min(sum(found), 1.0)

    def body(self, width: int) -> list[Line]:
        """Write the sum, then each rule with what it stops and harms."""
        if not self.parts:
            words = "installs when counted, Esc stops" if self.armed else "counting on the samples …"
            return [[(words, WARN if self.armed else DIM)]]
        lines = self._sum() if self.rules else paragraph("no rule is left to install", width, WARN)
        told: set[str] = set()
        for part in self.parts:
            lines += [[], *self._part(part, width, told)]
        return lines

    def essential(self, body: Sequence[Line]) -> int:
        """Keep the sum in sight."""
        return min(len(self._sum()) if self.parts else 1, len(body))

    def _sum(self) -> list[Line]:
        lines = [
            labelled(
                "stops" if place == 0 else "",
                [(percent(share), STRONG), (f" of {safe_text(title)}", TEXT)],
                width=LABEL,
            )
            for place, (title, share) in enumerate(_stopped(self.parts).items())
        ]
        guess = any(part.preview.guess for part in self.parts if part.preview and not part.refused)
        hit: Line = [("at most ", DIM), *clients_hit(self.harm, self._known(), guess=guess)]
        return [*lines, labelled("clients hit", [*hit, (" client-like packets", TEXT)], width=LABEL)]

    def _part(self, part: Part, width: int, told: set[str]) -> list[Line]:
        """Write one rule; warnings that were `told` with an earlier one aren't repeated."""
        lines = paragraph(f"{part.letter}  {safe_text(part.rule.summary)}", width, STRONG)
        if part.refused:
            left_out = paragraph(f"left out: {safe_text(part.refused)}", width - len(_INDENT), WARN)
            return lines + [[(_INDENT, TEXT), *line] for line in left_out]
        if part.preview is not None:
            line: Line = [(f"{_INDENT}{number(part.preview.total_pps)} pps match now, ", DIM)]
            hits = clients_hit(part.preview.collateral_share, self._known(), guess=part.preview.guess)
            lines.append([*line, ("clients hit ", DIM), *hits])
        for warning in part.plan.warnings if part.plan else ():
            if warning not in told:
                warned = paragraph(f"! {safe_text(warning)}", width - len(_INDENT), WARN)
                lines += [[(_INDENT, TEXT), *line] for line in warned]
                told.add(warning)
        return lines

    def foot(self, width: int, room: int) -> list[Line]:
        """Say how long the rules stay, over the buttons."""
        seconds = self._controls.confirm_seconds
        stay: Line = [
            (f"all are removed after {seconds} s unless you press ", DIM),
            (KEY_MAP.label("keep"), TITLE),
        ]
        answers = super().foot(width, room)
        return [stay, *answers] if self.rules and room > len(answers) else answers

    def action_choose(self) -> None:
        """Press the marked button; while the previews are counting, arm instead."""
        if not self.parts and self.readable:
            self.armed = True
            self.draw()
            return
        super().action_choose()
