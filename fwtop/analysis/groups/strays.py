"""Groups of ACK, RST and FIN packets: outside of connections and, as STOMP sends them, within.

Sources: RFC 9293 3.10.7; Mirai's source (attack_tcp_ack, attack_tcp_stomp); Imperva, "Breaking down Mirai"
(2016).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.group import Group, Least, Proof, cut, feature
from fwtop.analysis.groups.measures import of_protocol
from fwtop.analysis.groups.syns import BARE, stray
from fwtop.analysis.parsers.http import starts_request
from fwtop.analysis.parsers.reports import framed, is_filler
from fwtop.analysis.parsers.tls import record_mask
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.features import Features, header_words
from fwtop.analysis.window.tcp_view import ACK, FIN, RST, SYN, ack_numbers
from fwtop.analysis.window.traffic import Rows
from fwtop.model.rule import Match
from fwtop.render.numbers import percent

_ALONE = 0.9  # of the packets are alone in their flow; fewer if a capture only truncates connections
_ALL_ALONE, _SEEN = 0.98, 1_000  # in a sample as dense and large as that, no connections look like it
_NO_DATA, _HARDLY_OPENED = 0.05, 0.05  # shares: of packets with data; of the connections that there must be
_FULL = 1_300  # bytes of an IP packet: full-sized ones are uploads
_TIRELESS = 10  # data packets on one connection without acknowledging any answer
_FLOWS = 1
_SMALL_PIECES = 0.7  # of the packets with data, at least: who has much to send fills them (RFC 1122 4.2.3.4)
_RANDOM = 7.5  # bits a byte
_VARIED, _BEGINNING = 0.1, 32  # distinct beginnings a packet, and their bytes
_ONE_SIZE = 0.9  # of the packets with data
_EPHEMERAL = 32_768  # the first port of Linux for connections of its own
_WORD, _SAME, _SEVERAL = 16, 0.02, 8  # bytes; distinct payloads a packet; sources that send the same
_READ = 10  # packets with data before their contents say something


@cut(Proof.VOLUME)
def stray_acks(context: AnalysisContext) -> Iterator[Group]:
    """ACKs, with or without data, that belong to no connection.

    In a sampled capture every packet is alone in its flow; only those without options are taken.
    """
    features = context.features(stray(context, context.tcp.ack))
    if context.sampled:
        features = context.features(features.rows[header_words(context.traffic, features.rows) == BARE])
    if features.n:
        data = float((context.traffic.packets.payload_length[features.rows] > 0).mean())
        flood = "PSH-ACK flood" if data > 0.5 else "ACK flood"
        yield Group(context, features, Least(normal="tcp.lone"), {"flood": flood, "with_data": data})


@feature("times")
def connections_opened(group: Group) -> float:
    """Connections that were opened or closed meanwhile, against those that single packets like these require.

    If one in N is sampled and a share s of the packets is alone in its flow, flows have about
    -ln(s) N packets (Poisson), of which one opens and one closes the connection. A SYN flood may have claimed
    the SYNs of real clients; FINs tell their number.
    """
    context, features = group.context, group.packets
    tcp, weight, mine = context.tcp, context.traffic.weight, context.unclaimed | context.tcp.real
    if not context.sparse:  # connections of other sources explain none of these
        mine = mine & context.traffic.of_sources(features.rows)
    ends = float(weight[tcp.fin & mine].sum())
    openings = max(2 * ends, ends + float(weight[(tcp.syn | tcp.syn_ack) & mine].sum()))
    length = max(2.0, -math.log(min(0.999, max(1e-9, features.flow_singles))) * features.traffic.one_in)
    expected = 0.75 / length if context.sparse else min(0.1, 0.75 / length)
    return openings / (expected * features.packets)


@feature("flows")
def flows_each(group: Group) -> float:
    """Flows of each source, with those that the sample misses: browsers open six, large proxies hundreds."""
    return group.packets.likely_flows / max(1.0, group.packets.likely_sources)


@feature("share")
def beside_requests(group: Group) -> float:
    """Part that goes to a port where a flood of requests was found: a sample misses what its sources ask."""
    context = group.context
    asked = [finding.rows for finding in context.findings if finding.requests]
    if not asked or context.traffic.one_in <= 1:
        return 0.0
    dport = context.traffic.packets.dport
    return float(among(dport[group.packets.rows], dport[np.concatenate(asked)]).mean())


@feature("share")
def readable(group: Group) -> float:
    """Part of the packets with data that begin an HTTP request or a TLS record; below 10, 0."""
    data = _with_data(group).rows
    if len(data) < _READ:
        return 0.0
    traffic = group.context.traffic
    return float((starts_request(traffic.packets, data) | record_mask(traffic, data)).mean())


@feature("share")
def with_options(group: Group) -> float:
    """Part whose TCP header has options: on connections, most systems stamp each segment (RFC 7323)."""
    words = header_words(group.context.traffic, group.packets.rows)
    return float((words > BARE).mean()) if len(words) else 0.0


@feature("yes or no")
def flow_per_packet(group: Group) -> float:
    """Whether the sources send each packet in another flow, more of these than hosts have connections.

    Large proxies keep as many connections open. Theirs show more than one packet each, unless the sample is
    thin, and carry timestamps. If hardly two packets of a dense sample share a flow, nothing is connected;
    nor in a thin one if they carry no data, and so few connections are opened that all would have to be idle.
    """
    context, features = group.context, group.packets
    if not context.traffic.live:
        return features.flow_singles > _ALONE
    bare = float((header_words(context.traffic, features.rows) == BARE).mean())
    idle = group.notes["with_data"] < _NO_DATA and group[connections_opened] < _HARDLY_OPENED
    dense = not context.sparse or idle
    if dense and bare > _ALONE and features.flow_singles > _ALL_ALONE and features.n >= _SEEN:
        return True
    thick = not context.sparse or bare > _ALONE
    return thick and features.pps_per_source > context.config.flood_pps


@feature("yes or no")
def normal_known(group: Group) -> float:
    """Whether the baseline tells what is normal: what exceeds it is unusual at least."""
    return group.context.baseline.ready


@feature("yes or no")
def sampled_capture(group: Group) -> float:
    """Whether a capture is sampled without saying so (sFlow, NetFlow, a thinned mirror)."""
    return group.context.sampled


@feature("share")
def one_data_size(group: Group) -> float:
    """Part of the packets with data that have one length, below the full one; 50 packets tell."""
    data = _with_data(group)
    length = data.top("ip_length")
    few = data.n < 50 or data.share < 0.3 * group.packets.share
    return 0.0 if few or length.value >= _FULL else length.share


def data_length(group: Group) -> list[str]:
    """Write the length that packets with data have."""
    if group[one_data_size] < 0.8:
        return []
    length = _with_data(group).top("ip_length")
    return [f"{percent(length.share)} of the packets with data have IP length {length.value}"]


def _with_data(group: Group) -> Features:
    rows = group.packets.rows
    return group.context.features(rows[group.context.traffic.packets.payload_length[rows] > 0])


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
    counts = np.bincount(inverse, minlength=size)
    odd = (counts >= _TIRELESS) & (
        counts > _SMALL_PIECES * np.bincount(traffic.flow_id[rows], minlength=size)
    )
    if odd.sum() < _FLOWS:
        return
    odd &= _constant(ack_numbers(traffic, small), inverse, size)
    junk = small[odd[inverse]]
    spoken = starts_request(traffic.packets, junk) | record_mask(traffic, junk)
    odd[traffic.flow_id[junk[spoken]]] = False
    junk = junk[odd[traffic.flow_id[junk]]]
    every = traffic.rows(tcp.tcp & context.unclaimed & traffic.of_flows(junk))
    data = context.features(junk)
    notes = {"one_way_connections": int(odd.sum()), "data": data}
    yield Group(context, context.features(every), Least(normal="tcp.ack"), notes, completed=1.0)


@feature("connections")
def one_way_connections(group: Group) -> float:
    """Connections on which a client sends ten or more small packets and acknowledges no answer."""
    return float(group.notes["one_way_connections"])


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


@cut(Proof.ENDS)
def stray_resets(context: AnalysisContext) -> Iterator[Group]:
    """RSTs that belong to no connection."""
    yield Group(context, context.features(stray(context, context.tcp.rst)), Least(normal="tcp.rst"))


@cut(Proof.ENDS)
def stray_fins(context: AnalysisContext) -> Iterator[Group]:
    """FINs that belong to no connection."""
    yield Group(context, context.features(stray(context, context.tcp.fin)), Least(normal="tcp.fin"))


@feature("packets")
def openings(group: Group) -> float:
    """SYNs and SYN-ACKs that could explain the ends of connections, each once.

    Those of a SYN flood or a reflection began none. In a thin sample, which holds ends of real connections,
    these are estimated from their other packets.
    """
    context = group.context
    tcp, weight = context.tcp, context.traffic.weight
    began = float(weight[(tcp.syn | tcp.syn_ack) & context.unclaimed].sum())
    if context.sparse:
        began = 2 * began + float(weight[tcp.ack & context.unclaimed].sum())
    return began


@feature("times")
def openings_per_end(group: Group) -> float:
    """Connections that were opened, for each packet that ends one."""
    return group[openings] / group.packets.packets


@feature("share")
def refusals(group: Group) -> float:
    """Part that closed ports send to a client's: RST with ACK, number 0, window 0 (RFC 9293 3.10.7.1)."""
    packets, rows = group.context.traffic.packets, group.packets.rows
    closed = ((packets.tcp_flags[rows] & ACK) > 0) & (packets.tcp_seq[rows] == 0)
    return float((closed & (packets.tcp_window[rows] == 0) & (packets.dport[rows] >= _EPHEMERAL)).mean())


def match_ack(group: Group) -> Match:
    """Match ACKs to the ports that nearly all have."""
    return of_protocol(group, flags=(SYN | RST | FIN | ACK, ACK))


def match_rst(group: Group) -> Match:
    """Match RSTs to the ports that nearly all have."""
    return of_protocol(group, flags=(RST | SYN, RST))


def match_fin(group: Group) -> Match:
    """Match FINs to the ports that nearly all have."""
    return of_protocol(group, flags=(FIN | SYN | RST, FIN))
