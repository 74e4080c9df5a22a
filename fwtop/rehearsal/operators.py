"""What a rule does to who operates this host: those logged in by SSH, those listed, and where they log in.

Nobody may lock the operator out by the level of a protected port or by a list: an SSH session that is open
passes in its role, but the one after it must get in, too, so its address has to be on an access list of the
port, or listed by the operator. Clients of mosh roam, so that no address can be put on the allow-list for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from fwtop.model.addresses.address import Listed, Prefix, cut_out, listed, of_pairs, of_ports
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.harm import Loss, Weight, Who
from fwtop.model.rule import Level, Match, Rule
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.rehearsal.host import Host, KnownPeers
from fwtop.rules.kinds import drops_nothing, of

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


def of_operators(rule: Rule, host: Host) -> Iterator[Loss]:
    """Yield what a rule does to operators: first what refuses it, then what asks for force, then the rest."""
    allow, parts = host.allow, rule.parts or (rule,)
    reasons = [_why_refused(part, allow) for part in parts]
    if host.entries_of is not None:
        reasons.append(why_locked_out(rule, allow, host.entries_of))
    yield from (Loss(Who.OPERATORS, why, Weight.REFUSED) for why in reasons if why is not None)
    if barred := _barred(rule, allow):
        words = f"the whole list is where operators are logged in: {_named(barred)}"
        yield Loss(Who.OPERATORS, words, Weight.NEEDS_FORCE)
    told = [line for part in parts for line in (*_cut_mosh(part, host), *_still_pass(part, allow))]
    yield from (Loss(Who.OPERATORS, line) for line in dict.fromkeys(told))


def in_full(allow: KnownPeers) -> tuple[Prefix, ...]:
    """Return what passes in full: the operator's own entries; 0/0 is left out (hash:net can't hold it)."""
    return tuple(one.prefix for one in allow.entries if one.role is Role.OPERATOR and one.prefix.length)


def _why_refused(rule: Rule, allow: KnownPeers) -> str | None:
    """Refuse sources that hold what the operator listed, or a session's peer that could not log in again.

    Lists that somebody else compiled (asn:, country:, @file) are cut around both instead: see `exceptions`
    and `around_sessions`. Named lists are shared and stay as they are; what the operator listed passes.
    Rules that name no source can't reach them, as the allow-list comes first.
    """
    sources, whole = rule.match.sources, listed(rule.match.sources)
    broadest = [whole.shortest(family) for family in rule.match.families]
    if any(prefix is not None and prefix.length == 0 for prefix in broadest):
        return "a source of /0 is everybody; nothing was installed"
    named = rule.list_name is not None
    if (rule.origin is not None and not named) or of(rule.kind).untracks:
        return None
    for entry in allow.entries:
        is_operators = entry.role is Role.OPERATOR and not named  # what a named list has of it passes
        if not is_operators and not _hits_session(rule.match, entry):
            continue
        index = whole
        if of_ports(sources) and entry.login_port:
            index = sources.meeting(TCP, entry.login_port)
        if of_pairs(sources):
            index = sources.sent_to(one.prefix for one in allow.entries if one.role is Role.OWN)
        hit = index.overlapping(entry.prefix)
        if hit is not None:
            return f"{hit} would match {entry.prefix}, which is allow-listed: {entry.why}"
    return None


def _hits_session(match: Match, entry: AllowedPeer) -> bool:
    """Return whether a match, its addresses aside, could hit the packets of an SSH session."""
    return _hits_login(match, entry) and match.sport in (None, entry.port)


def _hits_login(match: Match, entry: AllowedPeer) -> bool:
    """Return whether a match, its addresses aside, could hit a login from where somebody is logged in."""
    if not entry.login_port or match.icmp_type is not None:
        return False
    wanted = (
        (match.family, entry.prefix.family),
        (match.protocol, TCP),
        (match.dport, entry.login_port),
    )
    return all(value in (None, own) for value, own in wanted)


def exceptions(rule: Rule, allow: KnownPeers) -> tuple[Prefix, ...]:
    """Return the operator's prefixes that a compiled list must be cut around."""
    if rule.origin is None or rule.list_name is not None:
        return ()
    index = listed(rule.match.sources)
    return tuple(prefix for prefix in in_full(allow) if index.overlapping(prefix) is not None)


