"""Floods of DNS questions. Sources: RFC 8482; "water torture" (Secure64 2014, Luo et al. 2018)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fwtop.advise import dns, dnscolumns
from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.services import dns_query
from fwtop.advise.traffic import UDP, Rows, payload
from fwtop.model.packets import Mask
from fwtop.model.percent import percent
from fwtop.model.rule import Match
from fwtop.model.text import dns_name_text, safe_text

_PARENT_SHARE = 0.25  # of the questions are for names under one parent
_VECTORS = 2  # floods of questions at once
_NAMES = 16  # that are asked for so often, at most
_INVENTED = 200  # questions before that is said
_AGAIN = 10  # times that a random name doesn't come up, nor the same question of one resolver
_FORGED = 0.9  # probability: sources of one name that only come the same way may be one network's
_AGAIN_PPS = 50.0  # a second of one question by one source: more than all caches of a large resolver
_TRIES = 3.0  # questions for one name by each of its sources: resolvers try twice
_WORDED = 0.01  # of the questions whose names begin with one word: people number their hosts
_FLAT = 0.96  # of the greatest entropy that letters can have: those of words reach 0.9
_LIVING = 0.3  # of the questions are for names that another source asks for, too
_ALL = 0.95  # of the questions for a name
_REST = 30  # questions for other names to compare with
_LETTERS = 400  # before their entropy says that


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
        *dns.edns_evidence(parsed),
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
    if cut and len(set(first)) > 0.7 * len(parsed) and _looks_random(first):
        different = len(set(first)) / len(parsed)
        sentence = f"{percent(different)} of the first labels are different; the names are cut off"
        return _Verdict("dns_random_subdomain", "DNS random-subdomain attack", sentence, 0.75, rows)
    random_names = None if cut else _random_names(scene, rows, parsed)
    if random_names is not None:
        return random_names
    if not cut and _invented(parsed, first):
        different = len({question.labels for question in parsed}) / len(parsed)
        sentence = f"{percent(different)} of the names are different and random"
        return _Verdict("dns_query_flood", "DNS flood of invented names", sentence, 0.8, rows)
    return _repeated_question(scene, facts, parsed, cut=cut)


def _repeated_question(
    scene: Scene, facts: Facts, parsed: list[dns.Question], *, cut: bool
) -> _Verdict | None:
    """Too many of the same question, or forged, or by sources that don't keep the answers."""
    if facts.pps_per_source > scene.config.flood_pps:
        rows, why = facts.rows, "no source waits for answers"
    else:
        rows, why = _standing_out(scene, facts.rows)
    if len(rows) == 0:
        return None
    if len(rows) < facts.n:
        parsed = dns.questions(scene.traffic, rows)
    if not parsed:
        return None
    name, share = _top_name(parsed)
    shown = safe_text(dns_name_text(list(name)), limit=80)
    sentence = f"{percent(share)} of them are for {shown}; {why}"
    wire = _wire(name) if share >= 0.5 and not cut else None
    return _Verdict("dns_query_flood", "DNS query flood", sentence, 0.85, rows, wire)


def _standing_out(scene: Scene, rows: Rows) -> tuple[Rows, str]:
    """Find the questions among others' that no resolver asks so, and say why; none if there are none.

    A resolver keeps an answer (RFC 2181 5.2), so that a name server hears each of its questions once in a
    time to live; floods ask again and again, or in the names of others.
    """
    again, pace = dnscolumns.asked_again(scene.traffic, rows)
    stubborn = rows[(again >= _AGAIN) & (pace > _AGAIN_PPS)]
    names = dnscolumns.kinds(scene.traffic, rows)
    often = dnscolumns.counts_of(names)
    flooding: list[Rows] = []
    why = "resolvers keep the answers, these sources ask again and again"
    if _weighs(scene, stubborn):
        flooding.append(stubborn)
    least = scene.config.capture_share * scene.traffic.total / max(1.0, scene.traffic.one_in)
    for name in np.unique(names[often >= max(scene.config.min_samples, least)]).tolist()[:_NAMES]:
        mine = rows[names == np.uint64(name)]
        if _unlike_resolvers(scene, mine, rows[names != np.uint64(name)]):
            flooding.append(mine)
    if not flooding and scene.spoof(rows).probability > scene.config.spoof_threshold:
        flooding.append(rows)
    found = np.unique(np.concatenate(flooding)) if flooding else rows[:0]
    if scene.spoof(found).probability > scene.config.spoof_threshold:
        why = "their sources are forged"
    return found, why


