"""The checks before a rule is installed: nothing against the allow-list, nothing broad unconfirmed.

Nobody may lock the operator out by the level of a protected port or by a list: an SSH session that is open
passes in its role, but the one after it must get in, too, so its address has to be on an access list of the
port, or listed by the operator. What a console may do depends on the active rules: whose they are, and what
they add up to. Notes say what else a rule does not do: clients of mosh roam, so that no address can be put on
the allow-list for them, and on a machine that bridges br_netfilter decides what rules in netfilter meet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import Allowed, AllowList
from fwtop.guardian.allow.found import mosh_ports
from fwtop.guardian.limits import Limits
from fwtop.guardian.records.journal import Entry
from fwtop.guardian.rules.breadth import WhyUntracked, why_broad
from fwtop.kernel import namespaces
from fwtop.kernel.bridges import Bridge, crossed
from fwtop.kernel.links import readable_links, receiving_links
from fwtop.model import console_scope
from fwtop.model.addresses.address import SPACE, Listed, Prefix, covered, cut_out, listed, of_ports, sizes
from fwtop.model.addresses.roles import Role
from fwtop.model.errors import FwtopError
from fwtop.model.rule import POLICY, POLICY_TRIAL, Level, Match, Rule, State
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.render.numbers import percent
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import command_line, drops_nothing, heeds_limit, of, why_too_many
from fwtop.rules.overlap import is_double

MAX_RULES = 256  # active at once: every line costs each packet that passes the chain
_MAX_NAMED = 3  # addresses in a warning
_IN_ROLE = {
    Role.DNS: "{} resolves names for this host: answers from its port 53, forged or not, still pass",
    Role.NTP: "{} gives this host the time: UDP from its port 123, forged or not, still passes",
    Role.GATEWAY: "{} is this host's gateway: neighbour discovery, ICMP and routing protocols still pass",
    Role.OWN: "{} is this host's own address: loopback still passes",
    Role.SSH: "{} is logged in by ssh: that session and new ones still pass",
}

_BEHIND = {  # on a machine that forwards
    Role.SSH: "{}: open SSH sessions with hosts behind this machine still pass",
    Role.DNS: "{} resolves names for hosts behind this machine: answers from its port 53 to them still pass",
    Role.NTP: "{} gives hosts behind this machine the time: UDP from its port 123 to them still passes",
    Role.ROUTER: "{} is a router behind this machine: its routing protocols still pass",
}
Entries = Callable[[str], Sequence[Prefix]]  # what a named list holds


class Verdict(Struct, frozen=True):
    """Refused with a reason, or allowed, perhaps only with force."""

    refused: str | None = None
    broad: str | None = None  # why force is needed
    warnings: tuple[str, ...] = ()


def judge(
    rule: Rule, allow: AllowList, active_rules: int, untracked: WhyUntracked = lambda *_: None
) -> Verdict:
    """Check whether a rule may be installed now; `untracked` as in `why_broad`."""
    hits = (_hits_allowed(part, allow) for part in rule.parts or (rule,))
    full = f"{active_rules} rules are active already; undo some first" if active_rules >= MAX_RULES else None
    refused = full or why_too_many(rule.kind, rule.match.sources) or next(filter(None, hits), None)
    empty = rule.list_name is not None and not rule.match.sources  # judged as it is filled
    broad = None if empty else why_broad(rule, allow, untracked)
    if broad is None and (barred := _barred(rule, allow)):
        broad = f"the whole list is where operators are logged in: {_named(barred)}"
    passing = (line for part in rule.parts or (rule,) for line in _still_pass(part, allow))
    return Verdict(refused, broad, (*allow.warnings, *dict.fromkeys(passing)))


def why_double(rule: Rule, others: Sequence[Rule]) -> str | None:
    """Return which active rule does the same already, None if there is none.

    A policy is independent of temporary rules, and tried beside the one before it.
    """
    if rule.created_by in (POLICY, POLICY_TRIAL):
        return None
    found = next((other.id for other in others if is_double(rule, other)), None)
    if found is None:
        return None
    return (
        f"rule {found} does this already: 'fwtop keep {found}' renews it, 'fwtop repair {found}' restores it"
    )


def _hits_allowed(rule: Rule, allow: AllowList) -> str | None:
    """Refuse sources that hold what the operator listed, or a session's peer that could not log in again.

    Lists that somebody else compiled (asn:, country:, @file) are cut around both instead: see `exceptions`
    and `around_sessions`. Named lists are shared and stay as they are; what the operator listed passes.
    Rules that name no source can't reach them, as the allow-list comes first.
    """
    broadest = [listed(rule.match.sources).shortest(family) for family in rule.match.families]
    if any(prefix is not None and prefix.length == 0 for prefix in broadest):
        return "a source of /0 is everybody; nothing was installed"
    named = rule.list_name is not None
    if (rule.origin is not None and not named) or of(rule.kind).untracks:
        return None
    index = listed(rule.match.sources)
    for entry in allow.entries:
        is_operators = entry.role is Role.OPERATOR and not named  # what a named list has of it passes
        if not is_operators and not _hits_session(rule.match, entry):
            continue
        if of_ports(rule.match.sources) and entry.session is not None:
            index = rule.match.sources.meeting(TCP, entry.session.local_port)
        hit = index.overlapping(entry.prefix)
        if hit is not None:
            return f"{hit} would match {entry.prefix}, which is allow-listed: {entry.why}"
    return None


def _hits_session(match: Match, entry: Allowed) -> bool:
    """Return whether a match, its addresses aside, could hit the packets of an SSH session."""
    session = entry.session
    return session is not None and _hits_login(match, entry) and match.sport in (None, session.peer_port)


def _hits_login(match: Match, entry: Allowed) -> bool:
    """Return whether a match, its addresses aside, could hit a login from where somebody is logged in."""
    if entry.session is None or match.icmp_type is not None:
        return False
    wanted = (
        (match.family, entry.prefix.family),
        (match.protocol, TCP),
        (match.dport, entry.session.local_port),
    )
    return all(value in (None, own) for value, own in wanted)


def exceptions(rule: Rule, allow: AllowList) -> tuple[Prefix, ...]:
    """Return the operator's prefixes that a compiled list must be cut around."""
    if rule.origin is None or rule.list_name is not None:
        return ()
    index = listed(rule.match.sources)
    return tuple(prefix for prefix in allow.listed if index.overlapping(prefix) is not None)


