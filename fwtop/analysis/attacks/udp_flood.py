"""UDP floods, by destination port, and the calls, games and tunnels that look like them. Source: RFC 8085."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait, count
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut, feature, matching, measured
from fwtop.analysis.measures import conversations, payloads
from fwtop.analysis.measures.general import (
    ENOUGH,
    few_long_flows,
    of_protocol,
    per_source,
    same_length,
    share,
    spoofed,
)
from fwtop.analysis.parsers.services import BY_PORT, SPOKEN, WEB
from fwtop.analysis.severity import CORE, LINK, TABLE
from fwtop.analysis.window.counting import among, part_marked
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import UDP, Rows, weighted_top
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Fragment, Mask
from fwtop.render.numbers import percent

_GROUPS = 4
_TINY = 128  # bytes: links have an MTU of 576 or more, though RFC 791 requires only 68
_BESIDE = 0.3  # of the packets; if more are in long flows, the flood may consist of them
_ASKER_PPS, _ASKED_AGAIN = 2.0, 3.0  # requests per second and in total of a source that keeps asking


def _join(context: AnalysisContext, groups: list[Group], rows: Rows) -> Group:
    """Make one group of floods to several ports."""
    ports = sorted(one.packets.top("dport").value for one in groups if one.packets.top("dport").share > 0.98)
    where = f"to ports {', '.join(map(str, ports))}" if len(ports) > 1 else f"to port {ports[0]}"
    if len(ports) < len(groups):
        where += " and others"
    joined = _group(context, context.features(rows))
    joined.notes |= {"where": where, "several": True}
    return joined


@cut(Proof.VOLUME, join=_join)
def datagrams(context: AnalysisContext) -> Iterator[Group]:
    """UDP packets by the most common destination ports, and the rest; without what is settled as ordinary.

    Of the rest, flows whose packets carry a counter at one place are a group of their own: what arrives
    beside calls must not make these look like a flood, and they must not hide one.
    """
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.benign
    rows = context.traffic.rows(pool)
    if len(rows) < context.config.min_samples:
        return
    weight = context.traffic.weight[rows]
    ports, _ = weighted_top(packets.dport[rows], weight, 0.1 * float(weight.sum()))
    heavy = [int(port) for port in ports[:_GROUPS]]
    for port in heavy:
        yield _group(context, context.features(pool & (packets.dport == port)))
    rest = context.traffic.rows(pool & ~among(packets.dport, heavy)) if heavy else rows
    for counted in conversations.streams(context.traffic, rest)[:_GROUPS]:
        yield _group(context, context.features(counted))
        rest = rest[~among(rest, counted)]
    yield _group(context, context.features(rest))


def _group(context: AnalysisContext, features: Features) -> Group:
    dport = features.top("dport")
    where = f"to port {dport.value}" if dport.share > 0.9 else f"to {dport.distinct:,} ports"
    usual = context.usual_of(features, "udp")
    notes = {"where": where, "usual": 0.0 if usual is None else usual}
    made = Group(context, features, Least(normal="udp"), notes)
    made.notes["of_requests"] = payloads.of_requests(made)
    made.otherwise = lambda: _strangers(context, features)
    return made


def _strangers(context: AnalysisContext, features: Features) -> Group:
    """Make a group of those packets that belong to no conversation."""
    mask = np.zeros(len(context.traffic), np.bool_)
    mask[features.rows] = True
    mask &= ~conversations.conversation_flows(context.traffic, mask)
    made = _group(context, context.features(mask))
    made.otherwise = None
    return made


@feature("yes or no")
def random_ports(group: Group) -> float:
    """Whether destination ports are drawn at random: hardly two packets to one port."""
    features, dport = group.packets, group.packets.top("dport")
    return features.n >= 100 and dport.distinct > 0.3 * min(features.n, 20_000) and dport.share < 0.1


@feature("yes or no")
def changing_ports(group: Group) -> float:
    """Whether sources change the ports, theirs or this host's, with nearly every packet."""
    features, context = group.packets, group.context
    if features.n >= 5 * features.sources and features.flow_singles > 0.8 and features.pps_per_source > 2:
        return True
    thin = context.sparse or features.n < 2 * features.sources or features.sources < 20
    return not thin and features.flow_singles > 0.95 and features.top("dport").value not in BY_PORT


