"""Reflection off UDP services: answers that this host never asked for, and those that it did ask for.

Sources: CISA TA14-017A; Rossow, "Amplification Hell" (NDSS 2014); RFC 5358 (DNS), RFC 8085 6.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import (
    CERTAIN,
    Group,
    Hypothesis,
    Least,
    Needs,
    Proof,
    cut,
    feature,
    measured,
)
from fwtop.analysis.measures import payloads
from fwtop.analysis.measures.conversations import snmp_numbers
from fwtop.analysis.measures.general import ENOUGH, mean_length, peak, ports, same_length, share, sources
from fwtop.analysis.parsers import dns
from fwtop.analysis.parsers.services import (
    ANYWHERE,
    BY_PORT,
    SPOKEN,
    WEB,
    Service,
    bencoded_question,
    tftp_data,
)
from fwtop.analysis.severity import CORE, LINK
from fwtop.analysis.window.counting import part_marked
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, weighted_top
from fwtop.model.traffic.packets import Mask

_TFTP = Service("tftp", "TFTP", (), tftp_data)
_SHAPES = [(service, service.shape) for service in (*ANYWHERE, _TFTP) if service.shape is not None]
_LONG = 8.0  # seconds: rates of a shorter capture mean little
_SMALL = 300  # bytes: reflectors that answer with less amplify nothing
_POLLED_PPS, _EVENLY = 10.0, 0.3  # of a device that is polled in turn with others: as often as these
_PRIVILEGED = 1024
_NUMBERED = 20  # responses that tell
_TRIED = 1_024  # packets tested for a shape before all are
_GROUPS = 24
_LEAST_SHARE = 0.002  # of all packets, from one port
_ANSWERS = -9.0  # log-odds of spoofing: only imitations of answers can be forged
_POLLED = ("snmp", "coap", "bacnet", "ipmi")
_CHOSEN = 10_000  # ephemeral ports start above
_BETWEEN_PEERS = ("openvpn", "l2tp", "sip", "isakmp", "dtls", "rdp", "teamspeak", "mumble")


@cut(Proof.CONTENT)
def answers_by_port(context: AnalysisContext) -> Iterator[Group]:
    """Unasked UDP packets from the ports of a service that is known to reflect, by service."""
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.solicited
    rows = context.traffic.rows(pool)
    if len(rows) < context.config.min_samples:
        return
    rows = rows[np.argsort(packets.sport[rows], kind="stable")]
    sport = packets.sport[rows]
    least = _LEAST_SHARE * context.traffic.total
    ports, _ = weighted_top(sport, context.traffic.weight[rows], least)
    groups: dict[str, list[int]] = {}
    for port in ports.tolist():
        if port in BY_PORT and len(groups) < _GROUPS:
            groups.setdefault(BY_PORT[port][0].name, []).append(port)
    found = []
    for used in groups.values():
        edges = np.searchsorted(sport, np.array([[port, port + 1] for port in used]))
        mine = np.concatenate([rows[first:last] for first, last in edges.tolist()])
        found.append((context.features(np.sort(mine)), used))
    context.traffic.gather_heads(np.concatenate([rows[:0], *(features.sample for features, _ in found)]))
    for features, used in found:
        yield _answers(context, features, *payloads.best_service(features, used[0]), used)


@cut(Proof.CONTENT, again=True)
def answers_by_content(context: AnalysisContext) -> Iterator[Group]:
    """Unasked UDP packets that are answers of a service by content, from any port: SSDP, DHT, TFTP."""
    rows = context.traffic.rows(context.udp & context.unclaimed & ~context.solicited)
    if len(rows) < context.config.min_samples:
        return
    sample = context.traffic.heads(context.features(rows).spread(_TRIED))
    likely = [(service, shape) for service, shape in _SHAPES if part_marked(shape(*sample)) > 0.005]
    shaped: dict[str, Mask] = context.notes.setdefault("answers by content", {})
    new = [(service, shape) for service, shape in likely if service.name not in shaped]
    heads = context.traffic.heads(rows if new else rows[:0])
    for service, shape in new:
        shaped[service.name] = np.zeros(len(context.traffic), np.bool_)
        shaped[service.name][rows[shape(*heads)]] = True
    for service, _ in likely:
        yield _answers(context, context.features(rows[shaped[service.name][rows]]), service, 1.0, [])


def _answers(
    context: AnalysisContext, features: Features, service: Service, fit: float | None, used: list[int]
) -> Group:
    proven = fit is not None and fit >= 0.5
    return Group(
        context,
        features,
        Least("reflection_pps", None, shaped=proven),
        payloads.answer_notes(service, fit, used),
        spoof_prior=_ANSWERS if proven else payloads.IMITATIONS,
    )


@feature("yes or no")
def web_port(group: Group) -> float:
    """Whether they come from port 80 or 443: downloads begin with such packets, too."""
    return bool(set(group.notes["used"]) & set(WEB))


@feature("yes or no")
def dns_answers(group: Group) -> float:
    """Whether the service is DNS."""
    return bool(group.notes["service"] == "dns")


@feature("yes or no")
def to_reserved_port(group: Group) -> float:
    """Whether proven answers go to a port that no client uses as a source: attackers choose 80 or 443."""
    if group[payloads.valid_answers] < 0.5:
        return False
    dport = group.packets.top("dport")
    here = 0 < dport.value < _PRIVILEGED and dport.value not in group.notes["asked"].ports
    return here and dport.share > 0.3 and group.packets.sources >= 8


@feature("yes or no")
def only_the_port(group: Group) -> float:
    """Whether a flood only uses the port of a service: other contents, with forged sources or few."""
    features, fits = group.packets, group[payloads.valid_answers]
    if not 0 <= fits < 0.5:
        return False
    constant = features.top("ip_length").share > 0.95 and (
        features.payload_entropy > 7.2 or features.zero_bytes > 0.95
    )
    constant |= features.payload_variety < 0.02 and fits < 0.2 and features.n >= 50
    forged = group.spoof.probability > group.context.config.spoof_threshold
    return forged or constant or (features.sources < 8 and fits < 0.2)


@feature("share")
def on_link(group: Group) -> float:
    """Part that neighbours on the link sent: nobody reflects off them."""
    return part_marked(group.context.traffic.on_link.take(group.packets.rows))


@feature("yes or no")
def polled_devices(group: Group) -> float:
    """Whether they are small answers of devices that this host polls: slow for eight seconds, or in turn.

    Who polls in turn gets as many answers from each device, all on the one port that its program asks from.
    """
    features, context = group.packets, group.context
    if features.mean_length >= _SMALL:
        return False
    slow = features.pps < context.config.reflection_pps and context.traffic.seconds >= _LONG
    port = features.top("dport")
    one_program = port.share > 0.9 and port.value >= _CHOSEN and group.notes["service"] in _POLLED
    each = features.peak_pps / features.likely_sources
    return slow or (one_program and each < _POLLED_PPS and features.evenness < _EVENLY)


@feature("share")
def distinct_request_ids(group: Group) -> float:
    """Part of SNMP's responses with a number of its own: who polls numbers requests, tools send one again."""
    numbers = snmp_numbers(*group.packets.head) if group.notes["service"] == "snmp" else []
    return len(set(numbers)) / len(numbers) if len(numbers) >= _NUMBERED else 0.0


