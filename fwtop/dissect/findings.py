"""Messages between the guardian, which hears packets, and the process that reads them (listening.py)."""

from __future__ import annotations

import struct

from fwtop.model.addresses import roles
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.protocols import TCP, UDP

PORT = struct.Struct("=I")  # index of the interface, before the packet; alone: that port is gone
_FINDING = struct.Struct("=BBHB16sB16s")  # role, protocol, port, then family and address of peer and host
FINDING_BYTES = _FINDING.size
_ROLES = (roles.Role.SSH, roles.Role.DNS, roles.Role.NTP, roles.Role.ROUTER)
_SERVICES = {  # protocol and port of the peer; an SSH session has any port of TCP
    roles.Role.DNS: {(UDP, roles.DNS_PORT), (TCP, roles.DNS_PORT)},
    roles.Role.NTP: {(UDP, roles.NTP_PORT)},
    roles.Role.ROUTER: {
        (TCP, roles.BGP_PORT),
        *((UDP, port) for port in roles.BFD_PORTS),
        *((one, roles.ANY_PORT) for one in roles.ROUTING),
    },
}


def encode_finding(role: roles.Role, item: roles.Conversation) -> bytes:
    """Return a message of FINDING_BYTES."""
    ends = ((end.family, end.value.to_bytes(16, "big")) for end in (item.peer, item.host))
    (peer_family, peer), (host_family, host) = ends
    return _FINDING.pack(_ROLES.index(role), item.protocol, item.port, peer_family, peer, host_family, host)


def parse_finding(message: bytes) -> tuple[roles.Role, roles.Conversation]:
    """Read such a message; raises ValueError for any other, as a process that was taken over may send."""
    if len(message) != FINDING_BYTES:
        raise ValueError("not a finding")
    role, protocol, port, peer_family, peer, host_family, host = _FINDING.unpack(message)
    if (
        role >= len(_ROLES)
        or peer_family != host_family
        or (protocol, port) not in _SERVICES.get(_ROLES[role], {(TCP, port)})
    ):
        raise ValueError("not a finding")
    return _ROLES[role], roles.Conversation(
        _address(peer_family, peer), protocol, port, _address(host_family, host)
    )


def _address(family: int, packed: bytes) -> Prefix:
    value = int.from_bytes(packed, "big")
    if family not in (4, 6) or (family == 4 and value >> 32):
        raise ValueError("not an address")
    return Prefix(family, value, 32 if family == 4 else 128)
