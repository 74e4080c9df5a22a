"""What keys do with the selected row, and which part of the traffic the tabs show."""

from __future__ import annotations

from functools import partial

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule, RuleStatus
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Attack, Payload, Proposal, Source, TrafficPart
from fwtop.render.rows import ROW_TYPES
from fwtop.rules.kinds import drops_nothing
from fwtop.ui.actions.commands import ALL
from fwtop.ui.actions.desk import Desk
from fwtop.ui.actions.rule_actions import RuleActions
from fwtop.ui.actions.rule_from_row import NoRuleError, rule_from_proposal, rule_from_row, rule_from_targets
from fwtop.ui.actions.tab_actions import TabActions
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.details import attack_details, details_of
from fwtop.ui.lists.packet_rows import PACKET, PacketRow
from fwtop.ui.lists.rows import PART_PANELS, Item, PartView
from fwtop.ui.lists.traffic import spared
from fwtop.ui.style import BAD, WARN, Line

_BLOCKS = ("block", "xdp")
_MOST_COPIED = 2_000  # characters; terminals refuse long OSC 52 sequences


def copied(item: Item) -> str:
    """Return what is worth copying of a row: an address, bytes in hex, a command line."""
    row = PACKET if isinstance(item, PacketRow) else ROW_TYPES.get(type(item))
    if row is not None and row.copied is not None:
        return row.copied(item)
    return str(getattr(item, "key", "")) or details_of(item, 0.0)[0]