unevenness = measured("unevenness", "squared coefficient of variation",
    "How far the numbers of packets of the sources differ: 0 if each sends as many.",
    lambda packets: packets.evenness)  # fmt: skip


@feature("yes or no")
def requests_instead(group: Group) -> float:
    """Whether both ends use the service's port and the contents aren't answers: queries, symmetric peers."""
    service, features = group.notes["asked"], group.packets
    dport = features.top("dport")
    if dport.value not in service.ports or dport.share < 0.9:
        return False
    if service.shape is None:
        return True
    fits = service.shape(*features.head)
    return bool(len(fits) and fits.mean() < 0.5)


@feature("share")
def torrent_questions(group: Group) -> float:
    """Part of the port's packets that asks in BitTorrent: peers ask and answer, reflectors only answer."""
    context, dport = group.context, group.packets.top("dport")
    if group.notes["service"] != "bittorrent" or dport.share < 0.9:
        return 0.0
    every = context.features(context.udp & (context.traffic.packets.dport == dport.value))
    return float(bencoded_question(*every.head).mean())


@feature("yes or no")
def more_than_requested(group: Group) -> float:
    """Whether even one server sends more than anybody requests: fast, large, and not of a known use."""
    features, context = group.packets, group.context
    rare = group.notes["service"] not in SPOKEN and group[payloads.valid_answers] >= 0.5
    strange = context.traffic.live or rare
    return features.pps > 20 * context.config.flood_pps and features.mean_length > 400 and strange


