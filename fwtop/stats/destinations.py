"""Where packets go: addresses and who of them answers, ports, protocols.

An answer counts only if it comes in by another interface than the packets to its sender: nobody outside can
forge that. Where one interface is watched, as on most servers, no answers are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import (
    F64,
    FLAG_MALFORMED,
    FLAG_TRUNCATED,
    U64,
    Fragment,
    Mask,
    PacketBatch,
)
from fwtop.model.traffic.protocols import NAMES, TCP, UDP
from fwtop.model.traffic.snapshot import Destination, Port, Share
from fwtop.stats.sources import Drops
from fwtop.stats.sums import SAMPLES, WEIGHT, KeyedSums, Scale, mixed

MOST = 20_000  # a scan of a large network reaches any number of addresses: keep the heaviest


def destination_table(counted: KeyedSums, scale: Scale, drops: Drops, top: int) -> tuple[Destination, ...]:
    """Return the destinations in descending order of packets."""
    seen = counted.rows(counted.sums[SAMPLES] > 0)
    total = float(scale.total[WEIGHT])
    found = scale.top(seen, top)
    dropped = drops.share(
        seen.sums[:, [row for row, _ in found]], scale.packets / total if total > 0 else 0.0
    )
    out = []
    for (row, share), lost in zip(found, dropped, strict=True):
        prefix = Prefix.of_columns(*(int(seen.tags[name][row]) for name in ("family", "hi", "lo")))
        out.append(Destination(str(prefix), share, lost, prefix))
    return tuple(out)


_SYN_ACK, _HANDSHAKE = 0x12, 0x17  # FIN and RST are not set
_MOST_ADDRESSES, _MOST_PORTS = 4096, 8
_MOST_NEW = 256  # of one batch

Address = tuple[int, int, int]  # family, high and low half


class Answers:
    """The services heard so far, and the interfaces that they are behind. Bounded, whatever arrives."""

    def __init__(self) -> None:
        self._services: dict[Address, dict[str, None]] = {}
        self._inside: set[int] = set()

    def feed(self, arrived: PacketBatch) -> None:
        """Take note of the answers in a batch."""
        if not len(arrived) or arrived.ifindex.min() == arrived.ifindex.max():
            return
        rows = np.flatnonzero(_answers(arrived))
        if not len(rows):
            return
        came_in = _interfaces_to(arrived, rows)
        rows = rows[(came_in != 0) & (came_in != arrived.ifindex[rows])]
        columns = (arrived.family, arrived.src_hi, arrived.src_lo, arrived.protocol, arrived.sport)
        keys = np.stack([column[rows].astype(np.uint64) for column in columns], axis=1)
        for row in np.unique(keys, axis=0)[:_MOST_NEW].tolist():
            self._note((row[0], row[1], row[2]), f"{'tcp' if row[3] == TCP else 'udp'}/{row[4]}")
        self._inside |= set(np.unique(arrived.ifindex[rows]).tolist())

    def _note(self, address: Address, service: str) -> None:
        if address not in self._services and len(self._services) >= _MOST_ADDRESSES:
            return
        services = self._services.setdefault(address, {})
        if len(services) < _MOST_PORTS:
            services[service] = None

    def marked(
        self, rows: Sequence[Destination], arrived: PacketBatch, own: Sequence[Prefix]
    ) -> tuple[Destination, ...]:
        """Return the destinations with their part: own, service or dark; "" where it can't be told."""
        if not self._services:
            return tuple(rows)
        outside = ~np.isin(arrived.ifindex, np.array(sorted(self._inside), np.uint32))
        six = arrived.family == 6
        from_outside = {
            4: set(np.unique(arrived.dst_lo[outside & (arrived.family == 4)]).tolist()),
            6: {
                high << 64 | low
                for high, low in np.unique(
                    np.stack((arrived.dst_hi[outside & six], arrived.dst_lo[outside & six]), axis=1), axis=0
                ).tolist()
            },
        }
        return tuple(self._marked(row, from_outside, own) for row in rows)

    def _marked(self, row: Destination, outside: dict[int, set[int]], own: Sequence[Prefix]) -> Destination:
        value, family = row.prefix.value, row.prefix.family
        services = self._services.get((family, value >> 64, value & (1 << 64) - 1))
        if row.prefix in own:
            return replace(row, part="own")
        if services is not None:
            return replace(row, part="service", serves=tuple(sorted(services)))
        return replace(row, part="dark") if value in outside[family] else row


def _answers(batch: PacketBatch) -> Mask:
    """Tell second packets of handshakes, and datagrams from a service to one who asked there."""
    tcp: Mask = (batch.protocol == TCP) & (batch.tcp_flags & _HANDSHAKE == _SYN_ACK)
    udp = (batch.protocol == UDP) & (batch.sport != 0) & (batch.dport != 0)
    if udp.any():
        asked = np.unique(_flow(batch, back=False)[udp])
        udp[udp] = np.isin(_flow(batch, back=True)[udp], asked) & (batch.sport[udp] < batch.dport[udp])
    answers: Mask = tcp | udp
    return answers


def _flow(batch: PacketBatch, *, back: bool) -> U64:
    """Return a number for the flow of each packet, or for that of the packets that it may answer."""
    ends = ((batch.src_hi, batch.src_lo, batch.sport), (batch.dst_hi, batch.dst_lo, batch.dport))
    first, second = ends[::-1] if back else ends
    flow = np.zeros(len(batch), np.uint64)
    for column in (*first, *second):
        flow = mixed(column.astype(np.uint64), flow)
    return flow


