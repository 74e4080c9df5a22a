"""The selected row: the rule that a key makes of it, a closer look at it, the part of the traffic shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.learning import BACK
from fwtop.analysis.window.traffic import payload
from fwtop.model.addresses.address import Prefix, origin_of, prefixes_of
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule, RuleStatus
from fwtop.model.text import safe_text
from fwtop.model.traffic.packets import Fragment
from fwtop.model.traffic.protocols import ICMP, ICMPV6, NUMBERS, TCP, WITH_PORTS
from fwtop.model.traffic.snapshot import (
    NOTHING,
    Destination,
    Incident,
    LedgerRow,
    PacketSignature,
    Payload,
    Port,
    Proposal,
    Source,
    TrafficPart,
)
from fwtop.render.rows import ROW_TYPES
from fwtop.rules.kinds import drops_nothing
from fwtop.rules.words import with_summary
from fwtop.ui.actions.desk import Desk
from fwtop.ui.actions.rule_actions import RuleActions
from fwtop.ui.actions.tab_actions import TabActions
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.details import attack_details, details_of
from fwtop.ui.lists.history import TrendItem
from fwtop.ui.lists.numbers import covered_by
from fwtop.ui.lists.packet_rows import PACKET, PacketRow
from fwtop.ui.lists.rows import PART_PANELS, Fold, PartView
from fwtop.ui.lists.traffic import spared
from fwtop.ui.style import BAD, GOOD, WARN, Line

TTL_SECONDS = 600
DEFAULT_LIMIT = RateLimit(1000, 1000, 24, 56)

_KINDS = {"block": Kind.IPSET, "limit": Kind.HASHLIMIT, "xdp": Kind.XDP, "notrack": Kind.NOTRACK}
_PROPOSAL_KEYS = {
    kind.value: ("block", "proposal", key) for key, kind in {**_KINDS, "string": Kind.STRING}.items()
}
_CLASSIC = 63  # the six flags that every mechanism can match
_MOST_BYTES = 16  # of a payload's beginning
_SEARCHED = 64  # bytes of the payload in which others are compared
_FEW = 5  # packets to compare with
_MOST = 0.9  # of them have a byte in common
_LEAST, _MOST_RUN = 4, 32  # bytes of a run


class NoRuleError(ValueError):
    """No rule fits the row; the text says what to do instead."""


def rule_from_row(action: str, item: Struct | None, now: float) -> Rule:
    """Return the rule that a key makes of a row; raises NoRuleError with a line to show."""
    if isinstance(item, Proposal):
        if action not in _PROPOSAL_KEYS.get(item.kind, ("block", "proposal")):
            raise NoRuleError(f"proposal {item.number} is another kind of rule: {item.number} takes it")
        return rule_from_proposal(item, now)
    if item is None:
        words = "nothing is selected: {next_panel} goes to a panel, {up} and {down} select a row"
        raise NoRuleError(KEY_MAP.words(words))
    if isinstance(item, TrendItem):
        item = item.source()
        if item is None:
            raise NoRuleError(
                "only countries and networks of Trends can be blocked: the Traffic tab has the rest"
            )
    kind, match = _of_packet(action, item) if isinstance(item, PacketRow) else _of_row(action, item)
    limit = DEFAULT_LIMIT if action == "limit" else None
    origin = _origin(item) if isinstance(item, Source) else None
    rule = with_summary(Rule("", kind, match, "", TTL_SECONDS, now, "key", limit=limit, origin=origin))
    if isinstance(item, Source) and origin is not None and item.as_name:
        return replace(rule, summary=rule.summary.replace(item.key, f"{item.key} {item.as_name}", 1))
    return rule


def rule_from_proposal(proposal: Proposal, now: float) -> Rule:
    """Return a proposal's rule; raises NoRuleError where nothing on this machine helps."""
    if proposal.rule is None:
        key = KEY_MAP.label("details")
        raise NoRuleError(f"this machine can't carry out proposal {proposal.number}: {key} shows its details")
    return replace(proposal.rule, created=now, created_by=f"proposal {proposal.number}")


def check_targets(words: Sequence[str]) -> tuple[tuple[Prefix, ...], str | None]:
    """Parse prefixes, or one `asn:N` or `country:CC`, typed by the operator; raises FwtopError."""
    if any(word.startswith("@") for word in words):
        raise FwtopError("the screen can't read files; in a shell: sudo fwtop block @FILE", 2)
    if len(words) == 1 and (origin := origin_of(words[0])):
        return (), origin
    return prefixes_of(words), None


def rule_from_targets(action: str, words: Sequence[str], now: float) -> Rule:
    """Return the rule that a key would make of typed sources; raises FwtopError."""
    sources, origin = check_targets(words)
    kind, match = _KINDS[action], Match(sources=sources)
    limit = DEFAULT_LIMIT if action == "limit" else None
    return with_summary(Rule("", kind, match, "", TTL_SECONDS, now, "command", limit=limit, origin=origin))


def _of_row(action: str, item: Struct) -> tuple[Kind, Match]:
    if action == "string" and not isinstance(item, Payload):
        words = "{string} drops packets with the selected bytes: select a row of Payloads first"
        raise NoRuleError(KEY_MAP.words(words))
    if action == "notrack" and isinstance(item, Payload):
        words = "{notrack} keeps a port or a source out of connection tracking: select one of those"
        raise NoRuleError(KEY_MAP.words(words))
    if action in ("block", "string"):
        kind = {Source: Kind.IPSET, Payload: Kind.STRING}.get(type(item), Kind.XDP)
    else:
        kind = _KINDS[action]
    return kind, _matched(item)


