"""Which programs answer DNS here, by the sockets on port 53, and rate limiting in each one's own words.

fwtop prints those lines, only the operator puts them in. A server can do what a packet filter can't: answer
every second question above the limit empty and truncated (TC, "slip"), so that a real client comes back by
TCP while a forged address gets no more than it is asked.
"""

from __future__ import annotations

from msgspec import Struct

from fwtop.kernel.sockets import command_name, listening_sockets, processes, sockets_of
from fwtop.model.text import safe_text

PORT = 53
# Name of the process (15 characters, as the kernel keeps it) → what it is
PROGRAMS = {
    "unbound": "unbound",
    "named": "BIND",
    "dnsdist": "dnsdist",
    "pdns_server": "PowerDNS",
    "pdns_recursor": "PowerDNS Recursor",
    "pdns-recursor": "PowerDNS Recursor",
    "knotd": "Knot DNS",
    "kresd": "Knot Resolver",
    "nsd": "NSD",
    "dnsmasq": "dnsmasq",
    "coredns": "CoreDNS",
    "systemd-resolve": "systemd-resolved",
}
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


class Server(Struct, frozen=True):
    """A process with sockets on port 53."""

    process: str
    program: str  # "" if its name says nothing
    udp: bool
    tcp: bool

    @property
    def words(self) -> str:
        """The server in a few words."""
        name = f"{self.program} ({self.process})" if self.program else self.process or "an unknown process"
        ways = " and ".join(word for word, there in (("UDP", self.udp), ("TCP", self.tcp)) if there)
        return f"{name} on {ways} {PORT}"


def find_servers(*, local: bool = False) -> list[Server]:
    """Return the processes of this namespace that wait on port 53; raises OSError.

    Those that the world can ask, or with `local` those that wait on loopback addresses: a stub resolver.
    """
    sockets = (item for item in listening_sockets() if item.port == PORT and item.local == local)
    waiting = {item.inode: item.protocol for item in sockets}
    found: dict[str, set[str]] = {}
    for pid in processes() if waiting else ():
        ways = {waiting[inode] for inode in sockets_of(pid) if inode in waiting}
        if ways:
            name = safe_text(command_name(pid), limit=15)
            found.setdefault("nsd" if name.startswith("nsd") else name, set()).update(ways)
    return [
        Server(name, PROGRAMS.get(name, ""), "udp" in ways, "tcp" in ways)
        for name, ways in sorted(found.items())
    ]


def snippets(servers: tuple[Server, ...], rate: int) -> tuple[str, ...]:
    """Return lines for the configuration of each server; `rate` is of answers a second and prefix."""
    found: list[str] = []
    for server in servers:
        if server.program in _KNOWN:
            file, text, note = _KNOWN[server.program]
            found.append(f"# {server.program}, {file}" + (f": {note}" if note else ""))
            found += text.format(rate=rate).splitlines()
    return tuple(found)
