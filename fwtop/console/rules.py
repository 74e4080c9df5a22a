"""What the console polls of the guardian: rules with their counts, who is allowed, the host around them.

Statuses, packets matched since the last poll and covered sources come from the rules; the survey and the rule
set are parsed and made safe once, here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

from msgspec.structs import replace

from fwtop.console.attribution import DropAttribution
from fwtop.console.guardian_link import GuardianLink
from fwtop.live.interfaces import ReceiveMeter
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer, Conversation, Role
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Rules, Status, Survey
from fwtop.model.rule import ACTIVE_STATES, Rule, RuleStatus, State
from fwtop.model.ruleset import Ruleset
from fwtop.model.service import Service
from fwtop.model.text import safe_text
from fwtop.model.traffic import snapshot
from fwtop.model.traffic.counters import FIREWALLS, NETFILTER_DROP, Counters, DropCount, RuleCount
from fwtop.model.traffic.packets import PacketBatch
from fwtop.model.wire import of_plain
from fwtop.rehearsal.host import KnownPeers
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import droppers, has_no_clock, of
from fwtop.stats.destinations import SERVICES

_POLL_SECONDS = 1.0
_LONGEST_WINDOW_SECONDS = 15.0  # that rates are asked for
_NEW_SECONDS = 5.0  # in which a rule's counters may not have been read yet
_TIMEOUT_SECONDS = 0.4  # the guardian answers with what it has after half of this


class RuleMonitor:
    """Polls the guardian for rules: once a second, or every tick while any rule is active.

    The rules' kernel counters tell which netfilter drops are fwtop's own, so they must cover the same
    interval as the drop counters. A failed poll keeps the last statuses and sets `problem`.
    """

    def __init__(self, link: GuardianLink) -> None:
        self._link = link
        self._counted: dict[str, tuple[int, int]] = {}  # rule id → packets, bytes at the last poll
        self._polled = -_POLL_SECONDS
        self._marks = Marks((), ())
        self._attribution = DropAttribution()
        self._rates = RuleRates()
        self.allowed: tuple[AllowedPeer, ...] = ()
        self.known = KnownPeers()
        self.statuses: tuple[RuleStatus, ...] = ()
        self.problem = ""

    @property
    def active(self) -> tuple[Rule, ...]:
        """The rules that act, as last polled; one that counts only does nothing."""
        return tuple(status.rule for status in self.statuses if status.stops)

    @property
    def effective(self) -> tuple[Rule, ...]:
        """The active rules that have matched packets, or are too new to; those that match most first."""
        new = time.time() - _NEW_SECONDS
        acting = {rule.id for rule in self.active}
        found = [
            status
            for status in self.statuses
            if status.rule.id in acting and (status.packets or status.rule.created > new)
        ]
        return tuple(status.rule for status in sorted(found, key=lambda status: -status.pps))

    @property
    def in_force(self) -> frozenset[str]:
        """The ids of the rules that act, as last polled."""
        return frozenset(rule.id for rule in self.active)

    def poll_soon(self) -> None:
        """Poll on the next call of `counts`, whatever the interval: an action changed a rule."""
        self._polled = -_POLL_SECONDS

    def counts(self, drops: Iterable[DropCount] = ()) -> tuple[RuleCount, ...]:
        """Poll if due; return what each netfilter rule matched since the previous poll.

        That is due where a firewall dropped something, too: `drops` may be the first of a new rule.
        """
        now = time.monotonic()
        active = any(status.state in ACTIVE_STATES for status in self.statuses)
        dropped = any(drop.layer in FIREWALLS and drop.packets for drop in drops)
        if now - self._polled < (0.0 if active or dropped else _POLL_SECONDS):
            return ()
        self._polled = now
        try:
            answer = self._link.demand(Status(allow=False), seconds=_TIMEOUT_SECONDS)
        except FwtopError as error:  # observation continues without rule state
            why = str(error).partition(";")[0]  # the line is short, and no result of a reading follows
            self.problem = "" if self._link.lost else f"rule state unknown: {why}"
            if self._link.lost:  # nobody will tell that their time was over
                self.statuses = tuple(by_the_clock(status, time.time()) for status in self.statuses)
            return ()
        self.problem = ""
        self.statuses = tuple(RuleStatus.from_dict(item) for item in answer.data["rules"])
        self._rates.note(self.statuses, now)
        logins = answer.data.get("logins", ())
        self.allowed = (
            *(_allowed_peer(*fields) for fields in answer.data.get("peers", ())),
            *(AllowedPeer(Prefix.parse(who), Role.SSH, login_port=int(port)) for who, port in logins),
        )
        ports = frozenset(map(int, answer.data.get("login_ports", ())))
        behind = tuple(peer for peer in self.allowed if peer.conversation is not None)
        entries = tuple(peer for peer in self.allowed if peer.conversation is None)
        self.known = KnownPeers(entries, behind, ports)
        self._marks = Marks(self.statuses, self.allowed)
        found = ((status, droppers(status.rule, NETFILTER_DROP)) for status in self.statuses)
        return tuple(self._count(status, parts) for status, parts in found if parts)

    def rated(self, seconds: float, ledger: Iterable[snapshot.LedgerRow]) -> tuple[RuleStatus, ...]:
        """Return the statuses with their rates over the last `seconds`, which the ledger is of.

        What a rule drops has the ledger's rate: the guardian's counts are up to a second older.
        """
        dropped: dict[str, float] = {}
        for row in ledger:
            if row.rule is not None:
                dropped[row.rule] = dropped.get(row.rule, 0.0) + row.pps
        return tuple(
            replace(status, pps=dropped[status.rule.id])
            if status.rule.id in dropped and status.state in ACTIVE_STATES and status.rule.limit is None
            else status
            for status in self._rates.over(self.statuses, seconds)
        )

    def attribute(self, batch: PacketBatch, counters: Counters) -> PacketBatch:
        """Set the rule on sampled drops of this poll that an active rule made."""
        return self._attribution.mark(batch, counters, self.statuses, self.allowed)

    def mark(self, sources: snapshot.Sources) -> snapshot.Sources:
        """Set `active_rule` on sources that an active rule covers completely, and `who` on known peers."""
        return self._marks.mark(sources)

    def _count(self, status: RuleStatus, parts: Iterable[Rule]) -> RuleCount:
        before = self._counted.get(status.rule.id, (0, 0))
        self._counted[status.rule.id] = (status.packets, status.bytes)
        packets, size = max(status.packets - before[0], 0), max(status.bytes - before[1], 0)
        kinds = [of(part.kind) for part in parts]
        early = any(kind.layer < Layer.INPUT for kind in kinds)
        return RuleCount(status.rule.id, packets, size, any(kind.answers for kind in kinds), early)


def by_the_clock(status: RuleStatus, now: float) -> RuleStatus:
    """Return what has become of a rule by `now` (Unix seconds) without a guardian: it ends nevertheless.

    The kernel's own clock ends it; sysctls the watchdog gives back. A change on trial (it has a stamp) goes
    back to what the rule was before, which goes on.
    """
    by = "a shell gave the sysctls back" if has_no_clock(status.rule) else "the kernel's own clock ended it"
    note = f"{by}, without a guardian"
    if status.state in ACTIVE_STATES and status.expires is not None and status.expires <= now:
        return replace(status, state=State.EXPIRED, note=f"its time was over: {note}", pps=0.0)
    unconfirmed = status.state is State.PROVISIONAL and status.confirm_by is not None
    if not unconfirmed or now < (status.confirm_by or 0.0):
        return status
    if status.stamp:
        return replace(status, state=State.CONFIRMED, confirm_by=None, note="its change was not confirmed")
    return replace(status, state=State.REVERTED, note=f"not confirmed in time: {note}", pps=0.0)


class RuleRates:
    """Packets a second of the active rules over a window of any length, from their counts at each poll.

    The guardian's own rates are of its last second. Beside the ledger's, which are of the console's window,
    they would differ for as long as the traffic changes. It counts less often than it is polled: the time
    between two counts is what packets are divided by.
    """

    def __init__(self) -> None:
        self._polls: deque[tuple[float, dict[str, RuleStatus]]] = deque()  # monotonic seconds; by rule id

    def note(self, statuses: Iterable[RuleStatus], now: float) -> None:
        """Remember the counts of a poll."""
        self._polls.append((now, {status.rule.id: status for status in statuses}))
        while self._polls[0][0] < now - _LONGEST_WINDOW_SECONDS:
            self._polls.popleft()

    def over(self, statuses: tuple[RuleStatus, ...], seconds: float) -> tuple[RuleStatus, ...]:
        """Return the statuses with the rates of the last `seconds`; the guardian's where nothing is older."""
        if not self._polls:
            return statuses
        now = self._polls[-1][0]
        then, before = min(self._polls, key=lambda poll: abs(poll[0] - (now - seconds)))
        if then == now:
            return statuses
        return tuple(self._rated(status, before.get(status.rule.id)) for status in statuses)

    @staticmethod
    def _rated(status: RuleStatus, before: RuleStatus | None) -> RuleStatus:
        counted, packets = (before.counted_at, before.packets) if before is not None else (None, 0)
        since = counted or status.rule.created  # a rule that was not listed then, or not counted, is newer
        seconds = (status.counted_at or 0.0) - since
        if status.state not in ACTIVE_STATES or not since or seconds <= 0:
            return status
        return replace(status, pps=max(status.packets - packets, 0) / seconds)


