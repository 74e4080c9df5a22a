"""UDP floods that aren't answers of a service. Source: RFC 8085."""

from __future__ import annotations

import math

import numpy as np

from fwtop.analysis.classify import amplification
from fwtop.analysis.context import AnalysisContext, Finding, count
from fwtop.analysis.parsers import quic
from fwtop.analysis.parsers.services import BY_PORT, QUESTIONS
from fwtop.analysis.window.conversations import alike, conversation_flows, has_peers, hidden, numbered
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import UDP, weighted_top
from fwtop.model.rule import Match, PayloadMatch
from fwtop.model.traffic.packets import Fragment, Mask
from fwtop.render.numbers import percent
from fwtop.render.wording import bytes_text

_GROUPS = 4
_TINY = 128  # bytes: links have an MTU of 576 or more, though RFC 791 requires only 68
_CLIENT_PPS = 1.0  # requests per second of a real NTP, STUN or game client
_ASKER_PPS, _ASKED_AGAIN = 2.0, 3.0  # requests per second and in total of a source that keeps asking
_NOTICED_PPS = 200.0  # requests per second that no server notices
_PATIENT_PPS = 20.0  # requests per second that a client of any service has good reason for
_PEER_PPS = 5_000.0  # of tunnels and calls
_NEARLY_ALL = 0.95
_STREAM_PPS = 1_000.0  # per call, game or tunnel; faster ones show otherwise
_BEGIN = 8  # payload bytes that a tool keeps constant
_FORGED = 0.7  # probability
_ASYMMETRIC = 3.0  # later fragments per first one in a fragment flood


def flood(context: AnalysisContext) -> list[Finding]:
    """Find UDP floods to one port or to random ports, as opposed to calls, games and downloads."""
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.benign
    if int(pool.sum()) < context.config.min_samples:
        return []
    findings = []
    for mask in _by_port(context, pool):
        finding = _judge(context, mask) or _judge(context, mask & ~conversation_flows(context.traffic, mask))
        if finding is not None:
            findings.append(finding)
    answers = [finding for finding in findings if finding.kind != "udp_flood"]
    floods = [finding for finding in findings if finding.kind == "udp_flood"]
    if len(floods) > 1:
        return [*answers, _join(context, floods)]
    rest = packets.fragment == Fragment.LATER
    return [*answers, *(_with_fragments(context, finding, rest) for finding in floods)]


def _by_port(context: AnalysisContext, pool: Mask) -> list[Mask]:
    """Split by dominant destination ports; the rest stays together."""
    packets = context.traffic.packets
    rows = context.traffic.rows(pool)
    ports, weights = weighted_top(packets.dport[rows], context.traffic.weight[rows])
    heavy = [int(port) for port in ports[:_GROUPS][weights[:_GROUPS] > 0.1 * weights.sum()]]
    groups = [np.asarray(pool & (packets.dport == port)) for port in heavy]
    rest = pool & ~np.isin(packets.dport, heavy)
    return [*groups, np.asarray(rest)]


def _judge(context: AnalysisContext, mask: Mask) -> Finding | None:
    features = context.features(mask)
    if not context.significant(features, floor_pps=context.config.flood_pps, normal="udp"):
        return None
    spoof = context.spoof(features.rows)
    odds, signs = _odds(context, features, spoof.probability)
    if odds < 1.5:
        _excuse(context, features)
        return None
    answers = amplification.of_few(context, features)
    if answers is not None:
        return answers
    dport, sport = features.top("dport"), features.top("sport")
    where = f"to port {dport.value}" if dport.share > 0.9 else f"to {dport.distinct:,} ports"
    evidence = [_size(features, where), *_asked(features), *quic.header_evidence(features), *signs]
    match = Match(
        protocol=UDP,
        dport=dport.value if dport.share > 0.98 else None,
        sport=sport.value if sport.share > 0.98 and sport.value else None,
    )
    return Finding("udp_flood", "UDP flood", features.rows, _confidence(odds), tuple(evidence), spoof, match)


