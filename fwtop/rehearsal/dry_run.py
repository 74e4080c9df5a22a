"""A dry run: real flows through a copy of this machine's rules, as they are and with services untracked.

The copy is in a network namespace that lives as long as the run. The kernel itself judges: packets come in by
a TUN device with the name of the real interface, or are sent, and a last chain notes which get through.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from fwtop.kernel import namespaces
from fwtop.kernel.programs import run
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.netfilter import ipset, nft, nft_stateless, stateless
from fwtop.netfilter.iptables import Variant
from fwtop.netfilter.tracking import is_foreign, service_name

MOST_FLOWS = 400
_MOST_ELEMENTS = 200_000  # of ipsets, which are copied, too
_COPY_SECONDS = 20.0
_TABLE = "fwtop-rehearsal"
_LAST = (1 << 31) - 1  # the priority behind all others'
# Made before any rule on states: of hooks with one priority the later comes first, and the kernel's, which
# confirms a connection, is to see the packet before it is dropped here.
_NOTES = f"""table inet {_TABLE} {{
 set four {{ typeof ip id; flags dynamic; size 65535; }}
 set six {{ typeof ip6 flowlabel; flags dynamic; size 65535; }}
 chain note {{ add @four {{ ip id }}; add @six {{ ip6 flowlabel }}; drop; }}
 chain in {{ type filter hook input priority {_LAST}; iif != "lo" jump note; }}
 chain out {{ type filter hook postrouting priority {_LAST}; oif != "lo" jump note; }}
}}
"""
_UNTRACKED = "-p {protocol} -m {protocol} --{side} {port} -j CT --notrack"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000  # linux/if_tun.h
_IPV6_HDRINCL = 36  # linux/in6.h


class Broken(Struct, frozen=True):
    """A flow of which packets get through as it is, and would not untracked."""

    flow: Flow
    lost: int
    packets: int

    def __str__(self) -> str:
        return f"{self.flow}: {self.lost} of {self.packets} packets would no longer get through"


class _Rules(Struct, frozen=True):
    """The rule sets, sets and addresses to copy, as the programs print them."""

    sets: str
    xtables: Mapping[int, str]
    native: str
    interfaces: Mapping[str, str]  # local address → interface


def broken_flows(variant: Variant, services: Sequence[Match], flows: Sequence[Flow]) -> list[Broken]:
    """Return which flows would break if these services were untracked; raises FwtopError, OSError."""
    rules = _read(variant)
    mine = [flow for flow in flows if str(flow.ours) in rules.interfaces]
    if not mine:
        return []
    before, after = (_passed(variant, rules, chosen, mine) for chosen in ((), services))
    found = []
    for number, flow in enumerate(mine):
        lost = before[number] - after[number]
        if lost and 0 in before[number]:  # else nobody would have answered
            found.append(Broken(flow, len(lost), len(before[number])))
    return found


def _read(variant: Variant) -> _Rules:
    held = sum(header.entries for header in ipset.headers())
    if held > _MOST_ELEMENTS:
        raise FwtopError(f"its ipsets hold {held:,} elements, which is too much to copy")
    tables = [f"{one['family']} {one['name']}" for kind, one in nft.listed("tables") if kind == "table"]
    native = "".join(
        nft.printed("table", *table.split(), seconds=_COPY_SECONDS)
        for table in tables
        if is_foreign(table, variant) and table.split()[0] in ("ip", "ip6", "inet")
    )
    saved = {family: variant.save(family, seconds=_COPY_SECONDS) for family in (4, 6)}
    return _Rules(ipset.saved(), saved, native, addresses())


def addresses() -> dict[str, str]:
    """Return this machine's addresses and their interfaces, without the loopback's; raises FwtopError."""
    return {
        item["local"]: link["ifname"]
        for link in json.loads(run(["ip", "-j", "address"]))
        for item in link.get("addr_info", ())
        if link.get("ifname") != "lo" and item.get("scope") == "global"
    }


def _passed(
    variant: Variant, rules: _Rules, services: Sequence[Match], flows: Sequence[Flow]
) -> list[set[int]]:
    """Return which packets of each flow get through, by their place in it."""
    numbered: list[list[_Packet]] = []
    firsts: list[int] = []
    serial = 1
    for flow in flows:
        firsts.append(serial)
        numbered.append([*_conversation(flow, serial)])
        serial += len(numbered[-1])
    with namespaces.temporary(), contextlib.ExitStack() as stack:
        devices = _build(variant, rules, services, flows, stack)
        for flow, packets in zip(flows, numbered, strict=True):
            device = rules.interfaces[str(flow.ours)]
            for packet in packets:
                _send(device, devices[device], packet, flow)
        noted = {4: _noted("four"), 6: _noted("six")}
    return [
        {place for place in range(len(packets)) if first + place in noted[flow.ours.version]}
        for flow, first, packets in zip(flows, firsts, numbered, strict=True)
    ]


def _build(
    variant: Variant,
    rules: _Rules,
    services: Sequence[Match],
    flows: Sequence[Flow],
    stack: contextlib.ExitStack,
) -> dict[str, int]:
    """Build the copy in this namespace; returns the descriptors of its TUN devices by name."""
    for name in ("all", "default"):
        Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter").write_text("0")
    devices: dict[str, int] = {}
    lines = ["link set lo up"]
    for address in dict.fromkeys(str(flow.ours) for flow in flows):
        name = rules.interfaces[address]
        if name not in devices:
            devices[name] = _tun(name)
            stack.callback(os.close, devices[name])
            lines.append(f"link set {name} up")
            lines += [f"route add {to} dev {name} metric {len(devices)}" for to in ("0.0.0.0/0", "::/0")]
        version = ipaddress.ip_address(address).version
        lines.append(
            f"address add {address}/{32 if version == 4 else 128} dev {name}" + " nodad" * (version == 6)
        )
    run(["ip", "-batch", "-"], text="\n".join([*lines, ""]))
    nft.execute([_NOTES])
    ipset.restore(rules.sets)
    for family, saved in rules.xtables.items():
        if saved.strip():
            variant.restore(family, saved, seconds=_COPY_SECONDS)
    if rules.native:
        nft.execute([rules.native], seconds=_COPY_SECONDS)
    if services:
        _untrack(variant, services)
    return devices


def _untrack(variant: Variant, services: Sequence[Match]) -> None:
    """Install what the playbook would, without the sets that end it."""
    nft.change(nft_stateless.commands(nft_stateless.inserts(nft_stateless.read_native(variant), services)))
    for family in (4, 6):
        lines = [*variant.read(family).lines]
        found = stateless.from_below(stateless.inserts(lines, services, family))
        beside = [item.line() for item in found]
        raw = [
            f"-I {chain} 1 " + _UNTRACKED.format(protocol=service_name(match).split("/")[0],
                                                 side=side, port=match.dport)
            for match in services
            for chain, side in (("PREROUTING", "dport"), ("OUTPUT", "sport"))
        ]  # fmt: skip
        text = ["*filter", *beside, "COMMIT", "*raw", *raw, "COMMIT", ""]
        variant.restore(family, "\n".join(text))


def _tun(name: str) -> int:
    """Create a TUN device; it goes with its descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _send(device: str, tun: int, packet: _Packet, flow: Flow) -> None:
    """Inject a packet at a device, or send it; one that a rule refuses is no error."""
    if packet.incoming:
        os.write(tun, packet.data)
        return
    kind = socket.AF_INET if flow.ours.version == 4 else socket.AF_INET6
    with socket.socket(kind, socket.SOCK_RAW, socket.IPPROTO_RAW) as sender:
        if kind == socket.AF_INET6:
            sender.setsockopt(socket.IPPROTO_IPV6, _IPV6_HDRINCL, 1)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        with contextlib.suppress(PermissionError):  # dropped on its way out
            sender.sendto(packet.data, (str(flow.peer), 0))


