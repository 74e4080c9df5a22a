"""The playbook for a connection table that fills up: who fills it, and what makes room, soonest first."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.harden.playbook import Options, Plan, rule_of
from fwtop.harden.stateless import why_tracked
from fwtop.harden.table import (
    BUCKET_BYTES,
    ENTRY_BYTES,
    FULL,
    Table,
    occupants,
    read_table,
    service_of,
    state_of,
    timeout_of,
)
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import ConnectionLimit, Kind, Match, Rule, Setting
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.model.tunables import TUNABLES
from fwtop.netfilter import iptables
from fwtop.netfilter.ctnetlink import ASSURED, Entry
from fwtop.render.numbers import duration, percent

TITLE = "a connection table that fills up: room for new clients"
NAME = "conntrack"
_WORTH = 0.01  # share of the entries from which a timeout is worth changing
_CROWDED = 0.5  # fill from which there is something to do
# Seconds. A handshake takes one; 2 h 4 min is what RFC 5382 (REQ-5) asks for connections that are idle.
_SHORTER = {
    "tcp_timeout_syn_sent": 10, "tcp_timeout_syn_recv": 10, "tcp_timeout_established": 7440,
    "tcp_timeout_fin_wait": 20, "tcp_timeout_close_wait": 20, "tcp_timeout_last_ack": 10,
    "tcp_timeout_time_wait": 10, "tcp_timeout_close": 5, "udp_timeout": 10, "udp_timeout_stream": 60,
    "icmp_timeout": 5, "icmpv6_timeout": 5, "generic_timeout": 60,
}  # fmt: skip
_ROOM = 4  # times the present size
_MOST_MEMORY = 0.1  # of the machine's, for a full table
_MAX, _BUCKETS = "net.netfilter.nf_conntrack_max", "net.netfilter.nf_conntrack_buckets"
_EVICTION_RANGE = 8  # buckets that early drop looks through (nf_conntrack_core.c, NF_CT_EVICTION_RANGE)


def plan(options: Options) -> Plan:
    """Look at the table of this network namespace for a second and plan; raises FwtopError."""
    variant, table = iptables.choose().variant, read_table()
    return plan_for(table, options, partial(why_tracked, variant, tracked=table.sampled))


def plan_for(table: Table, options: Options, needs: Needs) -> Plan:
    """Plan for a table as it was read; `needs` says why a service must stay tracked."""
    steps: list[str] = []
    parts: list[Rule] = []
    kept: list[str] = []
    if table.fill >= _CROWDED or table.seconds_to_full is not None:
        room, no_room = _room(table)
        settings = [*room, *_timeouts(table)]
        kept += no_room
        if settings:
            parts.append(Rule("", Kind.SYSCTL, Match(), "", options.ttl_seconds, settings=tuple(settings)))
        steps += [_step(table, item) for item in settings]
        for relief in reliefs(table, needs, options.ttl_seconds):
            steps += [relief.step] if relief.step else []
            parts += [relief.part] if relief.part is not None else []
            kept += [relief.kept] if relief.kept else []
    return Plan(
        _here(table, steps),
        findings=(*_findings(table), *_costs(table)),
        steps=tuple(steps),
        kept=tuple(kept),
        rule=rule_of(NAME, "make room in the connection table", tuple(parts), options),
        data={
            "count": table.count,
            "max": table.most,
            "buckets": table.buckets,
            "growth_per_s": round(table.growth, 1),
            "seconds_to_full": table.seconds_to_full,
            "sampled": len(table.sampled),
            "share_error": round(table.error, 4),
            "entries_everywhere": table.everywhere,
            "filled_by": {what: dict(rows) for what, rows in occupants(table, 10)},
        },
    )


def _here(table: Table, steps: Sequence[str]) -> str:
    fill = f"{table.count:,} of {table.most:,} entries ({percent(table.fill)})"
    if not steps:
        return f"{fill}: {'nothing helps' if table.fill >= _CROWDED else 'there is room, nothing to do'}"
    more = len(steps) - 1
    last = f", and {more} more step{'s' * (more > 1)}" if more else ""
    return f"{fill}; would {steps[-1]}{last}"


def _findings(table: Table) -> list[str]:
    chain = 2 * max(table.count, table.everywhere) / table.buckets if table.buckets else 0.0
    full = table.seconds_to_full
    when = (
        "full now"
        if table.fill >= FULL
        else f"full in {duration(full)}"
        if full is not None
        else "not filling up"
    )
    lines = [
        f"{table.count:,} of {table.most:,} entries ({percent(table.fill)}), {table.growth:+,.0f}/s: {when}",
        f"a full table takes {_mib(table.most * ENTRY_BYTES)}; its hash has {table.buckets:,} buckets "
        f"({_mib(table.buckets * BUCKET_BYTES)}), {chain:.1f} keys in each",
    ]
    lines += _sampling(table)
    for what, rows in occupants(table):
        if rows:
            lines.append(f"by {what}: " + ", ".join(f"{name} {percent(share)}" for name, share in rows))
    return [*lines, *_early_drop(table)]


def _sampling(table: Table) -> list[str]:
    """Describe the sampling error of the shares, or why there are none."""
    if table.sampled and table.error:
        seen = len(table.sampled)
        return [f"shares are of {seen:,} entries drawn at random: within {100 * table.error:.1f} points"]
    if table.sampled or not table.count:
        return []
    return [
        f"who fills it was not looked at: {table.everywhere - table.count:,} entries of other network "
        f"namespaces are in the same hash of {table.buckets:,} buckets, and the kernel would pass them all"
    ]


def _early_drop(table: Table) -> list[str]:
    """Describe how the kernel treats new connections once the table is full."""
    if not table.sampled:
        return []
    replaceable = 1 - table.share(lambda entry: bool(entry.status & ASSURED))
    found = 1 - math.exp(-_EVICTION_RANGE * 2 * table.most / max(table.buckets, 1) * replaceable)
    return [
        f"early drop: {percent(replaceable)} of the entries have no answered connection and may be replaced "
        f"when the table is full; the kernel looks through {_EVICTION_RANGE} buckets, so about "
        f"{percent(found)} of new connections find one, the others are dropped"
    ]


def _costs(table: Table) -> list[str]:
    """Return a line for each timeout that holds entries: how many, and how many it would with another."""
    lines = []
    for name, share, now, then in _held(table):
        held = share * table.count
        line = f"{name} ({duration(now)}) holds about {_rounded(held):,} entries"
        if then < now:
            line += f"; {duration(then)} would hold {_rounded(held * then / now):,} at the same rate"
        lines.append(line)
    return lines


def _held(table: Table) -> Iterator[tuple[str, float, int, int]]:
    """Yield the timeouts that hold a share of the entries worth having: name, share, seconds now and then."""
    for name, share in table.top(timeout_of, 20):
        now = table.timeouts.get(name)
        if now is not None and share >= _WORTH:
            yield name, share, now, _SHORTER.get(name, now)


def _room(table: Table) -> tuple[list[Setting], tuple[str, ...]]:
    """Return the settings for a larger table, and why there are none."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = min(table.most * _ROOM, TUNABLES[_MAX].high, int(memory * _MOST_MEMORY / ENTRY_BYTES))
    if most <= table.most:
        return [], (
            f"its maximum: a larger table would take more than {percent(_MOST_MEMORY)} of the memory",
        )
    if not os.access(Path(TUNABLES[_MAX].path), os.W_OK) or not _initial_namespace():
        return [], ("its maximum: only the initial network namespace may change it",)
    return [Setting(_MAX, most), *([Setting(_BUCKETS, most)] if table.buckets < most else [])], ()


