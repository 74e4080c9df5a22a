"""The selected row: previews of rules made of it, a closer look at it, the part of the traffic shown."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from fwtop.analysis.learning import BACK
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule, RuleStatus
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import (
    NOTHING,
    Incident,
    Payload,
    Proposal,
    Source,
    TrafficPart,
)
from fwtop.render.rows import ROW_TYPES
from fwtop.rules.kinds import drops_nothing
from fwtop.ui.actions.desk import Desk
from fwtop.ui.actions.row_rules import (
    NoRuleError,
    makes_rule,
    rule_from_proposal,
    rule_from_row,
    rule_from_targets,
)
from fwtop.ui.actions.rule_actions import RuleActions
from fwtop.ui.actions.tab_actions import TabActions
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.details import attack_details, details_of
from fwtop.ui.lists.numbers import covered_by
from fwtop.ui.lists.packet_rows import PACKET, PacketRow
from fwtop.ui.lists.rows import PART_PANELS, Fold, PartView
from fwtop.ui.lists.traffic import spared
from fwtop.ui.style import BAD, GOOD, WARN, Line

ALL = "all"  # attacks
_BLOCKS = ("block", "xdp")
_MOST_COPIED = 2_000  # characters; terminals refuse long OSC 52 sequences


def copied(item: Struct) -> str:
    """Return what is worth copying: an address, bytes in hex, a command line."""
    row = PACKET if isinstance(item, PacketRow) else ROW_TYPES.get(type(item))
    if row is not None and row.copied is not None:
        return row.copied(item)
    return str(getattr(item, "key", "") or getattr(item, "text", "")) or details_of(item, 0.0)[0]


def packets_of(item: Struct) -> str:
    """Return the filter of a row's packets; "" if there is none."""
    row = ROW_TYPES.get(type(item))
    return row.packets(item) if row is not None and row.packets is not None else ""


