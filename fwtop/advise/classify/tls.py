"""Floods of TLS handshakes: cheap for the client, dear for the server (RFC 8446 appendix, THC-SSL-DOS)."""

from __future__ import annotations

from collections import Counter

from fwtop.advise import tls
from fwtop.advise.classify.http import fast_rows, outside_connections, with_connections
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.traffic import TCP
from fwtop.model.rule import Match
from fwtop.model.text import payload_text


def hellos(scene: Scene) -> list[Finding]:
    """Client hellos faster than browsers open connections, or outside of any connection."""
    packets = scene.traffic.packets
    data = scene.traffic.rows(scene.tcp.ack & scene.free & (packets.payload_length > 0))
    if len(data) < scene.config.min_samples:
        return []
    rows = data[tls.hello_mask(scene.traffic, data)]
    facts = scene.facts(rows)
    if not scene.significant(facts, floor_pps=scene.config.reflection_pps, normal="tcp.ack", shaped=True):
        return []
    limit = scene.config.request_rate_per_source
    reasons = []
    fast = fast_rows(facts, limit)
    if fast.mean() > 0.3:
        facts = scene.facts(facts.rows[fast])
        reasons.append(f"their sources open more than {limit:.0f} sessions a second each")
    stray = outside_connections(scene, facts)
    if stray:
        reasons.append("they belong to no connection: nobody did a handshake before")
    if not reasons:
        return []
    evidence = [
        f"{count(facts.packets)} TLS client hellos ({count(facts.pps)}/s) of {facts.sources:,} sources"
    ]
    evidence += reasons + _describe(tls.hellos(scene.traffic, facts.spread(384)))
    spoof = scene.spoof(facts.rows, prior=0.0 if stray else -4.0)
    rows = facts.rows if stray else with_connections(scene, facts)
    dport = facts.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    return [
        Finding("tls_flood", "TLS handshake flood", rows, sure(0.9, facts.n), tuple(evidence), spoof, match)
    ]


def _describe(parsed: list[tls.Hello]) -> list[str]:
    sentences = []
    names = Counter(hello.server_name for hello in parsed if hello.server_name)
    prints = Counter(hello.ja4 for hello in parsed if hello.ja4)
    if names:
        name, n = names.most_common(1)[0]
        sentences.append(f"{n / len(parsed):.0%} ask for server name {payload_text(name, limit=60)!r}")
    if prints:
        ja4, n = prints.most_common(1)[0]
        sentences.append(f"{n / len(parsed):.0%} have JA4 {ja4}")
    return sentences