def _initial_namespace() -> bool:
    """Whether this is the namespace that owns the maximum (the file is read-only in all others)."""
    try:
        return Path(TUNABLES[_MAX].path).stat().st_mode & 0o200 != 0
    except OSError:
        return False


def _timeouts(table: Table) -> list[Setting]:
    """Return shorter timeouts."""
    found = [(f"net.netfilter.nf_conntrack_{name}", now, then) for name, _, now, then in _held(table)]
    return [Setting(tunable, then) for tunable, now, then in found if then < now and tunable in TUNABLES]


def _step(table: Table, item: Setting) -> str:
    short = TUNABLES[item.name].short
    if item.name == _MAX:
        memory = _mib(item.value * ENTRY_BYTES)
        return f"raise {short} from {table.most:,} to {item.value:,} ({memory} when full)"
    if item.name == _BUCKETS:
        return f"raise {short} from {table.buckets:,} to {item.value:,} ({_mib(item.value * BUCKET_BYTES)})"
    now = table.timeouts.get(short.removeprefix("conntrack_"), 0)
    return f"shorten {short} from {duration(now)} to {duration(item.value)}"


def _rounded(count: float) -> int:
    """Round to the three digits that a sample can know."""
    return round(float(f"{count:.3g}"))


def _mib(size: float) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


