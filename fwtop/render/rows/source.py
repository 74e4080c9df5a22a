"""Where packets come from: an address, a prefix, a network or a country."""

from __future__ import annotations

from msgspec.structs import replace

from fwtop.model.traffic.snapshot import Source
from fwtop.render.rows.field import DROPPED, Field, RowType, Unit, alphabetical, estimate

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


def _reported(item: Source) -> tuple[str, str]:
    is_country = item.prefix is None and len(item.key) == len("NL")
    known = () if is_country else (item.country, _owner(item))
    return item.key, " · ".join(part for part in known if part)


def _packets(item: Source) -> str:
    if item.prefix is None:
        return ""
    return f"{'ip' if item.prefix.family == 4 else 'ipv6'}.src == {item.prefix}"


SOURCE = RowType(
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
        Field("network", value=_network, json=False, label="network", unknown="not known"),
    ),
    columns="key who country owner bar share pps dropped_share",
    details="key role country network share packets bytes dropped_share",
    sorts=(
        ("dropped", lambda item: item.dropped_share),
        ("bytes", lambda item: item.share.bytes),
        ("name", lambda item: alphabetical(item.key)),
        ("who", lambda item: alphabetical(item.who)),
    ),
    packets=_packets,
    reported=_reported,
)
