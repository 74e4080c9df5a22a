"""Whether clients are served: what they get now, against before the attack; it is always said.

The counters are of handshakes that this machine's own services finish, which forged packets don't affect.
"""

from __future__ import annotations

import math

from rich.style import Style

from fwtop.model.harm import rate_words
from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.verdict import verdict_of
from fwtop.ui.format import number, percent
from fwtop.ui.lists.history import Clients
from fwtop.ui.style import BAD, DIM, GOOD, STRONG, TEXT, WARN, Line, Span

_STEADY = 0.05  # clients' rates vary by this much without an attack
_DEVIATIONS = 2.0  # by which a count may miss what is usual


Forms = tuple[list[Line], list[Line], list[Line]]


def clients_forms(snapshot: Snapshot, before: Clients | None, *, attack: bool) -> Forms:
    """Write what clients get: as short as can be, short, and with what it was before.

    ✔ they are served as before, ✖ they lose something, ? it isn't known what is usual.
    """
    tcp = snapshot.tcp
    if tcp is None:
        return _said(" not counted")
    loss = verdict_of(snapshot, snapshot.at).loss
    if loss is not None:  # as the badge beside it says, of the same clients and seconds
        return _said(f" {rate_words(loss.now)} ✖", BAD, more=f" (was {rate_words(loss.before)})")
    if tcp.bots:
        return _among_bots(tcp)
    if tcp.handshakes_per_s <= 0 and (before is None or before.handshakes <= 0):
        # The counters of a machine that only forwards tell nothing
        if any(row.part == "service" for row in snapshot.tables.destinations):
            return _said(" not counted", more=": it forwards")
        if before is not None or not attack:
            return _said(" none as before" if attack else " none now")
    return _compared(tcp, before, snapshot.seconds, attack=attack)


def _compared(tcp: TcpService, before: Clients | None, seconds: float, *, attack: bool) -> Forms:
    now: Line = [("clients ", DIM), (f"{number(tcp.handshakes_per_s)}/s", STRONG)]
    acked: Line = [("acked ", DIM), (f"{number(tcp.acknowledged_per_s)}/s", TEXT)]
    if not attack:
        return [[*now, (" ✔", GOOD)]], [[*now, (" ✔", GOOD)]], [[*now, (" ✔", GOOD)], acked]
    if before is None:
        now.append((" ?", WARN))
        return [now], [now], [[*now, (" usual rate not known", WARN)], acked]
    change, mark = _change(tcp.handshakes_per_s, before.handshakes, seconds)
    acked.append(_change(tcp.acknowledged_per_s, before.acknowledged, seconds)[0])
    was: Span = (f" (was {number(before.handshakes)})", DIM)
    return [[*now, mark]], [[*now, change, mark]], [[*now, change, mark, was], acked]


def _said(words: str, style: Style = TEXT, more: str = "") -> Forms:
    line: Line = [("clients", DIM), (words, style)]
    return [line], [line], [[*line, (more, DIM)]]


def _among_bots(tcp: TcpService) -> Forms:
    """Write what the long known get: what they got before is of all clients, who can't be told from bots."""
    if tcp.known_per_s is not None:
        known: Line = [("known clients ", DIM), (f"{number(tcp.known_per_s)}/s", STRONG), (" ?", WARN)]
        return [known], [known], [known]
    least: Line = [("clients ", DIM), ("?", WARN), (" bots", DIM)]
    every: Line = [("handshakes ", DIM), (f"{number(tcp.handshakes_per_s)}/s", STRONG)]
    short: Line = [*every, (" with bots ", DIM), ("?", WARN)]
    return [least], [short], [[*every, (", bots included: clients not known", WARN)]]


def _change(now: float, before: float, seconds: float) -> tuple[Span, Span]:
    """Compare two rates, the present one counted over so many seconds; chance is no change."""
    if before <= 0:
        return (" ▲", GOOD) if now > 0 else (" =", TEXT), (" ✔", GOOD)
    change = now / before - 1
    chance = _DEVIATIONS * math.sqrt(before / max(seconds, 1.0)) / before
    if abs(change) < max(_STEADY, chance):
        return (" =", GOOD), (" ✔", GOOD)
    if change > 0:
        return (f" ▲{percent(change)}", GOOD), (" ✔", GOOD)
    return (f" ▼{percent(-change)}", BAD), (" ✖", BAD)
