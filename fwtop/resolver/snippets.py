"""Response rate limiting in each server's own words: fwtop prints it, only the operator puts it in.

A server can do what a packet filter can't: answer every second question above the limit empty and truncated
(TC, "slip"), so that a real client comes back by TCP while a forged address gets no more than it is asked.
"""

from __future__ import annotations

from fwtop.resolver.servers import Server

_BIND = """options {{
    rate-limit {{ responses-per-second {rate}; slip 2; ipv4-prefix-length 24; ipv6-prefix-length 56; }};
    minimal-any yes;
    max-udp-size 1232;
}};"""
_UNBOUND = """server:
    ip-ratelimit: {rate}
    ip-ratelimit-factor: 10
    deny-any: yes
    max-udp-size: 1232"""
_NSD = """server:
    rrl-ratelimit: {rate}
    rrl-slip: 2
    rrl-ipv4-prefix-length: 24
    refuse-any: yes
    ipv4-edns-size: 1232
    ipv6-edns-size: 1232"""
_KNOT = """mod-rrl:
  - id: default
    rate-limit: {rate}
    slip: 2

template:
  - id: default
    global-module: mod-rrl/default

server:
    udp-max-payload: 1232"""
_DNSDIST = """addAction(AndRule({{TCPRule(false), MaxQPSIPRule({rate}, 24, 56)}}), TCAction())
addAction(AndRule({{TCPRule(false), QTypeRule(DNSQType.ANY)}}), TCAction())"""
_POWERDNS = """any-to-tcp=yes
udp-truncation-threshold=1232"""
_RECURSOR = """udp-truncation-threshold=1232
edns-outgoing-bufsize=1232"""
_FOR_TC = "put dnsdist before it for TC"
# Program → the file, the lines, and what there is to know
_KNOWN = {
    "BIND": ("named.conf", _BIND, ""),
    "unbound": ("unbound.conf", _UNBOUND, "unbound drops or passes, it does not slip: " + _FOR_TC),
    "NSD": ("nsd.conf", _NSD, ""),
    "Knot DNS": ("knot.conf", _KNOT, ""),
    "dnsdist": ("dnsdist.conf", _DNSDIST, ""),
    "PowerDNS": ("pdns.conf", _POWERDNS, "PowerDNS has no rate limit of its own: " + _FOR_TC),
    "PowerDNS Recursor": ("recursor.conf", _RECURSOR, "it has no rate limit of its own: " + _FOR_TC),
}


def snippets(servers: tuple[Server, ...], rate: int) -> tuple[str, ...]:
    """Return lines for the configuration of each server; `rate` is of answers a second and prefix."""
    found: list[str] = []
    for server in servers:
        if server.program in _KNOWN:
            file, text, note = _KNOWN[server.program]
            found.append(f"# {server.program}, {file}" + (f": {note}" if note else ""))
            found += text.format(rate=rate).splitlines()
    return tuple(found)
