"""What an allow-listed address may send: everything, or only what its role on this host needs.

What the operator lists passes in full. What fwtop finds by itself passes only in its role, so that a flood
forged in the name of a resolver or a gateway can be dropped. Who is logged in by SSH can always log in again:
all TCP from there passes to the port of the session. The same checks stand in iptables (chain.py), nftables
(nft_words.py) and the compiled rules (bpf/xdp_allow.h); tests hold the three to the same verdicts.

On a machine that forwards, conversations of those behind it pass, too: between one address with its port and
one host, never from that address to others.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.protocols import TCP, UDP

ICMP = {4: 1, 6: 58}
DNS_PORT, NTP_PORT, BGP_PORT = 53, 123, 179
DHCP_PORTS = {4: (67, 68), 6: (547, 546)}  # server, client
BFD_PORTS = (3784, 3785, 4784)  # RFC 5881, RFC 5883
ROUTING = (89, 112)  # OSPF (RFC 2328), VRRP (RFC 9568)
ANY_PORT = 0  # of a conversation by a protocol without ports
ASKING_PORTS = 1024  # resolvers ask from ports that no service listens on; answers go nowhere else


class Role(StrEnum):
    """Why an address is on the allow-list."""

    OPERATOR = "operator"  # listed in /etc/fwtop/allow
    SSH = "ssh"
    DNS = "dns"
    NTP = "ntp"
    GATEWAY = "gateway"
    OWN = "own"
    ROUTER = "router"  # of those behind: what it says to another router


WHO = {  # as tables of sources say it
    Role.SSH: "you",
    Role.OPERATOR: "allowed",
    Role.DNS: "resolver",
    Role.NTP: "time server",
    Role.GATEWAY: "gateway",
    Role.OWN: "this host",
    Role.ROUTER: "router",
}
WHO_BEHIND = {**WHO, Role.SSH: "ssh client"}  # with hosts behind this machine
PASSES = {
    Role.OPERATOR: "everything",
    Role.DNS: f"from port {DNS_PORT}: UDP to ports from {ASKING_PORTS} on, TCP except new connections",
    Role.NTP: f"UDP from port {NTP_PORT}",
    Role.GATEWAY: "ICMP, OSPF, VRRP, BGP, BFD, DHCP answers",
    Role.OWN: "loopback",
}


class Conversation(Struct, frozen=True, order=True):
    """What a machine in the middle lets pass between a peer, by one port of it, and a host.

    Of TCP both directions pass, but nothing that opens a connection; only answers come from port 53. Of UDP
    passes what comes from ports 53 and 123, or goes to a port of BFD; of OSPF and VRRP what the peer sends.
    """

    peer: Prefix
    protocol: int
    port: int  # the peer's; ANY_PORT of a protocol without ports
    host: Prefix

    @property
    def senders(self) -> tuple[Prefix, ...]:
        """Those of the two whose packets pass."""
        both = self.protocol == TCP and self.port != DNS_PORT
        if self.protocol == UDP and self.port in BFD_PORTS:
            return (self.host,)
        return (self.peer, self.host) if both else (self.peer,)

    @property
    def words(self) -> str:
        """What passes of it, in words."""
        if self.protocol not in (TCP, UDP):
            return f"protocol {self.protocol} to {self.host}"
        if self.protocol == UDP:
            if self.port in BFD_PORTS:
                return f"UDP of {self.host} to its port {self.port}"
            return f"UDP from port {self.port} to {self.host}"
        if self.port == DNS_PORT:
            return f"TCP from port {self.port} to {self.host}, except new connections"
        return f"TCP between its port {self.port} and {self.host}, except new connections"


class Passes(Struct, frozen=True):
    """What passes of one family, as sets that can be looked up; all are sorted and unique."""

    family: int
    networks: tuple[Prefix, ...]  # in full
    peers: tuple[tuple[Prefix, int, int], ...]  # address, protocol (TCP or UDP), the sender's port
    gateways: tuple[Prefix, ...]
    behind: tuple[Conversation, ...] = ()  # of hosts behind this machine
    logins: tuple[
        tuple[Prefix, int], ...
    ] = ()  # a session's peer, and the port here where it may open others

    @property
    def known(self) -> tuple[Prefix, ...]:
        """Every prefix of it, in whatever role."""
        found = {*self.networks, *(peer for peer, _, _ in self.peers), *self.gateways}
        return tuple(sorted(found.union(*(item.senders for item in self.behind))))

    @property
    def known_hosts(self) -> tuple[Prefix, ...]:
        """The single addresses among them."""
        return tuple(item for item in self.known if item.length == item.bits)

    @property
    def known_networks(self) -> tuple[Prefix, ...]:
        """The others."""
        return tuple(item for item in self.known if item.length < item.bits)


class AllowedPeer(Struct, frozen=True):
    """An entry of the allow-list: who, in which role, and why. Only SSH sessions have ports."""

    prefix: Prefix
    role: Role = Role.OPERATOR
    port: int = 0  # of an SSH session: the peer's
    conversation: Conversation | None = None  # with a host behind this machine: what alone passes
    login_port: int = 0  # of an SSH session: the port here where all from the peer passes
    reason: str = ""  # as root knows it; consoles don't

    @property
    def who(self) -> str:
        """What tables of sources call it."""
        return (WHO if self.conversation is None else WHO_BEHIND)[self.role]

    @property
    def why(self) -> str:
        """Why it is on the allow-list, as far as that is known."""
        return self.reason or self.who

    @property
    def tier(self) -> str:
        """Whether the operator listed it, or fwtop found it, or learned it from what passes through."""
        if self.conversation is not None:
            return "learned"
        return "operator" if self.role is Role.OPERATOR else "found"

    @property
    def passes(self) -> str:
        """What of it no rule can drop, in words."""
        if self.conversation is not None:
            return self.conversation.words
        if self.login_port:
            return f"TCP from port {self.port}, except new connections; all TCP to port {self.login_port}"
        return PASSES[self.role]

    def to_dict(self) -> dict[str, str]:
        """Return it as `fwtop status --json` shows it (docs/JSON.md)."""
        behind = {"host": str(self.conversation.host)} if self.conversation is not None else {}
        about = {"prefix": str(self.prefix), "why": self.why, **behind}
        return {**about, "tier": self.tier, "role": self.role.value, "passes": self.passes}
