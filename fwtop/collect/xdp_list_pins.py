"""What a rule with sources keeps in bpffs: the maps of a long list, how it lies there, counters by prefix."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fwtop.collect import bpf, bpf_objects, xdp_lists
from fwtop.collect.xdp_rule import List4, List6, Lists, Table6
from fwtop.model.address import Prefix
from fwtop.model.rule import Match

_TYPES: dict[int, type[List4] | type[List6]] = {4: List4, 6: List6}


def make(directory: Path, number: int, sources: Sequence[Prefix]) -> tuple[Lists, int]:
    """Build and pin the lists of a rule; returns them and how many prefixes they count. Raises OSError."""
    for path in directory.glob(f"list-{number}-*"):
        path.unlink()
    lists, counted = xdp_lists.build_lists(Match(sources=sources), 0)
    written: dict[str, Any] = {"counted": counted, "lists": []}
    for (side, family), maps in lists.items():
        held = xdp_lists.descriptors(maps)
        for name, descriptor in held.items():
            bpf_objects.pin(descriptor, _path(directory, number, side, family, name))
        written["lists"].append([side, family, asdict(maps) | dict.fromkeys(held, 0)])
    text = json.dumps(written).encode()  # the last: without it there is no list
    layout = bpf.create_map(bpf.MAP_ARRAY, "fwtop_layout", entries=1, key_size=4, value_size=len(text))
    bpf_objects.set_element(layout, bytes(4), text)
    bpf_objects.pin(layout, _layout(directory, number))
    os.close(layout)
    return lists, counted


def find(directory: Path, number: int) -> tuple[Lists, int]:
    """Open the lists of a rule; none where they are not there, or another version of fwtop made them."""
    found: dict[tuple[str, int], List4 | List6] = {}
    try:
        written = _read(_layout(directory, number))
        for side, family, fields in written["lists"]:
            if family == 6:
                fields["tables"] = tuple(_table(item) for item in fields["tables"])
            maps = _TYPES[family](**fields)
            names = {
                name: _path(directory, number, side, family, name) for name in xdp_lists.descriptors(maps)
            }
            opened = {name: bpf_objects.open_pin(path) for name, path in names.items()}
            found[side, family] = xdp_lists.with_descriptors(maps, opened)
        return found, int(written["counted"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}, 0


def hits(directory: Path, number: int, counted: int) -> int:
    """Open the counters of a rule's prefixes, or make them; raises OSError."""
    path = directory / f"hits-{number}"
    with contextlib.suppress(FileNotFoundError):
        return bpf_objects.open_pin(path)
    descriptor = xdp_lists.create_hits(counted)
    bpf_objects.pin(descriptor, path)
    return descriptor


def all_hits(directory: Path, most: int) -> dict[int, int]:
    """Open the counters of all rules there, of the latest ones at most; by rule number. Raises OSError."""
    numbers = sorted(int(path.name.partition("-")[2]) for path in directory.glob("hits-*"))
    return {number: bpf_objects.open_pin(directory / f"hits-{number}") for number in numbers[-most:]}


def _path(directory: Path, number: int, side: str, family: int, name: str) -> Path:
    return directory / f"list-{number}-{side}{family}-{name}"


def _layout(directory: Path, number: int) -> Path:
    return directory / f"list-{number}-layout"


def _read(path: Path) -> dict[str, Any]:
    layout = bpf_objects.open_pin(path)
    try:
        text = bpf_objects.get_element(layout, bytes(4), bpf_objects.value_size(layout))
    finally:
        os.close(layout)
    written: dict[str, Any] = json.loads(text)
    return written


def _table(fields: dict[str, Any]) -> Table6:
    return Table6(**fields | {name: tuple(fields[name]) for name in ("seeds", "empty")})
