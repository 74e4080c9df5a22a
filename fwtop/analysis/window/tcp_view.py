"""TCP packets by flags, those of real connections, and answers to port scans that this host makes.

Only inbound packets are visible, so real connections show by sequence or acknowledgement numbers that advance
(RFC 9293 3.4): floods send random or constant ones. A connection that says something once a minute shows in
no window; the host's own sockets tell of it. Answers to a scan come unasked, then: a closed port answers a
SYN with RST and ACK and sequence number 0 (RFC 9293 3.10.7.1), a closed UDP port with an ICMP error, which
quotes the probe (RFC 1122 4.1.3.1). A scanner asks from one port of its own (nmap's manual, --source-port),
which shows which probe an answer belongs to.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from fwtop.analysis.window.counting import distinct_values, run_edges
from fwtop.analysis.window.features import Features, header_words
from fwtop.analysis.window.traffic import (
    ICMP,
    TCP,
    UDP,
    Rows,
    Traffic,
    mix,
    payload,
    transport_start,
    weighted_top,
    word,
)
from fwtop.model.traffic.packets import FLAG_TRUNCATED, U8, U32, U64, Mask

FIN, SYN, RST, PSH, ACK, URG = 1, 2, 4, 8, 16, 32
_SIX = 63
_NAMES = ((FIN, "FIN"), (SYN, "SYN"), (RST, "RST"), (PSH, "PSH"), (ACK, "ACK"), (URG, "URG"))
_WINDOW = 1 << 26  # an advance between two samples of one connection: 64 MiB at most
_BACK = 1 << 18  # and retransmissions reach back that far
_BESIDE, _FEW = 3.0, 30  # packets outside of connections for each within, and in any case: retries, scans
_ENOUGH = 8  # packets after which impossible numbers outweigh the handshake of a flow


class TcpView(Struct, frozen=True):
    """Masks over the traffic's rows."""

    tcp: Mask
    syn: Mask
    syn_ack: Mask
    rst: Mask
    fin: Mask  # FIN without SYN or RST, with or without ACK; bare packets only
    ack: Mask  # ACK with or without data, no SYN, FIN, RST
    odd: Mask  # combinations that no TCP stack sends
    established: Mask  # of connections whose numbers advance
    completed: Mask  # of connections whose SYN was followed by an ACK
    unseen: Mask  # flags not captured
    hosts: Mask  # all packets of sources whose real connections are in proportion to their other packets

    @property
    def real(self) -> Mask:
        """Packets of real connections, by their numbers."""
        return np.asarray(self.established | self.completed)


def view_tcp(traffic: Traffic, served: Mask | None = None) -> TcpView:
    """Classify the TCP packets of a window; `served` marks those of connections that this host has open."""
    packets = traffic.packets
    every = (packets.protocol == TCP) & ~traffic.later & (packets.family != 0)
    unseen = every & ((packets.flags & FLAG_TRUNCATED) != 0) & (packets.tcp_flags == 0)
    tcp = every & ~unseen
    six = packets.tcp_flags & _SIX
    odd = tcp & _impossible(packets.tcp_flags)
    good = tcp & ~odd
    syn = good & ((six & (SYN | ACK)) == SYN)
    syn_ack = good & ((six & (SYN | ACK)) == (SYN | ACK))
    rst = good & ((six & RST) != 0)
    fin = good & ((six & FIN) != 0)
    ack = good & ~syn & ~syn_ack & ~rst & ~fin
    established, completed = _conversations(traffic, traffic.rows(tcp), syn)
    if served is not None:
        established |= served & tcp & ~syn & ~odd
    hosts = _hosts(traffic, tcp, established | completed)
    established |= hosts & traffic.of_sources(established) & tcp & ((six & (FIN | ACK)) != 0)
    return TcpView(tcp, syn, syn_ack, rst, fin, ack, odd, established, completed, np.asarray(unseen), hosts)


