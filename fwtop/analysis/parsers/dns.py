"""DNS in packets: questions, types, sizes of answers, and names: as columns of bytes, and random ones.

Reads hostile bytes; never raises on them. Sources: RFC 1035 (wire form), 1034 4.3 and 2181 5 (caches keep
an answer for its time to live), 6891 (EDNS), 8482 (ANY).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from fwtop.analysis.window.counting import among, numbered
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, Traffic, distinct_texts, mix, payload, payload_texts
from fwtop.model.text import dns_name_text, safe_text
from fwtop.model.traffic.packets import F64, I64, U8, U64, Mask
from fwtop.model.traffic.protocols import TYPES
from fwtop.parse.dns_question import HEADER, Question, parse_question
from fwtop.render.numbers import percent

_CARRYING = (5, 10, 15, 16, 33)  # CNAME, NULL, MX, TXT, SRV: what tunnels ask for
_PRIVATE = 65_280  # types for private use from here on (RFC 6895 3.1)
_LARGE_TYPES = frozenset({16, 46, 48, 99, 255})  # types with large answers
_PARSED = 256  # shares to ±6 percentage points at most
_NUMBER = 2  # bytes of a message before its flags
_SMALL = 600  # payload bytes: ordinary answers to a resolver are no larger
_BEGIN = 24  # bytes of a name that are compared
_NAME = 96  # bytes searched for the end of a name
_WORD = 3  # letters: shorter words appear by chance
_LONGEST = 16  # letters of a word that are compared
_PARENT_SHARE = 0.25  # of the questions are for names under one parent
_INVENTED = 200  # questions before that is said
_FLAT = 0.96  # of the greatest entropy that letters can have: those of words reach 0.9
_LETTERS = 400  # before their entropy says that


def edns_evidence(parsed: list[Question]) -> list[str]:
    """Describe the EDNS payload size that nearly all queries share: tools use one value, or no EDNS."""
    rooms = Counter(question.edns for question in parsed if question.edns is not None)
    if rooms.total() < 0.5 * len(parsed) or not rooms:
        return []
    room, most = rooms.most_common(1)[0]
    share = percent(most / rooms.total())
    return [f"{share} accept answers of up to {room:,} bytes (EDNS)" if room else f"{share} have no EDNS"]


def questions(traffic: Traffic, rows: Rows, limit: int = _PARSED) -> list[Question]:
    """Parse the questions of at most `limit` rows, evenly spaced."""
    known, found = traffic.parsed_questions, []
    for message in payload_texts(traffic.packets, Features(traffic, rows).spread(limit)):
        rest = message[_NUMBER:]  # of floods, most are the same but for their number
        if rest not in known:
            known[rest] = parse_question(message)
        if (question := known[rest]) is not None:
            found.append(question)
    return found


def questions_of(features: Features) -> list[Question]:
    """Parse questions of these rows, and remember them."""
    if "dns" not in features.notes:
        features.notes["dns"] = questions(features.traffic, features.rows)
    found: list[Question] = features.notes["dns"]
    return found


def type_name(qtype: int | None) -> str:
    """Return the mnemonic of a type, or TYPEn (RFC 3597)."""
    return "?" if qtype is None else TYPES.get(qtype, f"TYPE{qtype}")


def resolver_traffic(features: Features) -> bool:
    """Check for ordinary answers to a resolver, as opposed to reflected ones.

    Ordinary: many different names, small, to many ports. Reflected: one or two names that give large
    answers, or a rare type, or all to one port.
    """
    parsed = questions_of(features)
    if features.top("dport").share > 0.9 and features.sources > 8:
        return False
    if len(parsed) < 10:
        return features.mean_length < 400 and features.sources < 20
    names = Counter(question.labels for question in parsed)
    types = Counter(question.qtype for question in parsed)
    repeated = names.most_common(1)[0][1] / len(parsed)
    # A resolver queries a name once, at one server, from a random port; victims get it from all reflectors
    if features.sources > 100 and len(names) < 0.1 * len(parsed):
        return False
    large = sum(n for qtype, n in types.items() if qtype in _LARGE_TYPES) / len(parsed)
    return not (repeated > 0.3 or large > 0.4 or features.mean_length > 900)


def without_other_names(traffic: Traffic, features: Features) -> Rows:
    """Exclude small answers about other names than the reflected ones: those of a local resolver."""
    parsed = questions_of(features)
    names = Counter(question.wire for question in parsed)
    if len(parsed) < 20 or names.most_common(1)[0][1] < 0.25 * len(parsed):
        return features.rows
    used = [wire for wire, n in names.items() if n > 0.02 * len(parsed)]
    packets = traffic.packets
    candidates = np.flatnonzero(packets.payload_length[features.rows] < _SMALL)
    matrix, length = payload(packets, features.rows[candidates], HEADER + 255)
    other = length >= HEADER + 5
    for wire in used:
        want = np.frombuffer(wire, np.uint8)
        end = np.minimum(HEADER + len(want), length)
        agree = (_lower(matrix[:, HEADER : HEADER + len(want)]) == want).cumprod(1).sum(1)
        other &= agree < end - HEADER
    keep = np.ones(features.n, np.bool_)
    keep[candidates[other]] = False
    return features.rows[keep]


def _lower(text: U8) -> U8:
    return np.where((text >= 0x41) & (text <= 0x5A), text | 0x20, text)


def answer_evidence(features: Features) -> tuple[list[str], bytes | None]:
    """Describe the answers; also return the name in wire form if most share it."""
    parsed = questions_of(features)
    if not parsed:
        return [], None
    names = Counter((question.wire, question.labels) for question in parsed)
    (wire, labels), most = names.most_common(1)[0]
    whole = not any(question.cut for question in parsed)
    types = Counter(question.qtype for question in parsed)
    qtype, of_kind = types.most_common(1)[0]
    kind = type_name(qtype)
    share = most / len(parsed)
    sentences = [f"{percent(of_kind / len(parsed))} answer a query of type {kind}"] if kind != "?" else []
    if share >= 0.2:
        shown = dns_name_text(list(labels))
        sentences.append(f"{percent(share)} are about {safe_text(shown, limit=80)}")
    else:
        sentences.append(f"{len(names):,} different names in {len(parsed):,} parsed answers")
    records = sum(question.answers for question in parsed) / len(parsed)
    sentences.append(f"{records:.0f} answer records each (mean)")
    return sentences, wire if share >= 0.5 and len(wire) > 1 and whole else None


def beginnings(traffic: Traffic, rows: Rows) -> U64:
    """Hash the first bytes of each query name, ignoring case."""
    hashes, known = traffic.name_hashes
    new = rows[~known[rows]]
    if len(new):
        name = _names(traffic, new, _BEGIN)
        over = np.logical_or.accumulate(name == 0, axis=1)
        hashes[new] = distinct_texts(np.where(over, np.uint8(0), name & np.uint8(0xDF)))
        known[new] = True
    return hashes[rows]


def kinds(traffic: Traffic, rows: Rows) -> U64:
    """Hash each query name with its RD bit, which separates tools from resolvers."""
    return beginnings(traffic, rows) ^ wants_recursion(traffic, rows).astype(np.uint64)


def counts_of(keys: U64) -> I64:
    """Return the number of rows with the key of each row."""
    number = numbered(keys)
    return np.bincount(number)[number]


def asked_again(traffic: Traffic, rows: Rows) -> tuple[I64, F64]:
    """Return the number of identical queries of each row's source, and their rate per second."""
    keys = mix(beginnings(traffic, rows), traffic.source_key[rows])
    number = numbered(keys)
    pace = np.bincount(number, traffic.weight[rows]) / max(traffic.seconds, 1.0)
    return np.bincount(number)[number], np.asarray(pace[number], np.float64)


