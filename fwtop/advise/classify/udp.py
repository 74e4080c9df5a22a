"""Floods of UDP without a service's answers in it. Source: RFC 8085."""

from __future__ import annotations

import math

import numpy as np

from fwtop.advise import quic
from fwtop.advise.classify import amplification
from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count
from fwtop.advise.services import BY_PORT, QUESTIONS
from fwtop.advise.talks import alike, has_peers, hidden, talking_flows
from fwtop.advise.traffic import UDP, weighted_top
from fwtop.model.packets import Fragment, Mask
from fwtop.model.percent import percent
from fwtop.model.rule import Match, PayloadMatch
from fwtop.model.wording import bytes_text

_GROUPS = 4
_TINY = 128  # bytes: links carry 576 or more, whatever the least of 68 in RFC 791
_CLIENT_PPS = 1.0  # questions a second of a real client of NTP, STUN or a game, for long
_ASKER_PPS, _ASKED_AGAIN = 2.0, 3.0  # and of one that asks and asks, in however short a capture
_NOTICED_PPS = 200.0  # of questions: fewer no server minds
_STREAM_PPS = 1_000.0  # of a call, a game or a tunnel; faster ones show by what else they do
_BEGIN = 8  # payload bytes that are the same in all sources' packets by a tool's constant
_FORGED = 0.7  # probability
_ASYMMETRIC = 3.0  # later fragments a first one: then fragments are the weapon


def flood(scene: Scene) -> list[Finding]:
    """UDP to one port or to random ones, told from calls, games and downloads by its structure."""
    packets = scene.traffic.packets
    pool = scene.udp & scene.free & ~scene.ordinary
    if int(pool.sum()) < scene.config.min_samples:
        return []
    findings = []
    for mask in _by_port(scene, pool):
        finding = _judge(scene, mask) or _judge(scene, mask & ~talking_flows(scene.traffic, mask))
        if finding is not None:
            findings.append(finding)
    answers = [finding for finding in findings if finding.kind != "udp_flood"]
    floods = [finding for finding in findings if finding.kind == "udp_flood"]
    if len(floods) > 1:
        return [*answers, _join(scene, floods)]
    rest = packets.fragment == Fragment.LATER
    return [*answers, *(_with_fragments(scene, finding, rest) for finding in floods)]


def _by_port(scene: Scene, pool: Mask) -> list[Mask]:
    """Cut by destination port where single ones dominate; the rest stays together."""
    packets = scene.traffic.packets
    rows = scene.traffic.rows(pool)
    ports, weights = weighted_top(packets.dport[rows], scene.traffic.weight[rows])
    heavy = [int(port) for port in ports[:_GROUPS][weights[:_GROUPS] > 0.1 * weights.sum()]]
    groups = [np.asarray(pool & (packets.dport == port)) for port in heavy]
    rest = pool & ~np.isin(packets.dport, heavy)
    return [*groups, np.asarray(rest)]


def _judge(scene: Scene, mask: Mask) -> Finding | None:
    facts = scene.facts(mask)
    if not scene.significant(facts, floor_pps=scene.config.flood_pps, normal="udp"):
        return None
    spoof = scene.spoof(facts.rows)
    odds, signs = _odds(scene, facts, spoof.probability)
    if odds < 1.5:
        return None
    answers = amplification.of_few(scene, facts)
    if answers is not None:
        return answers
    dport, sport = facts.top("dport"), facts.top("sport")
    where = f"to port {dport.value}" if dport.share > 0.9 else f"to {dport.distinct:,} ports"
    evidence = [_size(facts, where), *_asked(facts), *quic.header_evidence(facts), *signs]
    match = Match(
        protocol=UDP,
        dport=dport.value if dport.share > 0.98 else None,
        sport=sport.value if sport.share > 0.98 and sport.value else None,
    )
    return Finding("udp_flood", "UDP flood", facts.rows, _sure(odds), tuple(evidence), spoof, match)


def _sure(odds: float) -> float:
    return round(min(0.95, 1 / (1 + math.exp(-odds + 0.5))), 3)


def _size(facts: Facts, where: str) -> str:
    return (
        f"{count(facts.packets)} UDP packets {where} from {facts.senders}, "
        f"{facts.mean_length:.0f} bytes on average"
    )


def _asked(facts: Facts) -> list[str]:
    """Say what the packets ask for, where they are a known service's questions."""
    dport = facts.top("dport").value
    for title, port, shape in QUESTIONS:
        fit = float(shape(*facts.head).mean()) if facts.n and port in (None, dport) else 0.0
        if fit > 0.5:
            return [f"{percent(fit)} are {title}"]
    return []


def _odds(scene: Scene, facts: Facts, forged: float) -> tuple[float, list[str]]:
    """Add up what speaks for a flood; each sign is worth about what it would be to an expert."""
    odds, signs = 0.0, []
    if forged > _FORGED:
        odds += 2.0
    if facts.share > 0.6:
        odds += 1.0
    dport, length = facts.top("dport"), facts.top("ip_length")
    if facts.n >= 100 and dport.distinct > 0.3 * min(facts.n, 20_000) and dport.share < 0.1:
        odds += 2.0
        signs.append(f"destination ports are random ({dport.distinct:,} seen)")
    if length.share > 0.9:
        odds += 1.0
        signs.append(f"{percent(length.share)} have an IP length of {length.value}")
    hopping = _hopping(scene, facts)
    if hopping:
        odds += 1.5
        signs.append("the sources take another port for nearly every packet")
    odds += _tool_marks(facts, signs)
    contents = 0.0 if hidden(facts) else _contents(facts, signs, forged)
    odds += contents
    per_source = facts.pps_per_source
    if per_source > 1_000:
        odds += 1.5
        signs.append(f"each source sends {count(per_source)} packets a second")
    elif facts.sources < 10 and per_source < (200 if alike(facts) else _STREAM_PPS):
        asks_on = hopping and (facts.pps > _NOTICED_PPS or contents > 0)
        odds -= 1.5 if asks_on else 3.0
    usual = scene.baseline.rate("udp")
    if usual is not None and scene.traffic.live:
        odds += 2.0
        signs.append(f"{count(facts.pps)} UDP packets a second against {count(usual)} usually")
    few = per_source < _CLIENT_PPS or facts.peak_pps < _NOTICED_PPS
    clients = forged < scene.config.spoof_threshold and few
    asked = clients and bool(_asked(facts))
    odds += _asking_on(facts, signs)
    if asked or has_peers(facts):
        odds -= 4.0
    return odds, signs