@feature("share")
def common_source_port(group: Group) -> float:
    """Part of the packets of ten or more sources that has one odd source port; those of clients differ."""
    features, sport = group.packets, group.packets.top("sport")
    odd = sport.value >= 1024 and sport.value not in BY_PORT and sport.value != features.top("dport").value
    return sport.share if features.sources >= 10 and odd else 0.0


@feature("yes or no")
def at_clients_pace(group: Group) -> float:
    """Whether requests come as clients send them: one a second and source, or 200 in all; not forged."""
    features = group.packets
    few = features.pps < features.likely_sources or features.peak_pps < 200
    return group.spoof.probability < group.context.config.spoof_threshold and few


@feature("requests a second")
def repeated_requests_per_source(group: Group) -> float:
    """Requests of each source in the busiest second, if twenty or more repeat them without waiting."""
    features = group.packets
    each = features.peak_pps / max(1, features.sources)
    often = each >= _ASKER_PPS and features.n >= _ASKED_AGAIN * features.sources
    return each if features.sources >= 20 and often and group[payloads.questions] > 0.5 else 0.0


@feature("requests a second")
def requests_per_source(group: Group) -> float:
    """Requests of each source, if they are of a known service; a client of any has reason for 20 a second."""
    each = group.packets.pps_per_source
    return each if each <= 1_000 and group[payloads.questions] > 0.5 else 0.0


@feature("yes or no")
def stream_rate(group: Group) -> float:
    """Whether fewer than ten sources send as many packets as calls, games and tunnels do: 1,000 a second.

    200 where the payloads hold no information.
    """
    features = group.packets
    few = features.sources < 10 and group[requests_per_source] <= 20
    return few and features.pps_per_source < (200 if conversations.alike(features) else 1_000)


@feature("yes or no")
def changing_ports_fast(group: Group) -> float:
    """Whether sources change their ports at more than 200 packets a second, or send nothing useful."""
    useless = (payloads.empty, payloads.all_zeros, payloads.identical, payloads.random_payload)
    told = any(group[one] for one in useless)
    return group[changing_ports] and (group.packets.pps > 200 or told)


@feature("decades")
def above_normal(group: Group) -> float:
    """Rate against the baseline: 1 above its usual highest, 2 at ten times that with the configured factor.

    0 up to that, where no baseline is known, and for conversations: a call or a tunnel that begins is above
    it, too.
    """
    factor = group.context.beyond_usual(group.packets, "udp")
    if factor <= 1 or conversations.has_peers(group.packets):
        return 0.0
    return 1 + math.log10(max(1.0, factor / group.context.config.baseline_factor))


def normal_rate(group: Group) -> list[str]:
    """Write how the rate compares with the normal one."""
    if group.context.beyond_usual(group.packets, "udp") <= 1:
        return []
    usual = group.notes["usual"]
    normally = f"normally up to {count(usual)}" if usual >= 1 else "normally none like them"
    return [f"{count(group.packets.pps)} UDP packets/s, {normally}"]


like_conversations = measured("like_conversations", "yes or no",
    "Whether long flows hold packets of many sizes, or packets that count: tunnel, game, call, download.",
    conversations.conversation)  # fmt: skip
answered_peers = measured("answered_peers", "yes or no",
    "Whether this host answers a few peers about one to one, as a capture of both directions shows.",
    conversations.answered)  # fmt: skip
few_servers = measured("few_servers", "yes or no",
    "Whether a few servers answer to ports that this host chose.", conversations.answers)  # fmt: skip
to_collector = measured("to_collector", "yes or no",
    "Whether varying payloads go to a collector's port: syslog, metrics, flows, traps.",
    conversations.telemetry)  # fmt: skip
video = measured("video", "yes or no",
    "Whether a few sources send cells of an MPEG transport stream (ISO 13818-1).",
    conversations.video)  # fmt: skip
numbered = measured("numbered", "yes or no",
    "Whether a few peers number their packets: a tunnel, a stream or a measurement.",
    conversations.numbered)  # fmt: skip


@feature("share")
def known_peers(group: Group) -> float:
    """Part from sources that have, or lately had, a real TCP connection."""
    return part_marked(group.context.acquainted[group.packets.rows])


