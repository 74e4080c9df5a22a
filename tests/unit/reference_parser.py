"""A slow parser of one packet in plain Python, written from the RFCs: what parse.py is compared with."""

import contextlib
import struct

from fwtop.model.traffic.packets import (
    FLAG_IP_OPTIONS,
    FLAG_MALFORMED,
    FLAG_TRUNCATED,
    FLAG_TUNNEL,
    FLAG_VLAN,
)

FIELDS = (
    *("family", "ethertype", "vlan", "src", "dst", "protocol", "ttl", "ip_id", "ip_length", "fragment"),
    *("sport", "dport", "tcp_flags", "tcp_window", "tcp_seq", "tcp_header", "icmp_type", "icmp_code"),
    *("payload_offset", "payload_length", "flags"),
)
VLAN = (0x8100, 0x88A8, 0x9100)


class Stop(Exception):
    pass


class Reader:
    def __init__(self, data: bytes, length: int, whole: bool) -> None:
        self.data, self.length = data, max(length, len(data))
        self.limit = self.length if whole else 1 << 32
        self.out = dict.fromkeys(FIELDS, 0)

    def need(self, end: int, packet_end: int) -> None:
        if end > packet_end:
            self.fail(FLAG_MALFORMED)
        if end > len(self.data):
            self.fail(FLAG_TRUNCATED)

    def fail(self, flag: int) -> None:
        self.out["flags"] |= flag
        raise Stop

    def u16(self, at: int) -> int:
        return struct.unpack_from(">H", self.data, at)[0]

    def u32(self, at: int) -> int:
        return struct.unpack_from(">I", self.data, at)[0]

    def run(self) -> dict[str, int]:
        with contextlib.suppress(Stop):
            self.ethernet()
        if self.out["protocol"] in (4, 41, 47, 97, 115, 137):
            self.out["flags"] |= FLAG_TUNNEL
        return self.out

    def ethernet(self) -> None:
        out = self.out
        self.need(14, self.length)
        at = 14
        out["ethertype"] = self.u16(12)
        for depth in range(4):
            if out["ethertype"] not in VLAN:
                break
            self.need(at + 4, self.length)
            out["flags"] |= FLAG_VLAN
            if depth == 0:
                out["vlan"] = self.u16(at) & 0xFFF
            out["ethertype"] = self.u16(at + 2)
            at += 4
        if out["ethertype"] in VLAN:
            self.fail(FLAG_MALFORMED)
        if out["ethertype"] == 0x8864:
            at = self.pppoe(at)
        elif out["ethertype"] in (0x8847, 0x8848):
            at = self.mpls(at)
        if out["ethertype"] == 0x0800:
            self.ipv4(at)
        elif out["ethertype"] == 0x86DD:
            self.ipv6(at)

    def pppoe(self, at: int) -> int:
        self.need(at + 8, self.length)
        if self.u16(at) != 0x1100:
            self.fail(FLAG_MALFORMED)
        kind = {0x21: 0x0800, 0x57: 0x86DD}.get(self.u16(at + 6))
        if kind is None:
            raise Stop
        self.out["ethertype"] = kind
        return at + 8

    def mpls(self, at: int) -> int:
        for _ in range(8):
            self.need(at + 4, self.length)
            last = self.data[at + 2] & 1
            at += 4
            if last:
                kind = {4: 0x0800, 6: 0x86DD}.get(self.data[at] >> 4) if at < len(self.data) else None
                if kind is None:
                    raise Stop
                self.out["ethertype"] = kind
                return at
        return self.fail(FLAG_MALFORMED)

    def ipv4(self, at: int) -> None:
        out = self.out
        self.need(at + 20, self.length)
        first, _, total, ident, frag, ttl, proto, _, src, dst = struct.unpack_from(
            ">BBHHHBBHII", self.data, at
        )
        if first >> 4 != 4:
            self.fail(FLAG_MALFORMED)
        header = (first & 15) * 4
        out.update(family=4, src=src, dst=dst, protocol=proto, ttl=ttl, ip_id=ident, ip_length=total)
        out["fragment"] = 2 if frag & 0x1FFF else 1 if frag & 0x2000 else 0
        if header > 20:
            out["flags"] |= FLAG_IP_OPTIONS
        end = at + total if total else self.length
        if header < 20 or end - at < header or end > self.limit:
            self.fail(FLAG_MALFORMED)
        self.need(at + header, end)
        self.transport(at + header, end)

    def ipv6(self, at: int) -> None:
        out = self.out
        self.need(at + 40, self.length)
        if self.data[at] >> 4 != 6:
            self.fail(FLAG_MALFORMED)
        size, proto, hops = struct.unpack_from(">HBB", self.data, at + 4)
        out.update(family=6, protocol=proto, ttl=hops, ip_length=min(size + 40, 65535))
        out["src"] = int.from_bytes(self.data[at + 8 : at + 24], "big")
        out["dst"] = int.from_bytes(self.data[at + 24 : at + 40], "big")
        end = at + 40 + size
        if size == 0 and proto != 59:
            end = max(self.length, at + 40)
        if end > self.limit:
            self.fail(FLAG_MALFORMED)
        at += 40
        for _ in range(12):
            kind = out["protocol"]
            if out["fragment"] == 2 or kind not in (0, 43, 44, 51, 60, 135, 139, 140):
                break
            self.need(at + 8, end)
            size = {44: 8, 51: (self.data[at + 1] + 2) * 4}.get(kind, (self.data[at + 1] + 1) * 8)
            if kind == 44:
                place = self.u16(at + 2)
                out["fragment"] = 2 if place >> 3 else place & 1
                out["ip_id"] = self.u32(at + 4)
            else:
                out["flags"] |= FLAG_IP_OPTIONS
            out["protocol"] = self.data[at]
            at += size
            self.need(at, end)
        if out["fragment"] != 2 and out["protocol"] in (0, 43, 44, 51, 60, 135, 139, 140):
            self.fail(FLAG_MALFORMED)
        self.transport(at, end)

    def transport(self, at: int, end: int) -> None:
        out = self.out
        proto = out["protocol"]
        if out["fragment"] == 2:
            return self.payload(at, end)
        there = min(len(self.data), end) - at
        icmp = (proto, out["family"]) in ((1, 4), (58, 6))
        if proto in (6, 17, 33, 132, 136) and there >= 4:
            out["sport"], out["dport"] = self.u16(at), self.u16(at + 2)
        if icmp and there >= 4:
            out["icmp_type"], out["icmp_code"] = self.data[at], self.data[at + 1]
        needed = 8 if icmp else {6: 20, 17: 8, 33: 12, 132: 12, 136: 8}.get(proto, 0)
        self.need(at + needed, end)
        if proto == 6:
            out["tcp_seq"] = self.u32(at + 4)
            out["tcp_flags"] = self.data[at + 13]
            out["tcp_window"] = self.u16(at + 14)
            needed = out["tcp_header"] = (self.data[at + 12] >> 4) * 4
            if needed < 20:
                self.fail(FLAG_MALFORMED)
            self.need(at + needed, end)
        if proto == 17:
            size = self.u16(at + 4)
            if size and (size < 8 or (size > end - at and out["fragment"] != 1)):
                self.fail(FLAG_MALFORMED)
            if size and out["fragment"] != 1:
                end = at + size
        return self.payload(at + needed, end)

    def payload(self, at: int, end: int) -> None:
        self.out["payload_offset"] = at
        self.out["payload_length"] = min(end - at, 65535)


def reference(data: bytes, length: int, whole: bool = True) -> dict[str, int]:
    """Parse one Ethernet frame of `length` bytes of which `data` was captured."""
    return Reader(data, length, whole).run()