def _impossible(flags: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Mask:
    """Null, Xmas, SYN with FIN or RST, FIN with RST, and data or URG without ACK (RFC 9293 3.10.7).

    A lone FIN or RST is left to the rules for those floods.
    """
    six = flags & _SIX
    clash = ((six & SYN) != 0) & ((six & (FIN | RST)) != 0)
    clash |= ((six & FIN) != 0) & ((six & RST) != 0)
    bare = (six & (SYN | ACK | RST)) == 0
    unacknowledged = bare & (six != FIN)  # null, PSH, URG, FIN+PSH+URG…
    urgent_syn = ((six & SYN) != 0) & ((six & URG) != 0)
    return np.asarray(clash | unacknowledged | urgent_syn)


def _conversations(traffic: Traffic, rows: Rows, syn: Mask) -> tuple[Mask, Mask]:
    established = np.zeros(len(traffic), np.bool_)
    completed = np.zeros(len(traffic), np.bool_)
    if len(rows) < 2:
        return established, completed
    key, time = traffic.flow_id[rows], traffic.packets.time_ns[rows]
    ordered = bool((time[1:] >= time[:-1]).all())
    order = np.argsort(key, kind="stable") if ordered else np.lexsort((time, key))
    rows = rows[order]
    counts = np.diff(run_edges(key[order]))
    flow = np.repeat(np.arange(len(counts)), counts)
    advances, sane = _steps(traffic, rows, flow, len(counts))
    broken = (counts >= _ENOUGH) & (sane < 0.5 * (counts - 1))
    good_flow = (counts >= 2) & (advances >= 1) & (sane >= 0.8 * np.maximum(counts - 1, 1))
    established[rows] = good_flow[flow]
    completed[rows] = (_completed(traffic, rows, flow, len(counts), syn) & ~broken)[flow]
    return established, completed


def _steps(traffic: Traffic, rows: Rows, flow: Rows, flows: int) -> tuple[Rows, Rows]:
    """Count the steps of each flow in which numbers advance, and those that are possible."""
    packets = traffic.packets
    same = flow[1:] == flow[:-1]
    six = packets.tcp_flags[rows] & _SIX
    plain = ((six[1:] | six[:-1]) & (SYN | RST)) == 0
    numbers = (packets.tcp_seq[rows], ack_numbers(traffic, rows))
    seq_step, ack_step = ((values[1:] - values[:-1]).view(np.int32) for values in numbers)
    near = (np.minimum(seq_step, ack_step) > -_BACK) & (np.maximum(seq_step, ack_step) < _WINDOW)
    # New data starts where the last ended: tools that count packets take smaller steps
    load = packets.payload_length[rows].astype(np.int32)
    overlap = (seq_step > 0) & (seq_step < load[:-1]) & (load[1:] > 0)
    possible = same & (near & ~overlap | ~plain)
    moved = plain & possible & ((seq_step > 0) | (ack_step > 0))
    return np.bincount(flow[1:][moved], minlength=flows), np.bincount(flow[1:][possible], minlength=flows)


def _completed(traffic: Traffic, rows: Rows, flow: Rows, flows: int, syn: Mask) -> Mask:
    """Mark flows in which a SYN is followed by an ACK with the next sequence number or a later one."""
    packets, is_syn = traffic.packets, syn[rows]
    first_seq, has_syn = np.zeros(flows, np.uint32), np.zeros(flows, np.bool_)
    first_seq[flow[is_syn]] = packets.tcp_seq[rows[is_syn]]
    has_syn[flow[is_syn]] = True
    six = packets.tcp_flags[rows] & _SIX
    follows = ((six & ACK) != 0) & ((six & (SYN | RST)) == 0)
    ahead = (packets.tcp_seq[rows] - first_seq[flow]).view(np.int32)
    good = follows & has_syn[flow] & (ahead >= 1) & (ahead < _WINDOW)
    result = np.zeros(flows, np.bool_)
    result[flow[good]] = True
    return result


def _hosts(traffic: Traffic, tcp: Mask, real: Mask) -> Mask:
    """Mark the packets of sources that mostly talk over real connections.

    A flooding host has connections of its own, too, and among many random numbers some advance by chance:
    what else a source sends is ordinary only in proportion. A sample of one in N holds about N / 10 packets
    that are alone in their flow for each that isn't.
    """
    places = traffic.source_id
    count = int(places.max()) + 1 if len(places) else 0
    within = np.bincount(places, real, count)
    outside = np.bincount(places, tcp & ~real, count)
    most = _BESIDE * max(1.0, traffic.one_in) * within
    return np.asarray(((within > 0) & (outside <= np.maximum(most, _FEW)))[places])


def ack_numbers(traffic: Traffic, rows: Rows) -> U32:
    """Return the acknowledgement numbers of the rows; 0 if not captured."""
    start = transport_start(traffic.packets, rows)
    return word(traffic.packets, rows, np.where(start < 0, -1, start + 8))


def flag_names(flags: int) -> str:
    """Format TCP flags: SYN+ACK."""
    return "+".join(name for bit, name in _NAMES if flags & bit) or "no flags"


_WORDS = 8  # of a TCP header with NOP, NOP, timestamps
_ENOUGH_STAMPED = 30
_ALONE = 0.3  # of packets are alone in their flow
_ENDS = (0.003, 0.4)  # FINs among them


def looks_sampled(traffic: Traffic, tcp: TcpView) -> bool:
    """Detect a capture that holds one packet in many: connections, but hardly two packets of the same one.

    In such a capture nearly every packet is alone in its flow, as forged ones are. Floods don't imitate TCP
    timestamps (RFC 7323), and some of the packets that carry them are FINs.
    """
    rows = traffic.rows(tcp.tcp & ~tcp.syn & ~tcp.odd)
    rows = rows[header_words(traffic, rows) == _WORDS]
    if len(rows) < _ENOUGH_STAMPED:
        return False
    counts = np.bincount(traffic.flow_id[tcp.tcp])  # includes its SYN, unless the capture is sampled
    ends = float(tcp.fin[rows].mean())
    alone = float((counts[traffic.flow_id[rows]] == 1).mean())
    return alone > _ALONE and _ENDS[0] <= ends <= _ENDS[1]


_EPHEMERAL = 32_768  # Linux: ports that clients take; services listen below
_PORTS = 4  # scans at once
_FEWEST = 30
_ONCE = 0.9  # of the answers: each port of a target answers once
_CLOSED = 0.5  # of the answers: hardly a host has more open ports than closed ones
_EACH = 3.0  # answers from each target; forged RSTs come from everywhere
_SPREAD = 0.2  # of the answers come from the same port, at most: a reflection has few services
_FASTEST_PPS = 50_000.0
_UNREACHABLE, _PORT = 3, 3  # RFC 792: type and code
_QUOTED = 24  # bytes: an IPv4 header without options, and the ports


def answers_to_probes(traffic: Traffic) -> Mask:
    """Mark RSTs and SYN-ACKs of many ports to one port that this host scans from."""
    packets = traffic.packets
    answers = np.zeros(len(traffic), np.bool_)
    six = packets.tcp_flags & 63
    closed = (six == 20) & (packets.tcp_seq == 0)
    pool = traffic.rows((packets.protocol == TCP) & ~traffic.later & (closed | (six == 18)))
    pool = pool[packets.dport[pool] >= _EPHEMERAL]
    if len(pool) < _FEWEST:
        return answers
    ports, _ = weighted_top(packets.dport[pool], traffic.weight[pool])
    for port in ports[:_PORTS].tolist():
        rows = pool[packets.dport[pool] == port]
        features = Features(traffic, rows)
        few = features.packets < _EACH * features.likely_sources
        if len(rows) < _FEWEST or few or closed[rows].mean() < _CLOSED:
            continue
        probed = mix(traffic.source_key[rows], packets.sport[rows].astype(np.uint64))
        common = int(np.bincount(packets.sport[rows]).max())
        scanned = len(distinct_values(probed)) >= _ONCE * len(rows) and common <= _SPREAD * len(rows)
        answers[rows] = scanned and traffic.pps(rows) <= _FASTEST_PPS
    return answers


def errors_to_probes(traffic: Traffic) -> Mask:
    """Mark ICMP errors of closed UDP ports that this host scans from one port of its own."""
    packets = traffic.packets
    answers = np.zeros(len(traffic), np.bool_)
    kind = (packets.protocol == ICMP) & (packets.icmp_type == _UNREACHABLE) & (packets.icmp_code == _PORT)
    pool = traffic.rows(kind & (packets.family == 4) & ~traffic.later)
    if len(pool) < _FEWEST:
        return answers
    quoted, held = payload(packets, pool, _QUOTED)
    whole = (held == _QUOTED) & (quoted[:, 0] == 0x45) & (quoted[:, 9] == UDP)
    asked_here = _number(quoted[:, 12:16]) == packets.dst_lo[pool] & np.uint64(0xFFFFFFFF)
    answered_there = _number(quoted[:, 16:20]) == packets.src_lo[pool] & np.uint64(0xFFFFFFFF)
    true = whole & asked_here & answered_there
    pool, quoted = pool[true], quoted[true]
    mine, probed = _number(quoted[:, 20:22]), _number(quoted[:, 22:24])
    ports, counts = np.unique(mine, return_counts=True)
    for port in ports[np.argsort(-counts)][:_PORTS]:
        rows = np.flatnonzero(mine == port)
        if port < _EPHEMERAL or len(rows) < _FEWEST:
            continue
        distinct = len(distinct_values(mix(packets.src_lo[pool[rows]], probed[rows])))
        if distinct >= _ONCE * len(rows) and traffic.pps(pool[rows]) <= _FASTEST_PPS:
            answers[pool[rows]] = True
    return answers


def _number(octets: U8) -> U64:
    """Read each row as a number in network byte order."""
    result = np.zeros(len(octets), np.uint64)
    for column in octets.T:
        result = (result << np.uint64(8)) | column
    return result