@feature("yes or no")
def reflector_answers(group: Group) -> float:
    """Whether they are answers of a service that rarely talks much, by port and content."""
    sport = group.packets.top("sport")
    if sport.share < 0.95 or sport.value not in BY_PORT or sport.value in WEB or "several" in group.notes:
        return False
    service, fits = payloads.best_service(group.packets, sport.value)
    if fits is None or fits < 0.8 or service.name in SPOKEN:
        return False
    group.notes.update(payloads.answer_notes(service, fits, [sport.value]))
    return True


@feature("fragments")
def later_fragments_per_packet(group: Group) -> float:
    """Later fragments for each packet, if four in five packets are first fragments; 99 if these are tiny.

    No network fragments below 128 bytes (RFC 1858).
    """
    context, rows = group.context, group.packets.rows
    first = context.traffic.first[rows]
    if part_marked(first) < 0.8 or "several" in group.notes:
        return 0.0
    length = float(context.traffic.packets.ip_length[rows].mean())
    heads = float(context.traffic.weight[rows][first].sum())
    tails = float(context.traffic.weight[_tails(context)].sum()) / max(heads, 1)
    odd = f"first fragments have {length:.0f} bytes on average: no network fragments that small (RFC 1858)"
    group.notes["odd"] = odd if length < _TINY else f"{tails:.0f} later fragments per first fragment"
    return 99.0 if length < _TINY else tails


def with_tails(group: Group) -> Rows:
    """Claim all later fragments of UDP, too."""
    return np.sort(np.concatenate([group.packets.rows, _tails(group.context)]))


def without_conversations(group: Group) -> Rows:
    """Claim the packets without the few of long flows: of players, on the port that is flooded."""
    traffic, rows = group.context.traffic, group.packets.rows
    mask = np.zeros(len(traffic), np.bool_)
    mask[rows] = True
    talk = conversations.conversation_flows(traffic, mask)[rows]
    few = float(traffic.weight[rows][talk].sum()) <= _BESIDE * group.packets.packets
    return rows[~talk] if few and talk.any() else rows


def match_datagrams(group: Group) -> Match:
    """Match UDP, and the ports that nearly all have."""
    return Match(protocol=UDP) if "several" in group.notes else of_protocol(group)


def _tails(context: AnalysisContext) -> Rows:
    packets = context.traffic.packets
    mine: Mask = (packets.fragment == Fragment.LATER) & context.unclaimed & (packets.protocol == UDP)
    return context.traffic.rows(mine)


def udp_size(group: Group) -> list[str]:
    """Write how many packets there are and where they go."""
    features = group.packets
    return [
        f"{features.amount('UDP packets')} {group.notes['where']} from {features.senders}, "
        f"mean length {features.mean_length:.0f} bytes"
    ]


def one_length(group: Group) -> list[str]:
    """Write the length that nearly all have."""
    length = group.packets.top("ip_length")
    return [f"{percent(length.share)} have IP length {length.value}"] if length.share > 0.9 else []


_UDP_LEAD = "{amount:UDP packets} {where} from {senders}, mean length {mean_length:.0f} bytes"
_FLOOD = (
    random_ports.if_so(2.0, "destination ports are random ({ports:count} seen)"),
    same_length.above(0.9, 1.0),
    changing_ports.if_so(1.75, "the ports change with nearly every packet"),
    common_source_port.above(0.95, 1.5, "all sources use one source port; those of clients differ"),
    payloads.common_beginning.above(0.95, 1.0),
    payloads.empty.if_so(1.5, "they carry no payload"),
    payloads.all_zeros.if_so(2.5, "the payload is all zeros"),
    payloads.identical.if_so(2.0, "all payloads are identical"),
    payloads.random_payload.if_so(1.0, "the payload is random"),
    payloads.random_once.if_so(0.75, "{senders} send it once per port; no protocol starts like that"),
    payloads.quic_packets.if_so(-2.0),
    payloads.replayed.says(0.5, 0.0, 0.7, 4.0, "{replayed:percent} repeat random bytes of their flow"),
    payloads.only_quic_openings.says(0.5, 0.0, 0.9, 3.0, "no connection goes on after its first packet"),
    spoofed.above(0.7, 2.0),
    share.above(0.6, 1.0),
    per_source.above(1_000, 1.5, "mean {per_source:count} packets/s per source"),
    requests_per_source.above(20, 2.0, "each source asks {per_source:count} times per second"),
    repeated_requests_per_source.above(0, 1.0,
          "each source asks up to {repeated_requests_per_source:.1f} times per second without waiting for "
          "the answer"),
    payloads.not_reports.if_so(3.0, "they go to a collector's port, and no collector can read them"),
    stream_rate.if_so(-3.0),
    changing_ports_fast.if_so(1.5),
    above_normal.says(0.0, 0.0, 10.0, 20.0),
)  # fmt: skip

