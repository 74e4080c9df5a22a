"""The active rules of one network namespace, what they counted, and what life cycle and reports share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.found import connections, mosh_ports
from fwtop.guardian.limits import Limits, read_limits
from fwtop.guardian.mechanisms.kernel import Kernel
from fwtop.guardian.mechanisms.mechanism import Count, Wanted
from fwtop.guardian.ownership import single_threaded
from fwtop.guardian.records.journal import Entry, Journal
from fwtop.guardian.rules import guard
from fwtop.guardian.rules.validate import rule_of_wire
from fwtop.guardian.services import asked_by
from fwtop.kernel.links import Link, has_gro, readable_links, receiving_links
from fwtop.kernel.procfs import read_int, read_text
from fwtop.model.addresses.address import Prefix, says_more
from fwtop.model.addresses.roles import Role
from fwtop.model.errors import FwtopError
from fwtop.model.harm import Loss, Weight, Who
from fwtop.model.protocol import MAX_CLIENTS
from fwtop.model.rule import ACTIVE_STATES, Match, Rule, RuleStatus
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import protocol_name
from fwtop.netfilter.ctnetlink import udp_peers
from fwtop.rehearsal.breadth import why_broad_together
from fwtop.rehearsal.host import Client, Host
from fwtop.rehearsal.operators import exceptions, why_locked_out
from fwtop.rehearsal.rehearse import Rehearsal
from fwtop.rehearsal.segments import why_lost
from fwtop.render.numbers import utc
from fwtop.rules import kinds
from fwtop.rules.kind import KernelObjects, Machine, Surroundings
from fwtop.rules.kinds import as_kept, rounding_text
from fwtop.rules.xtables import COUNTED_ELEMENTS

if TYPE_CHECKING:  # numpy, which a guardian without lists needn't carry
    from fwtop.guardian.rules.named_lists import NamedLists


ALLOW_REFRESH_SECONDS = 5.0
_SETTLE_SECONDS = 0.2  # after a routing change: others usually follow at once
_MAX_SCALE = 14  # RFC 7323, 2.2
_ENTRY_SECONDS = 2.9  # between two readings of a rule's sources, whoever asks
_SHOWN = 50  # of them
_COUNT_SECONDS = 0.9  # kernel counters are read at most this often, whoever asks
_SHOWN_SOURCES = 200  # of a rule in a status answer


@single_threaded
class GuardianState:
    """Owned by the worker's thread."""

    def __init__(
        self,
        journal: Journal,
        kernel: Kernel,
        gather_allow: Callable[[], AllowList],
        limits: Callable[[], tuple[Limits, tuple[str, ...]]] = read_limits,
        make_lists: Callable[[GuardianState], NamedLists] | None = None,
        *,
        machine: Sequence[str] = (),
    ) -> None:
        """Take what the rules of a namespace need; `make_lists` finds its named lists when first needed.

        `machine` is what to tell of this machine with every rule.
        """
        self.journal = journal
        self.kernel = kernel
        self.limits = limits
        self.active: dict[str, Entry] = {}  # by rule id
        self.changing: set[str] = set()  # ids of those that a loader puts in as others now
        self.allow = AllowList(())  # as last read
        self.counters = RuleCounters(kernel)
        self.allow_trouble = ""  # why some rules don't have the allow-list as it is
        self._gather_allow = gather_allow
        self._make_lists = make_lists
        self._machine = machine
        self._lists: NamedLists | None = None
        self._allow_read_at = 0.0
        self._clients: tuple[object, tuple[Client, ...]] = (None, ())  # who told them, and these

    def active_rule(self, rule_id: str) -> Entry:
        """Return an active rule; raises FwtopError."""
        entry = self.active.get(rule_id)
        if entry is None:
            line = f"{self._not_active(rule_id)}; nothing was changed"
            raise FwtopError(line, reason="not_found", field="id")
        if rule_id in self.changing:
            line = f"rule {rule_id} is being changed: try again; nothing was changed"
            raise FwtopError(line, reason="busy", field="id", retryable=True)
        return entry

    def _not_active(self, rule_id: str) -> str:
        """Say when and why a rule ended, if that is known."""
        for one in self.journal.finished_entries():
            if one.rule.id == rule_id and one.ended is not None:
                return f"rule {rule_id} ended at {utc(one.ended)}: {one.note or one.state}"
        return f"no active rule {rule_id[:20]!r}; active: {', '.join(self.active) or 'none'}"

    def other_rules(self, rule: Rule) -> list[Rule]:
        """Return the active rules that stay once `rule` is installed.

        Raises FwtopError when it names a rule to replace that is not active.
        """
        if rule.replaces:
            self.active_rule(rule.replaces)
        return [entry.rule for entry in self.active.values() if entry.rule.id != rule.replaces]

    @property
    def lists(self) -> NamedLists:
        """The named lists; raises FwtopError where none are kept."""
        if self._lists is None:
            if self._make_lists is None:
                raise FwtopError("this guardian keeps no lists; nothing was changed")
            self._lists = self._make_lists(self)
            self.kernel.compiled.list_key = self._lists.key_of
        return self._lists

    @property
    def known_lists(self) -> NamedLists | None:
        """The named lists if any request or rule needed them: a guardian without lists stays small."""
        return self._lists

    def rule_of(self, data: dict[str, Any], sources: Sequence[Prefix]) -> Rule:
        """Read a rule of a request; one on a named list has its entries as sources. Raises FwtopError."""
        rule = rule_of_wire(data, sources)
        return rule if rule.list_name is None else self.lists.with_sources(rule)

    def with_list(self, rule: Rule) -> Rule:
        """Return a rule with its named list's entries; of a list whose record is lost it has none."""
        if rule.lists_used:
            _ = self.lists  # their entries end, and unfinished changes are undone
        if rule.list_name is None or rule.list_name not in self.lists:
            return rule
        return self.lists.with_sources(rule)

    @property
    def host(self) -> Host:
        """What root knows of this host, by the allow-list as last read."""
        own = [entry.prefix for entry in self.allow.entries if entry.role is Role.OWN]
        asked, clients = lambda: asked_by(own), self._clients[1]
        return Host(self.allow, self._why_untracked, asked, mosh_ports, self.entries_of, clients)

    def know_clients(self, console: object, told: Sequence[tuple[str, int, int]]) -> None:
        """Take a console's clients in place of those known before; raises ValueError."""
        if len(told) > MAX_CLIENTS:
            raise ValueError(f"more than {MAX_CLIENTS:,} clients")
        found = (Client(Prefix.parse(address), protocol, port) for address, protocol, port in told)
        self._clients = console, tuple(found)

    def forget_clients(self, console: object) -> None:
        """Forget them once the console that told them is gone."""
        if self._clients[0] is console:
            self._clients = None, ()

    def judge(self, rule: Rule, others: Sequence[Rule], *, console: bool) -> Rehearsal:
        """Check whether a rule may be installed beside others, by the allow-list as last read.

        Raises FwtopError. A `console` is held to what its keys need, and its rules are judged together.
        """
        host = self.host
        losses = [*guard.judge(rule, host, len(others)).losses]
        if double := guard.why_double(rule, others):
            losses.append(guard.barred(double))
        if console:
            if why := guard.why_not_for_console(rule, self.active):
                losses.insert(0, guard.barred(why))
            broad = Rehearsal(tuple(losses)).broad
            mine = [one for one in guard.made_by_consoles(self.active) if not one.counts_only]
            together = None if rule.counts_only else why_broad_together(rule, mine, host)
            if broad is None and together is not None:
                losses.append(together)
                broad = together.words
            if broad is not None:
                command = guard.command_of(rule, force=True)
                refused = guard.force_refused(broad, self.limits()[0], command)
                losses += [guard.barred(refused)] if refused else []
        return Rehearsal(tuple(losses))

    def _why_untracked(self, match: Match, ports: frozenset[int]) -> Loss | None:
        """Say what the host's own rules would drop of what is no longer tracked."""
        from fwtop.netfilter import stateless  # few guardians see such a rule

        try:
            own = stateless.read_own(self.kernel.chains.variants.in_use.variant, match.families)
        except FwtopError as error:
            words = f"whether logins would still pass this host's own rules is unknown: {error}"
            return Loss(Who.LOGINS, safe_text(words, limit=300), Weight.NEEDS_FORCE)
        lost = why_lost(match, ports, stateless.tracked_only(*own))
        if lost is None and match.dport is not None and (rule := stateless.closes(*own, match)):
            service = f"{match.dport}/{protocol_name(match.protocol or 0)}"
            words = f"your firewall will then drop ALL of {service}: it lets in only tracked packets"
            return Loss(Who.EVERYBODY, f"{words}, '{safe_text(rule, limit=140)}'", Weight.NEEDS_FORCE)
        return lost

    def check_lists(self, rules: Sequence[Rule], force: bool) -> None:
        """Raise FwtopError if active rules may not have these sources instead of theirs."""
        self.fresh_allow()
        limits = self.limits()[0]
        for rule in rules:
            verdict = guard.judge(rule, self.host, 0)
            if verdict.refused is not None:
                raise FwtopError(f"refused for rule {rule.id}: {verdict.refused}; nothing was changed")
            if verdict.broad is not None and not force:
                raise FwtopError(
                    f"refused without --force for rule {rule.id}: {verdict.broad}; nothing was changed"
                )
        ids = {rule.id for rule in rules}
        others = [entry.rule for entry in self.active.values() if entry.rule.id not in ids]
        guard.check_share(rules[0], [*others, *rules[1:]], limits)

    def list_changed(self, rule: Rule) -> None:
        """Expect the kernel to have what an active rule's list holds now."""
        self.kernel.expect(rule, self.objects_of(rule))
        self.counters.sources_changed(rule.id)

    def objects_of(self, rule: Rule) -> KernelObjects:
        """Return what a rule consists of in the kernel; raises FwtopError."""
        if rule.protection is not None:
            entries = {name: self.entries_of(name) for name in rule.lists_used}
            others = (entry.rule for entry in self.active.values())
            around = Surroundings(
                lists=entries, higher=guard.deciding_before(rule, others), machine=_THIS_MACHINE
            )
        else:
            around = Surroundings(exceptions(rule, self.allow), self.allow.known, machine=_THIS_MACHINE)
        try:
            return kinds.build(rule, around)
        except FwtopError as error:
            error.field = error.field or "rule"
            raise

    def wanted(self, rule: Rule, seconds: int) -> Wanted:
        """Return what a rule is to have in the kernel, by the allow-list as last read; raises FwtopError."""
        return Wanted(rule, self.objects_of(rule), self.allow, seconds)

    def entries_of(self, name: str) -> Sequence[Prefix]:
        """Return what a named list holds; raises FwtopError."""
        rows = self.lists.find(name).rows
        if says_more(rows):
            raise FwtopError(
                f"list {name} holds {rows.words}: an access list holds addresses; nothing was changed", 2
            )
        return rows

    def check_access(self, name: str, entries: Sequence[Prefix]) -> None:
        """Raise FwtopError if an access list that holds only these would lock the operator out of a port."""

        def as_changed(other: str) -> Sequence[Prefix]:
            return entries if other == name else self.entries_of(other)

        for entry in list(self.active.values()):
            if name in entry.rule.lists_used and (why := why_locked_out(entry.rule, self.allow, as_changed)):
                raise FwtopError(f"refused for rule {entry.rule.id}: {why}; nothing was changed")

    def fresh_allow(self) -> AllowList:
        """Read the allow-list again."""
        self.allow = self._gather_allow().without_overruled(entry.rule for entry in self.active.values())
        self._allow_read_at = time.monotonic()
        return self.allow

    def known_allow(self) -> AllowList:
        """Return the allow-list as last read: each tick reads it when it is due, while rules are active."""
        return self.allow if self.allow_known else self.fresh_allow()

    @property
    def allow_known(self) -> bool:
        """Whether the allow-list was ever read."""
        return bool(self._allow_read_at)

    def allow_due(self) -> float:
        """Return when the allow-list is to be read again, CLOCK_MONOTONIC seconds."""
        return self._allow_read_at + ALLOW_REFRESH_SECONDS

    def allow_changed(self) -> None:
        """Read the allow-list again shortly: a route or an own address changed."""
        soon = time.monotonic() - ALLOW_REFRESH_SECONDS + _SETTLE_SECONDS
        self._allow_read_at = min(self._allow_read_at, soon)

    def status_of(self, entry: Entry, *, entries: bool = False) -> dict[str, Any]:
        """Return an active rule as `status` shows it; with its busiest sources if `entries`."""
        short = self.kernel.look(self.active).get(entry.rule.id)
        shown = self.counters.status_of(entry, entries=entries)
        return {**shown, "acting": short is None, "not_acting": safe_text(short.text) if short else ""}

    def list_counts(self, name: str, *, busiest: bool = False) -> dict[str, int]:
        """Return the packets that rules counted of a list's entries, as far as the kernel counts each one."""
        counts: dict[str, int] = {}
        kinds_seen = set()
        for entry in self.lists.users(name):
            if entry.rule.kind in kinds_seen:  # the rules of one share their counters
                continue
            kinds_seen.add(entry.rule.kind)
            rule = entry.rule
            found = self.counters.busiest(rule) if busiest else self.kernel.entries(rule, COUNTED_ELEMENTS)
            for prefix, packets in found.items():
                counts[prefix] = counts.get(prefix, 0) + packets
        return counts

    def told_of(self, rule: Rule, judged: Sequence[str], notes: Sequence[str]) -> list[str]:
        """Return what to tell whoever plans or installs a rule, with what was judged of it.

        `notes` are about its objects in the kernel.
        """
        told = [*self._machine, *self.warnings(), *self.allow.warnings, *judged, *notes]
        if rounded := rounding_text(rule):
            told.append(rounded)
        told += guard.bridge_notes(rule, self.kernel.compiled.interfaces)
        for part in rule.parts or (rule,):
            if kinds.of(part.kind).untracks and not part.stateless:
                # Imported here: few guardians see such a rule.
                from fwtop.netfilter.stateless import notrack_warnings

                told += notrack_warnings(self.kernel.chains.variants.in_use.variant, part.match)
        return told

    def warnings(self) -> list[str]:
        """Return what the operator should know about the journal and the limits file."""
        troubles = [text for text in (self.journal.trouble(), self.allow_trouble) if text]
        return [*self.journal.warnings, *troubles, *self.limits()[1]]


