"""What known clients lose of what they send now, which calm has not seen: a new name, a new film, a new hour.

A rule by contents that no packet of calm has may still be what every client has just begun to send. Who
attacks from behind a client's address sends more than the client does, so only who keeps to the usual counts.
Over connections that the kernel completed nobody else can send in a client's name. Elsewhere a forger may:
then the packets that the rule spares tell, of which the clients still send as many as ever, unless those that
it drops are theirs.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from fwtop.analysis.clients import client_key
from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.proposals.matching import always_pass, match_rows
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, Rows
from fwtop.model.rule import Rule
from fwtop.model.traffic.packets import F64, PacketBatch
from fwtop.rules.kinds import of

_KINDS = 3
_OPENING, _CARRYING = 0, 1  # what a client's service needs of it; the rest is ACKs
_SPREAD = 3.0  # standard deviations that a client may send above the usual
_SURE = 2.6  # of which what is spared must be below the usual: chance in one of 200 windows
_NOTE = "packets of known clients"


class _Present(Struct, frozen=True):
    """The packets of long-known clients in a window, and what is usual of them."""

    rows: Rows
    client: Rows  # of each row, its place in the census
    kind: Rows
    usual: F64  # packets in a window's time, by kind and client


def lost_now(rule: Rule, dropped: F64, context: AnalysisContext, normal: Normal, *, returns: bool) -> F64:
    """Return of each client of the census the share (0 to 1) of its packets of now that a rule drops.

    `dropped` has the dropped share of each row of the window, or of its subset. With a return path
    (`returns`) no packet of the attack is forged.
    """
    census, traffic = normal.census, context.traffic
    count = len(census.clients)
    nothing = np.zeros(count)
    if normal.guess or not count or of(rule.kind).answers:
        return nothing
    if _NOTE not in context.notes:
        context.notes[_NOTE] = _present(context, normal)
    here: _Present = context.notes[_NOTE]
    if len(dropped) == len(traffic):
        part = dropped[here.rows]
    elif rule.limit is None and not rule.parts:
        mine = traffic.packets.select(here.rows)
        part = (match_rows(rule.match, mine) & ~always_pass(mine)).astype(np.float64)
    else:
        return nothing
    struck = np.isin(np.arange(_KINDS), here.kind[part > 0]) & (np.arange(_KINDS) <= _CARRYING)
    chosen = np.flatnonzero(struck[here.kind])
    if not len(chosen):
        return nothing
    client, weight, part = here.client[chosen], traffic.weight[here.rows[chosen]], part[chosen]
    lost = np.asarray(np.bincount(client, weight * part, count), np.float64)
    spared = np.asarray(np.bincount(client, weight * (1.0 - part), count), np.float64)
    usual, each = here.usual[struck].sum(axis=0), float(weight.mean())
    own = (lost > 0) & (lost <= usual + _SPREAD * np.sqrt(usual * each) + 2 * each)
    if not returns:
        own &= usual > 0
        expected, left = float(usual[own].sum()) / each, float(spared[own].sum()) / each
        if left >= expected - _SURE * math.sqrt(expected):
            return nothing
    return np.divide(lost, lost + spared, out=nothing, where=own)


def _present(context: AnalysisContext, normal: Normal) -> _Present:
    census, traffic = normal.census, context.traffic
    count = len(census.clients)
    keys = client_key(traffic.source_key, normal.doors.numbers(traffic.packets))
    at = np.searchsorted(census.clients.key, keys)
    found = np.append(census.clients.key, np.uint64(0))[at] == keys
    found &= (at < count) & np.append(census.long, False)[at]
    rows = np.flatnonzero(found)
    place = _kinds(normal.packets, np.arange(len(normal.packets))) * (count + 1) + census.number
    usual = np.bincount(place, normal.pps, _KINDS * (count + 1)).reshape(_KINDS, count + 1)[:, :count]
    kind = _kinds(traffic.packets, rows)
    return _Present(rows, at[rows], kind, np.asarray(usual * traffic.seconds, np.float64))


def _kinds(packets: PacketBatch, rows: Rows) -> Rows:
    tcp, flags = packets.protocol[rows] == TCP, packets.tcp_flags[rows]
    opening = tcp & ((flags & (SYN | ACK)) == SYN)
    carrying = ~tcp | (packets.payload_length[rows] > 0)
    return np.where(opening, _OPENING, np.where(carrying, _CARRYING, _KINDS - 1))