@feature("yes or no")
def resolver_like(group: Group) -> float:
    """Whether DNS answers look like those to a resolver: many names, each once or twice."""
    return group.notes["service"] == "dns" and dns.resolver_traffic(group.packets)


@feature("yes or no")
def clock_answers(group: Group) -> float:
    """Whether they are small answers of NTP or STUN servers, each less than two a second."""
    features = group.packets
    small = group.notes["service"] in ("ntp", "stun") and features.mean_length < 120
    return small and features.pps_per_source < 2


@feature("yes or no")
def between_peers(group: Group) -> float:
    """Whether the service is one of tunnels and calls, and a few sources send many sizes in long flows."""
    return group.notes["service"] in _BETWEEN_PEERS and group[payloads.one_to_one]


def without_other_names(group: Group) -> Rows:
    """Claim the answers; of DNS, those for the names that are asked for."""
    if group.notes["service"] != "dns":
        return group.packets.rows
    rows = group.once("named", lambda: dns.without_other_names(group.context.traffic, group.packets))
    return rows if len(rows) < group.packets.n else group.packets.rows


_BEGIN = 4  # payload bytes that all answers of one program share


@cut(Proof.VOLUME)
def answers_of_unknown_service(context: AnalysisContext) -> Iterator[Group]:
    """UDP packets from the most common source port, if no table knows it."""
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.benign
    features = context.features(pool)
    top = features.top("sport")
    common = features.n >= context.config.min_samples and top.share > 0.3
    if not common or top.value in (0, 443) or top.value >= 49_152:
        return
    service = Service("udp", f"UDP (unknown service, port {top.value})", (top.value,))
    mine = context.features(pool & (packets.sport == top.value))
    notes = payloads.answer_notes(service, None, [top.value])
    yield Group(context, mine, Least("flood_pps", None), notes, spoof_prior=payloads.IMITATIONS)


@feature("probability")
def sources_forged(group: Group) -> float:
    """Probability that the addresses are forged, whatever service the ports suggest."""
    return group.context.spoof(group.packets.rows).probability


@feature("yes or no")
def worded_alike(group: Group) -> float:
    """Whether all begin alike and differ in length: answers of one program. Spoofed floods have one size."""
    matrix, length = group.packets.head
    begin = matrix[length >= _BEGIN, :_BEGIN]
    if len(begin) < 0.9 * len(matrix) or group.packets.top("ip_length").share > 0.2:
        return False
    return bool((begin == begin[0]).all(1).mean() > 0.95 and begin[0].any())


@feature("yes or no")
def same_port_both_ends(group: Group) -> float:
    """Whether nearly all go to the port that they come from: peers of a symmetric protocol."""
    dport = group.packets.top("dport")
    return dport.value == group.packets.top("sport").value and dport.share > 0.9


payload_variety = measured("payload_variety", "distinct payloads a packet",
    "Distinct payload beginnings (32 bytes) for each packet: 0 constant, 1 all different.",
    lambda packets: packets.payload_variety)  # fmt: skip


_PROVEN = (ENOUGH, payloads.valid_answers.at_least(0.5))
# Proven answers of a name server that are ordinary belong to this host's resolver, whatever shows it.
_RESOLVED = (dns_answers.yes, *_PROVEN)
_NEIGHBOURS = (ENOUGH, on_link.at_least(0.95), peak.at_most(999))

_reflection = partial(
    Hypothesis,
    kind="{service}_amplification",
    exhausts=(LINK, CORE),
    traits=Trait.REFLECTED | Trait.AMPLIFIED,
    title="{service_title} amplification",
    details=(payloads.servers, payloads.contents),
    match=payloads.match_answers,
    stopped_by=payloads.REFLECTED,
)
_by_port = partial(_reflection, of=answers_by_port, rows=without_other_names)