def _noted(name: str) -> set[int]:
    """Return the serial numbers that got through."""
    return {int(value) for value in nft.elements(f"inet {_TABLE}", name)}


_SYN, _SYN_ACK, _ACK, _PUSH = 0x02, 0x12, 0x10, 0x18
_FIRST = {True: 1_000, False: 5_000}  # sequence numbers, by: of who opens it
_DATA = b"fwtop"
_WINDOW = 65_535
_ROUNDS = 3  # a rule may count datagrams


class Flow(Struct, frozen=True):
    """A real conversation of this machine."""

    protocol: int
    ours: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int  # our side's
    peer: ipaddress.IPv4Address | ipaddress.IPv6Address
    peer_port: int
    opened_by_us: bool = False

    def __str__(self) -> str:
        name = {TCP: "tcp", UDP: "udp"}.get(self.protocol, self.protocol)
        how = "to" if self.opened_by_us else "from"
        return f"{name}/{self.port} {how} {self.peer} port {self.peer_port}"


class _Packet(Struct, frozen=True):
    """One packet: whether it comes in, and its bytes from the IP header on."""

    incoming: bool
    data: bytes


def _conversation(flow: Flow, first: int) -> Iterator[_Packet]:
    """Yield a flow's packets in order, with serial numbers from `first` on, which survive netfilter.

    The number is the identification of IPv4 and the flow label of IPv6.
    """
    if flow.protocol == TCP:
        opener, other = _FIRST[True], _FIRST[False]
        size = len(_DATA)
        steps = [
            (True, _SYN, opener, 0, b""),
            (False, _SYN_ACK, other, opener + 1, b""),
            (True, _ACK, opener + 1, other + 1, b""),
            (True, _PUSH, opener + 1, other + 1, _DATA),
            (False, _PUSH, other + 1, opener + 1 + size, _DATA),
        ]
        for number, (by_opener, flags, sequence, acknowledged, data) in enumerate(steps):
            head = struct.pack("!IIBBHHH", sequence, acknowledged, 5 << 4, flags, _WINDOW, 0, 0)
            yield _packet(flow, by_opener, first + number, head, data)
        return
    for number in range(2 * _ROUNDS):
        head = struct.pack("!HH", 8 + len(_DATA), 0)
        yield _packet(flow, number % 2 == 0, first + number, head, _DATA)


def _packet(flow: Flow, by_opener: bool, serial: int, head: bytes, data: bytes) -> _Packet:
    incoming = by_opener != flow.opened_by_us
    ends = (flow.peer, flow.ours) if incoming else (flow.ours, flow.peer)
    ports = (flow.peer_port, flow.port) if incoming else (flow.port, flow.peer_port)
    segment = struct.pack("!HH", *ports) + head + data
    pseudo = ends[0].packed + ends[1].packed + struct.pack("!II", len(segment), flow.protocol)
    place = 16 if flow.protocol == TCP else 6  # of the checksum
    check = struct.pack("!H", _checksum(pseudo + segment) or 0xFFFF)
    segment = segment[:place] + check + segment[place + 2 :]
    if flow.ours.version == 6:
        header = struct.pack("!IHBB", 6 << 28 | serial, len(segment), flow.protocol, 64)
        return _Packet(incoming, header + ends[0].packed + ends[1].packed + segment)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), serial, 0, 64, flow.protocol, 0)
    header += ends[0].packed + ends[1].packed
    header = header[:10] + struct.pack("!H", _checksum(header)) + header[12:]
    return _Packet(incoming, header + segment)


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF & ~total
