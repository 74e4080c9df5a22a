"""UDP services that amplify: their ports and the shape of their answers.

Ports and answers are those of CISA alert TA14-017A (UDP-Based Amplification Attacks), the Shadowserver
"accessible" reports, RFC 8085 section 6.1 and the amplification field reports of Akamai SIRT, Cloudflare
and NETSCOUT ASERT named beside the rarer ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from fwtop.analysis.parsers import tls
from fwtop.analysis.window.counting import among, marked
from fwtop.model.traffic.packets import I64, U8, Mask

_WORD = 8  # bytes
Shape = Callable[[U8, I64], Mask]


class Service(Struct, frozen=True):
    """A service that can be used as a reflector; `shape` recognises its answers, None: no fixed prefix."""

    name: str
    title: str
    ports: tuple[int, ...]
    shape: Shape | None = None
    anywhere: bool = False  # the shape is specific enough without a port


def starts(*beginnings: bytes, at: int = 0) -> Shape:
    """Make a shape: the payload has one of these strings at the offset."""

    by_first: dict[int, list[_Beginning]] = {}
    for text in beginnings:
        by_first.setdefault(text[0], []).append(_Beginning.of(text))

    def shape(payload: U8, length: I64) -> Mask:
        found = np.zeros(len(payload), np.bool_)
        word = payload[:, at : at + _WORD].view("<u8")[:, 0]  # compares faster than as many columns
        for first, texts in by_first.items():
            if len(texts) > 1 and not marked(payload[:, at] == first):  # hardly any, mostly
                continue
            for text in texts:
                same = (word & text.ones) == text.word
                if not marked(same):
                    continue
                if len(text.rest):
                    rows = np.flatnonzero(same)
                    same[rows] = (payload[rows, at + _WORD : at + text.size] == text.rest).all(1)
                found |= same & (length >= at + text.size)
        return found

    return shape


class _Beginning(Struct, frozen=True):
    """A string at the beginning of payloads: its first eight bytes as one number, and what follows them."""

    size: int
    ones: np.uint64  # the bits of the word that count
    word: np.uint64
    rest: U8

    @staticmethod
    def of(text: bytes) -> _Beginning:
        ones, word = (int.from_bytes(one[:_WORD], "little") for one in (b"\xff" * len(text), text))
        return _Beginning(len(text), np.uint64(ones), np.uint64(word), np.frombuffer(text[_WORD:], np.uint8))


def dns_answer(payload: U8, length: I64) -> Mask:
    """RFC 1035 4.1.1: QR set, standard opcode, Z zero, few questions, plausible counts.

    A mask, not a parse, because it runs over whole columns; more than 4 questions don't occur.
    """
    flags, opcode = payload[:, 2], (payload[:, 2] >> 3) & 15
    questions = _be16(payload, 4)
    counts = _be16(payload, 6) + _be16(payload, 8) + _be16(payload, 10)
    return np.asarray((length >= 12) & (flags >= 0x80) & (opcode <= 5) & (questions <= 4) & (counts < 2048))


def dns_query(payload: U8, length: I64) -> Mask:
    """RFC 1035 4.1.1: QR clear, opcode 0 to 5, one question and no answer, a label that can be one."""
    opcode = (payload[:, 2] >> 3) & 15
    plain = (payload[:, 2] < 0x80) & (opcode <= 5) & ((payload[:, 3] & 0x40) == 0)
    counts = (_be16(payload, 4) == 1) & (_be16(payload, 6) == 0) & (_be16(payload, 10) <= 2)
    return np.asarray((length >= 17) & plain & counts & (payload[:, 12] < 64))


def ntp_answer(payload: U8, length: I64) -> Mask:
    """RFC 5905 and ntpd's private mode: mode 7 or 6 with the response bit, or a server's reply."""
    mode = payload[:, 0] & 7
    private = (mode == 7) & (payload[:, 0] >= 0x80)
    control = (mode == 6) & (payload[:, 1] >= 0x80)
    server = (mode == 4) & (length >= 48)
    return np.asarray((length >= 8) & (private | control | server))


def ntp_question(payload: U8, length: I64) -> Mask:
    """RFC 5905 7.3: mode 3 (client), versions 1 to 4; a short sample holds the beginning of the 48 bytes."""
    version = (payload[:, 0] >> 3) & 7
    return np.asarray((length >= 16) & ((payload[:, 0] & 7) == 3) & (version >= 1) & (version <= 4))


def memcached_answer(payload: U8, length: I64) -> Mask:
    """Memcached protocol.txt: a UDP frame of 8 bytes, then text; later datagrams hold data only."""
    frame = (payload[:, 6] == 0) & (payload[:, 7] == 0) & (length >= 8)
    count, number = _be16(payload, 4), _be16(payload, 2)
    return np.asarray(frame & (count > 0) & (number < count))


def printable(payload: U8, length: I64) -> Mask:
    """RFC 864, 865: ASCII text only."""
    column = np.arange(payload.shape[1])
    text = ((payload >= 0x20) & (payload < 0x7F)) | ((payload >= 9) & (payload <= 13))
    return np.asarray((text | (column >= length[:, None])).all(1) & (length >= 1))


def ber_sequence(payload: U8, length: I64) -> Mask:
    """X.690: SNMP (RFC 3416) and CLDAP (RFC 1798) messages are a SEQUENCE with an INTEGER in front."""
    first = payload[:, 1]
    skip = np.where(first < 0x80, 2, 2 + (first & 0x7F).astype(np.int64))
    inner = payload[np.arange(len(payload)), np.minimum(skip, payload.shape[1] - 1)]
    return np.asarray((payload[:, 0] == 0x30) & (length >= 5) & (skip <= 6) & (inner == 2))


def cldap_search(payload: U8, length: I64) -> Mask:
    """RFC 4511 4.5.1: a searchRequest (0x63) behind the message id."""
    found = np.zeros(len(payload), np.bool_)
    for at in (5, 9):  # with short and long lengths
        found |= payload[:, at] == 0x63
    return np.asarray(ber_sequence(payload, length) & found)


def snmp_bulk(payload: U8, length: I64) -> Mask:
    """RFC 3416 4.2.3: a GetBulkRequest (0xA5) behind version and community, wherever that ends."""
    asks = (payload[:, 8:40] == 0xA5).any(1)
    return np.asarray(ber_sequence(payload, length) & asks)


def anything(payload: U8, length: I64) -> Mask:
    """RFC 864, 865: the server answers whatever it gets."""
    return np.ones(len(payload), np.bool_) & (length >= 0)


def isakmp_answer(payload: U8, length: I64) -> Mask:
    """RFC 7296 3.1: version 2.0 with the response flag, or 1.0 with a responder's cookie (RFC 2408 3.1)."""
    version, response = payload[:, 17], (payload[:, 19] & 0x20) != 0
    first = (version == 0x10) & (payload[:, 8:16] != 0).any(1)
    return np.asarray((length >= 20) & (first | ((version == 0x20) & response)))