def asked_by_others(traffic: Traffic, rows: Rows) -> Mask:
    """Mark queries for names that several sources query: random names don't repeat."""
    names = beginnings(traffic, rows)
    name, pair = numbered(names), numbered(mix(names, traffic.source_key[rows]))
    name_of = np.zeros(int(pair.max(initial=-1)) + 1, np.intp)  # each pair's
    name_of[pair] = name
    return np.asarray(np.bincount(name_of)[name] > 1)


def worded(traffic: Traffic, rows: Rows, least: float) -> Mask:
    """Mark names whose first label starts with a word (letters only) that at least `least` rows share."""
    name = _names(traffic, rows, 1 + _LONGEST)
    size = name[:, :1].astype(np.int64)
    letters = name[:, 1:] & np.uint8(0xDF)
    is_letter = (letters >= 0x41) & (letters <= 0x5A) & (np.arange(_LONGEST) < size)
    word = np.logical_and.accumulate(is_letter, axis=1)
    text = np.where(word, letters, np.uint8(0))
    return np.asarray((word.sum(1) >= _WORD) & (counts_of(distinct_texts(text)) >= least))


def wants_recursion(traffic: Traffic, rows: Rows) -> Mask:
    """Mark queries with the RD bit."""
    matrix, length = traffic.heads(rows)
    return np.asarray((length >= HEADER) & ((matrix[:, 2] & 1) != 0))


def below(traffic: Traffic, rows: Rows, zone: bytes) -> Mask:
    """Mark names below the zone (in wire form, lower case)."""
    name = payload(traffic.packets, rows, HEADER + _NAME)[0][:, HEADER:]
    end = np.argmax(name == 0, axis=1)
    start = end + 1 - len(zone)
    held = (name == 0).any(1) & (start > 0)
    place = np.maximum(start, 0)[:, None] + np.arange(len(zone))
    found = name[np.arange(len(rows))[:, None], place]
    upper = (found >= 0x41) & (found <= 0x5A)
    same = np.where(upper, found | np.uint8(0x20), found) == np.frombuffer(zone, np.uint8)
    return np.asarray(held & same.all(1))


