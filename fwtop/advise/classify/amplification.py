"""Reflected answers: many servers answer a question that this host never asked.

Sources: CISA TA14-017A; Rossow, "Amplification Hell" (NDSS 2014); RFC 5358 (DNS), RFC 8085 6.1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fwtop.advise import dns
from fwtop.advise.facts import Facts
from fwtop.advise.icmp import quoted_requests
from fwtop.advise.scene import Finding, Scene, count, plural, sure
from fwtop.advise.services import ANYWHERE, BY_PORT, SHAPE_WIDTH, WEB, Service, bencoded_question, tftp_data
from fwtop.advise.traffic import UDP, payload, weighted_top
from fwtop.model.packets import Mask
from fwtop.model.percent import percent
from fwtop.model.rule import Match

_TFTP = Service("tftp", "TFTP", (), tftp_data)
_SHAPES = [(service, service.shape) for service in (*ANYWHERE, _TFTP) if service.shape is not None]
_LONG = 8.0  # seconds: a capture that isn't just a cut, so its rates mean something
_PRIVILEGED = 1024
_BEGIN = 4  # payload bytes that all answers of a service have in common
_TRIED = 1_024  # packets that are tried for a shape before all are
_FEW = 3  # resolvers that a host really uses
# What hosts talk with a single server in bulk; a few reflectors of these don't show in packets alone
_SPOKEN = ("dns", "quic", "dtls", "openvpn", "l2tp", "sip", "stun", "rdp", "steam", "quake", "tftp", "isakmp")


def by_port(scene: Scene) -> list[Finding]:
    """Answers from the port of a service that is known to reflect."""
    packets = scene.traffic.packets
    pool = scene.udp & scene.free & ~scene.solicited
    rows = scene.traffic.rows(pool)
    if len(rows) < scene.config.min_samples:
        return []
    findings = []
    ports, weights = weighted_top(packets.sport[rows], scene.traffic.weight[rows])
    groups: dict[str, list[int]] = {}
    for port, weight in zip(ports.tolist(), weights.tolist(), strict=True):
        if weight < 0.002 * scene.traffic.total or len(groups) >= 24:
            break
        if port in BY_PORT:
            groups.setdefault(BY_PORT[port][0].name, []).append(port)
    for used in groups.values():
        finding = _judge(scene, pool & np.isin(packets.sport, used), used)
        if finding is not None:
            findings.append(finding)
    return findings


def by_payload(scene: Scene) -> list[Finding]:
    """Answers that are told by their bytes, from whatever port (SSDP, DHT and TFTP answer so)."""
    packets = scene.traffic.packets
    pool = scene.udp & scene.free & ~scene.solicited
    rows = scene.traffic.rows(pool)
    if len(rows) < scene.config.min_samples:
        return []
    sample = payload(packets, scene.facts(rows).spread(_TRIED), SHAPE_WIDTH)
    likely = [(service, shape) for service, shape in _SHAPES if shape(*sample).mean() > 0.005]
    if not likely:
        return []
    matrix, length = payload(packets, rows, SHAPE_WIDTH)
    findings = []
    taken = np.zeros(len(rows), np.bool_)
    for service, shape in likely:
        fits = shape(matrix, length) & ~taken
        mask = np.zeros(len(scene.traffic), np.bool_)
        mask[rows[fits]] = True
        facts = scene.facts(mask)
        shaped = scene.significant(facts, floor_pps=scene.config.reflection_pps, normal="udp", shaped=True)
        if not shaped or facts.sources < 8 or _one_to_one(facts) or _polled(scene, facts):
            continue
        if _peers(scene, service, facts):
            continue
        taken |= fits
        findings.append(_finding(scene, service, facts, [], confidence=0.92, fit=1.0))
    return findings


def merged(findings: list[Finding]) -> list[Finding]:
    """Join answers of one service that came from its own port and from others: one attack."""
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
            evidence=(large.evidence[0], f"beside them {small.evidence[0]}", *large.evidence[1:]),
            match=Match(protocol=UDP),
            dns_name=large.dns_name if large.dns_name == small.dns_name else None,
        )
    return list(result.values())


def of_few(scene: Scene, facts: Facts) -> Finding | None:
    """Name a flood after the service whose answers it is, however few reflectors send them."""
    sport = facts.top("sport")
    if sport.share < 0.95 or sport.value not in BY_PORT or sport.value in WEB:
        return None
    fits = [(service, _fit(service, facts)) for service in BY_PORT[sport.value]]
    service, fit = max(fits, key=lambda pair: -1.0 if pair[1] is None else pair[1])
    if fit is None or fit < 0.8 or service.name in _SPOKEN:
        return None
    return _finding(scene, service, facts, [sport.value], confidence=0.85, fit=fit)


def unknown_service(scene: Scene) -> list[Finding]:
    """Large packets of many sources from one and the same source port that no table knows."""
    packets = scene.traffic.packets
    pool = scene.udp & scene.free & ~scene.ordinary
    facts = scene.facts(pool)
    if facts.n < scene.config.min_samples:
        return []
    top = facts.top("sport")
    mask = pool & (packets.sport == top.value)
    facts = scene.facts(mask)
    spoof = scene.spoof(facts.rows)
    spread = facts.sources >= 20 and top.value not in (0, 443) and top.value < 49_152
    answers = facts.mean_length >= 300 and facts.payload_variety > 0.02 and facts.top("ip_length").share < 0.9
    forged = spoof.probability > 0.5 and not _worded_alike(facts)
    if not (top.share > 0.3 and spread and answers) or forged or _one_to_one(facts):
        return []
    if facts.top("dport").value == top.value and facts.top("dport").share > 0.9:
        return []  # peers of one symmetric protocol: two ports that are the same
    if not scene.significant(facts, floor_pps=scene.config.flood_pps, normal="udp"):
        return []
    service = Service("udp", f"UDP (unknown service on port {top.value})", (top.value,))
    return [_finding(scene, service, facts, [top.value], confidence=0.75, fit=None)]


def _worded_alike(facts: Facts) -> bool:
    """Answers of one program: the same beginning, then as much as each has to say; forgers send one size."""
    matrix, length = facts.head
    begin = matrix[length >= _BEGIN, :_BEGIN]
    if len(begin) < 0.9 * len(matrix) or facts.top("ip_length").share > 0.2:
        return False
    return bool((begin == begin[0]).all(1).mean() > 0.95 and begin[0].any())


def _judge(scene: Scene, mask: Mask, ports: list[int]) -> Finding | None:
    facts = scene.facts(mask)
    fits = [(service, _fit(service, facts)) for service in BY_PORT[ports[0]]]
    service, fit = max(fits, key=lambda pair: -1.0 if pair[1] is None else pair[1])
    proven = fit is not None and fit >= 0.5
    if ports[0] in WEB and (fit is None or fit < 0.8):
        return None  # a page's downloads begin with such packets, and go on with others
    if not scene.significant(facts, floor_pps=scene.config.reflection_pps, normal="udp", shaped=proven):
        return None
    if fit is not None and fit < 0.5 and _forged_answers(scene, facts, fit):
        return None
    if not (proven and _aimed(service, facts)) and _ordinary(scene, service, facts, fit):
        if proven and (service.name == "dns" or _polled(scene, facts)):
            scene.ordinary[facts.rows] = True
        return None
    confidence = 0.97 if proven else 0.8 if fit is None else 0.7
    if service.name == "dns":
        rows = dns.without_other_names(scene.traffic, facts)
        facts = scene.facts(rows) if len(rows) < facts.n else facts
    return _finding(scene, service, facts, ports, confidence=confidence, fit=fit)


def _aimed(service: Service, facts: Facts) -> bool:
    """Tell answers to a port that no client has as its own: the attacker's choice, 80 or 443 most often."""
    dport = facts.top("dport")
    here = 0 < dport.value < _PRIVILEGED and dport.value not in service.ports
    return here and dport.share > 0.3 and facts.sources >= 8