def _weighs(scene: Scene, rows: Rows) -> bool:
    """Whether questions that no resolver asks so are enough for a flood."""
    return scene.significant(
        scene.facts(rows), floor_pps=scene.config.reflection_pps, normal="dns", shaped=True
    )


def _unlike_resolvers(scene: Scene, rows: Rows, others: Rows) -> bool:
    """Tell questions for one name that are forged, a tool's among resolvers', or most of all and all alike.

    Resolvers ask an authoritative server without the wish for recursion (RFC 1035 4.1.1, RD), and for
    addresses of both families; none asks for one name time after time.
    """
    facts = scene.facts(rows)
    if not _weighs(scene, rows):
        return False
    if scene.spoof(rows).probability > _FORGED:
        return True
    asks = dnscolumns.wants_recursion(scene.traffic, rows).mean() > _ALL
    if asks and len(others) >= _REST and dnscolumns.wants_recursion(scene.traffic, others).mean() < 1 - _ALL:
        return True
    if facts.n < len(others):
        return False
    again = facts.n >= _TRIES * facts.sources and facts.pps_per_source > _TRIES
    busy = facts.pps_per_source > scene.config.flood_pps / 10
    return busy or (facts.sources >= 20 and (again or _one_type(scene, rows)))


def _one_type(scene: Scene, rows: Rows) -> bool:
    types = Counter(question.qtype for question in dns.questions(scene.traffic, rows))
    return max(types.values(), default=0) > _ALL * types.total()


def _random_names(scene: Scene, rows: Rows, parsed: list[dns.Question]) -> _Verdict | None:
    """Find random names below one zone, whether they are most of the questions or few among others'."""
    traffic = scene.traffic
    once = rows[~_repeated(scene, rows)]
    rare = once[~dnscolumns.worded(traffic, once, max(_AGAIN, _WORDED * len(once)))]
    found, pool = None, rare
    few = len(rare) < 0.5 * len(rows)
    if _weighs(scene, rare) and not (few and scene.facts(rare).peak_pps < scene.config.reflection_pps):
        found = _random_subdomains(dns.questions(traffic, rare), flat=few)
    if found is None:  # the random part may be made of words, too
        found, pool = _random_subdomains(parsed), once
    if found is None:
        return None
    parent, share, distinct = found
    zone = _wire(parent)
    if zone is not None and share < 1:
        pool = pool[dnscolumns.below(traffic, pool, zone)]
    if dnscolumns.asked_by_others(traffic, pool).mean() > _LIVING:
        return None  # names of a content network, say: random to look at, but in use
    shown = safe_text(dns_name_text(list(parent)), limit=80)
    sentence = (
        f"{percent(len(pool) / len(rows))} of the questions are for names under {shown}, "
        f"{percent(distinct)} of them different"
    )
    title = f"DNS random-subdomain attack on {shown}"
    return _Verdict("dns_random_subdomain", title, sentence, 0.95, pool, zone)


def _random_subdomains(
    parsed: list[dns.Question], *, flat: bool = False
) -> tuple[tuple[bytes, ...], float, float] | None:
    """Find a parent under which nearly every question has another first label, as hashes would.

    `flat` asks for evenly used letters besides: among rare names, nearly all are different anyway.
    """
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
        first = [labels[0] for labels in below]
        random = _looks_random(first) and (not flat or _flat(first))
        if len(below) >= 15 and distinct > enough and random:
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
    counts = dnscolumns.counts_of(dnscolumns.beginnings(scene.traffic, rows))
    names = float((1 / counts).sum())
    return np.asarray(counts >= max(_AGAIN, 5 * len(rows) / names))


def _flat(labels: list[bytes]) -> bool:
    """Tell letters that are drawn evenly from hexadecimal digits, the alphabet, or both with the digits."""
    text = np.frombuffer(b"".join(labels), np.uint8)
    counts = np.bincount(text, minlength=256)
    p = counts[counts > 0] / max(1, len(text))
    used = bytes(np.flatnonzero(counts))
    size = 16 if not used.strip(b"0123456789abcdef") else 26 if used.isalpha() else 36
    if len(text) < _LETTERS or len(p) > 40:
        return False
    entropy = float(-(p * np.log2(p)).sum()) + (len(p) - 1) / (2 * len(text) * np.log(2))  # Miller, Madow
    return bool(entropy > _FLAT * np.log2(size))


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