def asks_for_data(traffic: Traffic, rows: Rows) -> Mask:
    """Mark queries of types whose answers hold text or bytes of any kind, as far as the type was captured."""
    name = payload(traffic.packets, rows, HEADER + _NAME)[0][:, HEADER:]
    end = np.minimum(np.argmax(name == 0, axis=1), _NAME - 3)
    place = np.arange(len(rows))
    qtype = (name[place, end + 1].astype(np.int64) << 8) | name[place, end + 2]
    ended = name[place, end] == 0
    return np.asarray(ended & (among(qtype, _CARRYING) | (qtype >= _PRIVATE)))


def _names(traffic: Traffic, rows: Rows, width: int) -> U8:
    """Return the first bytes of the names, of 52 at most."""
    matrix, _ = traffic.heads(rows)
    return matrix[:, HEADER : HEADER + width]


def random_subdomains(
    parsed: list[Question], *, flat: bool = False
) -> tuple[tuple[bytes, ...], float, float] | None:
    """Find a parent below which nearly every query has a unique, random first label.

    `flat` also requires evenly used letters: rare names are nearly all unique anyway.
    """
    names = [question.labels for question in parsed]
    parents = Counter(labels[1:] for labels in names if len(labels) > 1)
    # If the random part has several labels, try shorter common suffixes
    for depth in (3, 2):
        parents.update(labels[-depth:] for labels in names if len(labels) > depth + 1)
    common = [(parent, n / len(parsed)) for parent, n in parents.items() if n >= _PARENT_SHARE * len(parsed)]
    for parent, share in sorted(common, key=lambda item: (-item[1], -len(item[0]))):
        depth = len(parent)
        below = [labels[:-depth] for labels in names if labels[-depth:] == parent and len(labels) > depth]
        distinct = len(set(below)) / max(1, len(below))
        enough = 0.7 if share >= 0.4 else 0.9  # a domain has few hosts of its own among other queries
        first = [labels[0] for labels in below]
        random = looks_random(first) and (not flat or _flat(first))
        if len(below) >= 15 and distinct > enough and random:
            return parent, len(below) / len(parsed), distinct
    return None


def invented(parsed: list[Question], first: list[bytes]) -> bool:
    """Check for random names without a common parent, each queried once (NXDOMAIN floods)."""
    distinct = len({question.labels for question in parsed})
    second = [question.labels[-2] for question in parsed if len(question.labels) >= 2]
    many = len(parsed) >= _INVENTED and distinct > 0.95 * len(parsed) and len(second) > 0.9 * len(parsed)
    return many and len(set(second)) > 0.9 * len(second) and looks_random(second) and looks_random(first)


def _flat(labels: list[bytes]) -> bool:
    """Check for letters drawn evenly from hexadecimal digits, the alphabet, or alphanumerics."""
    text = np.frombuffer(b"".join(labels), np.uint8)
    counts = np.bincount(text, minlength=256)
    p = counts[counts > 0] / max(1, len(text))
    used = bytes(np.flatnonzero(counts))
    size = 16 if not used.strip(b"0123456789abcdef") else 26 if used.isalpha() else 36
    if len(text) < _LETTERS or len(p) > 40:
        return False
    entropy = float(-(p * np.log2(p)).sum()) + (len(p) - 1) / (2 * len(text) * np.log(2))  # Miller, Madow
    return bool(entropy > _FLAT * np.log2(size))


def looks_random(labels: list[bytes]) -> bool:
    """Check for random labels: real names share letters and words, random ones have a flat distribution."""
    text = np.frombuffer(b"".join(labels), np.uint8)
    if len(text) == 0 or sum(map(bytes.isdigit, labels)) > 0.5 * len(labels):
        return False  # numbers are addresses: reverse zones and DNSBLs
    p = np.bincount(text, minlength=256) / len(text)
    p = p[p > 0]
    entropy = float(-(p * np.log2(p)).sum())
    starts = Counter(label[:3] for label in labels).most_common(1)[0][1] / len(labels)
    return entropy > 2.8 and (starts < 0.2 or entropy > 3.2)


def top_name(parsed: list[Question]) -> tuple[tuple[bytes, ...], float]:
    """Return the name that most questions are for, and their share."""
    name, n = Counter(question.labels for question in parsed).most_common(1)[0]
    return name, n / len(parsed)


def wire_of(labels: tuple[bytes, ...]) -> bytes | None:
    """Write a name as it stands in packets; None for the root."""
    written = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return written if len(written) > 2 else None
