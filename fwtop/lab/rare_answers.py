"""What the rarer amplifiers answer; see answers.py."""

from __future__ import annotations

import json
import random
import struct
from typing import Any


def isakmp_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write an IKEv1 answer to a main-mode proposal: header, SA and vendor ids (RFC 2408, 3.1)."""
    vendor = struct.pack("!BBH", 13, 0, 20) + rng.randbytes(16)
    transform = struct.pack("!BBHBBH", 0, 0, 36, 1, 1, 0) + bytes.fromhex(
        "80010007800e0080800200028004000280030001800b0001800c7080"
    )
    proposal = struct.pack("!BBHBBBB", 0, 0, 8 + len(transform), 1, 1, 0, 1) + transform
    sa = struct.pack("!BBHII", 13, 0, 12 + len(proposal), 1, 1) + proposal
    body = sa + vendor * 3 + struct.pack("!BBH", 0, 0, 20) + rng.randbytes(16)
    head = rng.randbytes(8) + rng.randbytes(8) + struct.pack("!BBBBI", 1, 0x10, 2, 0, 0)
    return head + struct.pack("!I", 28 + len(body)) + body


def bacnet_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a BACnet/IP ComplexACK of readPropertyMultiple (ASHRAE 135, annex J)."""
    values = b"".join(
        b"\x29"
        + bytes([number])
        + b"\x4e\x75"
        + bytes([24])
        + b"\0"
        + f"Controller {rng.randint(1000, 9999)} HVAC".encode().ljust(23)[:23]
        + b"\x4f"
        for number in (77, 121, 70, 44, 28, 58)
    )
    device = struct.pack("!BI", 0x0C, 0x02000000 | rng.getrandbits(22)) + b"\x1e" + values + b"\x1f"
    apdu = bytes([0x30, rng.randint(0, 255), 0x0E]) + device
    return struct.pack("!BBH", 0x81, 0x0A, 6 + len(apdu)) + b"\x01\x00" + apdu


def dvr_dhcpdiscover_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a recorder's answer to its discovery probe (NETSCOUT ASERT, DHCPDiscover, 2020)."""
    device = {
        "AlarmInputChannels": 16, "DeviceClass": "HCVR", "DeviceType": "DH-XVR5116", "HttpPort": 80,
        "IPv4Address": {
            "DefaultGateway": "192.168.1.1", "DhcpEnable": False,
            "IPAddress": f"192.168.1.{rng.randint(2, 254)}", "SubnetMask": "255.255.255.0",
        },
        "MachineName": "XVR", "Port": 37777, "SerialNo": f"{rng.getrandbits(60):015X}", "Vendor": "General",
    }  # fmt: skip
    told = {"mac": rng.randbytes(6).hex(":"), "params": {"deviceInfo": device}}
    text = json.dumps(told).encode() + b"\n\0"
    head = b"\x20\0\0\0DHIP" + bytes(8) + struct.pack("<II", len(text), 0) + struct.pack("<II", len(text), 0)
    return head + text


def ubiquiti_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write an answer of Ubiquiti's discovery protocol, version 1: a list of TLVs (Rapid7, 2019)."""
    mac = rng.randbytes(6)
    fields = (
        (2, mac + bytes([192, 168, 1, rng.randint(2, 254)])),
        (1, mac),
        (10, rng.getrandbits(24).to_bytes(4, "big")),
        (11, f"AirOS-{rng.randint(10, 99)}".encode()),
        (12, b"LM5"),
        (13, b"ubnt"),
        (14, b"\2"),
        (3, b"XM.ar7240.v5.6.15-licensed.30378.170619.2001"),
    )
    body = b"".join(struct.pack("!BH", kind, len(value)) + value for kind, value in fields)
    return struct.pack("!BBH", 1, 0, len(body)) + body


def arms_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write an Apple Remote Management answer of 1,034 bytes (NETSCOUT ASERT, ARMS, 2019)."""
    name = f"iMac-{rng.randint(1, 999)}.local".encode()
    head = struct.pack("!HH", 1, 0x03EA) + b"1" + rng.randbytes(6) + bytes([0, len(name)]) + name
    return head.ljust(1034, b"\0")


def l2tp_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write an L2TP SCCRP (RFC 2661, 6.2) with host and vendor names."""

    def avp(kind: int, value: bytes) -> bytes:
        return struct.pack("!HHH", 0x8000 | 6 + len(value), 0, kind) + value

    body = avp(0, b"\0\2") + avp(2, b"\1\0") + avp(3, bytes(4)) + avp(4, bytes(4)) + avp(6, b"\x06\x90")
    body += avp(7, f"MikroTik-{rng.randint(100, 999)}".encode()) + avp(8, b"MikroTik")
    body += avp(9, rng.randbytes(2)) + avp(10, b"\0\4")
    return struct.pack("!HHHHHH", 0xC802, 12 + len(body), rng.getrandbits(16), 0, 0, 1) + body


def openvpn_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write P_CONTROL_HARD_RESET_SERVER_V2 with an HMAC, as it is repeated unasked (OpenVPN protocol)."""
    return (
        b"\x40"
        + rng.randbytes(8)
        + rng.randbytes(20)
        + struct.pack("!IIB", 1, 1_763_700_000, 1)
        + bytes(4)
        + (rng.randbytes(8) + bytes(4))
    )


def plex_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a Plex media server's answer to its discovery (NETSCOUT ASERT, PMSSDP, 2021)."""
    return (
        "HTTP/1.0 200 OK\r\nContent-Type: plex/media-server\r\n"
        f"Host: {rng.getrandbits(128):032x}.plex.direct\r\n"
        f"Name: media-{rng.randint(1, 99)}\r\nPort: 32400\r\n"
        f"Resource-Identifier: {rng.getrandbits(160):040x}\r\n"
        f"Updated-At: 17637{rng.randint(10000, 99999)}\r\n"
        "Version: 1.21.2.3943-a91458577\r\n\r\n"
    ).encode()


def bittorrent_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a node's answer to find_node: eight nodes of the DHT, bencoded (BEP 5)."""
    nodes = rng.randbytes(26 * 8)
    body = b"d2:ip6:" + rng.randbytes(6) + b"1:rd2:id20:" + rng.randbytes(20) + b"5:nodes208:" + nodes
    return body + b"e1:t2:" + rng.randbytes(2) + b"1:v4:LT\1\2" + b"1:y1:re"


def quake_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a Quake 3 engine's statusResponse with its players."""
    players = b"".join(
        b'%d %d "player%d"\n' % (rng.randint(0, 60), rng.randint(20, 200), n) for n in range(16)
    )
    info = (
        f"\\sv_hostname\\Public #{rng.randint(1, 99)}\\mapname\\q3dm17\\sv_maxclients\\24\\g_gametype\\0\\"
        "version\\ioq3 1.36\\protocol\\68\\fraglimit\\30\\timelimit\\20\\dmflags\\0\\gamename\\baseq3"
    ).encode()
    return b"\xff\xff\xff\xffstatusResponse\n" + info + b"\n" + players


def strange_response(rng: random.Random, table: dict[str, Any]) -> bytes:
    """Write an answer of a service that nobody knows: a header, then records of many lengths."""
    records = b"".join(struct.pack("!HH", 0x3039, n) + rng.randbytes(rng.randint(20, 60)) for n in range(16))
    return (b"\x7eSTR" + rng.randbytes(4) + records)[: rng.randint(300, int(table.get("size", 900)))]
