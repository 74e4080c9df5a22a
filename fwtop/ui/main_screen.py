"""The main screen: what each key does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual.binding import BindingType

from fwtop.model.errors import FwtopError
from fwtop.model.rule import RuleStatus
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Attack, Proposal, Source
from fwtop.render.rows import ROW_TYPES
from fwtop.ui.actions.command_dialog import CommandDialog
from fwtop.ui.actions.commands import Call, Command, History, commands, offer
from fwtop.ui.actions.rule_from_row import rule_from_proposal, rule_from_targets
from fwtop.ui.bars.graph import Graph
from fwtop.ui.bars.status_bars import Footer
from fwtop.ui.bars.time_bar import TimeBar
from fwtop.ui.dialogs.dialog import DetailsDialog, help_lines
from fwtop.ui.dialogs.set_dialog import best_of_each
from fwtop.ui.drawing.format import number
from fwtop.ui.drawing.layout import Lines
from fwtop.ui.drawing.style import WARN, Line
from fwtop.ui.drawing.themes import PALETTE
from fwtop.ui.feed import Feed
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.details import attack_details, details_of
from fwtop.ui.lists.packets import PACKET
from fwtop.ui.lists.rows import Item
from fwtop.ui.lists.scope import PANELS as PART_PANELS
from fwtop.ui.lists.traffic import spared
from fwtop.ui.settings import Settings
from fwtop.ui.snapshot_screen import SnapshotScreen
from fwtop.ui.state.packets import PacketRow
from fwtop.ui.terminal import ResilientDriver

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


class MainScreen(SnapshotScreen, inherit_bindings=False):
    """Passes keys to the rule, packet and session actions."""

    BINDINGS: ClassVar[list[BindingType]] = list(KEY_MAP.bindings())

    def __init__(self, feed: Feed, *, clock: Callable[[], float], slow: bool, settings: Settings) -> None:
        super().__init__(feed, clock=clock, slow=slow, settings=settings)
        self._above = ""  # the tab from which packets were drilled into
        self._history = History()
        self.be_slow: Callable[[bool], None] = lambda _: None  # the application's frames

    def action_attacks(self) -> None:
        """Show the evidence for each attack."""
        if self.snapshot is None:
            self.say("nothing has been observed yet")
            return
        self.app.push_screen(DetailsDialog("attacks", self._attack_lines))

    def _attack_lines(self) -> list[Line]:
        return attack_details(self.snapshot) if self.snapshot is not None else []

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(DetailsDialog("keys", help_lines()))

    def action_rule(self, kind: str, sources: str = "") -> None:
        """Preview the rule that a key makes of the selected row, or of sources that were typed."""
        if sources:
            self._block(kind, sources)
            return
        item = self.panel.rows.target(self.now())
        self._touched = True
        if isinstance(item, Attack):
            self.say("this is a whole attack: 1 to 9 preview what stops it")
            return
        if isinstance(item, RuleStatus):
            words = (("undo", "removes"), ("change", "changes"), ("open", "shows"))
            keys = ", ".join(f"{KEY_MAP.label(action)} {word} it" for action, word in words)
            self.say(f"this is a rule already: {keys}")
            return
        if kind in _BLOCKS and spared(item):
            key = KEY_MAP.label("block_spared")
            self.say(f"this is a client or a known peer: {key} previews a block of it", WARN)
            return
        self._start(kind, item)

    def _block(self, kind: str, sources: str) -> None:
        try:
            rule = rule_from_targets(kind, sources.split(), self.now())
        except FwtopError as error:
            self.refuse(str(error))
            return
        obstacle = self.actions.obstacle(self.current_snapshot(), previews=True)
        if obstacle:
            self.refuse(obstacle)
            return
        self.begin(self.actions.install, rule, group="actions")

    def action_block_spared(self) -> None:
        """Preview a rule that blocks the selected row, also if it is a client."""
        item = self.panel.rows.target(self.now())
        if spared(item):
            self._touched = True
            self._start("block", item)
        else:
            self.action_rule("block")

    def action_open(self) -> None:
        """Preview the selected proposal, scope the tabs to the selected attack; details of any other row."""
        item = self.panel.rows.target(self.now())
        if isinstance(item, Attack) and self.scope.chosen != item.key:
            self._touched = True
            self.scope.chosen = item.key
            self.say(
                f"only {self.scope.letter(item.key)} now; {KEY_MAP.label('open')} again shows the evidence"
            )
            self._ask_part()
            return
        if item is not None and (self._drill(item) or self._show_packets(packets_of(item))):
            return
        if isinstance(item, Proposal) and item.rule is not None:
            self._touched = True
            self._start("proposal", item)
        else:
            self.action_details()

    def _drill(self, item: Item) -> bool:
        """Show the addresses of a prefix, a network or a country."""
        if not isinstance(item, Source) or not self.parts.enter(item, self.panel.view.name):
            return False
        self._touched = True
        self.panel.show_view("address")
        self.say(f"the addresses {self.parts.words()}; Esc goes back")
        self._ask_part()
        return True

    def _show_packets(self, text: str) -> bool:
        """Show the packets that a filter finds; a stored session has none."""
        if not text or self.snapshot is None or self.snapshot.origin.kind == "session":
            return False
        self._above = self.tab.name
        self.packet_panel.set_filter(text)
        self.show_tab("packets")
        return True

    def back(self) -> bool:
        """Go back up from what was drilled into."""
        if self._above and self.tab.name == "packets":
            self.packet_panel.set_filter("")
            self.show_tab(self._above)
            self._above = ""
            return True
        view = self.parts.leave() if self.panel.spec.name in PART_PANELS else ""
        if view:
            self.panels["sources"].show_view(view)
            self.redraw()
            self._ask_part()
        return bool(view)

    def action_proposal(self, number: str) -> None:
        """Preview a proposal by the number that is shown."""
        found = self.snapshot.judgement.proposals if self.snapshot is not None else ()
        chosen = next((proposal for proposal in found if proposal.number == int(number)), None)
        if chosen is None:
            self.say(f"there is no proposal {number}")
            return
        self._start("proposal", chosen)

    def action_protect(self) -> None:
        """Preview the best rule against each attack as one set."""
        obstacle = self.actions.obstacle(self.snapshot)
        if obstacle or self.snapshot is None:
            self.refuse(obstacle)
            return
        attacks = {attack.title: attack for attack in self.snapshot.judgement.attacks}
        parts = [
            (
                rule_from_proposal(proposal, self.now()),
                self.scope.letter(attacks[proposal.attack].key) if proposal.attack in attacks else "",
            )
            for proposal in best_of_each(self.snapshot)
        ]
        self.begin(self.actions.propose_set, parts, group="actions")

    def _start(self, action: str, item: Item | None) -> None:
        if (
            isinstance(item, Proposal)
            and self.snapshot is not None
            and self.snapshot.origin.kind == "session"
        ):
            title, lines = details_of(item, self.now(), self.snapshot)  # it has no packets to preview it on
            self.app.push_screen(DetailsDialog(title, lines))
            return
        obstacle = self.actions.obstacle(self.snapshot, previews=True)
        if obstacle:
            self.refuse(obstacle)
            return
        self.begin(self.actions.propose, action, item, group="actions")

    def action_unscope(self) -> None:
        """Show all attacks again."""
        self.scope.chosen = ""
        self.parts.clear()
        self.say("all attacks")

    # -- packets

    def action_hold(self) -> None:
        """Hold the list of packets, or go on; a recording is paused."""
        if self.feed.player is not None:
            self.action_pause()
        else:
            self.packets.hold()

    def action_alike(self, delta: int) -> None:
        """Select the next packet like the selected one."""
        self.packets.alike(delta)

    def action_write_packets(self) -> None:
        """Write the packets shown as a file."""
        self.packets.write()

    # -- the session

    def action_command(self) -> None:
        """Ask for a command and run it."""
        self.app.push_screen(CommandDialog(self.commands, self._history), self.run_command)

    def commands(self) -> tuple[Command, ...]:
        """Return the commands there are now, on this tab."""
        rows = [row for row in KEY_MAP.actions if row.tab in ("", self.tab.name)]
        sources = self.panels["sources"].rows.items
        return commands(rows, offer(self.current_snapshot(), self.scope, self.panel, sources))

    def run_command(self, call: Call | None) -> None:
        """Carry out a command."""
        if call is not None:
            self.perform(*call)

    def action_theme(self, name: str) -> None:
        """Change the colours."""
        PALETTE.use(name)
        for lines in self.query(Lines):
            lines.repaint()
        self.redraw()

    def action_slow(self, answer: str) -> None:
        """Send less to the terminal, or as much as usual."""
        self.be_slow(answer == "on")

    def action_only(self, letter: str) -> None:
        """Show one attack on all tabs, or all of them."""
        attacks = self.snapshot.judgement.attacks if self.snapshot is not None else ()
        keys = [item.key for item in attacks if self.scope.letter(item.key) == letter]
        self.scope.chosen = keys[0] if keys else ""
        self.redraw()

    def action_graph(self, unit: str = "") -> None:
        """Change what the history graph shows."""
        if unit:
            self.bars.in_bits = unit == "bits"
            self.redraw()
            return
        self.bars.in_bits = not self.bars.in_bits
        unit = "bits; the parts are estimated from packets" if self.bars.in_bits else "packets"
        self.say(f"the graph shows {unit}")

    def on_footer_clicked(self, message: Footer.Clicked) -> None:
        """Press the key that was clicked."""
        if message.key:
            self.action_press(message.key)
        else:
            self.say("the digit of a proposal previews it")

    def on_graph_clicked(self, message: Graph.Clicked) -> None:
        """Put the graph's cursor on a second and say what happened then; the same second again removes it.

        A recording goes to that second.
        """
        if self.feed.player is not None:
            self.player.seek(float(message.second))
            return
        bars = self.bars
        bars.cursor = None if bars.cursor == message.second else message.second
        point = bars.history.at(message.second)
        if bars.cursor is None or point is None:
            self.say("")
            return
        flow, at = point.flow, time.strftime("%H:%M:%SZ", time.gmtime(message.second))
        parts = (
            f"my rules {number(flow.mine)}, other firewall {number(flow.other)}, kernel {number(flow.kernel)}"
        )
        self.say(f"{at}: {number(flow.arrives)} pps arrived, {number(flow.reaches)} reached you; {parts}")

    def action_mouse(self) -> None:
        """Leave the mouse to the terminal, for selecting text, or take it back."""
        driver = self.app._driver
        if isinstance(driver, ResilientDriver):
            ours = driver.turn_mouse()
            words = "the mouse is fwtop's again" if ours else "the mouse selects text; {mouse} ends that"
            self.say(KEY_MAP.words(words))
        else:
            self.say("this terminal has no mouse")

    def action_copy(self) -> None:
        """Copy the selected row's name to the clipboard, through the terminal (OSC 52)."""
        item = self.panel.current()
        if item is None:
            self.say("nothing is selected")
            return
        text = safe_text(copied(item), limit=_MOST_COPIED)
        self.app.copy_to_clipboard(text)
        self.say(f"copied, if the terminal allows it: {text}")

    def action_pause(self) -> None:
        """Freeze or resume the display; play or pause a recording."""
        if self.feed.player is not None:
            self.player.toggle()
            self.redraw_lines()
        else:
            self.session.pause()

    def action_step(self, count: int) -> None:
        """Go to another snapshot of a recording."""
        self.player.step(count)

    def action_faster(self, steps: int) -> None:
        """Play a recording faster or slower."""
        self.player.faster(steps)
        self.redraw_lines()

    def action_skip(self, count: int) -> None:
        """Go to another event of a recording."""
        self.player.skip(count)

    def on_time_bar_sought(self, message: TimeBar.Sought) -> None:
        """Go to the time that was clicked."""
        self.player.seek(message.at)

    def action_export(self) -> None:
        """Write a report."""
        self.begin(self.session.export, group="export", exclusive=True)

    def action_leave(self) -> None:
        """Quit; ask first if that removes unconfirmed rules."""
        if self.session.must_ask():
            self.begin(self.session.leave, group="leave", exclusive=True)
        else:
            self.app.exit(return_code=0)
