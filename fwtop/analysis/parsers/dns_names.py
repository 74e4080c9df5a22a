"""Names of DNS questions: random ones, and the zone below which they are asked for."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fwtop.parse.dns_question import Question

_PARENT_SHARE = 0.25  # of the questions are for names under one parent
_INVENTED = 200  # questions before that is said
_FLAT = 0.96  # of the greatest entropy that letters can have: those of words reach 0.9
_LETTERS = 400  # before their entropy says that


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


def wire(labels: tuple[bytes, ...]) -> bytes | None:
    """Write a name as it stands in packets; None for the root."""
    written = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return written if len(written) > 2 else None
