"""The classification rules, one function each, in the order in which they claim packets."""

from __future__ import annotations

from collections.abc import Callable

from fwtop.analysis.classify import (
    amplification,
    connections,
    dns,
    http,
    http2,
    parts,
    protocols,
    scan,
    state,
    tcp,
    tcp_established,
    tcp_reflection,
    tls,
    udp,
    unknown,
)
from fwtop.analysis.classify import protocols as fragments
from fwtop.analysis.classify import protocols as icmp
from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.held.judge import held_connections

Rule = Callable[[AnalysisContext], list[Finding]]

# Rules that prove an attack by content come first, those that judge by volume last.
RULES: tuple[Rule, ...] = (
    amplification.by_port,
    amplification.by_payload,
    amplification.requests_to_reflect,
    dns.queries,
    held_connections,
    scan.port_scan,
    tcp.odd_flags,
    tcp_reflection.middlebox,
    tcp_reflection.syn_ack,
    tcp.syn_flood,
    connections.slow_requests,
    http.requests,
    http2.requests,
    tls.hellos,
    tls.renegotiations,
    tls.small_records,
    connections.silent,
    tcp_established.stomp,
    tcp_established.ack_flood,
    tcp_established.rst_flood,
    tcp_established.fin_flood,
    amplification.unknown_service,
    udp.flood,
    icmp.icmp_flood,
    protocols.gre,
    protocols.esp,
    protocols.other,
    fragments.fragment_flood,
    unknown.flood,
)
STATE_RULES: tuple[Rule, ...] = (state.carpet_bombing, state.conntrack_exhaustion)


def find_attacks(context: AnalysisContext) -> list[Finding]:
    """Run all rules; each claims the packets that it explains and returns findings."""
    for rule in RULES:
        for finding in rule(context):
            context.claim(finding)
            fragments.attach(context)
    context.findings[:] = amplification.merged(context.findings)
    context.findings[:] = parts.parted(context, context.findings)
    for rule in STATE_RULES:
        context.findings.extend(rule(context))
    return context.findings