def _excuse(context: AnalysisContext, features: Features) -> None:
    """Mark streams of a few peers that number their packets: no surge of unknown packets, however fast.

    Those of strangers only up to the rate of a call or a tunnel, because any tool can count.
    """
    known = float(context.acquainted[features.rows].mean()) > _NEARLY_ALL
    if (known or features.pps_per_source < _PEER_PPS) and numbered(features):
        context.benign[features.rows] = True


def _confidence(odds: float) -> float:
    return round(min(0.95, 1 / (1 + math.exp(-odds + 0.5))), 3)


def _size(features: Features, where: str) -> str:
    return (
        f"{features.amount('UDP packets')} {where} from {features.senders}, "
        f"mean length {features.mean_length:.0f} bytes"
    )


def _asked(features: Features) -> list[str]:
    """Write what the packets request, if they are requests of a known service."""
    dport = features.top("dport").value
    for title, port, shape in QUESTIONS:
        fit = float(shape(*features.head).mean()) if features.n and port in (None, dport) else 0.0
        if fit > 0.5:
            return [f"{percent(fit)} are {title}"]
    return []


def _odds(context: AnalysisContext, features: Features, forged: float) -> tuple[float, list[str]]:
    """Return the log-odds of a flood and its signs."""
    odds, signs = 0.0, []
    if forged > _FORGED:
        odds += 2.0
    if features.share > 0.6:
        odds += 1.0
    dport, length = features.top("dport"), features.top("ip_length")
    if features.n >= 100 and dport.distinct > 0.3 * min(features.n, 20_000) and dport.share < 0.1:
        odds += 2.0
        signs.append(f"destination ports are random ({dport.distinct:,} seen)")
    if length.share > 0.9:
        odds += 1.0
        signs.append(f"{percent(length.share)} have IP length {length.value}")
    hopping = _hopping(context, features)
    if hopping:
        odds += 1.5
        signs.append("the source port changes with nearly every packet")
    odds += _tool_marks(features, signs)
    contents = 0.0 if hidden(features) else _contents(features, signs, forged)
    odds += contents
    per_source = features.pps_per_source
    asked, peers = bool(_asked(features)), has_peers(features)
    if per_source > 1_000:
        odds += 1.5
        signs.append(f"mean {count(per_source)} packets/s per source")
    elif asked and per_source > _PATIENT_PPS:
        odds += 2.0
        signs.append(f"each source asks {count(per_source)} times per second")
    elif features.sources < 10 and per_source < (200 if alike(features) else _STREAM_PPS):
        asks_on = hopping and (features.pps > _NOTICED_PPS or contents > 0)
        odds -= 1.5 if asks_on else 3.0
    few = features.pps < _CLIENT_PPS * features.likely_sources or features.peak_pps < _NOTICED_PPS
    clients = forged < context.config.spoof_threshold and few
    odds += _asking_on(features, signs)
    odds += _above_usual(context, features, signs, peers=peers)
    if (asked and clients) or peers:
        odds -= 4.0
    return odds, signs


def _above_usual(context: AnalysisContext, features: Features, signs: list[str], *, peers: bool) -> float:
    """Weigh a rate against the baseline: ever more packets outweigh that each looks like a client's.

    A call or a tunnel that begins is above it, too.
    """
    usual, factor = context.baseline.rate("udp"), context.beyond_usual(features, "udp")
    if usual is None or not factor:
        return 0.0
    signs.append(f"{count(features.pps)} UDP packets/s, normally up to {count(usual)}")
    return 0.0 if peers else 2.0 + max(0.0, 2 * math.log10(max(1.0, factor / context.config.baseline_factor)))


def _hopping(context: AnalysisContext, features: Features) -> bool:
    """Check for sources that change their port with nearly every packet."""
    if features.n >= 5 * features.sources and features.flow_singles > 0.8 and features.pps_per_source > 2:
        return True
    thin = context.sparse or features.n < 2 * features.sources or features.sources < 20
    return not thin and features.flow_singles > 0.95 and features.top("dport").value not in BY_PORT