def _matched(item: Struct) -> Match:
    if isinstance(item, Source):
        return Match(sources=(item.prefix,) if item.prefix is not None else ())
    if isinstance(item, Port):
        number_of = NUMBERS.get(item.protocol)
        if number_of not in WITH_PORTS:
            raise NoRuleError(f"fwtop has no rule for ports of {item.protocol}")
        match = Match(protocol=number_of)
        return replace(match, sport=item.port) if item.side == "src" else replace(match, dport=item.port)
    if isinstance(item, Payload):
        return Match(payload=(PayloadMatch(item.data, item.offset, None, item.dns_name),))
    if isinstance(item, PacketSignature):
        return item.match
    if isinstance(item, Destination):
        raise NoRuleError("that would cut the address off: select a signature, a source or a port")
    if isinstance(item, LedgerRow):
        if item.mostly is None:
            raise NoRuleError("different traffic ends there: select a source, a port or a payload")
        return item.mostly
    raise NoRuleError("no rule fits this row: select a source, port or payload, or press a proposal's number")


def _origin(item: Source) -> str | None:
    if item.prefix is not None:
        return None
    if item.key.startswith("AS") and item.key[2:].isdigit():
        return f"asn:{item.key[2:]}"
    if len(item.key) == 2 and item.key.isalpha():
        return f"country:{item.key}"
    raise NoRuleError(f"{item.key} is not known by number or code, so it can't be blocked as a whole")


def _makes_rule(item: Struct) -> bool:
    """Whether a block can be made of a row."""
    if isinstance(item, PacketRow):
        return item.source is not None
    try:
        rule_from_row("block", item, 0.0)
    except (NoRuleError, FwtopError):
        return False
    return True


# -- packets


def _of_packet(action: str, item: PacketRow) -> tuple[Kind, Match]:
    """Match a packet by what its payload has in common with others to that port, or else by header fields."""
    if item.source is None:
        raise NoRuleError("this is not an IP packet: no rule of fwtop's matches it")
    if action in ("block", "limit"):
        return _KINDS[action], Match(sources=(item.source,))
    if action not in ("like", "string", "xdp"):
        words = "no such rule fits a packet: {like} drops what is like it, {block} blocks its sender"
        raise NoRuleError(KEY_MAP.words(words))
    match = _fields(item)
    if item.field("fragment") == Fragment.LATER:
        return Kind.XDP, match
    if item.payload:
        kind = Kind.XDP if action == "xdp" else Kind.STRING
        return kind, replace(match, payload=(_common_bytes(item),))
    if action == "string":
        words = "this packet has no payload: {like} drops packets with its header fields"
        raise NoRuleError(KEY_MAP.words(words))
    return Kind.XDP, _without_payload(match, item)


def _common_bytes(item: PacketRow) -> PayloadMatch:
    """Return the longest run of bytes that most payloads of like packets have at the same place.

    Transaction ids and other bytes that change with every packet stay out of it. Without others to compare
    with, or without a run worth the name, these are the packet's own first bytes.
    """
    packets, data = item.shown.packets, item.payload[:_SEARCHED]
    like = (packets.protocol == item.field("protocol")) & (packets.dport == item.field("dport"))
    like &= (packets.family == item.field("family")) & (packets.fragment == item.field("fragment"))
    rows = np.flatnonzero(
        like & (packets.payload_length > 0) & (packets.tcp_flags == item.field("tcp_flags"))
    )
    start, best = 0, 0
    if len(rows) >= _FEW:
        heads, _ = payload(packets, rows, len(data))
        common = (heads == np.frombuffer(data, np.uint8)).mean(axis=0) >= _MOST
        edges = np.flatnonzero(np.diff(np.concatenate(([False], common, [False]))))
        runs = edges.reshape(-1, 2)
        if len(runs):
            start, end = runs[np.argmax(runs[:, 1] - runs[:, 0])].tolist()
            best = end - start
    if best < _LEAST:
        return PayloadMatch(data[:_MOST_BYTES], 0)
    return PayloadMatch(data[start : start + min(best, _MOST_RUN)], start)


def _fields(item: PacketRow) -> Match:
    protocol = item.field("protocol")
    match = Match(family=item.field("family"), protocol=protocol)
    if item.field("fragment") == Fragment.LATER:
        return replace(match, fragment=True)
    if protocol in WITH_PORTS:
        match = replace(match, dport=item.field("dport"))
    if protocol in (ICMP, ICMPV6):
        match = replace(match, icmp_type=item.field("icmp_type"))
    if protocol == TCP and item.field("tcp_header"):
        match = replace(match, tcp_flags=(_CLASSIC, item.field("tcp_flags") & _CLASSIC))
    return match


def _without_payload(match: Match, item: PacketRow) -> Match:
    """Narrow a match by length and, for TCP, by window and options' length."""
    length = item.field("ip_length")
    match = replace(match, ip_length=Range(length, length))
    header, window = item.field("tcp_header"), item.field("tcp_window")
    if item.field("protocol") != TCP or not header:
        return match
    return replace(match, tcp_window=Range(window, window), tcp_header=Range(header, header))


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
        listed = self._desk.proposals
        key = listed.numbers.meant(int(number), self._desk.clock())
        chosen = next((one for one in listed.listed if one.key == key and key not in listed.gone), None)
        if chosen is not None:
            self._preview_row("proposal", chosen)
        else:
            gone = f"proposal {number} is gone; look again"
            self._desk.say(gone if key is not None else f"there is no proposal {number}")

    def protect(self) -> None:
        """Preview the best rule against each attack as one set."""
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
            self._rules.preview(*best.values())
        else:
            self._desk.say("there is no proposal that drops packets")

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
        match = item is not None and _makes_rule(item)
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
