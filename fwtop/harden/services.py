"""Relief from services that fill the connection table: no tracking, SYN cookies, or a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.harden.table import Table, service_of, state_of
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import ConnectionLimit, Kind, Match, Rule
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.netfilter.ctnetlink import Entry
from fwtop.render.numbers import percent

HEAVY = 0.1  # share of the table from which a service is looked at
_MOST_SERVICES = 4
_MOSTLY = 0.5  # of a service's entries
_LIMIT = 100  # connections a source address
_LEAST_SEEN = 4  # samples from a source that holds many
_MOST_BEHIND = 8  # addresses that one proxy answers for
_HALF_OPEN = frozenset({"SYN_SENT", "SYN_RECV", "SYN_SENT2"})

Needs = Callable[[Match], Sequence[str]]  # which rules need tracking of what a match is about


class Relief(Struct, frozen=True):
    """The relief from one service's entries."""

    step: str = ""
    part: Rule | None = None
    kept: str = ""  # why it stays tracked


def reliefs(table: Table, needs: Needs, ttl_seconds: int) -> list[Relief]:
    """Return the relief for each service that holds much of the table, the largest first."""
    found: list[Relief] = []
    behind_tracking = False  # one SYN proxy or one limit of connections
    for name, share in table.top(service_of, _MOST_SERVICES):
        mine = [entry for entry in table.sampled if service_of(entry) == name]
        if share < HEAVY or mine[0].protocol not in (TCP, UDP):
            continue
        match = Match(protocol=mine[0].protocol, dport=mine[0].dport)
        reasons = needs(match)
        if not reasons:
            rule = Rule("", Kind.NOTRACK, match, "", ttl_seconds, stateless=True, forget=True)
            found.append(
                Relief(f"don't track {name} ({percent(share)} of the table), delete its entries", rule)
            )
            continue
        kept = f"tracking of {name} ({percent(share)} of the table): {reasons[0]}"
        kept += f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        relief = None if behind_tracking else _behind_tracking(table, name, mine, match, ttl_seconds)
        behind_tracking = behind_tracking or relief is not None
        found.append(Relief(kept=kept) if relief is None else Relief(relief.step, relief.part, kept))
    return found


def _behind_tracking(
    table: Table, name: str, mine: Sequence[Entry], match: Match, ttl_seconds: int
) -> Relief | None:
    """Return the relief for a TCP service that must stay tracked, None if there is none."""
    if match.protocol != TCP:
        return None
    half_open = sum(state_of(entry) in _HALF_OPEN for entry in mine) / len(mine)
    if half_open >= _MOSTLY:
        step = f"answer SYNs to {name} with cookies: {percent(half_open)} of its entries are half-open"
        proxied = replace(match, destinations=_behind(table, mine))
        return Relief(step, Rule("", Kind.SYNPROXY, proxied, "", ttl_seconds))
    sources = Counter((entry.family, entry.source) for entry in mine)
    least = max(_LEAST_SEEN, _LIMIT * len(table.sampled) / max(table.count, 1))
    held = sum(count for count in sources.values() if count > least) / len(mine)
    if held < _MOSTLY:
        return None
    step = f"limit {name} to {_LIMIT} connections a source: {percent(held)} of its entries are of larger ones"
    limit = ConnectionLimit(_LIMIT)
    return Relief(step, Rule("", Kind.CONNLIMIT, match, "", ttl_seconds, connections=limit))


def _behind(table: Table, mine: Sequence[Entry]) -> tuple[Prefix, ...]:
    """Return the addresses behind this machine that a service is mostly at, the busiest first; else none."""
    if sum(map(table.is_forwarded, mine)) < _MOSTLY * len(mine):
        return ()
    behind = Counter((entry.family, entry.destination) for entry in mine if table.is_forwarded(entry))
    return tuple(
        Prefix(family, int.from_bytes(address, "big"), 8 * len(address))
        for (family, address), _ in behind.most_common(_MOST_BEHIND)
    )
