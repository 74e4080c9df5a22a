"""Floods of DNS questions. Sources: RFC 8482; "water torture" (Secure64 2014, Luo et al. 2018)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fwtop.advise import dns
from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.services import dns_query
from fwtop.advise.traffic import UDP, Rows, distinct_texts, payload
from fwtop.model.packets import U64, Mask
from fwtop.model.percent import percent
from fwtop.model.rule import Match
from fwtop.model.text import dns_name_text, safe_text

_NAME = 24  # bytes of a name that are compared
_PARENT_SHARE = 0.25  # of the questions are for names under one parent
_VECTORS = 2  # floods of questions at once
_OFTEN = 0.15  # of the questions are for one name
_INVENTED = 200  # questions before that is said
_AGAIN = 10  # times that a random name doesn't come up


def queries(scene: Scene) -> list[Finding]:
    """Many questions: for random names under one parent, or too many of the same, or forged."""
    packets = scene.traffic.packets
    to_server = scene.traffic.rows(scene.udp & scene.free & (packets.dport == 53))
    if len(to_server) < scene.config.min_samples:
        return []
    matrix, length = payload(packets, to_server, 32)
    asks = dns_query(matrix, length)
    if asks.mean() < 0.1:
        return []  # a flood to port 53 that isn't DNS: the UDP rule's
    rows = to_server[asks]
    scene.ordinary[rows] = True  # what this rule doesn't name is a name server's daily work
    findings: list[Finding] = []
    while (finding := _judge(scene, rows, beside=bool(findings))) is not None and len(findings) < _VECTORS:
        if any(finding.kind == earlier.kind for earlier in findings):
            break
        findings.append(finding)
        rows = np.setdiff1d(rows, finding.rows)
    return findings


@dataclass(frozen=True)
class _Verdict:
    """What the questions are, by the names in them."""

    kind: str
    title: str
    sentence: str
    confidence: float
    rows: Rows
    wire: bytes | None = None


def _judge(scene: Scene, rows: Rows, *, beside: bool) -> Finding | None:
    """Name these questions; `beside` another flood only where they are for one and the same name."""
    facts = scene.facts(rows)
    if not scene.significant(facts, floor_pps=scene.config.flood_pps, normal="dns"):
        return None
    parsed = dns.questions(scene.traffic, rows)
    verdict = _by_names(scene, facts, parsed) if len(parsed) >= 20 else None
    if verdict is None or (beside and verdict.wire is None):
        return None
    types = Counter(dns.type_name(question.qtype) for question in parsed)
    kind_of, n = types.most_common(1)[0]
    facts = scene.facts(verdict.rows)
    evidence = (
        f"{count(facts.packets)} DNS questions from {facts.senders}",
        verdict.sentence,
        f"{percent(n / len(parsed))} ask for type {kind_of}" if kind_of != "?" else "the types are cut off",
    )
    return Finding(
        verdict.kind,
        verdict.title,
        facts.rows,
        sure(verdict.confidence, facts.n),
        evidence,
        scene.spoof(facts.rows),
        Match(protocol=UDP, dport=53),
        dns_name=verdict.wire,
    )


def _by_names(scene: Scene, facts: Facts, parsed: list[dns.Question]) -> _Verdict | None:
    rows = facts.rows
    cut = sum(question.cut for question in parsed) > 0.5 * len(parsed)
    first = [question.labels[0] for question in parsed if question.labels]
    random_title = "DNS random-subdomain attack"
    if cut and len(set(first)) > 0.7 * len(parsed) and _looks_random(first):
        different = len(set(first)) / len(parsed)
        sentence = f"{percent(different)} of the first labels are different; the names are cut off"
        return _Verdict("dns_random_subdomain", random_title, sentence, 0.75, rows)
    random_names = None if cut else _random_subdomains(parsed)
    if random_names is not None:
        parent, share, distinct = random_names
        shown = safe_text(dns_name_text(list(parent)), limit=80)
        sentence = (
            f"{percent(share)} of the questions are for names under {shown}, "
            f"{percent(distinct)} of them different"
        )
        rows = rows[~_repeated(scene, rows)]
        title = f"{random_title} on {shown}"
        return _Verdict("dns_random_subdomain", title, sentence, 0.95, rows, _wire(parent))
    if not cut and _invented(parsed, first):
        different = len({question.labels for question in parsed}) / len(parsed)
        sentence = f"{percent(different)} of the names are different and random"
        return _Verdict("dns_query_flood", "DNS flood of invented names", sentence, 0.8, rows)
    return _repeated_question(scene, facts, parsed, cut=cut)


def _repeated_question(
    scene: Scene, facts: Facts, parsed: list[dns.Question], *, cut: bool
) -> _Verdict | None:
    """Too many of the same question, or forged, or by one source that doesn't wait for answers."""
    name, share = _top_name(parsed)
    flood_pps, per_source = scene.config.flood_pps, facts.pps_per_source
    crowded = share >= 0.5 and (facts.sources >= 20 or per_source > flood_pps / 10)
    rows = facts.rows
    if per_source <= flood_pps:
        rows = _often_asked(scene, rows)  # among others' questions, the flood's stand out by their name
        if not crowded and scene.spoof(rows).probability <= scene.config.spoof_threshold:
            return None
    shown = safe_text(dns_name_text(list(name)), limit=80)
    sentence = f"{percent(share)} of the questions are for {shown}"
    wire = _wire(name) if share >= 0.5 and not cut else None
    return _Verdict("dns_query_flood", "DNS query flood", sentence, 0.85, rows, wire)


