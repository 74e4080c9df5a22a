"""Rules for a flooded service as a whole: its handshakes, the connection table, a DNS server's playbook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, UDP, weighted_top
from fwtop.harden.playbook import Options, rule_of
from fwtop.model.addresses.address import Prefix
from fwtop.model.harm import NO_REACH, Reach
from fwtop.model.rule import Kind, Match, RateLimit, Rule, Setting
from fwtop.model.traffic.packets import Fragment
from fwtop.model.traffic.snapshot import Proposal
from fwtop.model.tunables import TUNABLES
from fwtop.render.numbers import plural
from fwtop.rules.exports.xtables import shell_commands
from fwtop.rules.words import describe, with_summary

if TYPE_CHECKING:
    from fwtop.resolver.view import View

_CONNTRACK = "net.netfilter.nf_conntrack_"
_TCP_TIMEOUTS = (f"{_CONNTRACK}tcp_timeout_syn_recv", f"{_CONNTRACK}tcp_timeout_syn_sent")
_UDP_TIMEOUTS = (f"{_CONNTRACK}udp_timeout",)
_TABLE_MAX = f"{_CONNTRACK}max"
_MOST_UNTRACKED = 2  # services
_PORT, _MOSTLY = 0.05, 0.8  # of an attack: goes to a port that is worth a rule; to all of these
_MOST_BEHIND = 8  # attacked addresses that one proxy answers for
_TRACKED = 0.5  # of an attack's packets: as many new connections show that each opens one
_TIMEOUT_SECONDS = 10  # the kernel's are 60, 120 and 30 (nf_conntrack-sysctl.rst); a handshake takes 1
_ROOM = 4  # times the present size
_ENTRY_BYTES = 320  # of a tracked connection: struct nf_conn and its extensions, Linux 6.x
_DNS_PORT = 53
_NOTE = "questions of the window"
_MOST_READ = 1_500  # questions: a parser in Python reads them


class Candidate(Struct, frozen=True):
    """A rule before it is measured. `form` distinguishes it from others of its kind."""

    rule: Rule
    why: str
    form: str
    beside: bool = False  # stops a smaller share that the others miss


def drafted(context: AnalysisContext, kind: Kind, match: Match, limit: RateLimit | None = None) -> Rule:
    """Return a rule with what it does as its summary."""
    return with_summary(Rule("", kind, match, "", context.config.ttl_seconds, limit=limit))


def proposed(
    context: AnalysisContext,
    finding: Finding,
    rule: Rule,
    why: str,
    reach: Reach = NO_REACH,
    **measured: Any,  # noqa: ANN401
) -> Proposal:
    """Return a rule as a proposal without a number, with the shares that it predicts."""
    kind, closing = rule.kind.value, f"{reach.closing}: " if reach.closes else ""
    return Proposal(
        number=0,
        kind=kind,
        summary=f"{closing}{rule.summary} ({why})",
        attack=finding.title,
        attack_share=rule.predicted_attack_share or 0.0,
        collateral_share=rule.predicted_collateral_share or 0.0,
        cost_ns=context.config.cost_ns.get(kind),
        cost_measured=kind in context.config.measured_costs,
        commands=shell_commands(rule),
        rule=rule,
        reach=reach,
        **measured,
    )


def without_rule(finding: Finding, kind: str, summary: str, commands: tuple[str, ...]) -> Proposal:
    """Return what only others than fwtop can do, with the words or lines for it."""
    return Proposal(0, kind, summary, 0.0, 0.0, commands=commands, attack=finding.title)


def proxied(context: AnalysisContext, finding: Finding, base: Match) -> Iterator[Candidate]:
    """Answer handshakes with SYN cookies if SYNs flood a port that real clients use.

    Of several ports each has a rule of its own: a proxy where there are clients, else one that drops.
    """
    if Trait.OPENINGS not in finding.traits:
        return
    whole, behind = base.dport is not None, attacked_behind(context, finding)
    for port in (base.dport,) if base.dport is not None else _main_ports(context, finding):
        if _has_clients(context, port):
            match = Match(destinations=behind, family=base.family, protocol=TCP, dport=port)
            why = "real clients finish the handshake, these sources do not"
            yield Candidate(
                drafted(context, Kind.SYNPROXY, match), why, "" if whole else str(port), not whole
            )
        elif not whole:
            rule = drafted(context, Kind.XDP, replace(base, dport=port, tcp_flags=(SYN | ACK, SYN)))
            yield Candidate(rule, "no client uses this port", f"dport={port}", beside=True)


def _main_ports(context: AnalysisContext, finding: Finding) -> list[int]:
    """Return the ports that a good part of an attack goes to, the most frequent first; none if it goes on."""
    traffic, rows = context.traffic, finding.rows
    weight = traffic.weight[rows]
    ports, shares = weighted_top(traffic.packets.dport[rows], weight, _PORT * float(weight.sum()))
    return [int(port) for port in ports] if shares.sum() > _MOSTLY * weight.sum() else []


def _has_clients(context: AnalysisContext, port: int) -> bool:
    """Check whether real connections go to a TCP port, now or usually; before calm was seen, they may."""
    before, doors = context.baseline.rows, context.baseline.doors
    used = context.tcp.real & (context.traffic.packets.dport == port)
    if used.any() or ((before.protocol == TCP) & (before.dport == port)).any():
        return True
    return not context.baseline.ready and (len(doors) == 0 or len(doors.at(TCP << 16 | port)) > 1)


def attacked_behind(context: AnalysisContext, finding: Finding) -> tuple[Prefix, ...]:
    """Return the attacked addresses behind this machine, the most frequent first; none if its own are.

    A proxy without destinations answers for this machine's own addresses only.
    """
    packets, traffic = context.traffic.packets, context.traffic
    _, first, at = np.unique(traffic.dest_key[finding.rows], return_index=True, return_inverse=True)
    weight = np.bincount(at, traffic.weight[finding.rows])
    found = []
    for one in np.argsort(-weight):
        row = finding.rows[first[one]]
        family, hi, lo = (int(getattr(packets, name)[row]) for name in ("family", "dst_hi", "dst_lo"))
        found.append(Prefix.of_columns(family, hi, lo))
        if len(found) == _MOST_BEHIND:
            break
    own = set(context.own)
    return () if not own or own & set(found) else tuple(found)


def untracked(context: AnalysisContext, finding: Finding, base: Match) -> Iterator[Candidate]:
    """Yield what keeps the flooded service out of the connection table, before the flood has filled it.

    A full table has proposals of its own. NOTRACK alone is none: before a firewall on states it may close
    the service.
    """
    table = context.counters.conntrack
    if table is None or base.protocol not in (TCP, UDP) or base.dport is None:
        return
    match = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    opened = table.new_per_s * context.traffic.seconds
    logs_in = base.protocol == TCP and base.dport in context.known.login_ports  # stays tracked
    is_full = any(Trait.FULL_TABLE in one.traits for one in context.findings)
    if not (is_full or logs_in) and opened >= _TRACKED * context.traffic.weight[finding.rows].sum():
        rule = drafted(context, Kind.NOTRACK, replace(match, family=None))
        part = replace(rule, stateless=True, forget=True)
        what = (
            f"stateless playbook: don't track {describe(match)}, put stateless lines beside rules on states"
        )
        why = "most of its packets open a connection; drops nothing"
        yield from _playbook(context, "stateless", (what, why, "stateless"), part)


def for_table(context: AnalysisContext) -> Iterator[Candidate]:
    """Yield rules for a full connection table: the playbook, shorter timeouts, and a larger maximum."""
    table = context.counters.conntrack
    if table is None:
        return
    matches = [finding.match for finding in context.findings if not finding.state]
    aims = {(match.protocol, match.dport) for match in matches}
    services = sorted((one, port) for one, port in aims if one in (TCP, UDP) and port is not None)
    if services:  # what `fwtop harden conntrack` does at once: flooded services leave the table
        flooded = [Match(protocol=one, dport=port) for one, port in services[:_MOST_UNTRACKED]]
        parts = [
            replace(drafted(context, Kind.NOTRACK, match), stateless=True, forget=True) for match in flooded
        ]
        names = " and ".join(map(describe, flooded))
        what = f"conntrack playbook: don't track {names}, delete its entries, shorten timeouts"
        words = (what, "new clients get in at once; drops nothing", "playbook")
        shorter = _shortened(context, (*_TCP_TIMEOUTS, *_UDP_TIMEOUTS))
        yield from _playbook(context, "conntrack", words, shorter, *parts)
    protocols = {match.protocol for match in matches}
    timeouts = (
        *(_TCP_TIMEOUTS if TCP in protocols or not protocols else ()),
        *(_UDP_TIMEOUTS if UDP in protocols or not protocols else ()),
    )
    if timeouts:
        summary = f"shorten the conntrack timeouts of unanswered connections to {_TIMEOUT_SECONDS} s"
        yield Candidate(replace(_shortened(context, timeouts), summary=summary), "drops nothing", "timeouts")
    most = min(_ROOM * table.max, TUNABLES[_TABLE_MAX].high)
    if most > table.max:
        rule = _settings(context, Setting(_TABLE_MAX, most))
        rule = replace(rule, summary=f"raise conntrack max from {table.max:,} to {most:,}")
        memory = most * _ENTRY_BYTES / 1e6
        yield Candidate(rule, f"{memory:,.0f} MB of memory when full; drops nothing", "room")


def _settings(context: AnalysisContext, *settings: Setting) -> Rule:
    return Rule("", Kind.SYSCTL, Match(), "", context.config.ttl_seconds, settings=settings)


def _shortened(context: AnalysisContext, names: tuple[str, ...]) -> Rule:
    return _settings(context, *(Setting(name, _TIMEOUT_SECONDS) for name in names))


def _playbook(
    context: AnalysisContext, name: str, words: tuple[str, str, str], *parts: Rule
) -> Iterator[Candidate]:
    """Yield a playbook with its summary, why and form, if it has parts."""
    summary, why, form = words
    rule = rule_of(name, summary, parts, Options(context.config.ttl_seconds, "proposal"))
    if rule is not None:
        yield Candidate(rule, why, form)


def resolver(context: AnalysisContext, finding: Finding) -> Iterator[Candidate]:
    """Yield `fwtop harden resolver` against an attack on or through the DNS server here, by its questions.

    Answers are not looked at, nor which program serves: names abused for their large answers, and what only
    the server's own configuration can do, the playbook itself tells. Most machines are no DNS server: what
    only this needs, 1 MB, is imported for the first one.
    """
    if Trait.QUESTIONS not in finding.traits or finding.match.dport != _DNS_PORT:
        return
    from fwtop.harden.resolver import NAME
    from fwtop.resolver.advice import Machine, advise

    if _NOTE not in context.notes:
        context.notes[_NOTE] = _view(context)
    view: View | None = context.notes[_NOTE]
    steps = advise(view, Machine(()), context.config.ttl_seconds, "proposal").steps if view else ()
    number = plural(len(steps), "step")
    what = f"resolver playbook, {number}: stop what attacks through the DNS server, keep its clients"
    why = "'fwtop harden resolver' also tells what the server itself can do"
    yield from _playbook(context, NAME, (what, why, NAME), *(step.rule for step in steps))


def _view(context: AnalysisContext) -> View | None:
    """Count the window's questions, as far as one parser keeps up; None if there are none."""
    from fwtop.resolver.view import DnsCounters, view_of

    traffic = context.traffic
    packets = traffic.packets
    asked = (packets.protocol == UDP) & (packets.dport == _DNS_PORT) & (packets.fragment == Fragment.NONE)
    rows = np.flatnonzero(asked & (packets.payload_offset > 0))
    if not len(rows) or traffic.seconds <= 0:
        return None
    weight = float(traffic.weight[rows].sum())
    rows = rows[:: max(1, -(-len(rows) // _MOST_READ))]
    counters = DnsCounters()
    for row in rows:
        # The payload is the end of the IP packet.
        ahead = int(packets.ip_length[row]) - int(packets.payload_length[row])
        start = int(packets.payload_offset[row]) - ahead
        if start >= 0:
            counters.packet(packets.data[row, start : packets.captured[row]].tobytes(), incoming=True)
    return view_of(counters, traffic.seconds, max(1, round(weight / len(rows))))