def packets_of(item: Item) -> str:
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
            self._preview_targets(kind, sources)
            return
        item = self._tabs.panel.rows.target(self._desk.now())
        self._tabs.touched = True
        if isinstance(item, Attack):
            self._desk.say("this is a whole attack: 1 to 9 preview what stops it")
        elif isinstance(item, RuleStatus):
            self._desk.say(
                KEY_MAP.words(
                    "this is a rule already: {undo} removes it, {change} changes it, {open} shows it"
                )
            )
        elif kind in _BLOCKS and spared(item):
            words = "this is a client or a known peer: {block_spared} previews a block of it"
            self._desk.say(KEY_MAP.words(words), WARN)
        else:
            self._preview(kind, item)

    def block_spared(self) -> None:
        """Preview a rule that blocks the selected row, also if it is a client."""
        item = self._tabs.panel.rows.target(self._desk.now())
        if spared(item):
            self._tabs.touched = True
            self._preview("block", item)
        else:
            self.rule("block")

    def proposal(self, number: str) -> None:
        """Preview a proposal by the number that is shown."""
        snapshot = self._desk.snapshot
        found = snapshot.judgement.proposals if snapshot is not None else ()
        chosen = next((proposal for proposal in found if proposal.number == int(number)), None)
        if chosen is None:
            self._desk.say(f"there is no proposal {number}")
        else:
            self._preview("proposal", chosen)

    def protect(self) -> None:
        """Preview the best rule against each attack as one set."""
        obstacle, snapshot = self._rules.obstacle(), self._desk.snapshot
        if obstacle or snapshot is None:
            self._desk.say(obstacle, BAD)
            return
        keys = {attack.title: attack.key for attack in snapshot.judgement.attacks}
        best: dict[str, tuple[Rule, str]] = {}  # by the attack; proposals come best first
        for proposal in snapshot.judgement.proposals:
            if proposal.rule is not None and not drops_nothing(proposal.rule):
                rule = rule_from_proposal(proposal, self._desk.now())
                best.setdefault(
                    proposal.attack, (rule, self._desk.scope.letter(keys.get(proposal.attack, "")))
                )
        if best:
            self._rules.preview(*best.values())
        else:
            self._desk.say("there is no proposal that drops packets")

    def _preview(self, action: str, item: Item | None) -> None:
        snapshot = self._desk.snapshot
        if isinstance(item, Proposal) and snapshot is not None and snapshot.origin.kind == "session":
            self._desk.show(
                *details_of(item, self._desk.now(), snapshot)
            )  # it has no packets to preview it on
        elif obstacle := self._rules.obstacle(previews=True):
            self._desk.say(obstacle, BAD)
        else:
            try:
                rule = rule_from_row(action, item, self._desk.clock())
            except NoRuleError as error:
                self._desk.say(str(error), WARN)
            else:
                self._rules.preview((rule, ""))

    def _preview_targets(self, kind: str, sources: str) -> None:
        try:
            rule = rule_from_targets(kind, sources.split(), self._desk.now())
        except FwtopError as error:
            self._desk.say(str(error), BAD)
            return
        if obstacle := self._rules.obstacle(previews=True):
            self._desk.say(obstacle, BAD)
        else:
            self._rules.preview((rule, ""))

    # -- a closer look

    def open(self) -> None:
        """Preview the selected proposal, scope the tabs to the selected attack; details of any other row."""
        item, scope = self._tabs.panel.rows.target(self._desk.now()), self._desk.scope
        if isinstance(item, Attack) and scope.chosen != item.key:
            self._tabs.touched = True
            scope.chosen = item.key
            again = KEY_MAP.label("open")
            self._desk.say(f"only {scope.letter(item.key)} now; {again} again shows the evidence")
            self.ask_part()
        elif item is not None and (self._drill(item) or self._show_packets(packets_of(item))):
            return
        elif isinstance(item, Proposal) and item.rule is not None:
            self._tabs.touched = True
            self._preview("proposal", item)
        else:
            self.details()

    def _drill(self, item: Item) -> bool:
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
        """Show the packets that a filter finds; a stored session has none."""
        snapshot = self._desk.snapshot
        if not text or snapshot is None or snapshot.origin.kind == "session":
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
        item, desk, rows = self._tabs.panel.current(), self._desk, self._tabs.panel.rows
        if item is None:
            desk.say("nothing is selected")
            return
        rows.pin(desk.now())
        self._tabs.touched = True

        def lines() -> list[Line]:
            return details_of(rows.latest(item), desk.now(), desk.current())[1]

        title = details_of(item, desk.now(), desk.current())[0]
        if isinstance(item, PacketRow):
            desk.show(title, lines, partial(desk.controls.dissect_packet, item.shown, item.row))
        elif isinstance(item, Source | Payload):
            desk.show(title, lines, partial(desk.controls.dissect, item))
        else:
            desk.show(title, lines)

    def attacks(self) -> None:
        """Show the evidence for each attack."""
        self._desk.say_if_empty()
        if self._desk.snapshot is not None:
            self._desk.show("attacks", self._evidence)

    def _evidence(self) -> list[Line]:
        return attack_details(self._desk.snapshot) if self._desk.snapshot is not None else []

    def copy(self) -> None:
        """Copy the selected row's name to the clipboard, through the terminal (OSC 52)."""
        item = self._tabs.panel.current()
        if item is None:
            self._desk.say("nothing is selected")
            return
        text = safe_text(copied(item), limit=_MOST_COPIED)
        self._desk.screen.app.copy_to_clipboard(text)
        self._desk.say(f"copied, if the terminal allows it: {text}")

    # -- the part of the traffic that is shown

    def only(self, letter: str) -> None:
        """Show one attack on all tabs, or all of them."""
        snapshot, scope = self._desk.snapshot, self._desk.scope
        attacks = snapshot.judgement.attacks if snapshot is not None and letter != ALL else ()
        scope.chosen = next((item.key for item in attacks if scope.letter(item.key) == letter), "")
        self._desk.redraw()

    def unscope(self) -> None:
        """Show all attacks again."""
        self._desk.scope.chosen = ""
        self.parts.clear()
        self._desk.say("all attacks")

    def ask_part(self) -> None:
        """Ask for the tables of the part that is shown; the next answer replaces this one."""
        if self.parts.part != TrafficPart():
            self._desk.begin(self._take_part, group="part", exclusive=True)

    async def _take_part(self) -> None:
        if await self.parts.ask():
            self._desk.redraw()
