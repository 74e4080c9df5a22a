"""TCP answers to SYNs spoofed with this host's address: SYN-ACKs, RSTs, and block pages of censors.

Sources: Kührer et al., "Hell of a Handshake" (WOOT 2014), for SYN-ACKs, RSTs and retransmissions of
reflectors; Bock et al., "Weaponizing Middleboxes for TCP Reflected Amplification" (USENIX Security 2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait, count
from fwtop.analysis.engine.entries import CERTAIN, Group, Hypothesis, Least, Proof, cut, feature, matching
from fwtop.analysis.measures.general import ENOUGH, of_protocol, sources
from fwtop.analysis.parsers import http
from fwtop.analysis.severity import CORE, LINK
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, Rows, payload, weighted_top
from fwtop.model.text import payload_text
from fwtop.model.traffic.packets import Mask
from fwtop.render.numbers import plural

_PORTS = 32  # source ports that reflectors use at once
_PORT_SHARE = 0.01
_PRIVILEGED = 1024
_SERVERS = 8  # fewer: backscatter, or a page that a local user reads
_NEXT = 1 << 20  # bytes between consecutive answers on a connection
_SERVICE_PRIOR = -6.0  # log-odds of spoofing if answers come from the ports of a few services


@cut(Proof.HANDSHAKES)
def unasked_syn_acks(context: AnalysisContext) -> Iterator[Group]:
    """SYN-ACKs for connections that this host never opened."""
    tcp = context.tcp
    features = context.features(tcp.syn_ack & context.unclaimed & ~(tcp.real | context.solicited))
    if features.n < context.config.min_samples:
        return
    ports = _ports(context, features.rows)
    few_ports = float(among(context.traffic.packets.sport[features.rows], ports[:8]).mean()) > 0.8
    sport, servers = features.top("sport"), plural(features.sources, "server")
    notes = {"reflectors": servers, "sport": sport.value, "same_sport": sport.share}
    prior = _SERVICE_PRIOR if few_ports else -2.5
    yield Group(context, features, Least("reflection_pps", "tcp.syn_ack"), notes, spoof_prior=prior)


@feature("yes or no")
def more_than_syn_acks(group: Group) -> float:
    """Whether the servers send more than SYN-ACKs: then this host opened the connections."""
    context, features = group.context, group.packets
    tcp, traffic = context.tcp, context.traffic
    more = (tcp.ack | tcp.fin) & ~tcp.syn_ack
    if context.sparse:
        same_port = among(traffic.packets.sport, [features.top("sport").value])
        return float(traffic.weight[more & same_port].sum()) > 1.5 * features.packets
    return float(traffic.of_sources(more)[features.rows].mean()) > 0.5


def with_other_answers(group: Group) -> Rows:
    """Claim all TCP answers of the reflectors.

    These are SYN-ACKs with retransmissions, RSTs of closed ports, and SYNs of the same servers (RFC 9293 3.5,
    simultaneous open).
    """
    return group.once("every", lambda: np.sort(np.concatenate([group.packets.rows, _beside(group)])))


def other_answers(group: Group) -> list[str]:
    """Write how many other answers there are."""
    more = float(group.context.traffic.weight[with_other_answers(group)].sum()) - group.packets.packets
    answers = f"{count(more)} RSTs and SYNs from the same ports answer the same spoofed SYNs"
    return [answers] if more > 0 else []


match_syn_ack = partial(of_protocol, flags=(SYN | ACK, SYN | ACK))


@cut(Proof.HANDSHAKES)
def unasked_pages(context: AnalysisContext) -> Iterator[Group]:
    """Web pages from servers that never sent a SYN-ACK, with the RSTs beside them."""
    tcp, traffic = context.tcp, context.traffic
    packets = traffic.packets
    loaded = (tcp.ack | tcp.fin) & context.unclaimed & (packets.payload_length > 0) & ~context.solicited
    served = (packets.sport < _PRIVILEGED) | (packets.sport <= packets.dport)
    data = traffic.rows(np.asarray(loaded & served))
    if len(data) < context.config.min_samples:
        return
    is_page = http.starts_page(packets, data)
    if not is_page.any():
        return
    is_page &= ~traffic.of_sources(tcp.syn_ack)[data]
    pages = data[is_page]
    of_boxes, boxes = traffic.of_sources(pages), context.features(pages).sources
    theirs = of_boxes[data]
    if boxes < _SERVERS or is_page.sum() < 0.5 * theirs.sum() or not _unasked(context, pages):
        return
    mine = (of_boxes | (tcp.rst & ~tcp.real)) & among(packets.sport, _ports(context, pages))
    features = context.features(np.asarray(mine & tcp.tcp & context.unclaimed & ~tcp.syn & ~tcp.syn_ack))
    first, length = payload(packets, pages[:1], 40)
    line = first[0, : int(length[0])].tobytes().split(b"\r\n")[0]
    notes = {
        "pages": count(traffic.weight[pages].sum()),
        "boxes": plural(boxes, "source"),
        "line": repr(payload_text(line, limit=40)),
    }
    least = Least("reflection_pps", http.starts_page, shaped=True)
    yield Group(context, features, least, notes, spoof_prior=_SERVICE_PRIOR)


def _unasked(context: AnalysisContext, pages: Rows) -> bool:
    """Check that pages don't follow each other on connections, as requested answers do."""
    traffic = context.traffic
    order = np.lexsort((traffic.packets.time_ns[pages], traffic.flow_key[pages]))
    flow, number = traffic.flow_key[pages][order], traffic.packets.tcp_seq[pages][order]
    step = (number[1:] - number[:-1]).view(np.int32)
    follows = (flow[1:] == flow[:-1]) & (step > 0) & (step < _NEXT)
    return int(follows.sum()) < 0.3 * len(pages)


