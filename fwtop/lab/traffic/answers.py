"""Payloads of DNS messages and of reflected packets: the answers of real amplifiers.

Each function takes a seeded generator and the scenario's payload table and returns bytes. Formats follow the
cited RFCs; sizes follow US-CERT TA14-017A and vendors' reports.
"""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from fwtop.model.traffic.protocols import type_number, wire_name


def ntp_monlist(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a mode 7 answer to MON_GETLIST_1 with six entries of 72 bytes (CVE-2013-5211)."""
    entries = b"".join(
        struct.pack("!IIII", rng.getrandbits(16), rng.getrandbits(16), 0, rng.getrandbits(10))
        + rng.randbytes(8)
        + struct.pack("!IHBB", 0, 123, 3, 4)
        + bytes(40)
        for _ in range(6)
    )
    return struct.pack("!BBBBHH", 0xD7, rng.randint(0, 99), 3, 42, 6, 72) + entries


def snmp_response(rng: random.Random, table: dict[str, Any]) -> bytes:
    """Write an SNMPv2c GetResponse to GetBulk of the system's texts (RFC 3416), about `size` bytes."""
    size, binds = int(table.get("size", 1200)), b""
    while len(binds) < size:
        oid = _ber(6, bytes([0x2B, 6, 1, 2, 1, 2, 2, 1, 2, rng.randint(1, 127)]))
        binds += _ber(0x30, oid + _ber(4, f"GigabitEthernet0/{rng.randint(0, 48)} uplink".encode()))
    number = rng.getrandbits(31).to_bytes(4, "big")
    pdu = _ber(2, number) + _ber(2, b"\0") + _ber(2, b"\0") + _ber(0x30, binds)
    return _ber(0x30, _ber(2, b"\1") + _ber(4, b"public") + _ber(0xA2, pdu))


def _ber(tag: int, data: bytes) -> bytes:
    if len(data) < 128:
        return bytes([tag, len(data)]) + data
    return bytes([tag, 0x82]) + len(data).to_bytes(2, "big") + data


def ssdp_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a UPnP answer to M-SEARCH (UPnP Device Architecture 1.1, 1.3.3)."""
    uuid = f"{rng.getrandbits(32):08x}-{rng.getrandbits(16):04x}-11e4-8f2a-{rng.getrandbits(48):012x}"
    kind = rng.choice(("upnp:rootdevice", "urn:schemas-upnp-org:service:WANIPConnection:1"))
    return (
        "HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\n"
        f"ST: {kind}\r\nUSN: uuid:{uuid}::{kind}\r\nEXT:\r\n"
        "SERVER: Linux/2.6.36 UPnP/1.0 MiniUPnPd/1.7\r\n"
        f"LOCATION: http://192.168.{rng.randint(0, 2)}.1:5000/rootDesc.xml\r\n\r\n"
    ).encode()


def memcached_response(rng: random.Random, table: dict[str, Any]) -> bytes:
    """Write a datagram of a memcached UDP answer: frame header, then a value (doc/protocol.txt)."""
    size, sequence = int(table.get("size", 1400)), rng.randint(0, 500)
    head = struct.pack("!4H", rng.getrandbits(16), sequence, 750, 0)
    body = b"VALUE a 0 1048000\r\n" if sequence == 0 else b""
    return (head + body + bytes(rng.choices(b"abcdefgh", k=size)))[:size]


def cldap_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a CLDAP searchResEntry of a domain controller's rootDSE (RFC 1798, RFC 4511)."""
    values = b"".join(
        _ber(0x30, _ber(4, name) + _ber(0x31, _ber(4, value)))
        for name, value in (
            (b"currentTime", b"20261121080000.0Z"),
            (b"subschemaSubentry", b"CN=Aggregate,CN=Schema,CN=Configuration,DC=corp,DC=example"),
            (b"dsServiceName", b"CN=NTDS Settings,CN=DC%d,CN=Servers,CN=Sites" % rng.randint(1, 9)),
            (b"namingContexts", b"DC=corp,DC=example" * 12),
            (b"supportedControl", b"1.2.840.113556.1.4.319" * 40),
            (b"supportedLDAPPolicies", b"MaxPoolThreads;MaxPercentDirSyncRequests;" * 10),
        )
    )
    entry = _ber(0x64, _ber(4, b"") + _ber(0x30, values))
    return _ber(0x30, _ber(2, bytes([rng.randint(1, 127)])) + entry)


def chargen_response(rng: random.Random, table: dict[str, Any]) -> bytes:
    """Write lines of the rotating ASCII pattern (RFC 864), `size` bytes."""
    ring, start = bytes(range(0x20, 0x7F)), rng.randint(0, 94)
    lines = b"".join((ring * 3)[(start + n) % 95 : (start + n) % 95 + 72] + b"\r\n" for n in range(20))
    return lines[: int(table.get("size", 1024))]


def qotd_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a quote of the day of Windows' simple TCP/IP services (RFC 865)."""
    quotes = (
        b"\"My spelling is Wobbly.  It's good spelling but it Wobbles, and the letters\r\n get in the wrong "
        b'places." A. A. Milne (1882-1958)',
        b'"Man can climb to the highest summits, but he cannot dwell there long."\r\n'
        b" George Bernard Shaw (1856-1950)",
    )
    return rng.choice(quotes)


def rpcbind_response(rng: random.Random, table: dict[str, Any]) -> bytes:
    """Write a portmapper DUMP reply (RFC 1833): accepted, then a list of mappings."""
    head = struct.pack("!6I", rng.getrandbits(32), 1, 0, 0, 0, 0)
    one = struct.Struct("!IIIII")
    programs = (100000, 100003, 100005, 100021, 100024)
    count = int(table.get("size", 468)) // one.size
    return (
        head
        + b"".join(
            one.pack(1, rng.choice(programs), rng.randint(1, 4), rng.choice((6, 17)), rng.randint(111, 65535))
            for _ in range(count)
        )
        + bytes(4)
    )


def netbios_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a NetBIOS node status response (RFC 1002, 4.2.18)."""
    name = b"\x20" + b"CK" + b"A" * 30 + b"\0"
    names = b"".join(b"SERVER%02d       " % n + bytes([0, 4, 0]) for n in range(6))
    data = bytes([6]) + names + rng.randbytes(6) + bytes(40)
    head = struct.pack("!6H", rng.getrandbits(16), 0x8400, 0, 1, 0, 0)
    return head + name + struct.pack("!HHIH", 0x21, 1, 0, len(data)) + data


def ripv1_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a RIPv1 response with 25 routes, 504 bytes (RFC 1058)."""
    routes = b"".join(
        struct.pack("!HHIIII", 2, 0, 0x0A000000 | rng.getrandbits(16) << 8, 0, 0, rng.randint(1, 15))
        for _ in range(25)
    )
    return b"\2\1\0\0" + routes


def mssql_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a SQL Server browser answer (MC-SQLR SVR_RESP)."""
    text = b"".join(
        b"ServerName;DB%d;InstanceName;SQL%d;IsClustered;No;Version;11.0.2100.60;tcp;%d;;"
        % (rng.randint(1, 99), n, rng.randint(1433, 60000))
        for n in range(6)
    )
    return b"\5" + struct.pack("<H", len(text)) + text


def mdns_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write an mDNS answer to _services._dns-sd._udp.local (RFC 6762, RFC 6763)."""
    name = dns_wire("_services._dns-sd._udp.local")
    records = b"".join(
        b"\xc0\x0c" + struct.pack("!HHIH", 12, 1, 10, len(target)) + target
        for target in (dns_wire(f"_{kind}._tcp.local") for kind in ("http", "ipp", "smb", "ssh", "airplay"))
    )
    head = struct.pack("!6H", rng.getrandbits(16), 0x8400, 1, 5, 0, 0)
    return head + name + struct.pack("!HH", 12, 1) + records


def ws_discovery_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a WS-Discovery ProbeMatches envelope, as cameras answer (WS-Discovery 1.1, 5.3)."""
    uuid = f"{rng.getrandbits(32):08x}-0000-1000-8000-{rng.getrandbits(48):012x}"
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<SOAP-ENV:Envelope '
        'xmlns:SOAP-ENV="http://www.w3.org/2003/05/soap-envelope" '
        'xmlns:wsdd="http://schemas.xmlsoap.org/ws/2005/04/discovery" '
        'xmlns:tdn="http://www.onvif.org/ver10/network/wsdl"><SOAP-ENV:Body><wsdd:ProbeMatches>'
        f"<wsdd:ProbeMatch><wsa:Address>urn:uuid:{uuid}</wsa:Address>"
        "<wsdd:Types>tdn:NetworkVideoTransmitter</wsdd:Types>"
        "<wsdd:Scopes>onvif://www.onvif.org/type/video_encoder onvif://www.onvif.org/name/IPC</wsdd:Scopes>"
        "</wsdd:ProbeMatch></wsdd:ProbeMatches></SOAP-ENV:Body></SOAP-ENV:Envelope>"
    ).encode()


def coap_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a CoAP 2.05 answer to .well-known/core in link format (RFC 7252, RFC 6690)."""
    links = ",".join(f'</s/{rng.getrandbits(16):04x}>;rt="sensor";if="core.s"' for _ in range(18))
    return bytes([0x60, 0x45]) + rng.randbytes(2) + b"\xc1\x28\xff" + links.encode()


def steam_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a Source engine A2S_INFO answer (Valve developer wiki, Server queries)."""
    name = f"|EU| Public #{rng.randint(1, 99)} 24/7 dust2 only".encode()
    return (
        b"\xff\xff\xff\xffI\x11"
        + name
        + b"\0de_dust2\0csgo\0Counter-Strike: Global Offensive\0"
        + rng.randbytes(9)
    )


def sip_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a SIP 200 to OPTIONS (RFC 3261, 11)."""
    return (
        "SIP/2.0 200 OK\r\n"
        f"Via: SIP/2.0/UDP 198.18.0.2:5060;branch=z9hG4bK{rng.getrandbits(48):x};rport\r\n"
        f"From: <sip:100@1.1.1.1>;tag={rng.getrandbits(64):x}\r\n"
        f"To: <sip:100@1.1.1.1>;tag=as{rng.getrandbits(32):x}\r\n"
        f"Call-ID: {rng.getrandbits(80):x}\r\nCSeq: 1 OPTIONS\r\nServer: FPBX-13.0.192(13.18.5)\r\n"
        "Allow: INVITE, ACK, CANCEL, OPTIONS, BYE, REFER, SUBSCRIBE, NOTIFY, INFO, PUBLISH, MESSAGE\r\n"
        "Supported: replaces, timer\r\nAccept: application/sdp\r\nContent-Length: 0\r\n\r\n"
    ).encode()


def tftp_response(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a TFTP DATA block of 512 bytes (RFC 1350)."""
    return struct.pack("!HH", 3, 1) + rng.randbytes(512)


def quic_initial(rng: random.Random, table: dict[str, Any]) -> bytes:  # noqa: ARG001
    """Write a plausible QUIC v1 Initial of 1,200 bytes (RFC 9000, 17.2.2)."""
    head = b"\xc3\0\0\0\1\x08" + rng.randbytes(8) + b"\0\0" + struct.pack("!H", 0x4000 | 1182)
    return (head + rng.randbytes(1200))[:1200]


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
    """Write P_CONTROL_HARD_RESET_SERVER_V2 with an HMAC, which servers retransmit (OpenVPN protocol)."""
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
    """Write an answer of an invented service: a header, then records of various lengths."""
    records = b"".join(struct.pack("!HH", 0x3039, n) + rng.randbytes(rng.randint(20, 60)) for n in range(16))
    return (b"\x7eSTR" + rng.randbytes(4) + records)[: rng.randint(300, int(table.get("size", 900)))]


_RRSIG, _DNSKEY = type_number("RRSIG"), type_number("DNSKEY")


def dns_wire(name: str) -> bytes:
    """Write a name in wire form; raises ValueError."""
    labels = [label.encode() for label in name.strip(".").split(".") if label]
    if any(len(label) > 63 for label in labels):
        raise ValueError(f"DNS name {name[:60]!r} has a label of more than 63 bytes")
    return wire_name(labels)


def dns_query(rng: random.Random, table: dict[str, Any]) -> bytes:
    """Write a query, with EDNS if `edns` is a UDP payload size."""
    edns = int(table.get("edns", 0))
    header = struct.pack("!6H", rng.getrandbits(16), 0x0100, 1, 0, 0, 1 if edns else 0)
    question = dns_wire(table["name"]) + struct.pack("!HH", type_number(table.get("type", "A")), 1)
    return header + question + (_opt(edns) if edns else b"")


def dns_header(rng: random.Random, table: dict[str, Any]) -> bytes:
    """Write the header of a query with one question and `additional` records."""
    return struct.pack("!6H", rng.getrandbits(16), 0x0010, 1, 0, 0, int(table.get("additional", 0)))


def dns_response(rng: random.Random, table: dict[str, Any]) -> bytes:
    """Write an answer of about `size` bytes: TXT, RRSIG or DNSKEY records for `name`, with EDNS."""
    kind = type_number(table.get("type", "ANY"))
    question = dns_wire(table["name"]) + struct.pack("!HH", kind, 1)
    size, records, count = int(table.get("size", 3000)), b"", 0
    while 12 + len(question) + len(records) + 11 < size:
        records += _record(rng, kind, rng.randint(180, 255))
        count += 1
    header = struct.pack("!6H", rng.getrandbits(16), 0x8180, 1, count, 0, 1)
    return header + question + records + _opt(4096)


def _record(rng: random.Random, kind: int, size: int) -> bytes:
    if kind == _RRSIG:
        data = struct.pack("!HBBIIIH", 1, 8, 2, 3600, 1_900_000_000, 1_899_000_000, 20326)
        data += rng.randbytes(size)
        return b"\xc0\x0c" + struct.pack("!HHIH", 46, 1, 3600, len(data)) + data
    if kind == _DNSKEY:
        data = struct.pack("!HBB", 257, 3, 8) + rng.randbytes(size)
        return b"\xc0\x0c" + struct.pack("!HHIH", 48, 1, 3600, len(data)) + data
    text = bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz0123456789=;-", k=size))
    return b"\xc0\x0c" + struct.pack("!HHIH", 16, 1, 3600, len(text) + 1) + bytes([len(text)]) + text


def _opt(size: int) -> bytes:
    return struct.pack("!BHHIH", 0, 41, size, 0x8000, 0)
