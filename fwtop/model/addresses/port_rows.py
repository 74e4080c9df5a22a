"""Addresses with ports: what a prefix sends to a port or a range of ports, as entries of a named list."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.keyed_rows import SENDER, KeyedRows
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.text import safe_text

PROTOCOLS = {"tcp": 6, "udp": 17}
_NAMES = {number: name for name, number in PROTOCOLS.items()}
_TEXT = re.compile(r"(?:\[([^\]]*)\]|([0-9./]+)):(\d{1,5})(?:-(\d{1,5}))?(?:/(\w+))?", re.ASCII)
_MOST_PORT = 65_535
_PACKED = struct.Struct(">B16sBBHH")


class PortEntry(Struct, frozen=True, order=True):
    """What a prefix sends to these ports; it is a row of PortRows."""

    prefix: Prefix
    protocol: int
    low: int
    high: int

    @staticmethod
    def parse(text: str) -> PortEntry | None:
        """Parse `192.0.2.0/24:443/tcp`, `[2001:db8::/32]:8000-8100/udp`; None if it is nothing of the kind.

        Raises ValueError with a message for the user.
        """
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            if text.strip().endswith(tuple(f"/{name}" for name in PROTOCOLS)):
                shown = safe_text(text.strip(), limit=60)
                raise ValueError(f"{shown!r} is not written as 192.0.2.7:443/tcp or [2001:db8::1]:53/udp")
            return None
        prefix = Prefix.parse(found[1] or found[2] or "")
        low = int(found[3])
        high = int(found[4]) if found[4] is not None else low
        if found[5] not in PROTOCOLS:
            raise ValueError(f"{safe_text(text.strip(), limit=60)!r} needs /tcp or /udp behind its port")
        if high < low:
            raise ValueError(f"{safe_text(text.strip(), limit=60)!r}: the first port is above the last")
        if not 1 <= low <= high <= _MOST_PORT:
            raise ValueError(f"{safe_text(text.strip(), limit=60)!r}: ports go from 1 to {_MOST_PORT}")
        return PortEntry(prefix, PROTOCOLS[found[5]], low, high)

    def __str__(self) -> str:
        """Return it as `parse` reads it."""
        address = str(self.prefix) if self.prefix.family == 4 else f"[{self.prefix}]"
        ports = str(self.low) if self.low == self.high else f"{self.low}-{self.high}"
        return f"{address}:{ports}/{_NAMES[self.protocol]}"


class PortRows(KeyedRows[PortEntry]):
    """Entries of addresses with ports."""

    magic = b"\0FWP"
    words, example = "addresses with ports", "192.0.2.7:443/tcp"
    row = np.dtype([*SENDER, ("protocol", "u1"), ("low", ">u2"), ("high", ">u2")])
    set_type = "hash:net,port"

    @staticmethod
    def _packed(entry: PortEntry) -> bytes:
        on = entry.prefix
        sender = on.family, on.value.to_bytes(16, "big"), on.length
        return _PACKED.pack(*sender, entry.protocol, entry.low, entry.high)

    def entries(self, part: slice = slice(None)) -> Iterator[PortEntry]:  # noqa: D102 # as KeyedRows says
        for family, address, length, protocol, low, high in _PACKED.iter_unpack(self.keys[part].tobytes()):
            yield PortEntry(Prefix(family, int.from_bytes(address, "big"), length), protocol, low, high)

    def _bad(self) -> NDArray[np.bool_]:
        rows = self.rows
        bad = (rows["low"] < 1) | (rows["low"] > rows["high"])
        return np.asarray(bad | ~np.isin(rows["protocol"], list(_NAMES)))

    def meeting(self, protocol: int, port: int) -> PrefixRows:
        """Return the prefixes whose packets to a port are listed."""
        rows = self.rows
        mine = (rows["protocol"] == protocol) & (rows["low"] <= port) & (port <= rows["high"])
        return PortRows(self.keys[mine]).prefixes

    @property
    def elements(self) -> int:
        """How many single ports the entries have, those in two ranges counted twice."""
        return int(self._sizes().sum())

    def _sizes(self) -> NDArray[np.int64]:
        rows = self.rows
        return np.asarray(rows["high"].astype(np.int64) - rows["low"] + 1)

    @cached_property
    def single(self) -> PortRows:
        """The same as entries of single ports, each once: as kernels look them up."""
        sizes = self._sizes()
        if (sizes == 1).all():
            return self
        made = np.repeat(self.rows, sizes)
        offset = np.arange(len(made)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        made["low"] = made["low"] + offset
        made["high"] = made["low"]
        return self.of_packed(made.tobytes())

    def outermost(self) -> PortRows:
        """Return single ports without those of a prefix that lies within another one with the same port."""
        kept: list[PortEntry] = []
        last: dict[tuple[int, int], Prefix] = {}
        for entry in self.single.entries():
            around = last.get((entry.protocol, entry.low))
            if around is None or not around.contains(entry.prefix):
                last[entry.protocol, entry.low] = entry.prefix
                kept.append(entry)
        return PortRows.of(kept)

    def holding(self, wanted: PortEntry) -> PortEntry | None:  # noqa: D102
        found = [
            one
            for one in self.entries()
            if one.protocol == wanted.protocol
            and one.low <= wanted.low
            and wanted.high <= one.high
            and one.prefix.contains(wanted.prefix)
        ]
        return max(found, key=lambda one: (one.prefix.length, one.low - one.high), default=None)