ENTRIES = (
    Hypothesis(
        "UDP flood", datagrams, -1.4,
        kind="udp_flood",
        title="UDP flood{of_requests}",
        exhausts=(LINK, CORE, TABLE),
        bearable=few_long_flows,
        traits=Trait.APART | Trait.NAMELESS,
        needs=(ENOUGH,),
        lead=_UDP_LEAD,
        evidence=(*_FLOOD, later_fragments_per_packet.above(2.9, -2.0)),  # from 3 on it is the next one
        details=(payloads.asked, payloads.quic_headers, one_length, payloads.beginning, normal_rate),
        match=match_datagrams,
        rows=without_conversations,
        joins=True,
        stopped_by="dropping the ports that this host doesn't serve; a limit for each source, or a signature",
    ),
    Hypothesis(
        "UDP fragment flood", datagrams, -1.0,
        kind="fragment_flood",
        exhausts=(LINK, CORE),
        needs=(ENOUGH, later_fragments_per_packet.at_least(3)),
        lead="{odd}",
        evidence=_FLOOD,
        details=(udp_size, payloads.asked, one_length, payloads.beginning, normal_rate),
        match=matching(protocol=UDP, fragment=True),
        rows=with_tails,
        stopped_by="dropping fragments",
    ),
    Hypothesis(
        "amplification by few reflectors", datagrams, -0.5,
        kind="{service}_amplification",
        exhausts=(LINK, CORE),
        traits=Trait.REFLECTED | Trait.AMPLIFIED,
        title="{service_title} amplification",
        needs=(ENOUGH, reflector_answers.yes),
        evidence=_FLOOD,
        details=(payloads.servers, payloads.contents),
        match=payloads.match_answers,
        stopped_by=payloads.REFLECTED,
    ),
    Hypothesis(
        "requests as clients send them", datagrams, 4.0,
        needs=(ENOUGH, payloads.questions.at_least(0.5), at_clients_pace.yes),
        evidence=(
            payloads.only_quic_openings.says(0.5, 0.0, 0.9, -6.0),
            payloads.identical.if_so(1.5),  # whoever asks a service that has one question asks the same
        ),
    ),
    Hypothesis(
        "calls, games, tunnels, downloads", datagrams, 4.0,
        needs=(ENOUGH, like_conversations.yes),
        evidence=(
            payloads.not_reports.if_so(-5.0),
            payloads.replayed.says(0.5, 0.0, 0.7, -6.0),
            spoofed.above(0.7, -3.0),  # what answers a forged address reaches somebody else
        ),
    ),
    Hypothesis("peers that this host answers", datagrams, 4.0, needs=(ENOUGH, answered_peers.yes)),
    Hypothesis("answers of few servers", datagrams, 4.0, needs=(ENOUGH, few_servers.yes)),
    Hypothesis(
        "logs, metrics and flow records", datagrams, 4.0,
        needs=(ENOUGH, to_collector.yes),
        evidence=(
            changing_ports.if_so(-2.0),  # programs that report keep their socket
            spoofed.above(0.7, -3.0),  # and their address
        ),
    ),
    Hypothesis("a video stream (MPEG-TS)", datagrams, 4.0, needs=(ENOUGH, video.yes)),
    *(
        Hypothesis(f"a stream {how}", datagrams, -3.0, needs=(ENOUGH, need, numbered.yes), settles=())
        for how, need in (
            ("of known peers, however fast", known_peers.at_least(0.95)),
            ("at the rate of a call or a tunnel", per_source.at_most(4_999)),  # any tool can count
        )
    ),
)  # fmt: skip