def _fit(service: Service, facts: Facts) -> float | None:
    """Part of the payloads that are this service's answers; None where too little can be seen."""
    matrix, length = facts.head
    enough = length >= 4
    if service.shape is None or enough.sum() < 10:
        return None
    return float(service.shape(matrix, length)[enough].mean())


def _forged_answers(scene: Scene, facts: Facts, fit: float) -> bool:
    """A flood that only borrows the source port: contents of no service, forged or few sources."""
    constant = facts.top("ip_length").share > 0.95 and (
        facts.payload_entropy > 7.2 or facts.zero_bytes > 0.95
    )
    constant |= facts.payload_variety < 0.02 and fit < 0.2 and facts.n >= 50
    forged = scene.spoof(facts.rows).probability > scene.config.spoof_threshold
    return forged or constant or (facts.sources < 8 and fit < 0.2)


def _ordinary(scene: Scene, service: Service, facts: Facts, fit: float | None) -> bool:
    """Traffic that a host has anyway: a few servers or peers that it talks with."""
    if _requests_instead(service, facts) or _peers(scene, service, facts) or _polled(scene, facts):
        return True
    if facts.sources <= _FEW:
        # One reflector is enough only when it sends what nobody asks for so often.
        strange = scene.traffic.live or (service.name not in _SPOKEN and fit is not None and fit >= 0.5)
        return not (facts.pps > 20 * scene.config.flood_pps and facts.mean_length > 400 and strange)
    if facts.sources < 8 and facts.mean_length < 400:
        return True
    if service.name == "dns":
        return dns.resolver_traffic(facts)
    if service.name in ("ntp", "stun") and facts.mean_length < 120 and facts.pps_per_source < 2:
        return facts.share < 0.2
    small_peers = service.name in ("openvpn", "l2tp", "sip", "isakmp", "dtls", "rdp", "teamspeak", "mumble")
    return small_peers and fit != 1.0 and _one_to_one(facts)