def _often_asked(scene: Scene, rows: Rows) -> Rows:
    """Take the questions for the few names that make up a good part of all, if there are such."""
    _, inverse, counts = np.unique(_beginnings(scene, rows), return_inverse=True, return_counts=True)
    often = rows[(counts >= _OFTEN * len(rows))[inverse]]
    return often if len(often) >= _OFTEN * len(rows) else rows


def _random_subdomains(parsed: list[dns.Question]) -> tuple[tuple[bytes, ...], float, float] | None:
    """Find a parent under which nearly every question has another first label, as hashes would."""
    parents = Counter(question.parent for question in parsed if len(question.parent) >= 1)
    # Where the random part has several labels, a shorter common end shows it.
    for depth in (3, 2):
        parents.update(
            {q: n for q, n in Counter(x.labels[-depth:] for x in parsed if len(x.labels) > depth + 1).items()}
        )
    for parent, n in sorted(parents.items(), key=lambda item: (-item[1], -len(item[0]))):
        share = n / len(parsed)
        if share < _PARENT_SHARE:
            return None
        below = [q.labels[: -len(parent)] for q in parsed if q.labels[-len(parent) :] == parent]
        below = [labels for labels in below if labels]
        distinct = len(set(below)) / max(1, len(below))
        enough = 0.7 if share >= 0.4 else 0.9  # among others' questions, a domain's own hosts are few
        if len(below) >= 15 and distinct > enough and _looks_random([labels[0] for labels in below]):
            return parent, len(below) / len(parsed), distinct
    return None


def _invented(parsed: list[dns.Question], first: list[bytes]) -> bool:
    """Tell names that nobody made and nobody asks for twice, under no common parent (NXDOMAIN floods)."""
    distinct = len({question.labels for question in parsed})
    second = [question.labels[-2] for question in parsed if len(question.labels) >= 2]
    many = len(parsed) >= _INVENTED and distinct > 0.95 * len(parsed) and len(second) > 0.9 * len(parsed)
    return many and len(set(second)) > 0.9 * len(second) and _looks_random(second) and _looks_random(first)


def _repeated(scene: Scene, rows: Rows) -> Mask:
    """Tell questions for names that are asked for again and again: those who live there, not the attack."""
    _, inverse, counts = np.unique(_beginnings(scene, rows), return_inverse=True, return_counts=True)
    often = counts >= max(_AGAIN, 5 * len(rows) / len(counts))
    return np.asarray(often[inverse])


def _beginnings(scene: Scene, rows: Rows) -> U64:
    """Hash the first bytes of each question's name, without regard to case."""
    matrix, _ = payload(scene.traffic.packets, rows, dns.HEADER + _NAME)
    name = matrix[:, dns.HEADER :]
    over = np.logical_or.accumulate(name == 0, axis=1)
    return distinct_texts(np.where(over, np.uint8(0), name & np.uint8(0xDF)))


def _looks_random(labels: list[bytes]) -> bool:
    """Names that people made share letters and words; random ones have flat letters and even lengths."""
    text = np.frombuffer(b"".join(labels), np.uint8)
    if len(text) == 0 or sum(map(bytes.isdigit, labels)) > 0.5 * len(labels):
        return False  # numbers are addresses, in reverse zones and block lists
    p = np.bincount(text, minlength=256) / len(text)
    p = p[p > 0]
    entropy = float(-(p * np.log2(p)).sum())
    starts = Counter(label[:3] for label in labels).most_common(1)[0][1] / len(labels)
    return entropy > 2.8 and (starts < 0.2 or entropy > 3.2)


def _top_name(parsed: list[dns.Question]) -> tuple[tuple[bytes, ...], float]:
    name, n = Counter(question.labels for question in parsed).most_common(1)[0]
    return name, n / len(parsed)


def _wire(labels: tuple[bytes, ...]) -> bytes | None:
    wire = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return wire if len(wire) > 2 else None