def _memory_bytes() -> int:
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return 0


def _receiving() -> list[Link]:
    return receiving_links(readable_links())


def _window_scale() -> int:
    """Return it as the kernel chooses it (net/ipv4/tcp_output.c, tcp_select_initial_window)."""
    most = max(int((read_text("/proc/sys/net/ipv4/tcp_rmem").split() or ["0"])[-1]),
               read_int("/proc/sys/net/core/rmem_max"))  # fmt: skip
    return min(_MAX_SCALE, max(0, most.bit_length() - 16))


def _takes_stamps() -> bool:
    """Return whether a listener takes what the SYN proxy makes of time stamps.

    From the version on that counts TSEcrRejected, a listener checks the echoed time stamp of a handshake's
    last packet; nf_synproxy adds its offset to that one, so it would be refused and sent again after a second
    (measured on Linux 6.18).
    """
    return "TSEcrRejected" not in read_text("/proc/net/netstat")


_THIS_MACHINE = Machine(
    memory_bytes=_memory_bytes,
    tcp_peers=lambda port: [(one.peer, one.peer_port) for _, one in connections((port,))],
    udp_peers=udp_peers,
    mtu=lambda: min((link.mtu for link in _receiving()), default=1500),
    window_scale=_window_scale,
    without_gro=lambda: [link.name for link in _receiving() if not has_gro(link.name)],
    takes_stamps=_takes_stamps,
)