class Marks:
    """What is known of sources: the active rule that covers one wholly, and who an allow-listed one is."""

    def __init__(self, statuses: Iterable[RuleStatus], allowed: Iterable[AllowedPeer]) -> None:
        # Sets by prefix length: one lookup per length
        self._rules: list[tuple[str, frozenset[Prefix], frozenset[tuple[int, int]], str | None]] = []
        for rule in (status.rule for status in statuses if status.stops):
            lengths = frozenset((prefix.family, prefix.length) for prefix in rule.match.sources)
            self._rules.append((rule.id, frozenset(rule.match.sources), lengths, rule.origin))
        self._exact: dict[Prefix, str] = {}
        self._wide: list[tuple[Prefix, str]] = []
        for entry in allowed:
            if entry.prefix.is_address:
                self._exact.setdefault(entry.prefix, entry.who)
            else:
                self._wide.append((entry.prefix, entry.who))

    def mark(self, sources: snapshot.Sources) -> snapshot.Sources:
        """Return the tables with `active_rule` and `who` set on each entry of which they are known."""
        if not (self._rules or self._exact or self._wide):
            return sources
        return replace(
            sources,
            address=tuple(map(self._marked, sources.address)),
            prefix=tuple(map(self._marked, sources.prefix)),
            asn=tuple(self._marked(entry, f"asn:{entry.asn}") for entry in sources.asn),
            country=tuple(self._marked(entry, f"country:{entry.key}") for entry in sources.country),
        )

    def _marked(self, entry: snapshot.Source, named: str = "") -> snapshot.Source:
        prefix = entry.prefix
        if prefix is not None and (who := self._who(prefix)):
            entry = replace(entry, who=who)
        for rule_id, sources, lengths, origin in self._rules:
            if (named and named == origin) or (prefix is not None and _covers(prefix, sources, lengths)):
                return replace(entry, active_rule=rule_id)
        return entry

    def _who(self, prefix: Prefix) -> str:
        found = self._exact.get(prefix)
        return found or next((name for wide, name in self._wide if wide.contains(prefix)), "")