def around_sessions(rule: Rule, allow: KnownPeers) -> tuple[Rule, tuple[str, ...]]:
    """Cut the addresses of operators' sessions out of a compiled list, and return a warning that says so.

    A list that holds nothing else is returned as it is; `judge` then asks for force.
    """
    holes = _barred(rule, allow)
    sources = cut_out(rule.match.sources, holes)
    if not holes or not sources:
        return rule, ()
    line = f"{_named(holes)}: logged in by ssh, so cut out of the list; everything from there passes"
    return replace(rule, match=replace(rule.match, sources=sources)), (line,)


def _barred(rule: Rule, allow: KnownPeers) -> list[Prefix]:
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


def _still_pass(rule: Rule, allow: KnownPeers) -> tuple[str, ...]:
    """Say who on a list of sources still passes in his role."""
    if not rule.match.sources or drops_nothing(rule):
        return ()
    passing = [(_IN_ROLE.get(entry.role), entry.prefix) for entry in allow.entries]
    talks = ((item.role, item.conversation) for item in allow.behind)
    passing += [(_BEHIND.get(role), sender) for role, talk in talks if talk for sender in talk.senders]
    index: Listed = listed(rule.match.sources) if passing else listed(())
    found: dict[str, dict[str, None]] = {}  # who still passes, by what is said of that
    for line, prefix in passing:
        if line is not None and index.overlapping(prefix) is not None:
            found.setdefault(line, {})[str(prefix)] = None
    return tuple(line.format(_named(list(names))) for line, names in found.items())


def _named(names: list[str] | list[Prefix]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(map(str, names[:_MAX_NAMED])) + (f" (and {more} more)" if more > 0 else "")


def why_locked_out(rule: Rule, allow: KnownPeers, entries: Callable[[str], Sequence[Prefix]]) -> str | None:
    """Return why a level would lock somebody out who is logged in by ssh, None if it doesn't."""
    protection = rule.protection
    if protection is None or protection.level is Level.OPEN or rule.match.protocol != TCP:
        return None
    lets_in = (
        [listed(entries(name)) for name in protection.lists] if protection.level is Level.PROTECTED else []
    )
    lets_in.append(listed(in_full(allow)))
    for entry in allow.entries:
        if not entry.login_port or entry.login_port != rule.match.dport:
            continue
        if rule.match.family not in (None, entry.prefix.family):
            continue
        if all(index.overlapping(entry.prefix) is None for index in lets_in):
            where = "an access list or /etc/fwtop/allow" if lets_in[1:] else "/etc/fwtop/allow"
            return (
                f"{entry.prefix} is logged in by ssh on port {entry.login_port} and could not log in "
                f"again; put it on {where} first"
            )
    return None


def _cut_mosh(rule: Rule, host: Host) -> tuple[str, ...]:
    """Say that a rule cuts open mosh sessions; empty where it can't, or where there are none."""
    match = rule.match
    no_udp = match.protocol not in (None, UDP) or match.icmp_type is not None or match.reads_tcp
    # An open session of a protected port
    goes_on = rule.protection is not None and not rule.protection.strict
    if drops_nothing(rule) or goes_on or no_udp or match.sport is not None or match.payload:
        return ()
    ports = sorted(port for port in host.mosh_ports() if match.dport in (None, port))
    if not ports:
        return ()
    if match.sources:
        index = listed(match.sources)
        peers = (entry.prefix for entry in host.allow.entries if entry.role is Role.SSH)
        if all(index.overlapping(peer) is None for peer in peers):
            return ()
    shown = ", ".join(map(str, ports[:3]))
    return (f"mosh sessions on UDP port {shown} may be cut: /etc/fwtop/allow can list your address",)
