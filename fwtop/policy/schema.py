"""What a policy file may hold: a Struct for each table, of which its reader and its JSON schema are made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from fwtop.model.addresses.address import MAX_NAME
from fwtop.model.settings_file import must

TRIAL = ".try"  # how the name of a list ends that is tried before it takes another's place
MAX_LIST_NAME = MAX_NAME - len(TRIAL)

_ListName = Annotated[
    str,
    Meta(pattern=f"^[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_LIST_NAME - 1}}}$"),
    must(f"up to {MAX_LIST_NAME} letters, digits and any of _.- between or after them"),
]


def _says(description: str, **bounds: Any) -> Meta:  # noqa: ANN401 - as Meta takes them
    return Meta(description=description, **bounds)


_OneOrMore = str | tuple[str, ...]
_Family = Annotated[Literal[4, 6], _says("4 or 6; both families without it")]
_Proto = Annotated[str, _says("tcp, udp, icmp, … or a number as text")]
_Mode = Annotated[Literal["drop", "count"], _says("count: drop nothing, and count what would be dropped")]
_Group = Annotated[str, _says("its rules are switched together: fwtop group")]
_Port = Annotated[int, _says("destination port", ge=0, le=65535)]


class ListTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A named list."""

    file: (
        Annotated[str, _says("one entry a line, # starts a comment; beside the policy if not absolute")]
        | UnsetType
    ) = UNSET
    entries: Annotated[
        _OneOrMore, _says("addresses, addresses with ports, or pairs of networks, besides those of the file")
    ] = ()
    least: Annotated[int, _says("refuse the policy if the list has fewer entries", ge=0)] | UnsetType = UNSET
    most: Annotated[int, _says("refuse the policy if the list has more entries", ge=0)] | UnsetType = UNSET

    @property
    def texts(self) -> tuple[str, ...]:
        """Its own entries."""
        return several(self.entries)


class PortTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A protected port, as of fwtop protect."""

    service: Annotated[str | Annotated[tuple[str, ...], Meta(min_length=1)], _says("443/tcp, 53/udp, …")]
    level: (
        Annotated[Literal["open", "protected", "closed"], _says("who may open connections")] | UnsetType
    ) = UNSET
    acl: Annotated[_OneOrMore, _says("names of lists to let in")] = ()
    priority: Annotated[int, _says("of several rules on a port the highest decides", ge=0, le=1000)] = 0
    strict: Annotated[bool, _says("hold established connections to the level, too")] = False
    family: _Family | UnsetType = UNSET
    mode: _Mode = "drop"
    group: _Group | UnsetType = UNSET


class BlockTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Packets from a list are dropped, as of fwtop block --list."""

    list: Annotated[str, _says("name of a list whose packets are dropped")]
    via: Annotated[Literal["ipset", "xdp", "tc", "nftables"], _says("where")] = "ipset"
    family: _Family | UnsetType = UNSET
    mode: _Mode = "drop"
    group: _Group | UnsetType = UNSET


class LimitTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Packets or connections from a prefix are limited, as of fwtop limit."""

    per: Annotated[int, _says("source prefix length that has one budget", ge=1, le=128)]
    per6: Annotated[int, _says("the same for IPv6", ge=1, le=128)] | UnsetType = UNSET
    proto: _Proto | UnsetType = UNSET
    dport: _Port | UnsetType = UNSET
    rate: Annotated[str, _says("1000/s, 30/m, or bytes: 2MB/s")] | UnsetType = UNSET
    connections: (
        Annotated[int, _says("TCP connections that a prefix may have open, instead of a rate", ge=1)]
        | UnsetType
    ) = UNSET
    burst: Annotated[int, _says("packets or bytes at once", ge=1)] | UnsetType = UNSET
    by_port: Annotated[bool, _says("count each destination port separately")] = False
    via: Annotated[Literal["hashlimit", "xdp", "tc"], _says("where")] | UnsetType = UNSET
    family: _Family | UnsetType = UNSET
    mode: _Mode = "drop"
    group: _Group | UnsetType = UNSET


class SignatureTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Packets with a payload are dropped, as of fwtop match."""

    string: Annotated[str, _says("this text in the payload")] | UnsetType = UNSET
    hex: Annotated[str, _says("these bytes in the payload")] | UnsetType = UNSET
    dns: Annotated[str, _says("this DNS name, in wire format")] | UnsetType = UNSET
    type: Annotated[str, _says("with dns: only this query type")] | UnsetType = UNSET
    mask: Annotated[str, _says("with hex: compare only the bits set in this mask")] | UnsetType = UNSET
    offset: Annotated[int, _says("only at this offset of the payload", ge=0, le=65535)] | UnsetType = UNSET
    proto: _Proto | UnsetType = UNSET
    dport: _Port | UnsetType = UNSET
    via: Annotated[Literal["string", "xdp", "tc"], _says("where")] | UnsetType = UNSET
    family: _Family | UnsetType = UNSET
    mode: _Mode = "drop"
    group: _Group | UnsetType = UNSET


class Thresholds(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on changes."""

    max_change: Annotated[
        float,
        _says("share of a list's entries that may come or go at once without --force", ge=0, le=1),
    ] = 1.0


class Monitor(Struct, frozen=True, forbid_unknown_fields=True):
    """What is done about changes that others make."""

    repair: Annotated[bool, _says("put back what somebody takes out of the kernel, within 5 s")] = False


class PolicyFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy of fwtop: lists and rules that are always in force (docs/POLICY.md)."""

    schema: Literal[1]
    lists: dict[_ListName, ListTable] = field(name="list", default_factory=dict)
    thresholds: Thresholds = Thresholds()
    monitor: Monitor = Monitor()
    port: tuple[PortTable, ...] = ()
    block: tuple[BlockTable, ...] = ()
    limit: tuple[LimitTable, ...] = ()
    signature: tuple[SignatureTable, ...] = ()


RULE_TABLES = ("port", "block", "limit", "signature")


def several(value: _OneOrMore) -> tuple[str, ...]:
    """Return what may be one text or a list of them."""
    return (value,) if isinstance(value, str) else value


def schema() -> dict[str, Any]:
    """Return the JSON schema of the file, docs/policy.schema.json."""
    made = msgspec.json.schema(PolicyFile)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "fwtop policy", **made}
