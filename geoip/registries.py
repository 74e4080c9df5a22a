"""The country of each allocation by the five registries' statistics, as the crate iptocc packs them nightly.

Its own format (its src/format.rs and lib.rs), little-endian: IPv4 as the places in each /16 where the country
changes, IPv6 as prefixes in the order of the /16s that have any.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

Range = tuple[int, int, str]
_BUCKETS = 1 << 16
_UNASSIGNED = 0xFF
_MIXED, _PURE = 0, 1  # kinds of /16s, in the upper two bits
_INDEX = 257  # entries of an index by one byte
_SIDE = struct.Struct("<16s16sB")
_PRIMARY = struct.Struct("<IBB")


def fetch(version: str, folder: Path) -> Path:
    """Download one version of the crate with the ordinary client; return the directory of its data."""
    project = folder / f"iptocc-{version}"
    (project / "src").mkdir(parents=True)
    (project / "src/lib.rs").touch()
    package = '[package]\nname = "data"\nversion = "0.1.0"\nedition = "2021"\n'
    (project / "Cargo.toml").write_text(f'{package}[dependencies]\niptocc = "={version}"\n')
    command = ["cargo", "vendor", "--quiet"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"build.py: cargo vendor of iptocc {version} failed: {done.stderr.strip()[-300:]}")
    return project / "vendor/iptocc/src/data"


class _Reader:
    """Reads arrays one after another."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) != size:
            raise SystemExit("build.py: iptocc has another format than geoip/registries.py reads")
        self._at += size
        return part

    def numbers(self, count: int, kind: str = "I") -> tuple[int, ...]:
        return struct.unpack(f"<{count}{kind}", self.take(count * struct.calcsize(kind)))

    def countries(self) -> list[str]:
        return [self.take(2).decode("ascii") for _ in range(*self.numbers(1))]


def ranges(data: Path, family: int) -> Iterator[Range]:
    """Yield the ranges of one family in ascending order, each with its country."""
    content = (data / f"v{family}.bin").read_bytes()
    yield from _four(_Reader(content)) if family == 4 else _six(_Reader(content))


def _four(read: _Reader) -> Iterator[Range]:
    buckets, countries = read.numbers(_BUCKETS), read.countries()
    (mixed,) = read.numbers(1)
    starts, initial = read.numbers(mixed + 1), read.take(mixed)
    (changes,) = read.numbers(1)
    offsets, codes = read.numbers(changes, "H"), read.take(changes)
    for number, bucket in enumerate(buckets):
        base, kind, value = number << 16, bucket >> 30, bucket & 0x3FFFFFFF
        if kind == _PURE:
            yield base, base + 0xFFFF, countries[value]
        elif kind == _MIXED:
            span = slice(starts[value], starts[value + 1])
            begins, names = (0, *offsets[span]), (initial[value], *codes[span])
            for begin, after, code in zip(begins, (*begins[1:], _BUCKETS), names, strict=True):
                if code != _UNASSIGNED and begin < after:
                    yield base + begin, base + after - 1, countries[code]


def _six(read: _Reader) -> Iterator[Range]:
    populated = read.take(_BUCKETS)
    (count,) = read.numbers(1)
    firsts = read.numbers(count + 1)
    read.take(count * _INDEX * 2)
    for _ in range(2):  # indices into large parts
        (deep,) = read.numbers(1)
        read.take(deep * 2 + deep * _INDEX * 4)
    countries = read.countries()
    (sides,) = read.numbers(1)
    irregular = [_SIDE.unpack(read.take(_SIDE.size)) for _ in range(sides)]
    (primary,) = read.numbers(1)
    records = [_PRIMARY.unpack(read.take(_PRIMARY.size)) for _ in range(primary)]
    for top, place in enumerate(populated):
        if place == _UNASSIGNED:
            continue
        for value, length, code in records[firsts[place] : firsts[place + 1]]:
            if length:
                low = top << 112 | value << 80
                yield low, low | (1 << 128 - length) - 1, countries[code]
            else:
                first, last, code_of_side = irregular[value]
                yield int.from_bytes(first, "little"), int.from_bytes(last, "little"), countries[code_of_side]
