"""Packets that the allow-list lets pass whatever a rule matches, by their sender's role (roles.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fwtop.analysis.proposals.matching import match_rows
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import ICMP6, TCP, UDP
from fwtop.model.addresses import roles
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer, Conversation, Role
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Mask, PacketBatch

_FIN, _RST = 1, 4
_DISCOVERY, _FROM_LINK = (134, 136), 255  # RFC 4861: advertisements, solicitations; hop limit


def always_pass(packets: PacketBatch) -> Mask:
    """Mark neighbour discovery from the link itself, without which IPv6 ends: no rule drops it."""
    first, last = _DISCOVERY
    kind = (packets.icmp_type >= first) & (packets.icmp_type <= last)
    return np.asarray((packets.protocol == ICMP6) & kind & (packets.ttl == _FROM_LINK))


def allowed_rows(peers: Iterable[AllowedPeer], packets: PacketBatch) -> Mask:
    """Mark the packets that pass in their sender's role."""
    allowed = np.zeros(len(packets), np.bool_)
    by_role: dict[tuple[Role, int, int], list[Prefix]] = {}
    opens = (packets.tcp_flags & (SYN | ACK | _FIN | _RST)) == SYN
    for peer in peers:
        if peer.conversation is not None:
            allowed |= _in_conversation(peer.conversation, packets, opens)
            continue
        by_role.setdefault((peer.role, peer.port, peer.login_port), []).append(peer.prefix)
    asked = packets.dport >= roles.ASKING_PORTS
    for (role, port, login_port), prefixes in by_role.items():
        if login_port:
            allowed |= match_rows(Match(tuple(prefixes), protocol=TCP, dport=login_port), packets)
            continue
        for match in _matches(role, port, tuple(prefixes)):
            hit = match_rows(match, packets)
            if match.protocol == TCP and match.sport is not None:
                hit = hit & ~opens
            if role is Role.DNS and match.protocol == UDP:
                hit = hit & asked
            allowed |= hit
    return allowed


def _in_conversation(talk: Conversation, packets: PacketBatch, opens: Mask) -> Mask:
    """Mark what passes of a conversation with a host behind this machine."""
    port = None if talk.port == roles.ANY_PORT else talk.port
    peer, host, protocol = (talk.peer,), (talk.host,), talk.protocol
    from_peer = Match(peer, host, protocol=protocol, sport=port)
    to_peer = Match(host, peer, protocol=protocol, dport=port)
    hit = np.zeros(len(packets), np.bool_)
    if talk.peer in talk.senders:
        hit |= match_rows(from_peer, packets)
    if talk.host in talk.senders:
        hit |= match_rows(to_peer, packets)
    if protocol == UDP and port == roles.DNS_PORT:
        hit &= packets.dport >= roles.ASKING_PORTS
    return np.asarray(hit & ~opens if protocol == TCP else hit)


def _matches(role: Role, port: int, sources: tuple[Prefix, ...]) -> Iterator[Match]:
    """Yield what passes of a role; of TCP from a given port only what opens no connection."""
    if role is Role.OPERATOR:
        yield Match(sources)
    elif role is Role.SSH:
        yield Match(sources, protocol=TCP, sport=port)
    elif role is Role.DNS:
        yield Match(sources, protocol=UDP, sport=roles.DNS_PORT)
        yield Match(sources, protocol=TCP, sport=roles.DNS_PORT)
    elif role is Role.NTP:
        yield Match(sources, protocol=UDP, sport=roles.NTP_PORT)
    elif role is Role.GATEWAY:
        for family, (server, client) in roles.DHCP_PORTS.items():
            yield Match(sources, family=family, protocol=roles.ICMP[family])
            yield Match(sources, family=family, protocol=UDP, sport=server, dport=client)
        for number in roles.ROUTING:
            yield Match(sources, protocol=number)
        for bfd in roles.BFD_PORTS:
            yield Match(sources, protocol=UDP, dport=bfd)
        yield Match(sources, protocol=TCP, dport=roles.BGP_PORT)
        yield Match(sources, protocol=TCP, sport=roles.BGP_PORT)
