"""Decode one packet with scapy; the only module that imports it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scapy.layers import dhcp, dns, inet, inet6, isakmp, l2, l2tp, ldap, netbios, ntp, sctp, snmp, tftp, vxlan
from scapy.packet import NoPayload, Packet, Padding, Raw

from fwtop.dissect.wire import MAX_FIELDS, MAX_LAYERS, MAX_VALUE, Dissection, Layer, bounded
from fwtop.model.text import payload_text

_MAX_DEPTH = 3  # of packets nested in fields, such as a DNS answer's records
# scapy registers a protocol when its module is imported.
KNOWN = (dhcp, dns, inet6, isakmp, l2tp, ldap, netbios, ntp, sctp, snmp, tftp, vxlan)

_Packet = Any  # scapy has no types
_Found = Iterator[tuple[str, str]]


def dissect(data: bytes, link: int) -> Dissection:
    """Decode one packet; raises whatever scapy raises on malformed input."""
    if not data:
        return Dissection((), "the packet is empty")
    packet = _outermost(data, link)
    layers: list[Layer] = []
    while packet and not isinstance(packet, NoPayload):
        if len(layers) == MAX_LAYERS:
            return Dissection(tuple(layers), f"more than {MAX_LAYERS} layers")
        layers.append(_layer(packet))
        packet = packet.payload
    return Dissection(tuple(layers))


def _outermost(data: bytes, link: int) -> _Packet:
    if link == 1:
        return l2.Ether(data)
    version = data[0] >> 4
    if version == 4:
        return inet.IP(data)
    return inet6.IPv6(data) if version == 6 else Raw(data)


def _layer(packet: _Packet) -> Layer:
    if isinstance(packet, (Raw, Padding)):
        load = bytes(packet.load)
        fields = [("length", f"{len(load)} bytes"), ("text", payload_text(load, limit=MAX_VALUE))]
        fields.append(("hex", load[: MAX_VALUE // 2].hex()))
        return bounded("Padding" if isinstance(packet, Padding) else "Payload", fields)
    found: list[tuple[str, str]] = []
    for pair in _fields(packet, "", 0):
        found.append(pair)
        if len(found) == MAX_FIELDS:
            break
    return bounded(packet.name, found)


def _fields(packet: _Packet, prefix: str, depth: int) -> _Found:
    for field in packet.fields_desc:
        if field.name not in packet.fields and field.name not in packet.default_fields:
            continue  # a conditional field, absent from this packet
        value = packet.getfieldval(field.name)
        name = f"{prefix}{field.name}"
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
            yield f"{name}.data", payload_text(bytes(packet.load), limit=MAX_VALUE)
        else:
            yield from _fields(packet, f"{name}.", depth + 1)
        packet = packet.payload


def _text(packet: _Packet, field: _Packet, value: object) -> str:
    if isinstance(value, bytes):
        return payload_text(value, limit=MAX_VALUE)
    return str(field.i2repr(packet, value))
