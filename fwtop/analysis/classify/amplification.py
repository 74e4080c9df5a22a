"""Amplification: reflected answers that this host never asked for, and this host as a reflector.

Sources: CISA TA14-017A; Rossow, "Amplification Hell" (NDSS 2014), 5 for what amplifiers see; RFC 5358 (DNS),
RFC 8085 6.1; Thomas et al., "1000 days of UDP amplification DDoS attacks" (eCrime 2017), from honeypots.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fwtop.analysis.context import AnalysisContext, Finding, confidence_of, count, plural
from fwtop.analysis.parsers import dns
from fwtop.analysis.parsers.icmp import quoted_requests
from fwtop.analysis.parsers.services import (
    ANYWHERE,
    BY_PORT,
    REFLECTED_REQUESTS,
    SHAPE_WIDTH,
    WEB,
    Service,
    bencoded_question,
    tftp_data,
)
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import UDP, Rows, flow_key, payload, weighted_top
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Mask
from fwtop.render.numbers import percent

_TFTP = Service("tftp", "TFTP", (), tftp_data)
_SHAPES = [(service, service.shape) for service in (*ANYWHERE, _TFTP) if service.shape is not None]
_LONG = 8.0  # seconds: rates of a shorter capture mean little
_PRIVILEGED = 1024
_BEGIN = 4  # payload bytes that all answers of one program share
_TRIED = 1_024  # packets tested for a shape before all are
_NEARLY_ALL = 0.95
_FOUND_PPS = 1_000.0  # answers to searches on a link
_FEW = 3  # resolvers that a host uses
# Services with bulk traffic from a single server: packets alone don't reveal a few reflectors of these
_SPOKEN = ("dns", "quic", "dtls", "openvpn", "l2tp", "sip", "stun", "rdp", "steam", "quake", "tftp", "isakmp")


def by_port(context: AnalysisContext) -> list[Finding]:
    """Find answers from the port of a service that is known to reflect."""
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.solicited
    rows = context.traffic.rows(pool)
    if len(rows) < context.config.min_samples:
        return []
    findings = []
    ports, weights = weighted_top(packets.sport[rows], context.traffic.weight[rows])
    groups: dict[str, list[int]] = {}
    for port, weight in zip(ports.tolist(), weights.tolist(), strict=True):
        if weight < 0.002 * context.traffic.total or len(groups) >= 24:
            break
        if port in BY_PORT:
            groups.setdefault(BY_PORT[port][0].name, []).append(port)
    for used in groups.values():
        finding = _judge(context, pool & np.isin(packets.sport, used), used)
        if finding is not None:
            findings.append(finding)
    return findings


def by_payload(context: AnalysisContext) -> list[Finding]:
    """Find answers by content, from any port (as SSDP, DHT and TFTP send them)."""
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.solicited
    rows = context.traffic.rows(pool)
    if len(rows) < context.config.min_samples:
        return []
    sample = payload(packets, context.features(rows).spread(_TRIED), SHAPE_WIDTH)
    likely = [(service, shape) for service, shape in _SHAPES if shape(*sample).mean() > 0.005]
    if not likely:
        return []
    matrix, length = payload(packets, rows, SHAPE_WIDTH)
    findings = []
    taken = np.zeros(len(rows), np.bool_)
    for service, shape in likely:
        fits = shape(matrix, length) & ~taken
        mask = np.zeros(len(context.traffic), np.bool_)
        mask[rows[fits]] = True
        features = context.features(mask)
        shaped = context.significant(
            features, floor_pps=context.config.reflection_pps, normal=None, shaped=True
        )
        if not shaped or features.sources < 8 or _one_to_one(features) or _polled(context, features):
            continue
        if _peers(context, service, features) or _near(context, features):
            continue
        taken |= fits
        findings.append(_finding(context, service, features, [], confidence=0.92, fit=1.0))
    return findings


def merged(findings: list[Finding]) -> list[Finding]:
    """Merge answers of one service from its own port and from other ports into one attack."""
    result: dict[str, Finding] = {}
    for finding in findings:
        first = result.get(finding.kind)
        if first is None or not finding.kind.endswith("_amplification"):
            result[finding.kind if first is None else f"{finding.kind} {len(result)}"] = finding
            continue
        large, small = sorted((first, finding), key=lambda one: -len(one.rows))
        result[finding.kind] = replace(
            large,
            rows=np.sort(np.concatenate([large.rows, small.rows])),
            confidence=max(large.confidence, small.confidence),
            evidence=(large.evidence[0], f"also {small.evidence[0]}", *large.evidence[1:]),
            match=Match(protocol=UDP),
            dns_name=large.dns_name if large.dns_name == small.dns_name else None,
        )
    return list(result.values())


def of_few(context: AnalysisContext, features: Features) -> Finding | None:
    """Name a flood after the service whose answers it consists of, even with few reflectors."""
    sport = features.top("sport")
    if sport.share < 0.95 or sport.value not in BY_PORT or sport.value in WEB:
        return None
    fits = [(service, _fit(service, features)) for service in BY_PORT[sport.value]]
    service, fit = max(fits, key=lambda pair: -1.0 if pair[1] is None else pair[1])
    if fit is None or fit < 0.8 or service.name in _SPOKEN:
        return None
    return _finding(context, service, features, [sport.value], confidence=0.85, fit=fit)


def unknown_service(context: AnalysisContext) -> list[Finding]:
    """Find large packets of many sources from one source port that no table knows."""
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.benign
    features = context.features(pool)
    if features.n < context.config.min_samples:
        return []
    top = features.top("sport")
    mask = pool & (packets.sport == top.value)
    features = context.features(mask)
    spoof = context.spoof(features.rows)
    spread = features.sources >= 20 and top.value not in (0, 443) and top.value < 49_152
    answers = (
        features.mean_length >= 300
        and features.payload_variety > 0.02
        and features.top("ip_length").share < 0.9
    )
    forged = spoof.probability > 0.5 and not _worded_alike(features)
    if not (top.share > 0.3 and spread and answers) or forged or _one_to_one(features):
        return []
    if features.top("dport").value == top.value and features.top("dport").share > 0.9:
        return []  # peers of a symmetric protocol use the same port on both sides
    if not context.significant(features, floor_pps=context.config.flood_pps, normal=None):
        return []
    service = Service("udp", f"UDP (unknown service, port {top.value})", (top.value,))
    return [_finding(context, service, features, [top.value], confidence=0.75, fit=None)]


def _worded_alike(features: Features) -> bool:
    """Check for answers of one program: one prefix but varying lengths; spoofed floods have one size."""
    matrix, length = features.head
    begin = matrix[length >= _BEGIN, :_BEGIN]
    if len(begin) < 0.9 * len(matrix) or features.top("ip_length").share > 0.2:
        return False
    return bool((begin == begin[0]).all(1).mean() > 0.95 and begin[0].any())


def _judge(context: AnalysisContext, mask: Mask, ports: list[int]) -> Finding | None:
    features = context.features(mask)
    fits = [(service, _fit(service, features)) for service in BY_PORT[ports[0]]]
    service, fit = max(fits, key=lambda pair: -1.0 if pair[1] is None else pair[1])
    proven = fit is not None and fit >= 0.5
    if ports[0] in WEB and (fit is None or fit < 0.8):
        return None  # downloads of web pages begin with such packets, too
    if not context.significant(features, floor_pps=context.config.reflection_pps, normal=None, shaped=proven):
        return None
    if fit is not None and fit < 0.5 and _forged_answers(context, features, fit):
        return None
    if _near(context, features):
        return None
    if not (proven and _aimed(service, features)) and _benign(context, service, features, fit):
        if proven and (service.name == "dns" or _polled(context, features)):
            context.benign[features.rows] = True
        return None
    confidence = 0.97 if proven else 0.8 if fit is None else 0.7
    if service.name == "dns":
        rows = dns.without_other_names(context.traffic, features)
        features = context.features(rows) if len(rows) < features.n else features
    return _finding(context, service, features, ports, confidence=confidence, fit=fit)


def _aimed(service: Service, features: Features) -> bool:
    """Check for answers to a port that no client uses as a source: attackers choose 80 or 443."""
    dport = features.top("dport")
    here = 0 < dport.value < _PRIVILEGED and dport.value not in service.ports
    return here and dport.share > 0.3 and features.sources >= 8


def _fit(service: Service, features: Features) -> float | None:
    """Return the share of payloads that are answers of this service; None if too few bytes were captured."""
    matrix, length = features.head
    enough = length >= 4
    if service.shape is None or enough.sum() < 10:
        return None
    return float(service.shape(matrix, length)[enough].mean())


def _forged_answers(context: AnalysisContext, features: Features, fit: float) -> bool:
    """Check for a flood that only uses the port of a service: other contents, spoofed or few sources."""
    constant = features.top("ip_length").share > 0.95 and (
        features.payload_entropy > 7.2 or features.zero_bytes > 0.95
    )
    constant |= features.payload_variety < 0.02 and fit < 0.2 and features.n >= 50
    forged = context.spoof(features.rows).probability > context.config.spoof_threshold
    return forged or constant or (features.sources < 8 and fit < 0.2)


def _benign(context: AnalysisContext, service: Service, features: Features, fit: float | None) -> bool:
    """Check for benign traffic: answers of a few servers or peers."""
    if (
        _requests_instead(service, features)
        or _peers(context, service, features)
        or _polled(context, features)
    ):
        return True
    if features.sources <= _FEW:
        # A single reflector counts only if it sends what nobody requests that often.
        strange = context.traffic.live or (service.name not in _SPOKEN and fit is not None and fit >= 0.5)
        return not (features.pps > 20 * context.config.flood_pps and features.mean_length > 400 and strange)
    if features.sources < 8 and features.mean_length < 400:
        return True
    if service.name == "dns":
        return dns.resolver_traffic(features)
    if service.name in ("ntp", "stun") and features.mean_length < 120 and features.pps_per_source < 2:
        return features.share < 0.2
    small_peers = service.name in ("openvpn", "l2tp", "sip", "isakmp", "dtls", "rdp", "teamspeak", "mumble")
    return small_peers and fit != 1.0 and _one_to_one(features)


def _requests_instead(service: Service, features: Features) -> bool:
    """Check for queries or symmetric peers: the port of the service on both sides, not shaped as answers."""
    dport = features.top("dport")
    if dport.value not in service.ports or dport.share < 0.9:
        return False
    if service.shape is None:
        return True
    matrix, length = features.head
    fits = service.shape(matrix, length)
    return bool(len(fits) and fits.mean() < 0.5)


def _near(context: AnalysisContext, features: Features) -> bool:
    """Check for neighbours on the link that answer a search for services: nobody reflects off them."""
    on_link = float(context.traffic.on_link[features.rows].mean()) > _NEARLY_ALL
    if not on_link or features.peak_pps >= _FOUND_PPS:
        return False
    context.benign[features.rows] = True
    return True


def _polled(context: AnalysisContext, features: Features) -> bool:
    """Check for slow, small answers, as a host receives that polls many devices."""
    slow = features.pps < context.config.reflection_pps and context.traffic.seconds >= _LONG
    return slow and features.mean_length < 300


def _peers(context: AnalysisContext, service: Service, features: Features) -> bool:
    """Check for BitTorrent peers, which send queries and answers; reflectors send only answers."""
    dport = features.top("dport")
    if service.name != "bittorrent" or dport.share < 0.9:
        return False
    all_of_port = context.features(context.udp & (context.traffic.packets.dport == dport.value))
    return float(bencoded_question(*all_of_port.head).mean()) > 0.05


def _one_to_one(features: Features) -> bool:
    """Check for conversations: few sources, each with packets of many sizes to one port."""
    return (
        features.sources < 20
        and features.flow_singles < 0.1
        and features.top("ip_length").distinct > features.sources
    )


def _finding(
    context: AnalysisContext,
    service: Service,
    features: Features,
    ports: list[int],
    *,
    confidence: float,
    fit: float | None,
) -> Finding:
    # Answers of a service come from real servers; only imitations can be spoofed
    spoof = context.spoof(features.rows, prior=-9.0 if fit is not None and fit >= 0.5 else -5.0)
    origin = f"from port {', '.join(map(str, ports[:4]))}" if ports else "from various ports"
    evidence = [
        f"{features.amount('unsolicited UDP packets')} {origin} of "
        f"{plural(features.sources, 'server')}, mean length {features.mean_length:.0f} bytes"
    ]
    if fit is not None and fit >= 0.5 and service.shape is not None:
        evidence.append(f"{percent(fit)} of the payloads are {service.title} answers")
    elif service.shape is not None and fit is not None:
        evidence.append(f"only {percent(fit)} of the payloads look like {service.title} answers")
    name = None
    if service.name in ("dns", "mdns", "llmnr"):
        sentences, name = dns.answer_evidence(features)
        evidence += sentences
    request = quoted_requests(context.traffic, ports)
    if request:
        evidence.append(request)
    dport = features.top("dport")
    match = Match(
        protocol=UDP,
        sport=ports[0] if len(ports) == 1 else None,
        dport=dport.value if dport.share > 0.98 and not ports else None,
    )
    title = f"{service.title} amplification"
    return Finding(
        f"{service.name}_amplification",
        title,
        features.rows,
        confidence_of(confidence, features.n),
        tuple(evidence),
        spoof,
        match,
        dns_name=name,
    )


_PER_SOURCE_PPS = 10.0  # requests per source: scanners ask once, clients occasionally
_FORGED = "nobody reads so many answers: the requests carry the address of the victim"


def requests_to_reflect(context: AnalysisContext) -> list[Finding]:
    """Find repeated requests with large answers, in the names of a few victims."""
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.solicited
    findings = []
    for name, (port, shape) in REFLECTED_REQUESTS.items():
        rows = context.traffic.rows(np.asarray(pool & (packets.dport == port) & (packets.sport != port)))
        if len(rows) < context.config.min_samples:
            continue
        fits = shape(*payload(packets, rows, SHAPE_WIDTH))
        features = context.features(rows[fits])
        big = context.significant(
            features, floor_pps=context.config.reflection_pps, normal="udp", shaped=True
        )
        if big and features.pps_per_source > _PER_SOURCE_PPS and fits.mean() > 0.5:
            findings.append(_abuse(context, name, port, features))
    return findings


def _abuse(context: AnalysisContext, name: str, port: int, features: Features) -> Finding:
    title = BY_PORT[port][0].title
    evidence = [
        f"{features.amount(f'{title} requests')} in the name of {features.senders}, "
        f"{count(features.pps_per_source)}/s each: this host is being used as a reflector",
        *_answered(context, features.rows),
    ]
    return Finding(
        f"{name}_amplification",
        f"{title} amplification through this host",
        features.rows,
        confidence_of(0.85, features.n),
        tuple(evidence),
        Spoof(0.9, (_FORGED,)),
        Match(protocol=UDP, dport=port),
    )


def _answered(context: AnalysisContext, rows: Rows) -> list[str]:
    """Write how much this host answered, if the capture shows it."""
    traffic = context.traffic
    keys = np.unique(traffic.flow_key[rows])
    mine = np.isin(flow_key(traffic.outbound, reverse=True), keys) if len(traffic.outbound) else None
    if mine is None or not mine.any():
        return []
    asked = float(traffic.packets.length[rows].sum())
    factor = float(traffic.outbound.length[mine].sum()) / asked
    return [f"this host answered with {count(mine.sum())} packets, amplified {factor:.0f} times (bytes)"]
