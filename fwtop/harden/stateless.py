"""The playbook for services that need no connection tracking, on a machine whose firewall has it.

A service is taken out of tracking both ways, and its rules on connection states get stateless lines beside
them. What this machine asks others stays tracked, so its answers need no mirrored rules.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fwtop.harden.playbook import Options, Plan, rule_of
from fwtop.harden.table import own_addresses, sampled_entries
from fwtop.kernel import sockets
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import NUMBERS, TCP, UDP
from fwtop.netfilter import iptables, nft_stateless, stateless
from fwtop.netfilter.ctnetlink import Entry
from fwtop.netfilter.nft_listed import NftLine
from fwtop.netfilter.saved import Line
from fwtop.netfilter.tracking import needs_tracking, service_name
from fwtop.rehearsal.asked import asked_in
from fwtop.rehearsal.dry_run import MOST_FLOWS, Flow, addresses, broken_flows
from fwtop.rehearsal.host import SSH_PORT

TITLE = "a stateful firewall: its services without connection tracking"
NAME = "stateless"

_MOST_SERVICES = 16
_LOGS_IN = "where operators log in"
_SAMPLED = 8_192  # entries: rare ones count here, servers that are asked from a service's own port
_CLIENT_PORT = 40_000  # of the first client that a session saw
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OWN_QUESTIONS = (
    "what this machine asks others (names, time, updates), so that only answers come back: forged ones would "
    "pass rules that mirror ports"
)
_MOST_ASKED, _MOST_SERVERS, _NAMED = 8, 20, 3  # services that are asked, servers of each, and those in words


def plan(options: Options) -> Plan:
    """Read the rules and services of this network namespace and plan; raises FwtopError."""
    variant = iptables.choose().variant
    lines = [line for family in (4, 6) for line in variant.read(family).lines]
    listed = nft_stateless.read_native(variant)
    stateful = [_finding(line) for line in lines if needs_tracking(line)]
    stateful += [_native_finding(line) for line in listed.lines if nft_stateless.needs(line)]
    if not stateful:
        return Plan("no rule of iptables or nft needs connection tracking here: nothing to convert")
    tracked = sampled_entries(_SAMPLED)
    asks = _own_questions(tracked, {ipaddress.ip_address(own).packed for own in addresses()})
    kept, needed = [_own_questions_text(asks)], list[str]()  # needed: by a rule
    done: list[str] = []  # services that are not tracked as it is
    chosen: list[Match] = []
    for match in _services():
        if there := stateless.already_untracked(lines, match) or nft_stateless.already_untracked(
            listed, match
        ):
            done.append(service_name(match))
            kept.append(f"{service_name(match)}: not tracked now, by {there}")
        elif reasons := why_tracked(variant, match, tracked):
            (needed if reasons[0] != _LOGS_IN else kept).append(f"{service_name(match)}: {reasons[0]}")
        elif not (stateless.names(lines, match) or nft_stateless.names(listed, match)):
            kept.append(f"{service_name(match)}: no rule that lets packets in names its port")
        elif len(chosen) < _MOST_SERVICES:
            chosen.append(match)
    replayed, told = _replay(variant, chosen, tracked, options.clients)
    for match, reason in told.items():
        chosen.remove(match)
        needed.append(f"{service_name(match)}: {reason}")
    filters = [line for line in lines if line.table == "filter"]
    beside = [
        item
        for family in (4, 6)
        for item in stateless.inserts([line for line in filters if line.family == family], chosen, family)
    ]
    native = nft_stateless.inserts(listed, chosen)
    parts = tuple(
        Rule("", Kind.NOTRACK, match, "", options.ttl_seconds, stateless=True, forget=True)
        for match in chosen
    )
    untracked = ", ".join(map(service_name, chosen))
    off = f"don't track {untracked} both ways (NOTRACK in raw PREROUTING and OUTPUT), delete their entries"
    return Plan(
        _here(untracked, len(chosen), done),
        findings=(*stateful, *replayed),
        steps=(*map(_step, beside), *(f"+ {item.command}" for item in native), off) if chosen else (),
        kept=(*needed, *kept),
        rule=rule_of(NAME, f"no connection tracking for {untracked}", parts, options),
        refused="" if chosen or done else _why_none([*needed, *kept]),
        data={
            "services": [service_name(match) for match in chosen],
            "lines": [list(one.arguments) for one in beside],
            "nft_lines": [one.command for one in native],
            "asks": [[service, *servers] for service, servers in asks.items()],
        },
    )


def _here(untracked: str, count: int, done: Sequence[str]) -> str:
    already = f"{', '.join(done)} {'are' if len(done) > 1 else 'is'} not tracked already" if done else ""
    if not count:
        return f"{already}; nothing more to take out" if done else "every service here needs tracking"
    text = f"{count} service{'s need' if count > 1 else ' needs'} no tracking: {untracked}"
    return f"{text}; {already}" if done else text


def _replay(
    variant: iptables.Variant, chosen: Sequence[Match], tracked: Sequence[Entry], clients: Sequence[str]
) -> tuple[list[str], dict[Match, str]]:
    """Replay real flows against the plan: what that showed, and why services must stay tracked after all."""
    if not chosen:
        return [], {}
    most = MOST_FLOWS // len(chosen)
    try:
        ours = addresses()
        flows = {match: list(_flows(match, tracked, clients, ours))[:most] for match in chosen}
        broken = broken_flows(variant, chosen, [flow for some in flows.values() for flow in some])
    except (FwtopError, OSError) as error:
        return [f"no flow was replayed against a copy of these rules: {error}"], {}
    told: dict[Match, str] = {}
    for match, some in flows.items():
        mine = [one for one in broken if one.flow in some]
        if mine:
            more = f" (and {len(mine) - 1} more flows)" if len(mine) > 1 else ""
            told[match] = f"{mine[0]}{more}"
    count = sum(map(len, flows.values()))
    result = f"{len(broken)} of them would break" if broken else "all get through as before"
    text = f"{count:,} flows replayed against a copy of these rules, as it is and untracked: {result}"
    return [text] * (count > 0), told


def _flows(
    match: Match, tracked: Sequence[Entry], clients: Sequence[str], ours: Iterable[str]
) -> Iterator[Flow]:
    """Yield a service's flows: those in the connection table, and one from each address of a session."""
    seen = dict.fromkeys(flow for entry in tracked if (flow := _flow(match, entry, ours)) is not None)
    yield from seen
    heard = {flow.peer for flow in seen}
    own = [ipaddress.ip_address(text) for text in ours]
    for number, client in enumerate(clients):
        peer = ipaddress.ip_address(client)
        mine = next((one for one in own if one.version == peer.version), None)
        if mine is not None and peer not in heard and peer.version in match.families:
            yield Flow(match.protocol or 0, mine, match.dport or 0, peer, _CLIENT_PORT + number)


