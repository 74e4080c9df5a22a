"""The pane below the list of packets: what the selected one is, layer by layer, and its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.packets.recent import PacketList
from fwtop.dissect.wire import Dissection, Layer
from fwtop.model.traffic.packets import Mask
from fwtop.ui.drawing.format import hex_dump, number, percent
from fwtop.ui.drawing.style import ACCENT, DIM, STRONG, TEXT, WARN, Line, fit, width_of, wrap_line
from fwtop.ui.lists.packets.columns import clock_text, length_text, source_text, target_text, who_line
from fwtop.ui.state.packets import PacketRow, protocol_of

HEX_CELLS = 4 + 2 + 49 + 2 + 16
_GAP = 3
_TREE = 34  # cells that the layers need at least, beside the bytes
_NAME = 2
_LINKS = ("Ethernet", "cooked linux")
_EMPTY = ("", "[]", "''", "b''")


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
    if width >= HEX_CELLS + _GAP + _TREE:
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
        for row, line in enumerate(wrap_line(_layer(layer), max(width - _NAME, 1))):
            mark = ("└ " if last else "├ ") if row == 0 else ("  " if last else "│ ")
            lines.append([(mark, ACCENT), *line])
    if dissection.problem:
        lines.append([(dissection.problem, WARN)])
    return lines


def _inner(tree: list[Line], dissection: Dissection | None, width: int) -> list[Line]:
    """Leave out the link layer, which says least, where room is short."""
    layers = dissection.layers if dissection is not None else ()
    if dissection is None or len(layers) < 2 or layers[0].name not in _LINKS:
        return tree
    return _tree(replace(dissection, layers=layers[1:]), "", width)


def _layer(layer: Layer) -> Line:
    line: Line = [(f"{layer.name} ", STRONG)]
    for name, value in layer.fields:
        if value in _EMPTY:
            continue
        line += [(f"{name} ", DIM), (f"{value} ", TEXT)]
    return line


def _hex(data: bytes) -> list[Line]:
    return [
        [(offset, DIM), ("  ", TEXT), (pairs, TEXT), (" ", TEXT), (text, DIM)]
        for offset, pairs, text in hex_dump(data)
    ]


def _length(item: PacketRow) -> str:
    frame = f"{item.field('length')} in the frame, {item.field('captured')} captured"
    return f"{length_text(item)} bytes; {frame}" if item.field("family") else frame


def packet_details(item: PacketRow) -> list[Line]:
    """Write a packet for the details dialog; the dissector's answer follows it."""
    verdict = item.verdict
    said = verdict.text or "not known"
    lines: list[Line] = [
        [("from         ", DIM), (source_text(item), STRONG), ("  ", TEXT), *who_line(item)],
        [("to           ", DIM), (target_text(item), TEXT)],
        [("length       ", DIM), (_length(item), TEXT)],
    ]
    if item.shown.judged:
        inferred = " (inferred from rules and like packets)" if verdict.inferred else ""
        lines.append([("verdict      ", DIM), (f"{said}{inferred}", TEXT)])
    return [*lines, [], *_hex(item.data)]