def _hopping(scene: Scene, facts: Facts) -> bool:
    """Tell sources that take another port for nearly every packet, as clients do only to ask anew."""
    if facts.n >= 5 * facts.sources and facts.flow_singles > 0.8 and facts.pps_per_source > 2:
        return True
    thin = scene.thin or facts.n < 2 * facts.sources or facts.sources < 20
    return not thin and facts.flow_singles > 0.95 and facts.top("dport").value not in BY_PORT


def _tool_marks(facts: Facts, signs: list[str]) -> float:
    """Weigh what clients of many sources don't share: a source port, a beginning of no known protocol."""
    odds = 0.0
    sport, dport = facts.top("sport"), facts.top("dport")
    odd_port = sport.value >= 1024 and sport.value not in BY_PORT and sport.value != dport.value
    if sport.share > 0.95 and facts.sources >= 10 and odd_port:
        odds += 1.5
        signs.append(f"all sources use port {sport.value}: clients would differ")
    matrix, held = facts.head
    begin = matrix[held >= _BEGIN, :_BEGIN]
    plain = facts.payload_variety < 0.02 or facts.zero_bytes > 0.95 or dport.value in BY_PORT
    if plain or facts.sources < 8 or len(begin) < max(50, 0.9 * len(matrix)):
        return odds
    if (begin == begin[0]).all(1).mean() > 0.95:
        odds += 1.0
        signs.append(f"the payloads of all sources begin with {bytes_text(PayloadMatch(begin[0].tobytes()))}")
    return odds


def _asking_on(facts: Facts, signs: list[str]) -> float:
    """Weigh questions of a known protocol that each of many sources asks again before an answer can help."""
    pace = facts.peak_pps / max(1, facts.sources)
    often = pace >= _ASKER_PPS and facts.n >= _ASKED_AGAIN * facts.sources
    if facts.sources < 20 or not often or not _asked(facts):
        return 0.0
    signs.append(f"each source asks up to {pace:.1f} times a second: clients wait for the answer")
    return 1.0


def _contents(facts: Facts, signs: list[str], forged: float) -> float:
    matrix, held = facts.head
    if not (held > 0).any():
        signs.append("they carry no payload")
        return 1.5
    if facts.zero_bytes > 0.95:
        signs.append("the payload is all zeros")
        return 2.5
    if facts.payload_variety < 0.02 and facts.n >= 50:
        signs.append("the payload is the same in all")
        return 2.0
    if facts.payload_entropy > 7.5 and facts.payload_variety > 0.9:
        if quic.looks_like_quic(matrix, held) and forged < _FORGED:
            return -2.0  # a connection's packets; forged ones begin none
        signs.append(f"most payload bytes are random ({facts.payload_entropy:.1f} bits a byte)")
        once = facts.flow_singles > 0.9 and facts.sources >= 100
        if once:
            signs.append(f"{facts.senders} send it once from each port, as no protocol begins")
        return 1.75 if once else 1.0
    return 0.0


def _join(scene: Scene, findings: list[Finding]) -> Finding:
    """One tool on several ports is one attack."""
    rows = np.sort(np.concatenate([finding.rows for finding in findings]))
    facts, spoof = scene.facts(rows), scene.spoof(rows)
    ports = sorted(finding.match.dport for finding in findings if finding.match.dport is not None)
    where = f"to ports {', '.join(map(str, ports))}" if len(ports) > 1 else f"to port {ports[0]}"
    if len(ports) < len(findings):
        where += " and others"
    odds, signs = _odds(scene, facts, spoof.probability)
    confidence = max(_sure(odds), *(finding.confidence for finding in findings))
    evidence = (_size(facts, where), *_asked(facts), *quic.header_evidence(facts), *signs)
    return Finding("udp_flood", "UDP flood", rows, confidence, evidence, spoof, Match(protocol=UDP))


def _with_fragments(scene: Scene, finding: Finding, later: Mask) -> Finding:
    """Call it by its fragments when those are most of it."""
    packets, weight = scene.traffic.packets, scene.traffic.weight
    first = packets.fragment[finding.rows] == Fragment.FIRST
    mine = scene.traffic.rows(later & scene.free & (packets.protocol == UDP))
    heads, tails = float(weight[finding.rows][first].sum()), float(weight[mine].sum())
    length = float(packets.ip_length[finding.rows].mean())
    tiny = length < _TINY
    if first.mean() < 0.8 or not (tiny or tails >= _ASYMMETRIC * heads):
        return finding
    rows = np.sort(np.concatenate([finding.rows, mine]))
    odd = (
        f"first fragments have {length:.0f} bytes on average: no network cuts so small (RFC 1858)"
        if tiny
        else f"{tails / max(heads, 1):.0f} later fragments for each first one"
    )
    evidence = (odd, *finding.evidence)
    match = Match(protocol=UDP, fragment=True)
    return Finding(
        "fragment_flood", "UDP fragment flood", rows, finding.confidence, evidence, finding.spoof, match
    )