def coap_answer(payload: U8, length: I64) -> Mask:
    """RFC 7252 3: version 1, a response code (2.xx to 5.xx)."""
    return np.asarray((length >= 4) & (payload[:, 0] >> 6 == 1) & among(payload[:, 1] >> 5, (2, 4, 5)))


def coap_discovery(payload: U8, length: I64) -> Mask:
    """RFC 7252 7.2: GET of the list of all resources (.well-known behind the token), with or without ACK."""
    path = np.frombuffer(b".well-known", np.uint8)
    asked = np.zeros(len(payload), np.bool_)
    for at in range(5, 14):
        asked |= (payload[:, at : at + len(path)] == path).all(1)
    kind = among(payload[:, 0] >> 4, (4, 5))
    return np.asarray((length >= 16) & kind & (payload[:, 1] == 1) & asked)


def rpc_answer(payload: U8, length: I64) -> Mask:
    """RFC 5531: message type 1 (reply) after the transaction id."""
    return np.asarray((length >= 8) & (_be16(payload, 4) == 0) & (_be16(payload, 6) == 1))


def openvpn_answer(payload: U8, length: I64) -> Mask:
    """OpenVPN's opcodes 1 to 11 in the upper five bits of the first byte."""
    opcode = payload[:, 0] >> 3
    return np.asarray((length >= 14) & (opcode >= 1) & (opcode <= 11))