class RuleCounters:
    """The kernel's counters of all rules, as last read."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._read_at = 0.0
        self._counted_at = 0.0  # Unix seconds
        self._counts: dict[str, Count] = {}
        self._pps: dict[str, float] = {}
        self._entries_read: dict[str, tuple[float, dict[str, int]]] = {}  # by rule: when and what

    def read(self, *, force: bool = False) -> None:
        """Read the counters unless they are recent; rates are over the time between two readings."""
        now = time.monotonic()
        elapsed = now - self._read_at
        if elapsed < _COUNT_SECONDS and not force:
            return
        counts = self._kernel.counts()
        for rule_id, count in counts.items():
            before = self._counts.get(rule_id)
            if before is not None and elapsed >= _COUNT_SECONDS:
                self._pps[rule_id] = max(0, count.packets - before.packets) / elapsed
        # What is gone from the kernel drops nothing
        self._pps = {name: pps for name, pps in self._pps.items() if name in counts}
        self._counts, self._read_at = counts, now
        # Half way through: one kind of rule is read after another
        self._counted_at = time.time() - (time.monotonic() - now) / 2

    def counted(self, entry: Entry) -> Entry:
        """Return an entry with its present counts."""
        count = self._counts.get(entry.rule.id)
        return replace(entry, packets=count.packets, bytes=count.bytes) if count is not None else entry

    def busiest(self, rule: Rule) -> dict[str, int]:
        """Return the packets of a rule's busiest sources."""
        now = time.monotonic()
        before = self._entries_read.get(rule.id)
        if before is None or now - before[0] >= _ENTRY_SECONDS:
            before = self._entries_read[rule.id] = now, self._kernel.entries(rule, _SHOWN)
        return before[1]

    def sources_changed(self, rule_id: str) -> None:
        """Read a rule's sources anew: some of them may be gone."""
        self._entries_read.pop(rule_id, None)

    def forget(self, rule_id: str) -> None:
        """Forget a rule that ended."""
        self._pps.pop(rule_id, None)
        self._entries_read.pop(rule_id, None)

    def status_of(self, entry: Entry, *, entries: bool = False) -> dict[str, Any]:
        """Return a rule's state for an answer; with its busiest sources if `entries`."""
        counted = self.counted(entry)
        active = entry.state in ACTIVE_STATES
        wall = time.time() - time.monotonic()
        status = RuleStatus(
            rule=_shortened(entry.rule),
            state=entry.state,
            packets=counted.packets,
            bytes=counted.bytes,
            pps=self._pps.get(entry.rule.id, 0.0) if active else 0.0,
            packets_before=entry.packets_before,
            stamp=entry.stamp,
            counted_at=self._counted_at if entry.rule.id in self._counts else None,
            expires=wall + entry.expires if active else entry.ended,
            confirm_by=wall + entry.confirm_by if active and entry.confirm_by is not None else None,
            note=self._note(entry) if active else entry.note,
            entries=self.busiest(entry.rule) if entries else {},
            sources_total=len(entry.rule.match.sources) + entry.sources_cut,
            kept_per_second=kept.per_second if (kept := as_kept(entry.rule)) is not None else None,
        )
        return status.to_dict()

    def _note(self, entry: Entry) -> str:
        return "; ".join(
            filter(None, (self._kernel.compiled.place(entry.rule, entry.note), rounding_text(entry.rule)))
        )


def _shortened(rule: Rule) -> Rule:
    return replace(rule, match=replace(rule.match, sources=rule.match.sources[:_SHOWN_SOURCES]))
