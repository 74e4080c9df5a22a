"""What a rule does to held connections and to the port's other clients, counted connection by connection."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from fwtop.analysis.held.judge import Held
from fwtop.analysis.proposals.matching import cut, in_prefixes
from fwtop.analysis.window.traffic import mix
from fwtop.model.addresses.address import format_address
from fwtop.model.rule import ConnectionLimit, Rule
from fwtop.model.traffic.connections import Connections, SocketTable
from fwtop.model.traffic.packets import F64, U64
from fwtop.rules.kinds import drops_nothing

_EXAMPLES = 4
_TCP = 6


class HeldEffect(Struct, frozen=True):
    """Shares, 0 to 1, of the attack's connections and of the port's others that a rule ends or keeps out."""

    stopped: float
    harm: float
    examples: tuple[str, ...] = ()


def effect_on(rule: Rule, held: Held) -> HeldEffect:
    """Return what the rule does to an attack that holds connections; nothing on another port."""
    match, others = rule.match, held.others
    if match.protocol not in (None, _TCP) or match.dport not in (None, held.group.port):
        return HeldEffect(0.0, 0.0)
    if rule.connections is not None:
        mine, theirs = _above(rule.connections, held)
    elif rule.match.sources and rule.limit is None and not drops_nothing(rule):
        mine, theirs = (
            in_prefixes(part.family, part.hi, part.lo, rule.match.sources).astype(np.float64)
            for part in (held.group.connections, others)
        )
    else:
        return HeldEffect(0.0, 0.0)
    return HeldEffect(_mean(mine), _mean(theirs), _examples(theirs, others))


def above_limit(rule: Rule, table: SocketTable) -> tuple[float, tuple[str, ...]]:
    """Return the share of a port's connections that are above a limit, and whose they are."""
    held, limit = table.connections, rule.connections
    if limit is None:
        return 0.0, ()
    mine = held if rule.match.dport is None else held.select(held.port == rule.match.dport)
    _, place, counts = np.unique(_prefixes(mine, limit), return_inverse=True, return_counts=True)
    above = np.maximum(counts - limit.most, 0) / np.maximum(counts, 1)
    return _mean(above[place]), _examples(above[place], mine)


def _above(limit: ConnectionLimit, held: Held) -> tuple[F64, F64]:
    """Return which part of each connection, the attack's and others, is above a limit.

    Of an attacking source the held ones go first, as nothing was sent on them for longest. Its other clients
    are counted as harmed all the same: they get no new connection while it holds its own.
    """
    mine, theirs = _prefixes(held.group.connections, limit), _prefixes(held.others, limit)
    _, place = np.unique(np.concatenate((mine, theirs)), return_inverse=True)
    own, other = place[: len(mine)], place[len(mine) :]
    size = int(place.max()) + 1 if len(place) else 0
    attacking, ordinary = np.bincount(own, minlength=size), np.bincount(other, minlength=size)
    above = np.maximum(attacking + ordinary - limit.most, 0)
    ended = np.minimum(above, attacking) / np.maximum(attacking, 1)
    kept_out = np.where(attacking >= limit.most, 1.0, (above - ended * attacking) / np.maximum(ordinary, 1))
    return ended[own], kept_out[other]


def _prefixes(part: Connections, limit: ConnectionLimit) -> U64:
    four = part.family == 4
    hi4, lo4 = cut(part.hi, part.lo, 4, limit.prefix_v4)
    hi6, lo6 = cut(part.hi, part.lo, 6, limit.prefix_v6)
    return mix(np.where(four, hi4, hi6), np.where(four, lo4, lo6))


def _mean(parts: F64) -> float:
    return float(parts.mean()) if len(parts) else 0.0


def _examples(parts: F64, others: Connections) -> tuple[str, ...]:
    hit = others.select(parts > 0)
    names = (
        format_address(*row)
        for row in zip(hit.family.tolist(), hit.hi.tolist(), hit.lo.tolist(), strict=True)
    )
    return tuple(f"connections of {name}" for name in list(dict.fromkeys(names))[:_EXAMPLES])