def _interfaces_to(batch: PacketBatch, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> U64:
    """Return the interface by which packets to the sender of each row come in, 0 if none did."""
    to = mixed(batch.dst_lo, mixed(batch.dst_hi))
    order = np.argsort(to, kind="stable")
    sender = mixed(batch.src_lo[rows], mixed(batch.src_hi[rows]))
    place = np.minimum(np.searchsorted(to[order], sender), len(order) - 1)
    found = to[order][place] == sender
    return np.where(found, batch.ifindex[order][place].astype(np.uint64), np.uint64(0))


_BOTH = """
  7=echo 9=discard 13=daytime 17=qotd 19=chargen 37=time 53=dns 88=kerberos 111=rpcbind 389=ldap 427=slp
  443=https 500=isakmp 514=syslog 853=dns-tls 1194=openvpn 1433=mssql 1434=mssql-browser 1701=l2tp
  1883=mqtt 2049=nfs 3389=rdp 3478=stun 5060=sip 5061=sips 5353=mdns 5683=coap 9987=teamspeak
  11211=memcached 25565=minecraft 27015=steam 30303=ethereum
"""
_TCP = """
  20=ftp-data 21=ftp 22=ssh 23=telnet 25=smtp 43=whois 80=http 110=pop3 119=nntp 135=msrpc 139=netbios-ssn
  143=imap 179=bgp 445=smb 465=smtps 554=rtsp 587=submission 631=ipp 636=ldaps 873=rsync 993=imaps
  995=pop3s 1080=socks 1521=oracle 1723=pptp 2375=docker 2379=etcd 3128=squid 3306=mysql 5432=postgresql
  5672=amqp 5900=vnc 6379=redis 6443=kubernetes 6667=irc 8000=http-alt 8080=http-alt 8443=https-alt
  9000=http-alt 9090=http-alt 9092=kafka 9200=elasticsearch 10000=webmin 27017=mongodb
"""
_UDP_ONLY = """
  67=dhcp-server 68=dhcp 69=tftp 80=http3 123=ntp 137=netbios 138=netbios-dgm 161=snmp 162=snmp-trap
  177=xdmcp 389=cldap 443=quic 520=rip 623=ipmi 1604=citrix-ica 1812=radius 1813=radius-acct 1900=ssdp
  3074=xbox 3283=arms 3702=ws-discovery 4500=ipsec-nat-t 4789=vxlan 5093=sentinel 5351=nat-pmp
  6881=bittorrent 7001=afs 10001=ubiquiti 10074=mitel-tp240 20800=cod 27005=steam-client 27960=quake
  32414=plex 32410=plex 33848=jenkins 34567=dvrip 37810=dvr-dhcpdiscover 41794=crestron 47808=bacnet
  51820=wireguard 64738=mumble 2302=arma 28015=rust
"""


def _named(protocol: str, text: str) -> dict[tuple[str, int], str]:
    pairs = (pair.split("=") for pair in text.split())
    return {(protocol, int(port)): name for port, name in pairs}


SERVICES = _named("tcp", _BOTH + _TCP) | _named("udp", _BOTH + _UDP_ONLY)


_DST, _UDP = 1 << 17, 1 << 16  # bits of a port's key
_ETHERTYPES = {
    0x0806: "arp", 0x88CC: "lldp", 0x8863: "pppoe", 0x8864: "pppoe", 0x8847: "mpls", 0x888E: "eapol",
}  # fmt: skip


def sum_ports(batch: PacketBatch, sums: F64) -> KeyedSums:
    """Count TCP and UDP ports, each packet on both sides."""
    udp = batch.protocol == 17
    headless = (
        (batch.flags & (FLAG_MALFORMED | FLAG_TRUNCATED) != 0) & (batch.sport == 0) & (batch.dport == 0)
    )
    rows = np.flatnonzero((udp | (batch.protocol == 6)) & (batch.fragment != Fragment.LATER) & ~headless)
    protocol = np.where(udp[rows], np.uint64(_UDP), np.uint64(0))
    part = sums.take(rows, axis=1)
    source = KeyedSums.of(protocol | batch.sport[rows], part, {})
    target = KeyedSums.of(protocol | batch.dport[rows] | np.uint64(_DST), part, {})
    # In ascending order, as the side is the keys' highest bit
    keys, both = (source.keys, target.keys), (source.sums, target.sums)
    return KeyedSums(np.concatenate(keys), np.concatenate(both, axis=1), {})


def port_table(counted: KeyedSums, scale: Scale, top: int) -> tuple[Port, ...]:
    """Return the ports in descending order of packets."""
    return tuple(_port(int(counted.keys[row]), share) for row, share in scale.top(counted, top))


def _port(key: int, share: Share) -> Port:
    protocol = "udp" if key & _UDP else "tcp"
    number = key & 0xFFFF
    side = "dst" if key & _DST else "src"
    return Port(protocol, side, number, SERVICES.get((protocol, number)), share)


def sum_protocols(batch: PacketBatch, sums: F64) -> KeyedSums:
    """Count by IP protocol, or by ethertype where it is not IP."""
    keys = np.where(batch.family != 0, batch.protocol, np.uint64(1 << 16) | batch.ethertype).astype(np.uint64)
    return KeyedSums.of(keys, sums, {})


def protocols(counted: KeyedSums, scale: Scale) -> dict[str, Share]:
    """Return the share of each protocol, largest first."""
    rows: NDArray[np.intp] = counted.largest(len(counted))
    shares = scale.shares(counted.sums[:, rows])
    return {_name(int(key)): share for key, share in zip(counted.keys[rows], shares, strict=True)}


def _name(key: int) -> str:
    if key < 1 << 16:
        return NAMES.get(key, f"ip-{key}")
    return _ETHERTYPES.get(key & 0xFFFF, f"ethertype-0x{key & 0xFFFF:04x}")
