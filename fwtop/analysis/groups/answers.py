"""Groups of answers that this host never asked for, and of requests that make it a reflector.

Sources: CISA TA14-017A; Rossow, "Amplification Hell" (NDSS 2014), 5 for what amplifiers see; RFC 5358 (DNS),
RFC 8085 6.1; Thomas et al., "1000 days of UDP amplification DDoS attacks" (eCrime 2017), from honeypots.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext, count
from fwtop.analysis.engine.group import Group, Least, Proof, cut, feature
from fwtop.analysis.parsers import dns
from fwtop.analysis.parsers.icmp import quoted_datagrams, quoted_requests
from fwtop.analysis.parsers.reports import snmp_numbers
from fwtop.analysis.parsers.services import (
    ANYWHERE,
    BY_PORT,
    REFLECTED_REQUESTS,
    WEB,
    Service,
    bencoded_question,
    tftp_data,
)
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.counting import among, marked, part_marked
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import UDP, Rows, flow_key, weighted_top
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Mask
from fwtop.render.numbers import percent, plural

_TFTP = Service("tftp", "TFTP", (), tftp_data)
_SHAPES = [(service, service.shape) for service in (*ANYWHERE, _TFTP) if service.shape is not None]
_LONG = 8.0  # seconds: rates of a shorter capture mean little
_SMALL = 300  # bytes: reflectors that answer with less amplify nothing
_POLLED_PPS, _EVENLY = 10.0, 0.3  # of a device that is polled in turn with others: as often as these
_PRIVILEGED = 1024
_NUMBERED = 20  # responses that tell
_BEGIN = 4  # payload bytes that all answers of one program share
_TRIED = 1_024  # packets tested for a shape before all are
_GROUPS = 24
_LEAST_SHARE = 0.002  # of all packets, from one port
_ANSWERS, _IMITATIONS = -9.0, -5.0  # log-odds of spoofing: only imitations of answers can be forged
# Services with bulk traffic from a single server: packets alone don't reveal a few reflectors of these
_SPOKEN = ("dns", "quic", "dtls", "openvpn", "l2tp", "sip", "stun", "rdp", "steam", "quake", "tftp", "isakmp")
_POLLED = ("snmp", "coap", "bacnet", "ipmi")
_CHOSEN = 10_000  # ephemeral ports start above
_BETWEEN_PEERS = ("openvpn", "l2tp", "sip", "isakmp", "dtls", "rdp", "teamspeak", "mumble")
_FORGED = Spoof(0.9, ("nobody reads so many answers: the requests carry the address of the victim",))


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
        if len(groups) >= _GROUPS:
            break
        if port in BY_PORT:
            groups.setdefault(BY_PORT[port][0].name, []).append(port)
    answers = []
    for used in groups.values():
        edges = np.searchsorted(sport, np.array([[port, port + 1] for port in used]))
        mine = np.concatenate([rows[first:last] for first, last in edges.tolist()])
        answers.append((context.features(np.sort(mine)), used))
    context.traffic.gather_heads(np.concatenate([rows[:0], *(features.sample for features, _ in answers)]))
    for features, used in answers:
        yield _answers(context, features, *best_service(features, used[0]), used)


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


def best_service(features: Features, port: int) -> tuple[Service, float | None]:
    """Return the service of a port that the payloads fit best, and the share that fits."""
    fits = [(service, _fit(service, features)) for service in BY_PORT[port]]
    return max(fits, key=lambda pair: -1.0 if pair[1] is None else pair[1])


def _fit(service: Service, features: Features) -> float | None:
    """Return the share of payloads that are answers of this service; None if too few bytes were captured."""
    matrix, length = features.head
    enough = length >= 4
    if service.shape is None or marked(enough) < 10:
        return None
    return marked(service.shape(matrix, length) & enough) / marked(enough)


def _answers(
    context: AnalysisContext, features: Features, service: Service, fit: float | None, used: list[int]
) -> Group:
    proven = fit is not None and fit >= 0.5
    return Group(
        context,
        features,
        Least("reflection_pps", None, shaped=proven),
        answer_notes(service, fit, used),
        spoof_prior=_ANSWERS if proven else _IMITATIONS,
    )


def answer_notes(service: Service, fit: float | None, used: list[int]) -> dict[str, object]:
    """Return what hypotheses about answers of a service want to know; `used` are its ports."""
    return {
        "service": service.name,
        "service_title": service.title,
        "asked": service,
        "used": used,
        "fit": -1.0 if fit is None else fit,
        "origin": f"from port {', '.join(map(str, used[:4]))}" if used else "from various ports",
    }


def servers(group: Group) -> list[str]:
    """Write how many servers answer."""
    features = group.packets
    return [
        f"{features.amount('unsolicited UDP packets')} {group.notes['origin']} of "
        f"{plural(features.sources, 'server')}, mean length {features.mean_length:.0f} bytes"
    ]


def contents(group: Group) -> list[str]:
    """Write which share is answers of the service, names that DNS asks for, and what ICMP errors quote."""
    service, fit = group.notes["asked"], group.notes["fit"]
    lines = []
    if service.shape is not None and fit >= 0:
        only = f"{percent(fit)} of the payloads are {service.title} answers"
        lines.append(
            only if fit >= 0.5 else f"only {percent(fit)} of the payloads look like {service.title} answers"
        )
    if service.name in ("dns", "mdns", "llmnr"):
        sentences, group.notes["dns_name"] = dns.answer_evidence(group.packets)
        lines += sentences
    notes = group.context.notes
    if "quoted" not in notes:
        notes["quoted"] = quoted_datagrams(group.context.traffic)
    request = quoted_requests(notes["quoted"], group.notes["used"])
    return [*lines, request] if request else lines


def match_answers(group: Group) -> Match:
    """Match UDP from the one port that the service uses."""
    used, dport = group.notes["used"], group.packets.top("dport")
    return Match(
        protocol=UDP,
        sport=used[0] if len(used) == 1 else None,
        dport=dport.value if dport.share > 0.98 and not used else None,
    )


@feature("share")
def valid_answers(group: Group) -> float:
    """Part of the payloads that are answers of the service; -1 if too few bytes were captured to tell."""
    return float(group.notes["fit"])


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
    if group[valid_answers] < 0.5:
        return False
    dport = group.packets.top("dport")
    here = 0 < dport.value < _PRIVILEGED and dport.value not in group.notes["asked"].ports
    return here and dport.share > 0.3 and group.packets.sources >= 8


@feature("yes or no")
def only_the_port(group: Group) -> float:
    """Whether a flood only uses the port of a service: other contents, with forged sources or few."""
    features, fits = group.packets, group[valid_answers]
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


@feature("squared coefficient of variation")
def unevenness(group: Group) -> float:
    """How far the numbers of packets of the sources differ: 0 if each sends as many."""
    return group.packets.evenness


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
    strange = context.traffic.live or (group.notes["service"] not in _SPOKEN and group[valid_answers] >= 0.5)
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
    return group.notes["service"] in _BETWEEN_PEERS and group[one_to_one]


@feature("yes or no")
def one_to_one(group: Group) -> float:
    """Whether few sources send packets of many sizes in long flows: conversations."""
    features = group.packets
    return (
        features.sources < 20
        and features.flow_singles < 0.1
        and features.top("ip_length").distinct > features.sources
    )


@cut(Proof.CONTENT)
def reflected_requests(context: AnalysisContext) -> Iterator[Group]:
    """Requests with large answers, by service."""
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.solicited
    for name, (port, shape) in REFLECTED_REQUESTS.items():
        rows = context.traffic.rows(np.asarray(pool & (packets.dport == port) & (packets.sport != port)))
        if len(rows) < context.config.min_samples:
            continue
        fits = shape(*context.traffic.heads(rows))
        features = context.features(rows[fits])
        least = Least("reflection_pps", "udp", shaped=True)
        notes = {
            "service": name,
            "service_title": BY_PORT[port][0].title,
            "fit": float(fits.mean()),
            "used": port,
        }
        yield Group(context, features, least, notes, known_spoof=_FORGED)


def answered(group: Group) -> list[str]:
    """Write how much this host answered, if the capture shows it."""
    traffic = group.context.traffic
    if not len(traffic.outbound):
        return []
    mine = among(flow_key(traffic.outbound, reverse=True), traffic.flow_key[group.packets.rows])
    if not mine.any():
        return []
    asked = float(traffic.packets.length[group.packets.rows].sum())
    factor = float(traffic.outbound.length[mine].sum()) / asked
    return [f"this host answered with {count(mine.sum())} packets, amplified {factor:.0f} times (bytes)"]


def match_requests(group: Group) -> Match:
    """Match requests to the service's port."""
    return Match(protocol=UDP, dport=group.notes["used"])