def bittorrent_answer(payload: U8, length: I64) -> Mask:
    """BEP 5 (bencoded dictionary) or BEP 29 (uTP version 1 with a known type)."""
    return bencoded_answer(payload, length) | utp_packet(payload, length)


def bencoded_answer(payload: U8, length: I64) -> Mask:
    """BEP 5: a dictionary with a first key of 1 or 2 letters ("r", "t", "ip"), but not the "a" of queries."""
    key = payload[:, 3]
    letter = (key > 0x61) & (key <= 0x7A)
    known = among(payload[:, 1], (0x31, 0x32)) & letter
    return np.asarray((length >= 8) & (payload[:, 0] == 0x64) & (payload[:, 2] == 0x3A) & known)


bencoded_question = starts(b"d1:ad2:id")


def utp_packet(payload: U8, length: I64) -> Mask:
    """BEP 29: uTP version 1 of a known type, with no or a known extension."""
    kind = among(payload[:, 0], (0x01, 0x11, 0x21, 0x31, 0x41))
    return np.asarray(kind & (payload[:, 1] <= 2) & (length >= 20))


def dtls_answer(payload: U8, length: I64) -> Mask:
    """RFC 6347: a handshake or alert record of DTLS 1.0 or 1.2."""
    return np.asarray((length >= 13) & among(payload[:, 0], (21, 22)) & (payload[:, 1] == 0xFE))


def stun_answer(payload: U8, length: I64) -> Mask:
    """RFC 8489 5 and 6.3: a success or error response, with the magic cookie where it is captured."""
    kind = (payload[:, 0] == 1) & among(payload[:, 1], (0x01, 0x11))
    cookie = (_be16(payload, 4) == 0x2112) & (_be16(payload, 6) == 0xA442)
    return np.asarray((length >= 8) & kind & cookie)


def quic_answer(payload: U8, length: I64) -> Mask:
    """RFC 9000 17.2: a long header of a known version, as in all unrequested answers."""
    return np.asarray(tls.plausible_quic(payload, length) & (payload[:, 0] >= 0x80))


def _be16(payload: U8, at: int) -> I64:
    return (payload[:, at].astype(np.int64) << 8) | payload[:, at + 1]


_QUAKE_ANSWERS = (b"statusResponse", b"infoResponse", b"getserversResponse", b"print", b"n")
_QUAKE = starts(*(b"\xff\xff\xff\xff" + word for word in _QUAKE_ANSWERS), b"\xff\xff\xffinfo")
_STEAM = starts(*(b"\xff\xff\xff\xff" + bytes([c]) for c in b"IDEAmjl"), b"\xfe\xff\xff\xff")
_XML = starts(b"<?xml", b"<SOAP", b"<soap", b"<s:Env", b"<env", b"<Env", b"\xef\xbb\xbf<")
_SSDP = starts(b"HTTP/1.1 200", b"NOTIFY * HTTP", b"HTTP/1.0 200")

