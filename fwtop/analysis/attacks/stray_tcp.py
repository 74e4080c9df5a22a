"""TCP packets of no connection: floods of ACKs, RSTs, FINs and invalid flags, and what looks like them.

Sources: RFC 9293 3.10.7; Mirai's source (attack_tcp_ack); Imperva, "Breaking down Mirai" (2016).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from fwtop.analysis.connections import flows_of, flows_of_packets
from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import CERTAIN, Group, Hypothesis, Least, Proof, cut, feature, measured
from fwtop.analysis.measures.general import (
    ENOUGH,
    FEW,
    flow_singles,
    of_protocol,
    rate,
    same_port,
    share,
    sources,
    spoofed,
)
from fwtop.analysis.measures.tcp import BARE, OUTSIDE, constant_fields, constants, match_ack, stray
from fwtop.analysis.parsers.http import starts_request
from fwtop.analysis.parsers.tls import record_mask
from fwtop.analysis.severity import CORE, LINK, TABLE
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.features import Features, header_words
from fwtop.analysis.window.tcp_view import ACK, FIN, RST, SYN, flag_names
from fwtop.analysis.window.traffic import mix
from fwtop.model.rule import Match
from fwtop.render.numbers import percent

_ALONE = 0.9  # of the packets are alone in their flow; fewer if a capture only truncates connections
_ALL_ALONE, _SEEN = 0.98, 1_000  # in a sample as dense and large as that, no connections look like it
_DENSE = 1.5  # packets a sample
_REFUSED = ("NO_SOCKET", "TCP_FLAGS")  # of a closed port, and of a listener that gets no SYN
_LOOPBACK = 127
_NO_DATA, _HARDLY_OPENED = 0.05, 0.05  # shares: of packets with data; of the connections that there must be
_FULL = 1_300  # bytes of an IP packet: full-sized ones are uploads
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


@feature("yes or no")
def without_sockets(group: Group) -> float:
    """Whether no socket of this host takes them: the kernel says so, or all are read, and none is theirs.

    In a dense sample a connection of less than a second, which no reading shows, shows how it begins. A port
    that is published from another namespace has no sockets here, so there must be one of somebody else's.
    """
    context, rows = group.context, group.packets.rows
    refused = sum(one.packets for one in context.counters.drops if one.reason in _REFUSED)
    if refused > _ALONE * group.packets.packets:
        return True
    table, traffic = context.sockets, context.traffic
    if table is None or table.share < 1 or not context.own or traffic.one_in > _DENSE:
        return False
    halves = (np.array([getattr(prefix, half) for prefix in context.own], np.uint64) for half in ("hi", "lo"))
    held, own = table.connections, mix(*halves)
    foreign = ~(
        among(mix(held.hi, held.lo), own) | (held.family == 4) & (held.lo >> np.uint64(24) == _LOOPBACK)
    )
    mine = among(traffic.dest_key[rows], own) & among(traffic.packets.dport[rows], held.port[foreign])
    theirs = among(flows_of_packets(traffic.packets.select(rows)), flows_of(held))
    return float((mine & ~theirs).mean()) > _ALONE


@feature("share")
def with_options(group: Group) -> float:
    """Part with options in the TCP header, which most systems stamp (RFC 7323); 0 if no socket is there."""
    if group[without_sockets]:
        return 0.0
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


_ACKS = "{with_data:percent} carry data; {same_port:percent} go to port {port:.0f}"
_REPEATS = ("{amount:ACK packets} whose sequence numbers don't advance as in a connection", _ACKS)

_ack_flood = partial(
    Hypothesis,
    of=stray_acks,
    kind="ack_flood",
    exhausts=(CORE, LINK, TABLE),
    traits=Trait.APART,
    title="{flood}",
    details=(constant_fields, data_length),
    match=match_ack,
    stopped_by=OUTSIDE,
)


_EPHEMERAL = 32_768  # the first port of Linux for connections of its own


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


match_rst = partial(of_protocol, flags=(RST | SYN, RST))
match_fin = partial(of_protocol, flags=(FIN | SYN | RST, FIN))


@cut(Proof.HANDSHAKES)
def invalid_flags(context: AnalysisContext) -> Iterator[Group]:
    """TCP packets with flags that no stack sends: Xmas, null, SYN+FIN and the like."""
    features = context.features(context.tcp.odd & context.unclaimed)
    if features.n:
        flags = flag_names(features.top("tcp_flags").value)
        yield Group(context, features, Least("reflection_pps", "tcp.odd", shaped=True), {"flags": flags})


same_flags = measured("same_flags", "share",
    "Part that has the most common TCP flags.", lambda packets: packets.top("tcp_flags").share)  # fmt: skip


def match_flags(group: Group) -> Match:
    """Match ports and flags that nearly all have."""
    top = group.packets.top("tcp_flags")
    return of_protocol(group, flags=(63, top.value & 63) if top.share > 0.9 else None)


ENTRIES = (
    _ack_flood(
        "ACK flood", prior=-1.1,
        needs=(ENOUGH, flow_singles.at_least(0.5), connections_opened.at_most(1)),
        lead=(
            "{amount:ACK packets} from {senders} belong to no connection: {flow_singles:percent} are the "
            "only packet of their flow",
            _ACKS,
        ),
        evidence=(
            constants.above(0, 2.5),
            one_data_size.above(0.8, 2.5),
            spoofed.above(0.5, 2.5),
            flow_per_packet.if_so(2.5),
            normal_known.if_so(2.5),
            without_sockets.if_so(2.5, "no socket of this host takes them"),
            sampled_capture.if_so(-2.6),  # there, every packet is alone in its flow
            connections_opened.says(0.1, 0.5, 0.7, -2.5),
            flows_each.says(20, 0.0, 200, 2.0, "each source sends them in {flows_each:count} flows or more"),
            readable.says(0.3, 0.0, 0.8, -4.0),
            with_options.says(0.3, 0.0, 0.9, -6.0),
            beside_requests.says(0.5, 0.0, 0.9, -6.0),
        ),
    ),
    _ack_flood(
        "ACK flood that repeats numbers", prior=2.4,
        needs=(ENOUGH, flow_singles.at_most(0.5)),
        lead=_REPEATS,
        evidence=(
            constants.above(0, 2.5),
            one_data_size.above(0.8, 2.5),
            spoofed.above(0.8, 2.5),
            sampled_capture.if_so(-4.5),
        ),
    ),
    _ack_flood(
        "ACK flood of forged sources", prior=2.4,
        needs=(ENOUGH, spoofed.at_least(0.8)),
        lead=_REPEATS,
    ),
    Hypothesis(
        "refusals of a scan that this host makes", stray_resets, 0.0,
        needs=(refusals.at_least(0.9), same_port.at_least(0.9)),
        evidence=(rate.says(2_000, 5.0, 20_000, -2.0),),
    ),
    Hypothesis(
        "refusals of a few hosts, to ports of this host's own", stray_resets, 0.0,  # it tries theirs
        needs=(refusals.at_least(0.9), sources.at_most(FEW)),
        evidence=(rate.says(20_000, 5.0, 60_000, -2.0),),
    ),
    *(
        explanation
        for cut, flag, match in ((stray_resets, "RST", match_rst), (stray_fins, "FIN", match_fin))
        for explanation in (
            Hypothesis(
                f"{flag} flood", cut, 2.0,
                kind=f"{flag.lower()}_flood",
                exhausts=(CORE, LINK),
                traits=Trait.APART,
                needs=(ENOUGH, share.at_least(0.02)),
                lead=(
                    f"{{amount:{flag} packets}} from {{senders}}, "
                    "but only {openings:count} SYNs or SYN-ACKs that could explain them",
                    "{same_port:percent} go to port {port:.0f}",
                ),
                details=(constant_fields,),
                match=match,
                stopped_by=OUTSIDE,
            ),
            Hypothesis("ends of as many connections", cut, CERTAIN, needs=(openings_per_end.at_least(1),)),
            Hypothesis(
                "ends of connections of a few hosts", cut, CERTAIN,
                needs=(sources.at_most(2), rate.at_most(299)),
            ),
        )
    ),
    Hypothesis(
        "TCP packets with invalid flags", invalid_flags, 2.9,
        kind="tcp_anomaly",
        exhausts=(CORE,),
        traits=Trait.ODD_FLAGS,
        title="TCP packets with invalid flags ({flags})",
        needs=(ENOUGH,),
        lead="{amount:TCP packets with invalid flags}; {same_flags:percent} have {flags}",
        match=match_flags,
        stopped_by="dropping these flags: no connection needs them",
    ),
)  # fmt: skip