def _covers(prefix: Prefix, sources: frozenset[Prefix], lengths: frozenset[tuple[int, int]]) -> bool:
    for family, length in lengths:
        if family == prefix.family and length <= prefix.length:
            shift = prefix.bits - length
            if Prefix(family, prefix.value >> shift << shift, length) in sources:
                return True
    return False


def _allowed_peer(address: str, role: str, port: int, host: str = "", protocol: int = 0) -> AllowedPeer:
    peer = Prefix.parse(address)
    talk = Conversation(peer, int(protocol), int(port), Prefix.parse(host)) if host else None
    return AllowedPeer(peer, Role(role), int(port), talk)


_SURVEY_SECONDS = 2.0
_RETRY_SECONDS = 0.25  # until the guardian has made its first survey
_SURVEY_TIMEOUT_SECONDS = 0.2
_NAME = 64
_NAMES = ("name", "user", "unit", "container")


class SurveyMonitor:
    """Asks for the survey every 2 s; a failed request keeps the last one."""

    def __init__(self, link: GuardianLink, interfaces: Collection[str]) -> None:
        """Take the connection of the observation, and the names of the watched interfaces."""
        self._link = link
        self._interfaces = interfaces
        self._due = 0.0
        self.last = snapshot.Surroundings()
        self._receiving = ReceiveMeter()
        self.answering: tuple[tuple[str, str, int], ...] = ()  # protocol, address, port

    def poll(self) -> None:
        """Ask for a new survey if that is due."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _SURVEY_SECONDS
        try:
            data = self._link.demand(Survey(), seconds=_SURVEY_TIMEOUT_SECONDS).data
        except FwtopError:  # the screen reports a lost guardian
            return
        if data:
            counted = [tuple(row) for row in data.get("queues", ()) if row[0] in self._interfaces]
            self.last = replace(
                parse_survey(data, self._interfaces),
                queues=self._receiving.queues(counted),
                cores=self._receiving.cores(),
            )
            found = data.get("answering", ())
            self.answering = tuple((str(name), str(address), int(port)) for name, address, port in found)
        else:
            self._due = now + _RETRY_SECONDS


def parse_survey(data: dict[str, Any], interfaces: Collection[str]) -> snapshot.Surroundings:
    """Parse an answer; `rings` are those of the watched interfaces."""
    return snapshot.Surroundings(
        tuple(_service(item) for item in data.get("services", ())),
        tuple(
            snapshot.Ring(safe_text(name), int(size), int(most))
            for name, size, most in data.get("rings", ())
            if name in interfaces
        ),
        tuple(
            snapshot.FilterChain(safe_text(stage, limit=8), safe_text(name, limit=64), bool(drops))
            for stage, name, drops in data.get("chains", ())
        ),
        tuple(_service(item) for item in data.get("asks", ())),
        packet_sockets=tuple(_packet_socket(item) for item in data.get("packet_sockets", ())),
    )


def _packet_socket(data: object) -> snapshot.PacketSocket:
    found = of_plain(snapshot.PacketSocket, data)
    return replace(found, process=safe_text(found.process, limit=15), interface=safe_text(found.interface))


def _service(data: object) -> Service:
    """Parse a service; where its process is not known, it has the name of what usually has this port."""
    found = of_plain(Service, data)
    texts = {name: safe_text(getattr(found, name), limit=_NAME) for name in _NAMES}
    texts["name"] = texts["name"] or SERVICES.get((found.protocol, found.port), "")
    return replace(found, **texts)


_RULESET_SECONDS = 5.0


def read_ruleset(link: GuardianLink) -> Ruleset | None:
    """Ask for the last reading, which has the next one begun; None before the first.

    Raises FwtopError.
    """
    data = link.demand(Rules(), seconds=_RULESET_SECONDS).data.get("ruleset")
    try:
        return None if data is None else of_plain(Ruleset, data)
    except ValueError as error:
        raise FwtopError(f"the guardian's answer about rules makes no sense: {error}") from None
