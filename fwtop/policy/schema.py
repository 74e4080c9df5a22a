"""What a policy file may hold: a Struct for each table, of which its reader and its JSON schema are made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from fwtop.model.addresses.targets import MAX_NAME
from fwtop.model.settings_file import must

TRIAL = ".try"  # how the name of a list ends that is tried before it takes another's place
MAX_LIST_NAME = MAX_NAME - len(TRIAL)

_ListName = Annotated[
    str,
    Meta(pattern=f"^[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_LIST_NAME - 1}}}$"),
    must(f"up to {MAX_LIST_NAME} letters, digits and any of _.- between or after them"),
]
_OneOrMore = str | tuple[str, ...]
_Family = Annotated[Literal[4, 6], Meta(description="4 or 6; both families without it")]
_Proto = Annotated[str, Meta(description="tcp, udp, icmp, … or a number as text")]
_Port = Annotated[int, Meta(ge=0, le=65535, description="destination port")]


class ListTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A named list."""

    file: (
        Annotated[
            str,
            Meta(
                description="one address or prefix a line, # starts a comment; "
                "beside the policy if not absolute"
            ),
        ]
        | UnsetType
    ) = UNSET
    entries: Annotated[_OneOrMore, Meta(description="addresses and prefixes, besides those of the file")] = ()
    least: (
        Annotated[int, Meta(ge=0, description="refuse the policy if the list has fewer entries")] | UnsetType
    ) = UNSET
    most: (
        Annotated[int, Meta(ge=0, description="refuse the policy if the list has more entries")] | UnsetType
    ) = UNSET

    @property
    def texts(self) -> tuple[str, ...]:
        """Its own entries."""
        return several(self.entries)


class PortTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A protected port, as of fwtop protect."""

    service: Annotated[
        str | Annotated[tuple[str, ...], Meta(min_length=1)], Meta(description="443/tcp, 53/udp, …")
    ]
    level: (
        Annotated[Literal["open", "protected", "closed"], Meta(description="who may open connections")]
        | UnsetType
    ) = UNSET
    acl: Annotated[_OneOrMore, Meta(description="names of lists to let in")] = ()
    priority: Annotated[
        int, Meta(ge=0, le=1000, description="of several rules on a port the highest decides")
    ] = 0
    strict: Annotated[bool, Meta(description="hold established connections to the level, too")] = False
    family: _Family | UnsetType = UNSET


class BlockTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Packets from a list are dropped, as of fwtop block --list."""

    list: Annotated[str, Meta(description="name of a list whose packets are dropped")]
    via: Annotated[Literal["ipset", "xdp", "tc", "nftables"], Meta(description="where")] = "ipset"
    family: _Family | UnsetType = UNSET


class LimitTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Packets or connections from a prefix are limited, as of fwtop limit."""

    per: Annotated[int, Meta(ge=1, le=128, description="source prefix length that has one budget")]
    per6: Annotated[int, Meta(ge=1, le=128, description="the same for IPv6")] | UnsetType = UNSET
    proto: _Proto | UnsetType = UNSET
    dport: _Port | UnsetType = UNSET
    rate: Annotated[str, Meta(description="1000/s, 30/m, or bytes: 2MB/s")] | UnsetType = UNSET
    connections: (
        Annotated[
            int, Meta(ge=1, description="TCP connections that a prefix may have open, instead of a rate")
        ]
        | UnsetType
    ) = UNSET
    burst: Annotated[int, Meta(ge=1, description="packets or bytes at once")] | UnsetType = UNSET
    by_port: Annotated[bool, Meta(description="count each destination port separately")] = False
    via: Annotated[Literal["hashlimit", "xdp", "tc"], Meta(description="where")] | UnsetType = UNSET
    family: _Family | UnsetType = UNSET


class SignatureTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Packets with a payload are dropped, as of fwtop match."""

    string: Annotated[str, Meta(description="this text in the payload")] | UnsetType = UNSET
    hex: Annotated[str, Meta(description="these bytes in the payload")] | UnsetType = UNSET
    dns: Annotated[str, Meta(description="this DNS name, in wire format")] | UnsetType = UNSET
    type: Annotated[str, Meta(description="with dns: only this query type")] | UnsetType = UNSET
    mask: Annotated[str, Meta(description="with hex: compare only the bits set in this mask")] | UnsetType = (
        UNSET
    )
    offset: (
        Annotated[int, Meta(ge=0, le=65535, description="only at this offset of the payload")] | UnsetType
    ) = UNSET
    proto: _Proto | UnsetType = UNSET
    dport: _Port | UnsetType = UNSET
    via: Annotated[Literal["string", "xdp", "tc"], Meta(description="where")] | UnsetType = UNSET
    family: _Family | UnsetType = UNSET


class Thresholds(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on changes."""

    max_change: Annotated[
        float,
        Meta(ge=0, le=1, description="share of a list's entries that may come or go at once without --force"),
    ] = 1.0


class Monitor(Struct, frozen=True, forbid_unknown_fields=True):
    """What is done about changes that others make."""

    repair: Annotated[
        bool, Meta(description="put back what somebody takes out of the kernel, within 5 s")
    ] = False


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