def _tool_marks(features: Features, signs: list[str]) -> float:
    """Weigh what real clients don't share: a source port, or a prefix of an unknown protocol."""
    odds = 0.0
    sport, dport = features.top("sport"), features.top("dport")
    odd_port = sport.value >= 1024 and sport.value not in BY_PORT and sport.value != dport.value
    if sport.share > 0.95 and features.sources >= 10 and odd_port:
        odds += 1.5
        signs.append(f"all sources use source port {sport.value}; those of clients differ")
    matrix, held = features.head
    begin = matrix[held >= _BEGIN, :_BEGIN]
    plain = features.payload_variety < 0.02 or features.zero_bytes > 0.95 or dport.value in BY_PORT
    if plain or features.sources < 8 or len(begin) < max(50, 0.9 * len(matrix)):
        return odds
    if (begin == begin[0]).all(1).mean() > 0.95:
        odds += 1.0
        signs.append(
            f"the payloads from all sources begin with {bytes_text(PayloadMatch(begin[0].tobytes()))}"
        )
    return odds


def _asking_on(features: Features, signs: list[str]) -> float:
    """Weigh requests of a known protocol that many sources repeat without waiting for the answer."""
    pace = features.peak_pps / max(1, features.sources)
    often = pace >= _ASKER_PPS and features.n >= _ASKED_AGAIN * features.sources
    if features.sources < 20 or not often or not _asked(features):
        return 0.0
    signs.append(f"each source asks up to {pace:.1f} times per second without waiting for the answer")
    return 1.0


def _contents(features: Features, signs: list[str], forged: float) -> float:
    matrix, held = features.head
    if not (held > 0).any():
        signs.append("they carry no payload")
        return 1.5
    if features.zero_bytes > 0.95:
        signs.append("the payload is all zeros")
        return 2.5
    if features.payload_variety < 0.02 and features.n >= 50:
        signs.append("all payloads are identical")
        return 2.0
    if features.payload_entropy > 7.5 and features.payload_variety > 0.9:
        if quic.looks_like_quic(matrix, held) and forged < _FORGED:
            return -2.0  # packets of a connection; spoofed ones can't open one
        signs.append(f"the payload is random ({features.payload_entropy:.1f} bits per byte)")
        once = features.flow_singles > 0.9 and features.sources >= 100
        if once:
            signs.append(f"{features.senders} send it once per port; no protocol starts like that")
        return 1.75 if once else 1.0
    return 0.0


def _join(context: AnalysisContext, findings: list[Finding]) -> Finding:
    """Join floods to several ports into one attack."""
    rows = np.sort(np.concatenate([finding.rows for finding in findings]))
    features, spoof = context.features(rows), context.spoof(rows)
    ports = sorted(finding.match.dport for finding in findings if finding.match.dport is not None)
    where = f"to ports {', '.join(map(str, ports))}" if len(ports) > 1 else f"to port {ports[0]}"
    if len(ports) < len(findings):
        where += " and others"
    odds, signs = _odds(context, features, spoof.probability)
    confidence = max(_confidence(odds), *(finding.confidence for finding in findings))
    evidence = (_size(features, where), *_asked(features), *quic.header_evidence(features), *signs)
    return Finding("udp_flood", "UDP flood", rows, confidence, evidence, spoof, Match(protocol=UDP))


def _with_fragments(context: AnalysisContext, finding: Finding, later: Mask) -> Finding:
    """Rename a finding that mostly consists of fragments."""
    packets, weight = context.traffic.packets, context.traffic.weight
    first = packets.fragment[finding.rows] == Fragment.FIRST
    mine = context.traffic.rows(later & context.unclaimed & (packets.protocol == UDP))
    heads, tails = float(weight[finding.rows][first].sum()), float(weight[mine].sum())
    length = float(packets.ip_length[finding.rows].mean())
    tiny = length < _TINY
    if first.mean() < 0.8 or not (tiny or tails >= _ASYMMETRIC * heads):
        return finding
    rows = np.sort(np.concatenate([finding.rows, mine]))
    odd = (
        f"first fragments have {length:.0f} bytes on average: no network fragments that small (RFC 1858)"
        if tiny
        else f"{tails / max(heads, 1):.0f} later fragments per first fragment"
    )
    evidence = (odd, *finding.evidence)
    match = Match(protocol=UDP, fragment=True)
    return Finding(
        "fragment_flood", "UDP fragment flood", rows, finding.confidence, evidence, finding.spoof, match
    )