def _ports(context: AnalysisContext, rows: Rows) -> list[int]:
    """Return the dominant source ports of the rows."""
    weight = context.traffic.weight[rows]
    ports, _ = weighted_top(context.traffic.packets.sport[rows], weight, _PORT_SHARE * float(weight.sum()))
    return [int(port) for port in ports[:_PORTS]]


def _beside(group: Group) -> Rows:
    """Find RSTs and SYNs from the reflectors' ports, which real clients don't use as source ports."""
    context, rows = group.context, group.packets.rows
    tcp, traffic = context.tcp, context.traffic
    stray: Mask = context.unclaimed & ~tcp.real & ~context.solicited
    same_port = among(traffic.packets.sport, _ports(context, rows))
    reflectors = traffic.of_sources(rows)
    resets = tcp.rst & (same_port | reflectors)
    openings = tcp.syn & same_port & (reflectors | (traffic.packets.sport < _PRIVILEGED))
    return traffic.rows(np.asarray(stray & (resets | openings)))


ENTRIES = (
    Hypothesis(
        "SYN-ACK reflection", unasked_syn_acks, 5.0,
        kind="syn_ack_reflection",
        exhausts=(CORE, LINK),
        traits=Trait.REFLECTED,
        needs=(ENOUGH, sources.at_least(8)),  # fewer: backscatter of floods on other hosts
        lead=(
            "{amount:SYN-ACKs} from {reflectors}, for connections that this host never opened",
            "{same_sport:percent} come from port {sport:.0f}, to {ports:count} local ports",
        ),
        details=(other_answers,),
        match=match_syn_ack,
        rows=with_other_answers,
        stopped_by="dropping SYN-ACKs outside of connections",
    ),
    Hypothesis(
        "answers to connections that this host opened", unasked_syn_acks, CERTAIN,
        needs=(more_than_syn_acks.yes,),
    ),
    Hypothesis(
        "TCP middlebox reflection", unasked_pages, 5.0,  # Bock et al. 2021
        kind="middlebox_amplification",
        exhausts=(LINK, CORE),
        traits=Trait.REFLECTED | Trait.AMPLIFIED,
        needs=(ENOUGH,),
        lead=(
            "{pages} web pages from {boxes} for requests that this host never sent, without a handshake; "
            "the first begins {line}",
            "with their RSTs {amount:packets}, mean length {mean_length:.0f} bytes; "
            "censoring middleboxes answer like this (Bock et al. 2021)",
        ),
        match=matching("sport", protocol=TCP),
        stopped_by="dropping TCP packets outside of connections",
    ),
)  # fmt: skip