def _asked(name: str, *needs: Needs, settles: tuple[Needs, ...] = _RESOLVED) -> Hypothesis:
    """Explain answers by what this host asked: none of them goes to a port that only attackers choose."""
    return Hypothesis(name, answers_by_port, CERTAIN, needs=(to_reserved_port.no, *needs), settles=settles)


ENTRIES = (
    _by_port("amplification, proven by contents", prior=3.5, needs=_PROVEN),
    _by_port(
        "amplification, by its port", prior=1.4,  # too few bytes were captured to tell contents
        needs=(ENOUGH, payloads.valid_answers.at_most(-1)),
    ),
    _by_port(
        "amplification with unknown contents", prior=0.85,
        needs=(
            ENOUGH, payloads.valid_answers.at_least(0), payloads.valid_answers.at_most(0.499),
            only_the_port.no,
        ),
    ),
    Hypothesis(
        "downloads from web servers", answers_by_port, CERTAIN,  # they begin with such packets, too
        needs=(web_port.yes, payloads.valid_answers.at_most(0.799)),
    ),
    _asked("requests, or peers that use one port", requests_instead.yes),
    _asked("BitTorrent peers, who ask and answer", torrent_questions.at_least(0.05)),
    _asked("answers of polled devices", polled_devices.yes, settles=_PROVEN),
    _asked("answers of the few servers that a host uses", sources.at_most(3), more_than_requested.no),
    _asked("small answers of few servers", sources.at_least(4), sources.at_most(7), mean_length.at_most(399)),
    _asked("answers to a resolver", resolver_like.yes),
    _asked(
        "answers to this host's clocks and calls", sources.at_least(4), clock_answers.yes, share.at_most(0.2)
    ),
    _asked(
        "tunnels and calls between peers",
        sources.at_least(4), between_peers.yes, payloads.valid_answers.at_most(0.999),
    ),
    Hypothesis(
        "answers of devices, one to each request", answers_by_port, -1.0,  # many at once, as fast as they can
        needs=(to_reserved_port.no, distinct_request_ids.at_least(0.5)),
        evidence=(
            distinct_request_ids.says(0.6, 0.0, 0.95, 6.0),
            unevenness.says(0.5, 3.0, 2.0, -3.0),
            ports.says(20, 1.0, 200, -3.0),
        ),
        settles=_PROVEN,
    ),
    _reflection(
        "amplification from any port, proven by contents", answers_by_content, 2.4,
        needs=(ENOUGH, sources.at_least(8)),
    ),
    Hypothesis("conversations of few peers", answers_by_content, CERTAIN, needs=(payloads.one_to_one.yes,)),
    Hypothesis("answers of polled devices", answers_by_content, CERTAIN, needs=(polled_devices.yes,)),
    Hypothesis(
        "BitTorrent peers, who ask and answer", answers_by_content, CERTAIN,
        needs=(torrent_questions.at_least(0.05),),
    ),
    *(
        Hypothesis("neighbours that answer a search", cut, CERTAIN, needs=_NEIGHBOURS, settles=())
        for cut in (answers_by_port, answers_by_content)
    ),
    _reflection(
        "amplification by a service that no table knows", answers_of_unknown_service, 5.0,
        kind="udp_amplification",
        needs=(
            ENOUGH, sources.at_least(20), mean_length.at_least(300), payload_variety.at_least(0.02),
            same_length.at_most(0.9),
        ),
        details=(payloads.servers,),
    ),
    Hypothesis(
        "conversations of few peers", answers_of_unknown_service, CERTAIN, needs=(payloads.one_to_one.yes,)
    ),
    Hypothesis(
        "peers of a symmetric protocol", answers_of_unknown_service, CERTAIN, needs=(same_port_both_ends.yes,)
    ),
    Hypothesis(
        # no amplification, that is: whether they are a UDP flood is asked of their destination ports
        "forged packets: no server sends them", answers_of_unknown_service, CERTAIN,
        needs=(sources_forged.at_least(0.5), worded_alike.no),
    ),
)  # fmt: skip