SERVICES: tuple[Service, ...] = (
    Service("echo", "Echo", (7,)),
    Service("qotd", "Quote of the day", (17,), printable),
    Service("chargen", "Character generator", (19,), printable),
    Service("dns", "DNS", (53,), dns_answer),
    Service("tftp", "TFTP", (69,), starts(b"\0\x03", b"\0\x05", b"\0\x06")),
    Service("rpcbind", "RPC portmapper", (111,), rpc_answer),
    Service("ntp", "NTP", (123,), ntp_answer),
    Service("netbios", "NetBIOS name service", (137, 138), dns_answer),
    Service("snmp", "SNMP", (161,), ber_sequence),
    Service("xdmcp", "XDMCP", (177,), starts(b"\0\x01")),
    Service("cldap", "CLDAP", (389,), ber_sequence),
    Service("slp", "Service Location Protocol", (427,), starts(b"\x02", b"\x01")),
    Service("isakmp", "ISAKMP/IKE", (500, 4500), isakmp_answer),
    Service("ripv1", "RIPv1", (520,), starts(b"\x02\x01", b"\x02\x02")),
    Service("db2", "DB2 discovery", (523,), starts(b"DB2")),
    Service("ipmi", "IPMI/RMCP", (623,), starts(b"\x06\0")),
    Service("openvpn", "OpenVPN", (1194,), openvpn_answer),
    Service("mssql", "MS SQL Server Browser", (1434,), starts(b"\x05")),
    Service("citrix", "Citrix ICA browser", (1604,)),
    Service("l2tp", "L2TP", (1701,), starts(b"\xc8\x02", b"\xc8\x03", b"\xc0\x02")),
    Service("ssdp", "SSDP", (1900,), _SSDP, anywhere=True),
    Service("digiman", "Digiman", (2362,), starts(b"DIGI")),
    Service("arms", "Apple Remote Management", (3283,), starts(b"\0\x01", b"\0\x02")),
    Service("rdp", "Remote Desktop over UDP", (3389,)),
    Service("dtls", "DTLS", (443, 3391, 4433, 5684, 10443), dtls_answer),
    Service("quic", "QUIC", (443, 80), quic_answer),
    Service("stun", "STUN", (3478,), stun_answer, anywhere=True),
    Service("ws_discovery", "WS-Discovery", (3702,), _XML),
    Service("sip", "SIP", (5060, 5061), starts(b"SIP/2.0"), anywhere=True),
    Service("sentinel", "Sentinel licence manager", (5093,)),
    Service("nat_pmp", "NAT-PMP", (5351,), starts(b"\0\x80", b"\0\x81")),
    Service("mdns", "Multicast DNS", (5353,), dns_answer),
    Service("llmnr", "LLMNR", (5355,), dns_answer),
    Service("pcanywhere", "pcAnywhere", (5632,)),
    Service("mndp", "MikroTik discovery", (5678,)),
    Service("coap", "CoAP", (5683,), coap_answer),
    Service("bittorrent", "BitTorrent", (6881, 6882, 6889, 6969, 51413), bittorrent_answer),
    Service("bittorrent", "BitTorrent", (), bencoded_answer, anywhere=True),
    Service("bjnp", "Canon BJNP", (8610, 8611, 8612), starts(b"BJNP")),
    Service("teamspeak", "TeamSpeak", (8767, 9987)),
    Service("ubiquiti", "Ubiquiti discovery", (10001,), starts(b"\x01", b"\x02")),
    # Akamai, "CVE-2022-26143: TP240PhoneHome reflection/amplification" (2022)
    Service("tp240", "Mitel TP-240", (10074,)),
    Service("memcached", "Memcached", (11211,), memcached_answer),
    Service("vxworks", "VxWorks debug agent", (17185,)),
    Service("minecraft", "Minecraft Bedrock", (19132,), starts(b"\x1c")),
    Service("quake", "Quake", (26000, 27500, 27910, 27950, 27960, 27961, 28960, 30120), _QUAKE),
    Service("steam", "Steam (A2S)", (2303, *range(27005, 27051), 27960), _STEAM),
    Service("lantronix", "Lantronix discovery", (30718,)),
    Service("plex", "Plex Media Server", (32410, 32414), starts(b"HTTP/1.0 200", b"HTTP/1.1 200")),
    Service("jenkins", "Jenkins discovery", (33848,), starts(b"<hudson")),
    Service("hikvision", "Hikvision SADP", (37020,), _XML),
    Service("dvr_dhcpdiscover", "DVR DHCPDiscover", (37810,)),
    Service("crestron", "Crestron CIP", (41794,), starts(b"\x14")),
    Service("bacnet", "BACnet", (47808,), starts(b"\x81")),
    Service("mumble", "Mumble", (64738,)),
    # Game and file-transfer answers recognised by content on any port
    Service("quake", "Quake", (), _QUAKE, anywhere=True),
    Service("steam", "Steam (A2S)", (), _STEAM, anywhere=True),
    Service("ws_discovery", "WS-Discovery", (), _XML, anywhere=True),
)

