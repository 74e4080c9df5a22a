"""A row of the Packets tab, and which rows there are: filter, scope, hold and packets alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import overload

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from fwtop.analysis.packets.language import FilterError, PacketFilter, parse_filter
from fwtop.analysis.packets.recent import PacketList, Verdict
from fwtop.analysis.standing import like_keys
from fwtop.analysis.window.traffic import payload
from fwtop.model.addresses.address import Prefix, format_address
from fwtop.model.traffic.packets import Mask, PacketBatch
from fwtop.model.traffic.protocols import NUMBERS, WITH_PORTS

_HEAD = 8  # bytes of payload that packets alike have in common
_TARGET = re.compile(r"(tcp|udp|icmp|icmpv6|gre|esp|sctp)(?:/(\d{1,5}))?")


class PacketRow(Struct, frozen=True, eq=False):
    """One packet of a list; equal to the same packet of another list."""

    shown: PacketList
    row: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PacketRow) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def number(self) -> int:
        """What identifies it for the whole observation."""
        return int(self.shown.numbers[self.row])

    @property
    def key(self) -> tuple[int, int]:
        """What identifies it also in a capture, where each window numbers its packets anew."""
        return self.number, self.unix_ns

    @property
    def unix_ns(self) -> int:
        """When it arrived."""
        return int(self.shown.packets.time_ns[self.row]) + self.shown.clock_ns

    @property
    def verdict(self) -> Verdict:
        """What became of it."""
        return self.shown.verdict(self.row)

    @property
    def who(self) -> str:
        """Who sent it, as far as this host knows."""
        return str(self.shown.who[self.row])

    def field(self, name: str) -> int:
        """Return one of its columns."""
        return int(getattr(self.shown.packets, name)[self.row])

    def address(self, side: str) -> str:
        """Return its "src" or "dst"; "" without IP."""
        family = self.field("family")
        if not family:
            return ""
        return format_address(family, self.field(f"{side}_hi"), self.field(f"{side}_lo"))

    @property
    def source(self) -> Prefix | None:
        """Its sender's address; None without IP."""
        family = self.field("family")
        return Prefix.of_columns(family, self.field("src_hi"), self.field("src_lo")) if family else None

    @property
    def data(self) -> bytes:
        """The captured bytes."""
        return self.shown.packets.data[self.row, : self.field("captured")].tobytes()

    @property
    def payload(self) -> bytes:
        """The captured bytes of the transport payload."""
        start = self.field("payload_offset")
        return self.data[start : start + self.field("payload_length")] if start else b""


class PacketRows(Sequence[PacketRow]):
    """Some packets of a list. A row is made when it is looked at: of 2,000 a screen shows some forty."""

    def __init__(self, shown: PacketList | None = None, rows: NDArray[np.intp] | None = None) -> None:
        self._shown = shown
        self.places = rows if rows is not None else np.zeros(0, np.intp)

    def __len__(self) -> int:
        """Return the number of packets."""
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> PacketRow: ...

    @overload
    def __getitem__(self, index: slice) -> PacketRows: ...

    def __getitem__(self, index: int | slice) -> PacketRow | PacketRows:
        """Return a packet, or some of them."""
        if isinstance(index, slice):
            return PacketRows(self._shown, self.places[index])
        if self._shown is None:
            raise IndexError(index)
        return PacketRow(self._shown, int(self.places[index]))


class PacketBook(Struct):
    """The packets shown. While it is held, newer lists only wait."""

    held: bool = False
    filter: PacketFilter = field(default_factory=lambda: parse_filter(""))
    text: str = ""  # of the filter, also while it is wrong
    error: FilterError | None = None
    scope: str = ""  # the target of the selected attack: tcp/80
    newest: PacketList | None = None
    rows: PacketRows = field(default_factory=PacketRows)
    _waiting: PacketList | None = None
    _kept: PacketList | None = None

    def offer(self, newest: PacketList | None) -> None:
        """Take the newest list."""
        self._waiting = newest
        if not self.held:
            self.newest = newest
            self._select()

    def hold(self, held: bool) -> None:
        """Hold the present packets, or go on with the newest."""
        self.held = held
        if not held and self._waiting is not self.newest:
            self.newest = self._waiting
            self._select()

    def set_filter(self, text: str) -> None:
        """Change the filter; a wrong one leaves the last right one in force."""
        self.text = text
        try:
            found = parse_filter(text)
        except FilterError as error:
            self.error = error
            return
        self.error = None
        if found != self.filter:
            self.filter = found
            self._select()

    def set_scope(self, target: str) -> None:
        """Show only the packets to an attack's target; "" all."""
        if target != self.scope:
            self.scope = target
            self._select()

    @property
    def kept(self) -> PacketList | None:
        """The packets shown, as one list."""
        if self._kept is None and self.newest is not None:
            self._kept = self.newest.select(self.rows.places)
        return self._kept

    def alike(self, row: PacketRow) -> Mask:
        """Mark the packets shown that are like one: protocol, port, flags, length and first bytes."""
        shown = self.kept
        if shown is None or not len(shown):
            return np.zeros(0, np.bool_)
        wanted = row.shown.packets.select(np.array([row.row]))
        same: Mask = like_keys(shown.packets) == like_keys(wanted)[0]
        head, length = payload(shown.packets, np.arange(len(shown)), _HEAD)
        own, own_length = payload(wanted, np.arange(1), _HEAD)
        return np.asarray(same & (head == own[0]).all(axis=1) & (length == own_length[0]))

    def _select(self) -> None:
        shown, self._kept = self.newest, None
        if shown is None:
            self.rows = PacketRows()
            return
        mask = self.filter.mask(
            shown.packets, verdicts=shown.verdict_texts if shown.judged else None, who=shown.who
        )
        if self.scope:
            mask = mask & _to_target(shown.packets, self.scope)
        self.rows = PacketRows(shown, np.flatnonzero(mask))
        self._kept = shown if len(self.rows) == len(shown) else None


def _to_target(packets: PacketBatch, target: str) -> Mask:
    """Mark the packets to a target such as tcp/80; all if it isn't understood."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return np.ones(len(packets), np.bool_)
    number = NUMBERS[match[1]]
    mask: Mask = packets.protocol == number
    if match[2] and number in WITH_PORTS:
        mask = mask & (packets.dport == min(int(match[2]), 65_535))
    return np.asarray(mask)