def around_sessions(rule: Rule, allow: AllowList) -> tuple[Rule, tuple[str, ...]]:
    """Cut the addresses of operators' sessions out of a compiled list, and return a warning that says so.

    A list that holds nothing else is returned as it is; `judge` then asks for force.
    """
    holes = _barred(rule, allow)
    sources = cut_out(rule.match.sources, holes)
    if not holes or not sources:
        return rule, ()
    line = f"{_named(holes)}: logged in by ssh, so cut out of the list; everything from there passes"
    return replace(rule, match=replace(rule.match, sources=sources)), (line,)


def _barred(rule: Rule, allow: AllowList) -> list[Prefix]:
    """Return the sessions' addresses on a compiled list from where nobody could log in again."""
    if (
        rule.origin is None
        or rule.list_name is not None
        or drops_nothing(rule)
        or rule.match.sport is not None
    ):
        return []
    index = listed(rule.match.sources)
    peers = {entry.prefix for entry in allow.entries if _hits_login(rule.match, entry)}
    return sorted(peer for peer in peers if index.overlapping(peer) is not None)


def _still_pass(rule: Rule, allow: AllowList) -> tuple[str, ...]:
    if not rule.match.sources or drops_nothing(rule):
        return ()
    index: Listed = listed(rule.match.sources)
    passing = [(_IN_ROLE.get(entry.role), entry.prefix) for entry in allow.entries]
    passing += [(_BEHIND[item.role], sender) for item in allow.behind for sender in item.conversation.senders]
    found: dict[str, dict[str, None]] = {}  # who still passes, by what is said of that
    for line, prefix in passing:
        if line is not None and index.overlapping(prefix) is not None:
            found.setdefault(line, {})[str(prefix)] = None
    return tuple(line.format(_named(list(names))) for line, names in found.items())


