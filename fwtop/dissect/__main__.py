"""The dissector process: packets in, sanitised text out, nothing to lose; the only module that imports scapy.

It runs as a user of its own, starts when the first packet arrives, and confines itself before it reads that
packet: memory, CPU time, files, child processes, privileges, and every system call that could reach another
process. scapy is GPL-2.0-only; a separate process also keeps the licences apart.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

from scapy.layers import dhcp, dns, inet, inet6, isakmp, l2, l2tp, ldap, netbios, ntp, sctp, snmp, tftp, vxlan
from scapy.packet import NoPayload, Packet, Padding, Raw

from fwtop.dissect import client
from fwtop.model.text import payload_text
from fwtop.sandbox.confine import Profile, confine, limit

_MEMORY_BYTES = 512 << 20  # scapy with these protocols takes 60 MB
_CPU_SECONDS = 60  # for the whole process; the supervisor starts another one
_PACKET_SECONDS = 1.0
_SOCKET = 0  # standard input
_MAX_DEPTH = 3  # of packets nested in fields, such as a DNS answer's records
# scapy registers a protocol when its module is imported.
KNOWN = (dhcp, dns, inet6, isakmp, l2tp, ldap, netbios, ntp, sctp, snmp, tftp, vxlan)


class _TimeoutError(Exception):
    """Decoding a packet took longer than _PACKET_SECONDS."""


def main() -> int:
    """Serve requests on standard input until the other end closes it; returns the exit status."""
    os.chdir("/")
    confine(Profile.DISSECTOR)
    limit(_MEMORY_BYTES, cpu_seconds=_CPU_SECONDS, descriptors=3)
    signal.signal(signal.SIGALRM, _on_alarm)
    while message := os.read(_SOCKET, client.MAX_REQUEST):
        number, link, data = client.parse_request(message)
        os.write(_SOCKET, client.answer(number, _dissected(data, link)))
    return 0


def _dissected(data: bytes, link: int) -> client.Dissection:
    signal.setitimer(signal.ITIMER_REAL, _PACKET_SECONDS)
    try:
        return _decoded(data, link)
    except _TimeoutError:
        return client.Dissection((), "decoding this packet took too long")
    except Exception as error:  # scapy can raise anything on hostile packets
        return client.Dissection((), f"this packet could not be decoded ({type(error).__name__})")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _on_alarm(_number: int, _frame: FrameType | None) -> None:
    raise _TimeoutError


_Packet = Any  # scapy has no types
_Found = Iterator[tuple[str, str]]


def _decoded(data: bytes, link: int) -> client.Dissection:
    """Decode one packet; raises whatever scapy raises on malformed input."""
    if not data:
        return client.Dissection((), "the packet is empty")
    packet = _outermost(data, link)
    layers: list[client.Layer] = []
    while packet and not isinstance(packet, NoPayload):
        if len(layers) == client.MAX_LAYERS:
            return client.Dissection(tuple(layers), f"more than {client.MAX_LAYERS} layers")
        layers.append(_layer(packet))
        packet = packet.payload
    return client.Dissection(tuple(layers))


def _outermost(data: bytes, link: int) -> _Packet:
    if link == 1:
        return l2.Ether(data)
    version = data[0] >> 4
    if version == 4:
        return inet.IP(data)
    return inet6.IPv6(data) if version == 6 else Raw(data)


def _layer(packet: _Packet) -> client.Layer:
    if isinstance(packet, (Raw, Padding)):
        load = bytes(packet.load)
        fields = [("length", f"{len(load)} bytes"), ("text", payload_text(load, limit=client.MAX_VALUE))]
        fields.append(("hex", load[: client.MAX_VALUE // 2].hex()))
        return client.bounded("Padding" if isinstance(packet, Padding) else "Payload", fields)
    return client.bounded(packet.name, [*islice(_fields(packet, "", 0), client.MAX_FIELDS)])


def _fields(packet: _Packet, prefix: str, depth: int) -> _Found:
    for field in packet.fields_desc:
        if field.name not in packet.fields and field.name not in packet.default_fields:
            continue  # a conditional field, absent from this packet
        value, name = packet.getfieldval(field.name), f"{prefix}{field.name}"
        if value is None:
            continue
        if isinstance(value, Packet):
            yield from _nested(value, name, depth)
        elif isinstance(value, list) and value and isinstance(value[0], Packet):
            for place, item in enumerate(value):
                yield from _nested(item, f"{name}[{place}]", depth)
        else:
            yield name, _text(packet, field, value)


def _nested(packet: _Packet, name: str, depth: int) -> _Found:
    if depth >= _MAX_DEPTH:
        yield name, packet.name
        return
    while packet and not isinstance(packet, NoPayload):
        if isinstance(packet, (Raw, Padding)):
            yield f"{name}.data", payload_text(bytes(packet.load), limit=client.MAX_VALUE)
        else:
            yield from _fields(packet, f"{name}.", depth + 1)
        packet = packet.payload


def _text(packet: _Packet, field: _Packet, value: object) -> str:
    if isinstance(value, bytes):
        return payload_text(value, limit=client.MAX_VALUE)
    return str(field.i2repr(packet, value))


if __name__ == "__main__":
    sys.exit(main())