@cut(Proof.VOLUME)
def answers_of_unknown_service(context: AnalysisContext) -> Iterator[Group]:
    """UDP packets from the most common source port, if no table knows it."""
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.benign
    features = context.features(pool)
    top = features.top("sport")
    if (
        features.n < context.config.min_samples
        or top.share <= 0.3
        or top.value in (0, 443)
        or top.value >= 49_152
    ):
        return
    service = Service("udp", f"UDP (unknown service, port {top.value})", (top.value,))
    mine = context.features(pool & (packets.sport == top.value))
    notes = answer_notes(service, None, [top.value])
    yield Group(context, mine, Least("flood_pps", None), notes, spoof_prior=_IMITATIONS)


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


@feature("distinct payloads a packet")
def payload_variety(group: Group) -> float:
    """Distinct payload beginnings (32 bytes) for each packet: 0 constant, 1 all different."""
    return group.packets.payload_variety


def without_other_names(group: Group) -> Rows:
    """Claim the answers; of DNS, those for the names that are asked for."""
    if group.notes["service"] != "dns":
        return group.packets.rows
    if "named" not in group.notes:
        rows = dns.without_other_names(group.context.traffic, group.packets)
        group.notes["named"] = rows if len(rows) < group.packets.n else group.packets.rows
    result: Rows = group.notes["named"]
    return result
