"""Which programs answer DNS here, by the sockets on port 53."""

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
