"""How a row is declared: what is known of it, once for tables, details, `/`, JSON and reports.

Colours are the screen's, and each medium writes a unit in its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from operator import attrgetter
from typing import Any

from msgspec import Struct


class Unit(StrEnum):
    """What a measure counts."""

    TEXT = "text"
    COUNT = "count"
    BYTES = "bytes"
    PPS = "packets a second"
    BPS = "bits a second"
    SHARE = "share"  # 0 to 1
    MOMENT = "Unix seconds"
    NANOSECONDS = "nanoseconds"


_DIGITS = {Unit.PPS: 3, Unit.BPS: 1, Unit.SHARE: 6, Unit.NANOSECONDS: 1}  # in JSON


class Field(Struct, frozen=True, eq=False):
    """One thing that is known of a row."""

    name: str  # in JSON, where names stay for ever
    unit: Unit = Unit.TEXT
    value: Callable[[Any], Any] | str = ""  # or the path of the attribute; "": the one of that name
    digits: int | None = None  # in JSON, where it isn't as many as the unit has
    json: bool = True
    # Its column: a text too long is cut, or broken into lines if it is `whole`.
    heading: str = ""
    width: int = 0
    grow: int = 0  # parts of the spare width
    keep: int = 0  # the smaller, the longer it stays when room gets short; 0: always
    whole: bool = False
    sort: str = ""  # the order that its heading chooses, if not one of that name
    column: str = ""  # its name in screen.toml, if not the heading
    spills: bool = False  # takes the empty cells right of it, too
    # Its line of the details, with the names of fields in braces; left out where nothing is known.
    label: str = ""  # "": its heading, or its name
    words: str = ""  # "": itself
    unknown: str = ""
    # In a report on many snapshots, which weights it by packets.
    averaged: bool = False
    reported: bool = False  # and shows it in its tables

    def of(self, item: Any) -> Any:  # noqa: ANN401 - rows are of many types
        """Return it of a row."""
        return self.value(item) if callable(self.value) else attrgetter(self.value or self.name)(item)

    def rounded(self, value: Any) -> Any:  # noqa: ANN401
        """Round a value as JSON does."""
        digits = self.digits if self.digits is not None else _DIGITS.get(self.unit)
        return round(value, digits) if isinstance(value, float) and digits is not None else value


class RowType(Struct, frozen=True):
    """A kind of row: its fields in the order of JSON, and which of them tables and details show.

    `sorts` are orders by name, the greatest first. `packets` writes a filter for the Packets tab.
    """

    key: Callable[[Any], str]
    search: Callable[[Any], str]
    of: type = Struct  # the rows' class, by which it is found
    fields: tuple[Field, ...] = ()
    columns: str = ""  # names of fields in the order of a table
    details: str = ""
    sorts: tuple[tuple[str, Callable[[Any], Any]], ...] = ()
    title: Callable[[Any], str] | None = None  # of its details; None: the key
    copied: Callable[[Any], str] | None = None
    packets: Callable[[Any], str] | None = None
    reported: Callable[[Any], tuple[str, str]] | None = None  # name and detail in reports; None: the key

    def named(self, item: Any) -> tuple[str, str]:  # noqa: ANN401
        """Return how a report names a row, and what it says beside that."""
        return self.reported(item) if self.reported is not None else (self.key(item), "")

    def field(self, name: str) -> Field:
        """Return a field by its name."""
        return next(field for field in self.fields if field.name == name)


def alphabetical(text: str) -> tuple[int, ...]:
    """Return what sorts texts from A to Z where the greatest comes first."""
    return tuple(-ord(char) for char in text)


_OF_ALL = "{share} of all packets; 95 % CI {share_low} to {share_high}"
_OWN, _TOO = "{dropped_share} of its own packets", "{baseline_share} of normal packets contain it too"


def estimate(bar: int = 12) -> tuple[Field, ...]:
    """Return the fields of a share with its 95 % interval, with a bar of so many cells."""
    return (
        Field("packets", Unit.COUNT, "share.packets", words="{packets}, {pps} pps"),
        Field("bytes", Unit.BYTES, "share.bytes"),
        Field("pps", Unit.PPS, "share.pps", heading="pps", width=5, keep=5),
        Field("share", Unit.SHARE, "share.share", heading="share", width=7, keep=6, words=_OF_ALL),
        Field(
            "error", Unit.SHARE, "share.share", heading="±95 %", width=7, keep=44, column="error", json=False
        ),
        Field("share_low", Unit.SHARE, "share.share_low"),
        Field("share_high", Unit.SHARE, "share.share_high"),
        Field("bar", width=bar, keep=45, column="bar", json=False),
    )


DROPPED = Field("dropped_share", Unit.SHARE, heading="dropped", width=8, keep=10, words=_OWN, averaged=True)
NORMAL = Field("baseline_share", Unit.SHARE, heading="normal", width=8, keep=10, words=_TOO)
