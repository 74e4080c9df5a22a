"""The rates line: what arrives, who drops it, what reaches services, and whether clients are served."""

from __future__ import annotations

from rich.style import Style

from fwtop.model.traffic.flow import STOPPED, Flow, flow_of
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.drawing.format import bits, number, percent
from fwtop.ui.drawing.style import BAD, DIM, ELSEWHERE, GOOD, STRONG, TEXT, WARN, Line, Span, width_of
from fwtop.ui.state.history import Clients
from fwtop.ui.state.verdict import verdict_of

_UNACCOUNTED = 0.001  # of all packets; less is not worth a word
_SLIGHT = 0.005  # of all packets: the sum is right to three digits without them
_STEADY = 0.05  # clients' rates vary by this much without an attack
_BETWEEN: Span = (" │ ", DIM)


def rates_line(snapshot: Snapshot, before: Clients | None, width: int, tail: Line) -> Line:
    """Write the rates in the longest form that fits, `tail` behind them if there is room."""
    flow = flow_of(snapshot)
    totals = snapshot.tables.totals
    if flow is None:
        line: Line = [(f" recorded {number(totals.pps)} pps {bits(totals.bps)}", STRONG)]
        return [*line, ("  where the packets ended is not recorded", DIM)]
    attack = bool(snapshot.judgement.attacks)
    shortest: Line = []
    for form in _forms(snapshot, flow, before, attack=attack):
        shortest = _joined(form)
        if width_of(shortest) <= width:
            break
    room = width - width_of(shortest) - 4
    return [*shortest, _BETWEEN, *tail] if tail and width_of(tail) <= room else shortest


def _forms(snapshot: Snapshot, flow: Flow, before: Clients | None, *, attack: bool) -> list[list[Line]]:
    """Return the line's parts from the longest form to the shortest.

    Each adds up to what arrives, as long as there is room. What clients get is the last to go: it is the
    answer to a question that nothing else on a small screen answers.
    """
    window = _window(snapshot.seconds)
    arrives: Line = [(f"arrives {number(flow.arrives)} pps", STRONG)]
    bare: Line = [(f"arrives {number(flow.arrives)}", STRONG)]
    sized: Line = [*arrives, (f" {bits(flow.bps)}", TEXT)]
    mine = _part("my rules", flow.mine, GOOD if flow.mine > 0 else TEXT)
    other = _part("other firewall", flow.other, ELSEWHERE if flow.other > 0 else TEXT)
    kernel = _part("kernel", flow.kernel, DIM if flow.kernel > 0 else TEXT)
    merged = _part("other drops", flow.other + flow.kernel, TEXT)
    is_reached = attack and verdict_of(snapshot, 0.0).stopped < STOPPED
    reaches = _part("REACHES YOU", flow.reaches, BAD if is_reached else GOOD)
    some = [part for part, pps in ((other, flow.other), (kernel, flow.kernel)) if pps > 0]
    if flow.arrives and abs(flow.unaccounted) >= _UNACCOUNTED * flow.arrives:
        unknown = [_part("unaccounted", flow.unaccounted, WARN)]
    else:
        unknown = []
    short, long = (clients_parts(snapshot, before, attack=attack, long=wide) for wide in (False, True))
    merge = [merged] if some else []
    notable = merge if flow.other + flow.kernel >= _SLIGHT * flow.arrives else []
    return [
        [[*window, *sized], mine, other, kernel, *unknown, reaches, *long],
        [[*window, *sized], mine, *some, *unknown, reaches, *long],
        [[*window, *sized], mine, *some, *unknown, reaches, *short],
        [[*window, *arrives], mine, *some, *unknown, reaches, *short],
        [[*window, *arrives], mine, *merge, *unknown, reaches, *short],
        [arrives, mine, *merge, *unknown, reaches, *short],
        [arrives, mine, *notable, *unknown, reaches, *short],
        [bare, mine, *notable, *unknown, reaches, *short],
        *([[bare, mine, reaches, *short], [mine, reaches, *short]] if short else []),
        [bare, mine, reaches],
    ]


def _window(seconds: float) -> Line:
    return [(f"{seconds:.0f} s: " if seconds >= 1 else f"{seconds:.1f} s: ", DIM)]


def _part(name: str, pps: float, style: Style) -> Line:
    return [(f"{name} ", DIM if name.islower() else TEXT), (number(pps), style)]


def _joined(parts: list[Line]) -> Line:
    line: Line = [(" ", TEXT)]
    for place, part in enumerate(parts):
        line += [_BETWEEN, *part] if place else part
    return line


def clients_parts(snapshot: Snapshot, before: Clients | None, *, attack: bool, long: bool) -> list[Line]:
    """Write what clients get, against before the attack; nothing where no counters tell.

    The counters are of this machine's own services, so those of one that only forwards tell nothing.
    """
    tcp = snapshot.tcp
    if tcp is None:
        return []
    serves = tcp.handshakes_per_s > 0 or (before is not None and before.handshakes > 0)
    if not serves and _forwards(snapshot):
        return []
    shown: Line = [("clients ", DIM), (f"{number(tcp.handshakes_per_s)}/s", STRONG)]
    acked: Line = [("acked ", DIM), (f"{number(tcp.acknowledged_per_s)}/s", TEXT)]
    if attack and before is None:
        shown.append((" ~ no baseline" if long else " ~", WARN))
    elif before is not None and attack:
        shown.append(_change(tcp.handshakes_per_s, before.handshakes))
        acked.append(_change(tcp.acknowledged_per_s, before.acknowledged))
        if long:
            shown.append((f" (was {number(before.handshakes)})", DIM))
    return [shown, acked] if long else [shown]


def _forwards(snapshot: Snapshot) -> bool:
    """Return whether services answer behind this machine."""
    return any(row.part == "service" for row in snapshot.tables.destinations)


def _change(now: float, before: float) -> Span:
    if before <= 0:
        return (" ▲", GOOD) if now > 0 else (" =", TEXT)
    change = now / before - 1
    if abs(change) < _STEADY:
        return " =", GOOD
    return (f" ▲{percent(change)}", GOOD) if change > 0 else (f" ▼{percent(-change)}", BAD)
