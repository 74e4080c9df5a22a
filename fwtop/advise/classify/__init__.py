"""The rules that name attacks: one small function a rule, in the order in which they claim packets."""

from __future__ import annotations

from collections.abc import Callable

from fwtop.advise.classify import (
    abuse,
    amplification,
    connections,
    dns,
    fragments,
    http,
    icmp,
    protocols,
    scan,
    state,
    tcp,
    tcp_ack,
    tcp_ends,
    tcp_reflection,
    tls,
    udp,
    unknown,
)
from fwtop.advise.scene import Finding, Scene

Rule = Callable[[Scene], list[Finding]]

# What proves itself by its content comes first; what is only "too much" comes last.
RULES: tuple[Rule, ...] = (
    amplification.by_port,
    amplification.by_payload,
    abuse.requests,
    dns.queries,
    scan.port_scan,
    tcp.odd_flags,
    tcp_reflection.middlebox,
    tcp_reflection.syn_ack,
    tcp.syn_flood,
    connections.slow_requests,
    http.requests,
    tls.hellos,
    tls.renegotiations,
    tls.small_records,
    connections.silent,
    tcp_ack.stomp,
    tcp_ack.ack_flood,
    tcp_ends.rst_flood,
    tcp_ends.fin_flood,
    amplification.unknown_service,
    udp.flood,
    icmp.flood,
    protocols.gre,
    protocols.esp,
    protocols.other,
    fragments.flood,
    unknown.flood,
)
STATE_RULES: tuple[Rule, ...] = (state.carpet_bombing, state.conntrack_exhaustion)


def find_attacks(scene: Scene) -> list[Finding]:
    """Run all rules; each claims the packets that it explains."""
    for rule in RULES:
        for finding in rule(scene):
            scene.claim(finding)
            fragments.attach(scene)
    scene.findings[:] = amplification.merged(scene.findings)
    for rule in STATE_RULES:
        scene.findings.extend(rule(scene))
    return scene.findings
