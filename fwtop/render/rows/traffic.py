"""The traffic's rows: where packets come from, where they go to, ports, bytes that many payloads share."""

from __future__ import annotations

from msgspec.structs import replace

from fwtop.model.traffic.snapshot import Destination, Payload, Port, Source
from fwtop.render.rows.field import DROPPED, NORMAL, Field, RowType, Unit, alphabetical, estimate

SOURCE_LISTS = ("address", "prefix", "asn", "country")  # attributes of Sources
ROLES = {
    "you": "you: an SSH session to this host comes from it",
    "allowed": "on the allow-list: no rule drops it",
    "resolver": "a resolver of this host or of one behind it: its answers pass every rule",
    "time server": "a time server of this host or of one behind it: its answers pass every rule",
    "gateway": "a gateway of this host",
    "ssh client": "has an SSH session with a host behind this machine: that passes every rule",
    "router": "a router behind this machine: what it says to another router passes every rule",
    "this host": "an address of this host: packets from outside that bear it are forged",
    "attack": "attacks explain most of its packets",
    "client": "finishes handshakes or exchanged packets before the attack",
}


def _network(item: Source) -> str:
    name = item.as_name or ""
    return f"AS{item.asn} {name}".rstrip() if item.asn is not None else ""


def _owner(item: Source) -> str:
    """Return the network in a list of networks: its name is what the key doesn't say."""
    return (item.as_name or "") if item.asn is not None and item.key == f"AS{item.asn}" else _network(item)


def _reported_source(item: Source) -> tuple[str, str]:
    is_country = item.prefix is None and len(item.key) == len("NL")
    known = () if is_country else (item.country, _owner(item))
    return item.key, " · ".join(part for part in known if part)


def _packets_of_source(item: Source) -> str:
    if item.prefix is None:
        return ""
    return f"{'ip' if item.prefix.family == 4 else 'ipv6'}.src == {item.prefix}"


SOURCE = RowType(
    of=Source,
    key=lambda item: item.key,
    search=lambda item: f"{item.key} {item.who} {item.country or ''} AS{item.asn or ''} {item.as_name or ''}",
    fields=(
        Field("key", heading="address", width=15, grow=1, whole=True, sort="name", label="source"),
        Field("country", heading="from", width=4, keep=15, label="country", unknown="not known"),
        Field("asn"),
        Field("as_name"),
        Field("who", heading="who", width=7, keep=4),
        *estimate(),
        replace(DROPPED, words=f"{DROPPED.words}, {{dropped_low}} to {{dropped_high}} by samples"),
        Field("dropped_low", Unit.SHARE),
        Field("dropped_high", Unit.SHARE),
        Field("role", value=lambda item: ROLES.get(item.who, item.who), json=False, label="who"),
        Field("owner", value=_owner, json=False, heading="network", width=14, grow=3, keep=30),
        Field("network", value=_network, json=False, unknown="not known"),
    ),
    columns="key who country owner bar share error pps dropped_share",
    details="key role country network share packets bytes dropped_share",
    sorts=(
        ("dropped", lambda item: item.dropped_share),
        ("bytes", lambda item: item.share.bytes),
        ("name", lambda item: alphabetical(item.key)),
        ("who", lambda item: alphabetical(item.who)),
    ),
    packets=_packets_of_source,
    reported=_reported_source,
)


def part_text(item: Destination) -> str:
    """Say who is at an address: the services that answer, dark where nobody does."""
    return " ".join(item.serves) or item.part


DESTINATION = RowType(
    of=Destination,
    key=lambda item: item.key,
    search=lambda item: f"{item.key} {part_text(item)}",
    fields=(
        Field("key", heading="destination", width=15, grow=1, whole=True, label="address"),
        *estimate(),
        DROPPED,
        Field("part", value=lambda item: item.part or None),
        Field("serves"),
        Field("there", value=lambda item: part_text(item) if item.part else "", json=False, label="part"),
    ),
    columns="key bar share error pps dropped_share",
    details="key share packets bytes dropped_share there",
    sorts=(("dropped", lambda item: item.dropped_share), ("bytes", lambda item: item.share.bytes)),
    title=lambda item: f"destination {item.key}",
    packets=lambda item: f"{'ip' if item.prefix.family == 4 else 'ipv6'}.dst == {item.prefix}",
)


def port_name(item: Port) -> str:
    """Write a port as `udp dst 53`."""
    return f"{item.protocol} {item.side} {item.port}"


def _reported_port(item: Port) -> tuple[str, str]:
    return f"{item.protocol} {'from' if item.side == 'src' else 'to'} {item.port}", item.service or ""


def _packets_of_port(item: Port) -> str:
    return f"{item.protocol}.{item.side}port == {item.port}" if item.protocol in ("tcp", "udp") else ""


PORT = RowType(
    of=Port,
    key=port_name,
    search=lambda item: f"{port_name(item)} {item.service or ''}",
    fields=(
        Field("protocol"),
        Field("side", label="port", words="{protocol} {side_word} port {port}"),
        Field("port"),
        Field("service", heading="service", width=8, grow=1, keep=10, unknown="not known"),
        *estimate(bar=10),
        Field("name", value=port_name, json=False, heading="port", width=13, sort="number"),
        Field("side_word", value=lambda item: "destination" if item.side == "dst" else "source", json=False),
    ),
    columns="name service bar share error pps",
    details="side service share packets bytes",
    sorts=(("number", lambda item: -item.port), ("bytes", lambda item: item.share.bytes)),
    packets=_packets_of_port,
    reported=_reported_port,
)


def payload_name(item: Payload) -> str:
    """Show the DNS name where there is one, else the bytes as text."""
    return item.dns_name if item.dns_name is not None else item.text


def _at(item: Payload) -> str:
    return "any" if item.offset is None else f"+{item.offset}"


def _place(item: Payload) -> str:
    return "anywhere in the payload" if item.offset is None else f"at byte {item.offset} of the payload"


def _reported_payload(item: Payload) -> tuple[str, str]:
    return payload_name(item), "anywhere" if item.offset is None else f"at byte {item.offset}"


PAYLOAD = RowType(
    of=Payload,
    key=lambda item: f"{item.offset}:{item.data.hex()}",
    search=lambda item: f"{payload_name(item)} {item.data.hex()}",
    fields=(
        Field("hex", value=lambda item: item.data.hex()),
        Field("text"),
        Field("offset"),
        Field("dns_name", label="DNS name"),
        *estimate(),
        NORMAL,
        Field("name", value=payload_name, json=False, heading="bytes in common", width=20, grow=1),
        Field("at", value=_at, json=False, heading="at", width=4, keep=20),
        Field("place", value=_place, json=False),
        Field("length", value=lambda item: f"{len(item.data)} bytes", json=False),
    ),
    columns="name at bar share error pps baseline_share",
    details="place length dns_name share packets bytes baseline_share",
    sorts=(("rare in normal", lambda item: -item.baseline_share), ("length", lambda item: len(item.data))),
    title=lambda item: f"payload {payload_name(item)}",
    copied=lambda item: item.data.hex(),
    reported=_reported_payload,
)