def _flow(match: Match, entry: Entry, ours: Iterable[str]) -> Flow | None:
    if entry.protocol != match.protocol:
        return None
    source, destination = (ipaddress.ip_address(end) for end in (entry.source, entry.destination))
    if entry.dport == match.dport and str(destination) in ours:
        return Flow(entry.protocol, destination, entry.dport, source, entry.sport)
    if entry.sport == match.dport and str(source) in ours:
        return Flow(entry.protocol, source, entry.sport, destination, entry.dport, opened_by_us=True)
    return None


def why_tracked(variant: iptables.Variant, match: Match, tracked: Sequence[Entry]) -> list[str]:
    """Return why a service must stay tracked; empty if it need not."""
    if match.protocol == TCP and match.dport == SSH_PORT:
        return [_LOGS_IN]
    asked = _asked_from(match, tracked)
    return [asked] if asked else stateless.obstacles(variant, match)


def _own_questions(tracked: Iterable[Entry], own: Collection[bytes]) -> dict[str, list[str]]:
    """Return what this machine asks others, by service: their addresses, those of most connections first."""
    asked: dict[tuple[int, int], Counter[str]] = {}
    for item in asked_in(tracked, own):
        asked.setdefault((item.protocol, item.port), Counter())[str(item.peer)] += item.count
    busiest = sorted(asked.items(), key=lambda item: -item[1].total())
    return {
        service_name(Match(protocol=protocol, dport=port)): [
            server for server, _ in servers.most_common(_MOST_SERVERS)
        ]
        for (protocol, port), servers in busiest[:_MOST_ASKED]
    }


def _own_questions_text(asks: Mapping[str, Sequence[str]]) -> str:
    if not asks:
        return f"{_OWN_QUESTIONS}; nothing of it is in the connection table now"
    listed = (
        f"{service} of {', '.join(servers[:_NAMED])}" + (" and others" if len(servers) > _NAMED else "")
        for service, servers in asks.items()
    )
    return f"{_OWN_QUESTIONS}; now: {'; '.join(listed)}"


def _why_none(kept: list[str]) -> str:
    reasons = [reason for reason in kept if not reason.startswith(_OWN_QUESTIONS)]
    telling = [reason for reason in reasons if not reason.endswith(_LOGS_IN)]
    return (telling or reasons or ["no service listens here"])[0]


def _asked_from(match: Match, tracked: Sequence[Entry]) -> str:
    """Name a server that this machine asks from a UDP service's own port, "" if there is none.

    Untracked, its answer could not be told from a request, and would pass only where requests do.
    """
    for entry in tracked:
        from_it = entry.protocol == match.protocol == UDP and entry.sport == match.dport
        if from_it and entry.source in own_addresses():
            peer = ipaddress.ip_address(entry.destination)
            return f"this machine asks {peer} port {entry.dport} from it, and the answers would be cut off"
    return ""


def _services() -> list[Match]:
    """Return what others can reach here, without the ports that clients choose; raises FwtopError."""
    try:
        listening = sockets.listening_sockets()
        first = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError) as error:
        raise FwtopError(f"the listening sockets can't be read: {error}; try it as root", 3) from None
    found = {(NUMBERS[item.protocol], item.port) for item in listening if not item.local}
    return [Match(protocol=protocol, dport=port) for protocol, port in sorted(found) if port < first]


def _finding(line: Line) -> str:
    asked = ",".join(sorted(stateless.states(line))).upper()
    what = f"asks for the state {asked}" if asked else "needs the entry itself"
    return safe_text(f"IPv{line.family} {line.table} -A {line.chain} {line.text}: {what}", limit=200)


def _native_finding(line: NftLine) -> str:
    what = nft_stateless.needs(line)
    return safe_text(f"nft {line.family} {line.table} {line.chain} {line.text}: {what}", limit=200)


def _step(item: stateless.Insert) -> str:
    program = "iptables" if item.family == 4 else "ip6tables"
    return f"+ {program} -I {item.chain} {item.number} {' '.join(item.arguments)}  # {item.why}"