# Requests of query floods: name, port (if the bytes alone aren't specific), shape
FIRST_OF_QUIC = "first packets of QUIC connections"
QUESTIONS: tuple[tuple[str, int | None, Shape], ...] = (
    ("queries of the Source engine (A2S)", None, starts(*(b"\xff\xff\xff\xff%c" % c for c in b"TUVWi"))),
    ("status requests of Quake's engine", None, starts(b"\xff\xff\xff\xffget", b"\xff\xff\xff\xffstatus")),
    ("openings of TeamSpeak 3 connections", None, starts(b"TS3INIT1")),
    ("pings of Minecraft Bedrock or RakNet", None, starts(b"\x01\0\0\0\0\0\0")),
    ("SIP REGISTER requests", None, starts(b"REGISTER ")),
    ("SIP OPTIONS requests", None, starts(b"OPTIONS sip")),
    ("SIP INVITE requests", None, starts(b"INVITE ")),
    ("STUN requests", 3478, starts(b"\0\x01\0", b"\0\x03\0")),
    ("NTP monlist requests", 123, starts(b"\x17\0\x03\x2a")),
    ("NTP clients' requests", 123, ntp_question),
    ("SSDP searches", None, starts(b"M-SEARCH")),
    ("SLP requests", 427, starts(b"\x02\x01", b"\x02\x06", b"\x02\x09")),
    ("multicast DNS queries", 5353, dns_query),
    (FIRST_OF_QUIC, 443, quic_answer),
    ("TFTP read requests", 69, starts(b"\0\x01")),
)

# Requests with amplified answers: floods of them carry the spoofed address of a victim
REFLECTED_REQUESTS: dict[str, tuple[int, Shape]] = {
    "ntp": (123, starts(b"\x17\0\x03*", b"\x17\0\x02*", b"\x27\0\x03*", b"\x16\x02\0", b"\x16\x01\0")),
    "memcached": (11211, starts(b"stats", b"get", b"gets ", at=8)),
    "ssdp": (1900, starts(b"M-SEARCH")),
    "cldap": (389, cldap_search),
    "snmp": (161, snmp_bulk),
    "chargen": (19, anything),
    "qotd": (17, anything),
    "rpcbind": (111, starts(b"\0\0\0\0\0\0\0\x02\0\x01\x86\xa0", at=4)),
    "netbios": (137, starts(b"\x20CKAAAAAAAAAAAAAAAA", at=12)),
    "mssql": (1434, starts(b"\x02", b"\x03")),
    "ripv1": (520, starts(b"\x01\x01\0\0")),
    "ws_discovery": (3702, _XML),
    "arms": (3283, starts(b"\0\x14\0\0")),
    "ubiquiti": (10001, starts(b"\x01\0\0\0", b"\x02\x08\0\0")),
    "dvr_dhcpdiscover": (37810, anything),
    "coap": (5683, coap_discovery),
    "quake": (27960, starts(b"\xff\xff\xff\xffget")),
    "slp": (427, starts(b"\x02\x01", b"\x02\x06", b"\x02\x09")),
    "plex": (32414, starts(b"M-SEARCH")),
    "tftp": (69, starts(b"\0\x01")),
    "mdns": (5353, dns_query),
}

BY_PORT: dict[int, tuple[Service, ...]] = {}
for _service in SERVICES:
    for _port in _service.ports:
        BY_PORT[_port] = (*BY_PORT.get(_port, ()), _service)
# Collector ports: DHCP relays, traps, syslog, RADIUS, NetFlow and IPFIX, sFlow, GELF, StatsD
COLLECTORS = frozenset(
    (67, 162, 514, 547, 1813, 2055, 4739, 5140, 6343, 6831, 8089, 8125, 9125, 9995, 9996, 12201, 25826)
)
# Services with bulk traffic from a single server: packets alone don't reveal a few reflectors of these
SPOKEN = ("dns", "quic", "dtls", "openvpn", "l2tp", "sip", "stun", "rdp", "steam", "quake", "tftp", "isakmp")
WEB = (80, 443)  # downloads use these, too: only content proves a reflection
ANYWHERE = tuple(service for service in SERVICES if service.anywhere)


def tftp_data(payload: U8, length: I64) -> Mask:
    """RFC 1350: DATA (opcode 3) of the first blocks or an ERROR of its 8 codes; the port is random."""
    opcode = _be16(payload, 0)
    data = (opcode == 3) & (_be16(payload, 2) <= 64)
    error = (opcode == 5) & (payload[:, 2] == 0) & (payload[:, 3] <= 8)
    empty = (payload[:, 4] == 0) & (length == 5)  # flow records (NetFlow 5) begin alike and go on
    text = empty | ((payload[:, 4] >= 0x20) & (payload[:, 4] < 0x7F))
    return np.asarray((length >= 5) & (data | (error & text)))