_HEAVY = 0.1  # share of the table from which a service is looked at
_MOST_SERVICES = 4
_MOSTLY = 0.5  # of a service's entries
_LIMIT = 100  # connections a source address
_LEAST_SEEN = 4  # samples from a source that holds many
_MOST_BEHIND = 8  # addresses that one proxy answers for
_HALF_OPEN = frozenset({"SYN_SENT", "SYN_RECV", "SYN_SENT2"})

Needs = Callable[[Match], Sequence[str]]  # which rules need tracking of what a match is about


class _Relief(Struct, frozen=True):
    """The relief from one service's entries."""

    step: str = ""
    part: Rule | None = None
    kept: str = ""  # why it stays tracked


def reliefs(table: Table, needs: Needs, ttl_seconds: int) -> list[_Relief]:
    """Return the relief for each service that holds much of the table, the largest first."""
    found: list[_Relief] = []
    behind_tracking = False  # one SYN proxy or one limit of connections
    for name, share in table.top(service_of, _MOST_SERVICES):
        mine = [entry for entry in table.sampled if service_of(entry) == name]
        if share < _HEAVY or mine[0].protocol not in (TCP, UDP):
            continue
        match = Match(protocol=mine[0].protocol, dport=mine[0].dport)
        reasons = needs(match)
        if not reasons:
            rule = Rule("", Kind.NOTRACK, match, "", ttl_seconds, stateless=True, forget=True)
            found.append(
                _Relief(f"don't track {name} ({percent(share)} of the table), delete its entries", rule)
            )
            continue
        kept = f"tracking of {name} ({percent(share)} of the table): {reasons[0]}"
        kept += f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        relief = None if behind_tracking else _behind_tracking(table, name, mine, match, ttl_seconds)
        behind_tracking = behind_tracking or relief is not None
        found.append(_Relief(kept=kept) if relief is None else _Relief(relief.step, relief.part, kept))
    return found


def _behind_tracking(
    table: Table, name: str, mine: Sequence[Entry], match: Match, ttl_seconds: int
) -> _Relief | None:
    """Return the relief for a TCP service that must stay tracked, None if there is none."""
    if match.protocol != TCP:
        return None
    half_open = sum(state_of(entry) in _HALF_OPEN for entry in mine) / len(mine)
    if half_open >= _MOSTLY:
        step = f"answer SYNs to {name} with cookies: {percent(half_open)} of its entries are half-open"
        proxied = replace(match, destinations=_behind(table, mine))
        return _Relief(step, Rule("", Kind.SYNPROXY, proxied, "", ttl_seconds))
    sources = Counter((entry.family, entry.source) for entry in mine)
    least = max(_LEAST_SEEN, _LIMIT * len(table.sampled) / max(table.count, 1))
    held = sum(count for count in sources.values() if count > least) / len(mine)
    if held < _MOSTLY:
        return None
    step = f"limit {name} to {_LIMIT} connections a source: {percent(held)} of its entries are of larger ones"
    limit = ConnectionLimit(_LIMIT)
    return _Relief(step, Rule("", Kind.CONNLIMIT, match, "", ttl_seconds, connections=limit))


def _behind(table: Table, mine: Sequence[Entry]) -> tuple[Prefix, ...]:
    """Return the addresses behind this machine that a service is mostly at, the busiest first; else none."""
    if sum(map(table.is_forwarded, mine)) < _MOSTLY * len(mine):
        return ()
    behind = Counter(entry.destination for entry in mine if table.is_forwarded(entry))
    return tuple(Prefix.of_packed(address) for address, _ in behind.most_common(_MOST_BEHIND))