def _named(names: list[str] | list[Prefix]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(map(str, names[:_MAX_NAMED])) + (f" (and {more} more)" if more > 0 else "")


def check_share(rule: Rule, active: Sequence[Rule], limits: Limits) -> None:
    """Raise FwtopError when this rule and the active ones together would block too many addresses."""
    if rule.parts:
        for part in rule.parts:
            check_share(part, active, limits)
        return
    if not _blocks(rule):
        return
    blocking = [rule, *(other for other in active if _blocks(other))]
    for family in rule.match.families:
        lists = [item.match.sources for item in blocking]
        most = limits.max_blocked_share * SPACE[family]
        if sum(sizes(item, family) for item in lists) <= most:
            continue
        blocked = covered(lists, family)
        if blocked > most:
            raise FwtopError(
                f"with this rule {percent(min(blocked / SPACE[family], 1.0))} of all IPv{family} addresses "
                f"would be blocked, at most {percent(limits.max_blocked_share)} may be "
                f"(max_blocked_share in {limits.file}); nothing was installed"
            )


def force_refused(broad: str, limits: Limits, command: str) -> str | None:
    """Return why a console may not install an overly broad rule, and what can; None if it may."""
    if limits.console_may_force:
        return None
    allowed = f"unless {limits.file} says console_may_force = true"
    return f"{broad}; a screen may not install such a rule {allowed}; {command}"


def _blocks(rule: Rule) -> bool:
    """Whether a rule drops what its sources send, further conditions or not; a limit leaves something."""
    return of(rule.kind).is_filter and not heeds_limit(rule) and bool(rule.match.sources)


def why_locked_out(rule: Rule, allow: AllowList, entries: Entries) -> str | None:
    """Return why a level would lock somebody out who is logged in by ssh, None if it doesn't."""
    protection = rule.protection
    if protection is None or protection.level is Level.OPEN or rule.match.protocol != TCP:
        return None
    lets_in = (
        [listed(entries(name)) for name in protection.lists] if protection.level is Level.PROTECTED else []
    )
    lets_in.append(listed(allow.listed))
    for entry in allow.entries:
        session = entry.session
        if session is None or session.local_port != rule.match.dport:
            continue
        if rule.match.family not in (None, entry.prefix.family):
            continue
        if all(index.overlapping(entry.prefix) is None for index in lets_in):
            where = "an access list or /etc/fwtop/allow" if lets_in[1:] else "/etc/fwtop/allow"
            return (
                f"{entry.prefix} is logged in by ssh on port {session.local_port} and could not log in "
                f"again; put it on {where} first"
            )
    return None


def deciding_before(rule: Rule, active: Iterable[Rule]) -> frozenset[str]:
    """Return the ids of the rules that decide about a port before this one: of one priority, newer ones."""
    if rule.protection is None:
        return frozenset()
    mine = (rule.protection.priority, _age(rule))
    return frozenset(
        other.id
        for other in active
        if other.protection is not None
        and other.id != rule.id
        and (other.protection.priority, _age(other)) > mine
    )


def _age(rule: Rule) -> float:
    """Return what grows with newer rules; a rule that has no number yet is the newest."""
    return float(rule.id) if rule.id not in ("", "0") else float("inf")


def only_level_differs(old: Rule, new: Rule) -> bool:
    """Return whether a rule becomes another one by filling its enable sets."""
    if old.protection is None or new.protection is None:
        return False
    return old.match == new.match and replace(old.protection, level=new.protection.level) == new.protection


def command(words: str) -> str:
    """Return what to type in another terminal."""
    name = namespaces.name_of(os.stat("/proc/self/ns/net").st_ino)
    return f"in another terminal: sudo {words}{f' --netns {name}' if name is not None else ''}"


def command_of(rule: Rule, *, force: bool = False) -> str:
    """Return the command that installs a rule; of one that no single line can, a hint."""
    line = command_line(rule)
    return command(f"{line or 'fwtop block @FILE'}{' --force' if force else ''}")


def why_not_for_console(rule: Rule, active: Mapping[str, Entry]) -> str | None:
    """Return why a console may not install a rule beside the active ones, with the command that can."""
    if why := console_scope.why_not(rule):
        return f"{why}; {command_of(rule)}"
    replaced = active.get(rule.replaces)
    if replaced is not None and (owner := console_scope.owner_elsewhere(replaced.rule)):
        return f"rule {rule.replaces} is part of {owner}, which a screen may not replace; {command_of(rule)}"
    if len(made_by_consoles(active)) >= console_scope.MAX_RULES:
        return f"screens have {console_scope.MAX_RULES} active rules already: undo some first"
    return None


def made_by_consoles(active: Mapping[str, Entry]) -> list[Rule]:
    """Return the active rules that consoles asked for."""
    return [entry.rule for entry in active.values() if console_scope.made_by_console(entry.rule)]


def check_keep(entry: Entry, ttl_seconds: int) -> None:
    """Raise FwtopError if a console may not keep a rule for so long: one on trial has its own time."""
    _check_owner(entry, f"keep {entry.rule.id}")
    if ttl_seconds > console_scope.MAX_TTL_SECONDS and entry.state is not State.PROVISIONAL:
        words = f"fwtop keep {entry.rule.id} --ttl {ttl_seconds}s"
        raise FwtopError(f"ttl_seconds: a screen keeps rules for a day at most; {command(words)}", 3)


def check_undo(entries: Iterable[Entry]) -> None:
    """Raise FwtopError if a console may not end some rules."""
    for entry in entries:
        _check_owner(entry, f"undo {entry.rule.id}")


def _check_owner(entry: Entry, words: str) -> None:
    if owner := console_scope.owner_elsewhere(entry.rule):
        line = f"rule {entry.rule.id} is part of {owner}, which a screen may not change"
        raise FwtopError(f"{line}; {command(f'fwtop {words}')}; nothing was changed", 3)


def mosh_warning(rule: Rule, allow: AllowList) -> tuple[str, ...]:
    """Say that a rule cuts open mosh sessions; empty where it can't, or where there are none."""
    if rule.parts:
        return tuple(dict.fromkeys(line for part in rule.parts for line in mosh_warning(part, allow)))
    match = rule.match
    no_udp = match.protocol not in (None, UDP) or match.icmp_type is not None or match.reads_tcp
    # An open session of a protected port
    goes_on = rule.protection is not None and not rule.protection.strict
    if drops_nothing(rule) or goes_on or no_udp or match.sport is not None or match.payload:
        return ()
    if match.sources:
        index = listed(match.sources)
        peers = (entry.prefix for entry in allow.entries if entry.role is Role.SSH)
        if all(index.overlapping(peer) is None for peer in peers):
            return ()
    ports = sorted(port for port in mosh_ports() if match.dport in (None, port))
    if not ports:
        return ()
    shown = ", ".join(map(str, ports[:3]))
    return (f"mosh sessions on UDP port {shown} may be cut: /etc/fwtop/allow can list your address",)


def bridge_notes(rule: Rule, interfaces: Collection[str]) -> tuple[str, ...]:
    """Say which bridged packets a rule can't meet, on the bridges of the watched interfaces."""
    if rule.parts:
        found = (note for part in rule.parts for note in bridge_notes(part, interfaces))
        return tuple(dict.fromkeys(found))
    links = readable_links()
    chosen = receiving_links(links, interfaces)
    layer = of(rule.kind).layer
    if layer <= Layer.NETDEV:  # at the ports, before a bridge decides
        masters = {link.index for link in chosen}
        bridges = [bridge for bridge in crossed(links, chosen) if bridge.link.index in masters]
        return tuple(
            _beside(bridge) for bridge in bridges if not any(port.index in masters for port in bridge.ports)
        )
    if layer is Layer.NOWHERE:
        return ()
    return tuple(note for bridge in crossed(links, chosen) if (note := _unseen(bridge, rule)))


def _beside(bridge: Bridge) -> str:
    return (
        f"it meets what bridge {bridge.words} hands to this machine, not what it passes on: watch a port, "
        f"fwtop -i {bridge.ports[0].name}, and the rule goes there"
    )


def _unseen(bridge: Bridge, rule: Rule) -> str:
    """Say what netfilter does not see of a bridge; "" if nothing."""
    families = sorted(set(rule.match.families) - bridge.netfilter)
    if not families:
        return ""
    switch = " and ".join(f"bridge-nf-call-ip{'' if family == 4 else '6'}tables" for family in families)
    instead = of(rule.kind).on_bridges
    return (
        f"bridge {bridge.words} passes packets on without netfilter (net.bridge.{switch} is 0): this rule "
        f"meets only what comes to this machine itself" + (f"; {instead}" if instead else "")
    )
