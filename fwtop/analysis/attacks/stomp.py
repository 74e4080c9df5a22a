"""PSH-ACK floods on open connections (Mirai's attack_tcp_stomp), and one-way streams of clients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut, feature, noted
from fwtop.analysis.measures.conversations import framed, is_filler
from fwtop.analysis.measures.general import ENOUGH
from fwtop.analysis.measures.tcp import match_ack
from fwtop.analysis.parsers.http import starts_request
from fwtop.analysis.parsers.tls import record_mask
from fwtop.analysis.severity import CORE, LINK
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.tcp_view import ack_numbers
from fwtop.analysis.window.traffic import Rows
from fwtop.render.numbers import percent

_FULL = 1_300  # bytes of an IP packet: full-sized ones are uploads
_TIRELESS = 10  # data packets on one connection without acknowledging any answer
_SMALL_PIECES = 0.7  # of the packets with data, at least: who has much to send fills them (RFC 1122 4.2.3.4)
_RANDOM = 7.5  # bits a byte
_VARIED, _BEGINNING = 0.1, 32  # distinct beginnings a packet, and their bytes
_ONE_SIZE = 0.9  # of the packets with data
_WORD, _SAME, _SEVERAL = 16, 0.02, 8  # bytes; distinct payloads a packet; sources that send the same


@cut(Proof.VOLUME)
def one_way_data_connections(context: AnalysisContext) -> Iterator[Group]:
    """Connections with small pieces of data, neither TLS nor HTTP, that acknowledge no answer."""
    traffic, tcp = context.traffic, context.tcp
    packets = traffic.packets
    if context.sparse:
        return
    rows = traffic.rows(tcp.ack & tcp.real & context.unclaimed & (packets.payload_length > 0))
    small = rows[packets.ip_length[rows] < _FULL]
    if len(small) < context.config.min_samples:
        return
    size = int(traffic.flow_id.max()) + 1
    inverse = traffic.flow_id[small]
    counts, every = np.bincount(inverse, minlength=size), np.bincount(traffic.flow_id[rows], minlength=size)
    odd = (counts >= _TIRELESS) & (counts > _SMALL_PIECES * every)
    if not odd.any():
        return
    odd &= _constant(ack_numbers(traffic, small), inverse, size)
    junk = small[odd[inverse]]
    spoken = starts_request(traffic.packets, junk) | record_mask(traffic, junk)
    odd[traffic.flow_id[junk[spoken]]] = False
    junk = junk[odd[traffic.flow_id[junk]]]
    features = context.features(tcp.tcp & context.unclaimed & traffic.of_flows(junk))
    notes = {"one_way_connections": int(odd.sum()), "data": context.features(junk)}
    yield Group(context, features, Least(normal="tcp.ack"), notes, completed=1.0)


one_way_connections = noted("one_way_connections", "connections",
    "Connections on which a client sends ten or more small packets and acknowledges no answer.")  # fmt: skip


@feature("connections")
def one_way_per_source(group: Group) -> float:
    """One-way connections of each source; a client that ships logs or measurements has one."""
    return group[one_way_connections] / max(1, group.packets.sources)


@feature("packets a second")
def one_way_rate(group: Group) -> float:
    """Data packets a second on each one-way connection."""
    return _data(group).pps / max(1.0, group[one_way_connections])


@feature("share")
def one_way_same_size(group: Group) -> float:
    """Part of the data packets on one-way connections that have the most common length."""
    return _data(group).top("payload_length").share


@feature("yes or no")
def one_way_random(group: Group) -> float:
    """Whether the data on one-way connections is random; much of logs and measurements repeats."""
    data = _data(group)
    return data.payload_entropy > _RANDOM and data.payload_variety > 0.9


@feature("share")
def one_way_framing(group: Group) -> float:
    """Part of the one-way data that begins with the most common byte, as messages of one protocol do.

    0 where all of it is the same; what repeats a byte or a word is no message.
    """
    data = _data(group)
    same = data.payload_variety < _VARIED and group[one_way_same_size] > _ONE_SIZE
    return 0.0 if same else framed(*data.head) * (1 - group[one_way_filler])


@feature("share")
def one_way_filler(group: Group) -> float:
    """Part of the one-way data that repeats a byte or a word, or is always the same few bytes."""
    data = _data(group)
    matrix, held = data.head
    if not len(held):
        return 0.0
    repeats = is_filler(matrix[:, :_BEGINNING], np.minimum(held, _BEGINNING))
    if data.payload_variety < _SAME and data.sources >= _SEVERAL:
        repeats |= held < _WORD
    return float(repeats.mean())


def one_way_data(group: Group) -> list[str]:
    """Write what the packets with data hold."""
    data = _data(group)
    size = data.top("payload_length")
    same = size.share > 0.8
    of_size = f"{percent(size.share)} carry {size.value} bytes" if same else f"{size.distinct:,} sizes"
    return [f"{data.amount('data packets')}: {of_size}; they are neither TLS nor HTTP"]


def _data(group: Group) -> Features:
    data: Features = group.notes["data"]
    return data


def _constant(values: np.ndarray[tuple[int], np.dtype[np.generic]], group: Rows, groups: int) -> np.ndarray:
    """Mark the groups in which all values are equal."""
    low = np.full(groups, np.iinfo(np.int64).max)
    high = np.full(groups, -1, np.int64)
    np.minimum.at(low, group, values.astype(np.int64))
    np.maximum.at(high, group, values.astype(np.int64))
    return np.asarray(low == high)


ENTRIES = (
    Hypothesis(
        "PSH-ACK flood on open connections (STOMP)", one_way_data_connections, 0.0,  # Mirai attack_tcp_stomp
        kind="ack_flood",
        exhausts=(CORE, LINK),
        traits=Trait.APART,
        needs=(ENOUGH,),
        lead="{amount:packets} on {one_way_connections:count} connections from {senders}, none of which "
        "acknowledges data from this host",
        evidence=(
            one_way_connections.says(1, -1.5, 5, 0.0),
            one_way_same_size.says(0.5, 0.0, 0.9, 2.0),
            one_way_random.if_so(1.5, "the data is random"),
            one_way_filler.says(0.2, 0.0, 0.9, 3.0, "it repeats a byte or a word"),
            one_way_framing.says(0.05, 0.5, 0.7, -2.5),
            one_way_per_source.says(1, -1.0, 4, 1.0,
                 "each source has {one_way_per_source:.0f} such connections"),
            one_way_rate.says(10, -1.0, 50, 1.0, "{one_way_rate:count} packets/s on each of them"),
        ),
        details=(one_way_data,),
        match=match_ack,
        stopped_by="blocking the sources, or a signature of the data",
    ),
    Hypothesis(
        "one-way streams of clients", one_way_data_connections, 0.0,  # logs, measurements, market data
        evidence=(
            one_way_random.if_so(-2.5),
            one_way_per_source.says(1, 2.0, 4, -1.0),
            one_way_rate.says(10, 1.0, 100, 0.0),
            one_way_filler.says(0.2, 0.0, 0.9, -3.0),
            one_way_framing.says(0.05, 0.0, 0.7, 2.0),
        ),
    ),
)  # fmt: skip
