"""The Packets tab: columns in which no address is cut, and the pane with a packet's layers and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace
from rich.style import Style

from fwtop.analysis.packets.recent import Fate, PacketList
from fwtop.dissect.client import Dissection, Layer
from fwtop.model.service import service_at
from fwtop.model.traffic.packets import Mask
from fwtop.model.traffic.protocols import NAMES
from fwtop.ui.format import cut, hex_dump, number, percent
from fwtop.ui.lists.packet_rows import (
    PACKET,
    PacketRow,
    clock_text,
    info,
    length_text,
    port_text,
    protocol_of,
    source_text,
    target_text,
)
from fwtop.ui.lists.table import GAP, Cell, CellContext, View, columns_of
from fwtop.ui.style import (
    ACCENT,
    BAD,
    DIM,
    ELSEWHERE,
    GOOD,
    STRONG,
    TEXT,
    WARN,
    Line,
    facts,
    fit,
    labelled,
    width_of,
    wrap_line,
)

GLYPHS = {Fate.REACHES: "█", Fate.MINE: "▓", Fate.OTHER: "▒", Fate.KERNEL: "░"}
_STYLES: dict[Fate, Style] = {Fate.MINE: GOOD, Fate.OTHER: ELSEWHERE, Fate.KERNEL: DIM, Fate.REACHES: TEXT}
_IPV4 = 15
_HALF_IPV6 = 20  # the longest address in two lines
_PORT_ONLY = 6  # ":65535"
_SHORT_WHO, _SHORT_VERDICT, _LONG_VERDICT = 6, 13, 26
_INFO = 38  # flags, sequence number and window
_LEAST_INFO = 8
_NARROW, _LENGTH_FROM, _VERDICT_FROM, _WIDE = 100, 90, 80, 140
_ABBREVIATED = {
    "allowed": "allow",
    "resolver": "dns",
    "time server": "ntp",
    "gateway": "gw",
    "this host": "own",
    "ssh client": "ssh",
}


def who_line(item: PacketRow, *_: object) -> Line:
    """Write who sent it: an attacker in red, whom a block would cut off in green."""
    style = BAD if item.who == "attack" else WARN if item.who == "you" else GOOD
    return [(item.who, style)]


def _short_who(item: PacketRow, *_: object) -> Line:
    return [(_ABBREVIATED.get(item.who, item.who), style) for _, style in who_line(item)]


def verdict_line(item: PacketRow, context: CellContext, width: int) -> Line:
    """Write what became of it, with its glyph; "~" marks what is inferred, "?" what nobody knows."""
    verdict = item.verdict
    if verdict.fate is Fate.UNKNOWN:
        return [("?", DIM)]
    reaches = verdict.fate is Fate.REACHES
    style = BAD if reaches and item.who == "attack" else _STYLES[verdict.fate]
    words = _listener(item, context) if reaches else verdict.text
    mark: Line = [(" ~", WARN)] if verdict.inferred else []
    told = f"{GLYPHS[verdict.fate]} {words}"
    if verdict.fate is Fate.OTHER and len(told) > width - width_of(mark):
        told = f"{GLYPHS[verdict.fate]} firewall"  # says more than the beginning of NETFILTER_DROP
    return [(cut(told, width - width_of(mark)), style), *mark]


def _listener(item: PacketRow, context: CellContext) -> str:
    """Name the program that an accepted packet reached, if it is known."""
    protocol = NAMES.get(item.field("protocol"), "")
    listeners = context.snapshot.surroundings.listeners
    found = service_at(listeners, protocol, item.address("dst"), item.field("dport"))
    return found.name if found is not None else item.verdict.text


def _info_to(item: PacketRow, _: CellContext, width: int) -> Line:
    port = port_text(item)
    to: Line = [(f"→{port} ", DIM)] if port else []
    words = info(item, short=width < _INFO)
    return [*to, (protocol_of(item), STRONG), (f" {words}", TEXT)]


_CELLS: dict[str, Cell] = {
    "source": lambda item, *_: [(source_text(item), TEXT)],
    "length": lambda item, *_: [(length_text(item), TEXT)],
    "who": who_line,
    "verdict": verdict_line,
    "contents": lambda item, *_: [(protocol_of(item), STRONG), (f" {info(item)}", TEXT)],
}
_COLUMNS = dict(zip(PACKET.columns.split(), columns_of(PACKET, _CELLS), strict=True))


def packet_view(width: int, items: Sequence[PacketRow], *, judged: bool) -> View:
    """Choose the columns for the packets that are visible, in `width` cells."""
    who, verdict, contents = (_COLUMNS[name] for name in ("who", "verdict", "contents"))
    if width < _NARROW:
        who = replace(who, width=_SHORT_WHO, cell=_short_who)
    if not _VERDICT_FROM <= width < _WIDE:
        verdict = replace(verdict, width=_SHORT_VERDICT if width < _WIDE else _LONG_VERDICT)
    before = [_COLUMNS[name] for name in ("time", "length") if name == "time" or width >= _LENGTH_FROM]
    after = [verdict] if judged else []
    room = width - sum(column.width + GAP for column in (*before, *after)) - GAP
    senders = [who] if room >= _IPV4 + _LEAST_INFO + GAP + who.width else []  # the pane tells it, too
    room -= sum(column.width + GAP for column in senders)
    sources = max([_IPV4, *(len(source_text(item)) for item in items)])
    targets = max([_PORT_ONLY, *(len(target_text(item)) for item in items)])
    wide = room >= sources + targets + GAP + _INFO
    words = max(room - (_IPV4 if sources == _IPV4 else _HALF_IPV6), _LEAST_INFO)
    words = _INFO if room >= sources + _INFO else words
    space = room - words - (targets + GAP if wide else 0)
    source = replace(_COLUMNS["source"], width=max(min(sources, space), 1))
    target = [replace(_COLUMNS["destination"], width=targets)] if wide else []
    contents = contents if wide else replace(contents, cell=_info_to)
    return View("", (*before, source, *senders, *target, contents, *after), PACKET, empty="no packet yet")


HEX_CELLS = 4 + 2 + 49 + 2 + 16
_GAP = 3


def pane_lines(
    item: PacketRow,
    dissection: Dissection | None,
    alike: Mask,
    shown: PacketList,
    *,
    width: int,
    height: int,
    waiting: str = "",
) -> list[Line]:
    """Write the pane in at most `height` lines: what it shares with others, then layers and bytes."""
    head = [fit(line, width) for line in _head(item, alike, shown, width)][: max(height, 0)]
    room = height - len(head)
    tree = _tree(dissection, waiting, width)
    if room <= 0:
        return head
    if width >= HEX_CELLS + _GAP + 34:  # what the layers need at least
        left = width - HEX_CELLS - _GAP
        return [*head, *_beside(_tree(dissection, waiting, left), _hex(item.data), left, room)]
    tree = _inner(tree, dissection, width)[: max(room - 3, 1)] if len(tree) > room - 3 else tree
    return [*head, *tree, *_hex(item.data)][:height]


def _beside(tree: Sequence[Line], rows: Sequence[Line], left: int, room: int) -> list[Line]:
    lines = []
    for place in range(min(max(len(tree), len(rows)), room)):
        first = fit(tree[place] if place < len(tree) else [], left)
        second = rows[place] if place < len(rows) else []
        lines.append([*first, (" │ ", DIM), *second])
    return lines


def _head(item: PacketRow, alike: Mask, shown: PacketList, width: int) -> list[Line]:
    who = [(" ", TEXT), *who_line(item)] if item.who else []
    title: Line = [
        (clock_text(item.unix_ns), STRONG),
        ("  ", TEXT),
        (source_text(item) if item.source is not None else protocol_of(item), STRONG),
        *who,
    ]
    title += [(" → ", DIM), (target_text(item), STRONG)] if item.source is not None else []
    count = int(alike.sum())
    common: Line = [(f"{number(count)} of {number(len(shown))} shown are alike", TEXT)]
    for part in _shares(item, shown):
        if width_of(common) + width_of(part) <= width:
            common += part
    return [title, common]


def _shares(item: PacketRow, shown: PacketList) -> Iterator[Line]:
    """Tell how common the values of its fields are among the packets shown."""
    fields = [("length", "ip_length"), ("TTL", "ttl"), ("source port", "sport")]
    if item.field("protocol") == 6:
        fields = [*fields, ("window", "tcp_window"), ("flags", "tcp_flags")]
    for word, name in fields if item.source is not None and len(shown) else ():
        share = float(np.mean(getattr(shown.packets, name) == item.field(name)))
        value = f" · {word}" if name == "tcp_flags" else f" · {word} {item.field(name)}"
        yield [(value, DIM), (f" {percent(share)}", STRONG if share >= 0.9 else DIM)]


def _tree(dissection: Dissection | None, waiting: str, width: int) -> list[Line]:
    """Write a line per layer, with as many of its fields as it takes."""
    if dissection is None:
        return [[(waiting, DIM)]] if waiting else []
    lines: list[Line] = []
    for place, layer in enumerate(dissection.layers):
        last = place == len(dissection.layers) - 1
        for row, line in enumerate(wrap_line(_layer(layer), max(width - 2, 1))):
            mark = ("└ " if last else "├ ") if row == 0 else ("  " if last else "│ ")
            lines.append([(mark, ACCENT), *line])
    if dissection.problem:
        lines.append([(dissection.problem, WARN)])
    return lines


def _inner(tree: list[Line], dissection: Dissection | None, width: int) -> list[Line]:
    """Leave out the link layer, which says least, where room is short."""
    layers = dissection.layers if dissection is not None else ()
    if dissection is None or len(layers) < 2 or layers[0].name not in ("Ethernet", "cooked linux"):
        return tree
    return _tree(replace(dissection, layers=layers[1:]), "", width)


def _layer(layer: Layer) -> Line:
    line: Line = [(f"{layer.name} ", STRONG)]
    for name, value in layer.fields:
        if value in ("", "[]", "''", "b''"):
            continue
        line += [(f"{name} ", DIM), (f"{value} ", TEXT)]
    return line


def _hex(data: bytes) -> list[Line]:
    return [
        [(offset, DIM), ("  ", TEXT), (pairs, TEXT), (" ", TEXT), (text, DIM)]
        for offset, pairs, text in hex_dump(data)
    ]


def packet_details(item: PacketRow) -> list[Line]:
    """Write a packet for the details dialog; the dissector's answer follows it."""
    frame = f"{item.field('length')} in the frame, {item.field('captured')} captured"
    length = f"{length_text(item)} bytes; {frame}" if item.field("family") else frame
    inferred = " (inferred from rules and like packets)" if item.verdict.inferred else ""
    verdict = f"{item.verdict.text or 'not known'}{inferred}" if item.shown.judged else ""
    sender: Line = [(source_text(item), STRONG), ("  ", TEXT), *who_line(item)]
    return [
        labelled("from", sender),
        *facts(("to", target_text(item)), ("length", length), ("verdict", verdict)),
        [],
        *_hex(item.data),
    ]