def _requests_instead(service: Service, facts: Facts) -> bool:
    """Both ports are the service's: symmetric peers or queries, not answers, unless the shape says so."""
    dport = facts.top("dport")
    if dport.value not in service.ports or dport.share < 0.9:
        return False
    if service.shape is None:
        return True
    matrix, length = facts.head
    fits = service.shape(matrix, length)
    return bool(len(fits) and fits.mean() < 0.5)


def _polled(scene: Scene, facts: Facts) -> bool:
    """Small and slow for long: what a host gets that asks many devices in turn."""
    slow = facts.pps < scene.config.reflection_pps and scene.traffic.seconds >= _LONG
    return slow and facts.mean_length < 300


def _peers(scene: Scene, service: Service, facts: Facts) -> bool:
    """BitTorrent's peers ask as well as answer, and on one port; reflected packets only answer."""
    dport = facts.top("dport")
    if service.name != "bittorrent" or dport.share < 0.9:
        return False
    all_of_port = scene.facts(scene.udp & (scene.traffic.packets.dport == dport.value))
    return float(bencoded_question(*all_of_port.head).mean()) > 0.05


def _one_to_one(facts: Facts) -> bool:
    """Conversations: every source has packets of many sizes for one port, few sources in all."""
    return facts.sources < 20 and facts.flow_singles < 0.1 and facts.top("ip_length").distinct > facts.sources


def _finding(
    scene: Scene, service: Service, facts: Facts, ports: list[int], *, confidence: float, fit: float | None
) -> Finding:
    # Answers of a service come from who runs it; only imitations could be forged
    spoof = scene.spoof(facts.rows, prior=-9.0 if fit is not None and fit >= 0.5 else -5.0)
    origin = f"from port {', '.join(map(str, ports[:4]))}" if ports else "from many ports"
    evidence = [
        f"{count(facts.packets)} unsolicited UDP packets {origin} of {plural(facts.sources, 'server')}, "
        f"{facts.mean_length:.0f} bytes on average"
    ]
    if fit is not None and fit >= 0.5 and service.shape is not None:
        evidence.append(f"{percent(fit)} of the payloads are answers of {service.title}")
    elif service.shape is not None and fit is not None:
        evidence.append(f"only {percent(fit)} of the payloads begin like answers of {service.title}")
    name = None
    if service.name in ("dns", "mdns", "llmnr"):
        sentences, name = dns.answer_evidence(facts)
        evidence += sentences
    request = quoted_requests(scene.traffic, ports)
    if request:
        evidence.append(request)
    dport = facts.top("dport")
    match = Match(
        protocol=UDP,
        sport=ports[0] if len(ports) == 1 else None,
        dport=dport.value if dport.share > 0.98 and not ports else None,
    )
    title = f"{service.title} amplification"
    return Finding(
        f"{service.name}_amplification",
        title,
        facts.rows,
        sure(confidence, facts.n),
        tuple(evidence),
        spoof,
        match,
        dns_name=name,
    )
