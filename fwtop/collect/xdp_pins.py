"""What the compiled rules of a namespace keep in bpffs: the shared maps, and the maps of each rule."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fwtop.collect import bpf_objects, bpffs, xdp_attach, xdp_list_pins, xdp_lists
from fwtop.collect.xdp_maps import (
    CELL_BYTES,
    MAX_RULES,
    SHARED,
    SLOT_BYTES,
    cell_dtype,
    create_shared,
    map_array,
    possible_cpus,
    slot_dtype,
)
from fwtop.collect.xdp_rule import List4, Lists, SlotRule
from fwtop.model.bulk import read_sources
from fwtop.model.errors import FwtopError
from fwtop.model.numbered import apart
from fwtop.model.rule import Kind, Rule
from fwtop.model.xdp import check_xdp


def open_shared(directory: Path) -> dict[str, int]:
    """Open the shared maps; nothing where they are not pinned. Raises OSError."""
    if not all((directory / name).exists() for name in SHARED):
        return {}
    return {name: bpf_objects.open_pin(directory / name) for name in SHARED}


def shared_maps(directory: Path, given: dict[str, int]) -> dict[str, int]:
    """Open the pinned maps, or pin those given (a console watches already), or new ones."""
    found = open_shared(directory)
    if found:
        return found
    found = given if set(given) == set(SHARED) else create_shared()
    for name in SHARED:
        (directory / name).unlink(missing_ok=True)
        bpf_objects.pin(found[name], directory / name)
    return found


def slot_rules(directory: Path, items: list[dict[str, Any]], sources: Mapping[int, int]) -> list[SlotRule]:
    """Read the request's rules; `sources` are the descriptors of long lists, by number.

    Lists that are there already are not built again. Raises FwtopError, OSError.
    """
    rules = []
    for item in items:
        slot, number = int(item["slot"]), int(item["number"])
        if not 0 <= slot < MAX_RULES:
            raise FwtopError(f"there is no slot {slot}; nothing was installed")
        rule = Rule.from_dict(item["rule"])
        check_xdp(rule)
        lists, counted = _lists(directory, item, rule)
        if item["listed"] and not lists:
            if number not in sources:
                raise FwtopError(f"the list of rule {number} is gone from the kernel; undo {number}")
            lists, counted = xdp_list_pins.make(directory, number, read_sources(sources[number]))
        buckets = _buckets(directory / f"limit-{number}") if rule.limit is not None else 0
        hits = xdp_list_pins.hits(directory, number, counted) if counted else 0
        at_tc = rule.kind is Kind.TC
        rules.append(SlotRule(slot, rule.match, lists, rule.limit, buckets, at_tc, counted, hits))
    return rules


def rules_to_compile(directory: Path, items: list[dict[str, Any]]) -> list[SlotRule]:
    """Read a request's rules as far as their code needs them; raises FwtopError, OSError.

    The code for a long IPv4 list is the same for any; of an IPv6 one, nothing is known before it is built.
    """
    rules = []
    for item in items:
        rule = Rule.from_dict(item["rule"])
        check_xdp(rule)
        lists, counted = _lists(directory, item, rule)
        if item["listed"] and not lists:
            if item["families"] != [4]:
                return []
            lists, counted = {("src", 4): List4(0, 0, 0, 0, 0)}, 1
        at_tc = rule.kind is Kind.TC
        rules.append(SlotRule(int(item["slot"]), rule.match, lists, rule.limit, 0, at_tc, counted))
    return rules


def _lists(directory: Path, item: dict[str, Any], rule: Rule) -> tuple[Lists, int]:
    """Return the lists of a rule that are there, and how many of its source prefixes have a counter."""
    if item["listed"]:
        return xdp_list_pins.find(directory, int(item["number"]))
    return {}, len(apart(rule.match.sources))


def _buckets(path: Path) -> int:
    if path.exists():
        return bpf_objects.open_pin(path)
    descriptor = xdp_lists.create_buckets()
    bpf_objects.pin(descriptor, path)
    return descriptor


def occupy(shared: dict[str, int], rules: list[SlotRule], numbers: dict[int, int]) -> None:
    """Give slots to rules that have none yet: inert, counters at zero. `numbers` is rule number by slot."""
    import numpy as np

    size = possible_cpus() * CELL_BYTES
    with (
        map_array(shared["slots"], MAX_RULES * SLOT_BYTES, writable=True) as slots_map,
        map_array(shared["cells"], size, writable=True) as cells_map,
    ):
        slots = np.frombuffer(slots_map, slot_dtype(), MAX_RULES)
        cells = np.frombuffer(cells_map, cell_dtype(), possible_cpus())
        for rule in rules:
            if slots["number"][rule.slot] != numbers[rule.slot]:
                slots["deadline"][rule.slot] = 0
                cells["rules"][:, rule.slot] = 0
                slots["at_tc"][rule.slot] = rule.at_tc
                slots["number"][rule.slot] = numbers[rule.slot]
        del slots, cells


def forget(directory: Path, shared: dict[str, int], numbers: dict[int, int]) -> None:
    """Free the slots, lists and buckets that no rule of `numbers` has any more."""
    import numpy as np

    with map_array(shared["slots"], MAX_RULES * SLOT_BYTES, writable=True) as slots_map:
        slots = np.frombuffer(slots_map, slot_dtype(), MAX_RULES)
        for slot in np.flatnonzero(slots["number"]).tolist():
            if slot not in numbers:
                slots["deadline"][slot] = 0
                slots["number"][slot] = 0
        del slots
    kept = {str(number) for number in numbers.values()}
    for path in list(directory.iterdir()):
        kind, _, rest = path.name.partition("-")
        if kind in ("list", "limit", "hits") and rest.partition("-")[0] not in kept:
            path.unlink()


def sweep(keep: int) -> None:
    """Remove the pins of network namespaces that are gone, that of `keep` left alone."""
    directories = bpffs.directories()  # first: what is made meanwhile belongs to a namespace that lives
    alive = {keep, *bpffs.namespaces()}
    for directory in directories:
        links = [path for path, _, _ in xdp_attach.pinned(directory)]
        if int(directory.name) not in alive and not any(_is_attached(path) for path in links):
            bpffs.remove_directory(int(directory.name))


def _is_attached(path: Path) -> bool:
    """Say whether a link's interface is there: a namespace may be held where nobody sees it.

    A filter needs no pin to stay until its rules' deadlines.
    """
    if xdp_attach.is_filter(path):
        return False
    link = bpf_objects.open_pin(path)
    try:
        return bpf_objects.link_interface(link) != 0
    finally:
        os.close(link)
