"""What the payloads of an attack have in common: DNS names as names, other bytes as signatures."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fwtop.advise.effect import Normal
from fwtop.advise.scene import Finding, Scene
from fwtop.advise.signature import Signature, find_signatures
from fwtop.advise.texts import Texts
from fwtop.advise.traffic import ICMP, ICMP6, TCP, UDP
from fwtop.model.dns import split_wire, wire_name
from fwtop.model.packets import Fragment
from fwtop.model.rule import PayloadMatch
from fwtop.model.text import dns_name_text

_HEADER = 12  # bytes of a DNS message before its question (RFC 1035, 4.1.1)
_SAMPLE = 512
_SAME = 0.97  # of the questions: then all of the attack's have it
_EVERYDAY = (1, 28, 65)  # A, AAAA, HTTPS: what visitors ask for
_ODD = 0.9  # of the questions for another type: the rest may be visitors'
_ENOUGH = 0.95
_VISITS = 20  # fewer normal requests say nothing about what all visitors' have in common


def signatures(scene: Scene, finding: Finding, normal: Normal) -> list[Signature]:
    """Return what separates the finding's payloads from normal ones, the best first."""
    if finding.state or finding.match.protocol not in (TCP, UDP, ICMP, ICMP6):
        return []
    config = scene.config
    named = _named(scene, finding, normal)
    if any(s.attack_share >= _ENOUGH and s.baseline_share <= config.collateral_limit for s in named):
        return named
    if finding.requests and not _visited(scene, finding, normal):
        return named
    found = find_signatures(scene.traffic, finding.rows, normal.texts, config, guess=normal.guess)
    return [*named, *found]


def _visited(scene: Scene, finding: Finding, normal: Normal) -> bool:
    """Tell whether enough normal requests to the same port were seen to know what is usual there."""
    ports = normal.packets.dport[normal.loaded]
    aimed = np.isin(ports, np.unique(scene.traffic.packets.dport[finding.rows]))
    return int(aimed.sum()) >= _VISITS


def _named(scene: Scene, finding: Finding, normal: Normal) -> list[Signature]:
    """Return the match for the DNS name that the finding is about, with the type where all ask for one."""
    wire, packets = finding.dns_name, scene.traffic.packets
    if wire is None:
        return []
    rows = finding.rows[
        (packets.payload_length[finding.rows] > _HEADER) & (packets.fragment[finding.rows] != Fragment.LATER)
    ]
    if len(rows) == 0:
        return []
    sample = rows[np.linspace(0, len(rows) - 1, min(_SAMPLE, len(rows))).astype(np.intp)]
    attack = Texts.of(packets, sample)
    moving = finding.kind == "dns_random_subdomain"
    name = _named_match(_common_end(attack, wire), None) if moving else _named_match(wire, _HEADER)
    asked = None if moving else _asked_type(attack, name)
    match = name if asked is None else PayloadMatch(name.data + asked, name.offset, None, name.dns_name)
    return [Signature(match, match, attack.share(match), normal.texts.share(match))]


def _named_match(wire: bytes, offset: int | None) -> PayloadMatch:
    return PayloadMatch(wire, offset, None, dns_name_text(split_wire(wire)[0]))


def _common_end(attack: Texts, wire: bytes) -> bytes:
    """Lengthen a parent by the labels that nearly all questions have before it."""
    names = [split_wire(row[_HEADER:].tobytes().lower())[0] for row in attack.matrix]
    parent = split_wire(wire.lower())[0]
    below = [labels for labels in names if labels[-len(parent) :] == parent]
    while deeper := [labels for labels in below if len(labels) > len(parent) + 1]:
        label, n = Counter(labels[-len(parent) - 1] for labels in deeper).most_common(1)[0]
        if n < _SAME * len(below):
            break
        parent = [label, *parent]
    return wire_name(parent)


def _asked_type(attack: Texts, name: PayloadMatch) -> bytes | None:
    """Return the question's type as it stands behind the name where nearly all ask for the same."""
    end = _HEADER + len(name.data)
    rows = np.flatnonzero(attack.hits(name) & (attack.length >= end + 2))
    if len(rows) == 0 or len(rows) < _SAME * attack.hits(name).sum():
        return None
    types = Counter(attack.matrix[row, end : end + 2].tobytes() for row in rows)
    asked, n = types.most_common(1)[0]
    usual = int.from_bytes(asked, "big") in _EVERYDAY
    return asked if n >= (_SAME if usual else _ODD) * len(rows) else None