class RowActions:
    """Makes rules of rows, opens them, and drills into what they stand for."""

    def __init__(self, desk: Desk, tabs: TabActions, rules: RuleActions) -> None:
        self.parts = PartView(desk.controls.traffic, desk.scope)
        self._desk = desk
        self._tabs = tabs
        self._rules = rules
        self._above = ""  # the tab from which packets were drilled into

    # -- rules

    def rule(self, kind: str, sources: str = "") -> None:
        """Preview the rule that a key makes of the selected row, or of sources that were typed."""
        if sources:
            self._preview(partial(rule_from_targets, kind, sources.split(), self._desk.now()))
            return
        item = self._tabs.panel.rows.target(self._desk.now())
        self._tabs.touched = True
        if isinstance(item, Incident):
            self._desk.say("this is a whole attack: 1 to 9 preview what stops it")
        elif isinstance(item, RuleStatus):
            words = "this is a rule already: {undo} removes it, {change} changes it, {open} shows it"
            self._desk.say(KEY_MAP.words(words))
        elif kind in _BLOCKS and spared(item):
            words = "this is a client or a known peer: {block_spared} previews a block of it"
            self._desk.say(KEY_MAP.words(words), WARN)
        else:
            self._preview_row(kind, item)

    def block_spared(self) -> None:
        """Preview a rule that blocks the selected row, also if it is a client."""
        if not spared(item := self._tabs.panel.rows.target(self._desk.now())):
            self.rule("block")
            return
        self._tabs.touched = True
        self._preview_row("block", item)

    def proposal(self, number: str) -> None:
        """Preview a proposal by the number that is shown."""
        if self._is_behind():
            return
        listed = self._desk.proposals
        key = listed.numbers.meant(int(number), self._desk.clock())
        chosen = next((one for one in listed.listed if one.key == key and key not in listed.gone), None)
        if chosen is not None:
            self._preview_row("proposal", chosen)
        else:
            gone = f"proposal {number} is gone; look again"
            self._desk.say(gone if key is not None else f"there is no proposal {number}")

    def protect(self) -> None:
        """Preview the best rule against each attack as one set, in the order of their letters."""
        if self._is_behind():
            return
        if obstacle := self._rules.obstacle():
            self._desk.say(obstacle, BAD)
            return
        judgement = self._desk.snapshot.judgement
        letters = {attack.id: attack.letter for attack in judgement.attacks}
        best: dict[int, tuple[Rule, str]] = {}  # by the attack; proposals come best first
        for proposal in judgement.proposals:
            drops = proposal.rule is not None and not drops_nothing(proposal.rule)
            if drops and not covered_by(proposal, self._desk.current()):
                rule = rule_from_proposal(proposal, self._desk.now())
                best.setdefault(proposal.incident, (rule, letters.get(proposal.incident, "")))
        if best:
            self._rules.preview(*sorted(best.values(), key=lambda one: one[1]))
        else:
            self._desk.say("there is no proposal that drops packets")

    def _is_behind(self) -> bool:
        """Whether what is listed is against other attacks than are on; say which key changes that."""
        if behind := self._desk.is_behind:
            words = "the lists are paused and show other attacks than are on now: {pause} resumes them"
            self._desk.say(KEY_MAP.words(words), WARN)
        return behind

    def _preview_row(self, action: str, item: Struct | None) -> None:
        snapshot = self._desk.snapshot
        if isinstance(item, Proposal) and snapshot.origin.kind == "session":
            self._desk.show(*details_of(item, self._desk.now(), snapshot))  # no packets to preview it on
        else:
            self._preview(partial(rule_from_row, action, item, self._desk.clock()))

    def _preview(self, make: Callable[[], Rule]) -> None:
        """Preview the rule that is made, or say why there is none."""
        if obstacle := self._rules.obstacle(previews=True):
            self._desk.say(obstacle, BAD)
            return
        try:
            self._rules.preview((make(), ""))
        except NoRuleError as error:
            self._desk.say(str(error), WARN)
        except FwtopError as error:
            self._desk.say(str(error), BAD)

    def present(self) -> dict[str, bool]:
        """Return what there is of what this part's keys act on."""
        proposals, item = self._desk.snapshot.judgement.proposals, self._tabs.panel.current()
        match = item is not None and makes_rule(item)
        return {
            "match": match,
            "block": match and not spared(item),
            "spared": match and spared(item),
            "payload": isinstance(item, Payload),
            "like": isinstance(item, PacketRow) and item.source is not None,
            "proposal": bool(proposals),
            "drops": any(one.rule is not None and not drops_nothing(one.rule) for one in proposals),
            "scope": self.parts.part != TrafficPart(),
        }

    # -- a closer look

    def open(self) -> None:
        """Preview the selected proposal, scope the tabs to the selected attack; details of any other row."""
        item, scope = self._tabs.panel.rows.target(self._desk.now()), self._desk.scope
        if isinstance(item, Incident) and scope.chosen != item.id:
            self._tabs.touched = True
            scope.choose(item)
            again = KEY_MAP.label("open")
            self._desk.say(f"only {item.letter} now; {again} again shows the evidence")
            self.ask_part()
        elif item is not None and (self._drill(item) or self._show_packets(packets_of(item))):
            return
        elif isinstance(item, Proposal) and item.rule is not None:
            self._tabs.touched = True
            if not self._is_behind():
                self._preview_row("proposal", item)
        elif isinstance(item, Fold):
            self._desk.proposals.turn(item.key)
            self._desk.redraw()
            self._tabs.place_again()
        else:
            self.details()

    def _drill(self, item: Struct) -> bool:
        """Show the addresses of a prefix, a network or a country."""
        panel = self._tabs.panel
        if not isinstance(item, Source) or not self.parts.enter(item, panel.view.name):
            return False
        self._tabs.touched = True
        panel.show_view("address")
        self._desk.say(f"the addresses {self.parts.words()}; Esc goes back")
        self.ask_part()
        return True

    def _show_packets(self, text: str) -> bool:
        snapshot = self._desk.snapshot
        if not text or snapshot.origin.kind == "session":
            return False
        self._above = self._tabs.shown.name
        self._tabs.packet_panel.set_filter(text)
        self._tabs.show("packets")
        return True

    def back(self) -> bool:
        """Go back up from what was drilled into."""
        if self._above and self._tabs.shown.name == "packets":
            self._tabs.packet_panel.set_filter("")
            self._tabs.show(self._above)
            self._above = ""
            return True
        view = self.parts.leave() if self._tabs.panel.spec.name in PART_PANELS else ""
        if view:
            self._tabs.panels["sources"].show_view(view)
            self._desk.redraw()
            self.ask_part()
        return bool(view)

    def details(self) -> None:
        """Show everything about the selected row, kept up to date, with a packet of those it stands for."""
        item, desk, rows = self._selected(), self._desk, self._tabs.panel.rows
        if item is None or isinstance(item, Fold):
            return
        rows.pin(desk.now())
        self._tabs.touched = True

        def lines() -> list[Line]:
            return details_of(rows.latest(item), desk.now(), desk.current())[1]

        dissect = None
        if isinstance(item, PacketRow):
            dissect = partial(desk.controls.dissect_packet, item.shown, item.row)
        elif isinstance(item, Source | Payload):
            dissect = partial(desk.controls.dissect, item)
        desk.show(details_of(item, desk.now(), desk.current())[0], lines, dissect)

    def attacks(self) -> None:
        """Show the evidence for each attack."""
        desk = self._desk
        desk.say_if_empty()
        if desk.snapshot is not NOTHING:
            desk.show("attacks", lambda: attack_details(desk.snapshot))

    def copy(self) -> None:
        """Copy the selected row's name to the clipboard, through the terminal (OSC 52)."""
        if (item := self._selected()) is not None:
            text = safe_text(copied(item), limit=_MOST_COPIED)
            self._desk.screen.app.copy_to_clipboard(text)
            self._desk.say(f"copied, if the terminal allows it: {text}")

    def _selected(self) -> Struct | None:
        item = self._tabs.panel.current()
        if item is None:
            self._desk.say("nothing is selected")
        return item

    # -- what is normal

    def teach(self, said: str) -> None:
        """Say what the selected attack was, or the one that is shown; else what is unusual now."""
        item = self._tabs.panel.current()
        attack = item.id if isinstance(item, Incident) else self._desk.scope.chosen or None
        self._desk.begin(self._teach, said, attack, group="teach", exclusive=True)

    async def _teach(self, said: str, attack: object) -> None:
        self._desk.say("with the next judgement …")
        done = await self._desk.attempt(self._desk.controls.teach(said, attack))
        if done is not None:
            back = f"; {KEY_MAP.label('unlearn')} takes it back" if said != BACK else ""
            self._desk.say(f"{done}{back}", GOOD)

    # -- the part of the traffic that is shown

    def only(self, letter: str) -> None:
        """Show one attack on all tabs, or all of them."""
        attacks = self._desk.snapshot.judgement.attacks
        self._desk.scope.choose(next((item for item in attacks if item.letter == letter), None))
        self._desk.redraw()

    def unscope(self) -> None:
        """Show all attacks again."""
        self._desk.scope.choose(None)
        self.parts.clear()
        self._desk.say("all attacks")

    def ask_part(self) -> None:
        """Ask for the tables of the part that is shown; the next answer replaces this one."""
        if self.parts.part != TrafficPart():
            self._desk.begin(self._take_part, group="part", exclusive=True)

    async def _take_part(self) -> None:
        if await self.parts.ask():
            self._desk.redraw()
