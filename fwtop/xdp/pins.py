"""The pins of compiled rules in bpffs: shared maps, each rule's maps, and its lists."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.kernel import bpf, bpffs, namespaces
from fwtop.kernel.descriptors import close_all, closing
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import read_sources
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match
from fwtop.model.wire import of_json, to_json
from fwtop.rules.kinds.compiled import check_xdp
from fwtop.xdp import attach
from fwtop.xdp import lists as xdp_lists
from fwtop.xdp.maps import (
    COUNTERS_BYTES,
    MAX_RULES,
    PORTS,
    SHARED,
    SLOT_BYTES,
    AnyList,
    List4,
    List6,
    ListPorts,
    Lists,
    SlotRule,
    UncountedList4,
    counters_dtype,
    create_shared,
    disjoint,
    map_array,
    possible_cpus,
    shared_sizes,
    slot_dtype,
)
from fwtop.xdp.messages import RequestedRule


class _Layout(Struct, frozen=True):
    """What a rule's lists are; the descriptors in them mean nothing."""

    counted: int
    lists: tuple[tuple[str, int, AnyList], ...]  # side and family


def make_list(
    directory: Path, key: str, sources: Sequence[Prefix], families: Sequence[int] = ()
) -> tuple[Lists, int]:
    """Build and pin the lists of a rule; returns them and the number of counted prefixes. Raises OSError.

    There is one for each family of the sources, and of `families` even if it has none.
    """
    for path in directory.glob(f"list-{key}-*"):
        path.unlink()
    lists, counted = xdp_lists.build_lists(Match(sources=sources), 0, families)
    for (side, family), maps in lists.items():
        for name, descriptor in maps.descriptors.items():
            bpf.pin(descriptor, _path(directory, key, side, family, name))
    found = tuple((side, family, maps) for (side, family), maps in lists.items())
    text = to_json(_Layout(counted, found))  # written last: it marks the list as complete
    layout = bpf.create_map(bpf.MAP_ARRAY, "fwtop_layout", entries=1, key_size=4, value_size=len(text))
    bpf.set_element(layout, bytes(4), text)
    bpf.pin(layout, _layout(directory, key))
    os.close(layout)
    return lists, counted


def find_list(directory: Path, key: str) -> tuple[Lists, int]:
    """Open the pinned lists of a rule; none if they are missing, or were made by another version."""
    found: dict[tuple[str, int], AnyList] = {}
    try:
        written = _read(_layout(directory, key))
        for side, family, maps in written.lists:
            opened = {name: bpf.open_pin(_path(directory, key, side, family, name)) for name in maps.MAPS}
            found[side, family] = replace(maps, **opened)
        return found, written.counted
    except (OSError, ValueError):
        return {}, 0


def hit_counters(directory: Path, key: str, counted: int) -> int:
    """Open or create the counters of a rule's prefixes; raises OSError."""
    path = directory / f"hits-{key}"
    with contextlib.suppress(FileNotFoundError):
        return bpf.open_pin(path)
    descriptor = xdp_lists.create_hits(counted)
    bpf.pin(descriptor, path)
    return descriptor


def all_hits(directory: Path, most: int) -> dict[int, int]:
    """Open the pinned counters of the latest `most` rules, by rule number; raises OSError."""
    own = {path.name.removeprefix("hits-").partition("v")[0]: path for path in directory.glob("hits-*")}
    numbers = sorted(int(name) for name in own if name.isdigit())  # named lists' are found by their rules
    return {number: bpf.open_pin(own[str(number)]) for number in numbers[-most:]}


def _path(directory: Path, key: str, side: str, family: int, name: str) -> Path:
    return directory / f"list-{key}-{side}{family}-{name}"


def _layout(directory: Path, key: str) -> Path:
    return directory / f"list-{key}-layout"


def _read(path: Path) -> _Layout:
    with closing(bpf.open_pin(path)) as layout:
        return of_json(_Layout, bpf.get_element(layout, bytes(4), bpf.value_size(layout)))


def open_shared(directory: Path) -> dict[str, int]:
    """Open the shared maps; none unless all are pinned, as this version makes them. Raises OSError."""
    if not all((directory / name).exists() for name in SHARED):
        return {}
    found = {name: bpf.open_pin(directory / name) for name in SHARED}
    if all(bpf.value_size(found[name]) == size for name, size in shared_sizes().items()):
        return found
    close_all(found.values())
    return {}


def shared_maps(directory: Path, given: dict[str, int]) -> dict[str, int]:
    """Open the pinned maps, or pin the given ones (a console uses them already), or new ones."""
    found = open_shared(directory)
    if found:
        return found
    found = given if set(given) == set(SHARED) else create_shared()
    for name in SHARED:
        (directory / name).unlink(missing_ok=True)
        bpf.pin(found[name], directory / name)
    return found


def slot_rules(directory: Path, items: Iterable[RequestedRule], sources: Mapping[str, int]) -> list[SlotRule]:
    """Open or create the maps of each rule; `sources` are memory files of long lists by key.

    Lists that are pinned already are not built again. Raises FwtopError, OSError.
    """
    rules = []
    for item in items:
        slot, number, rule = item.slot, item.number, item.rule
        if not 0 <= slot < MAX_RULES:
            raise FwtopError(f"there is no slot {slot}; nothing was installed")
        check_xdp(rule)
        lists, counted = _lists(directory, item)
        if item.listed and not lists:
            if item.key not in sources:
                raise FwtopError(f"the list of rule {number} is gone from the kernel; undo {number}")
            given, families = read_sources(sources[item.key]), (4, 6) if item.list_key else ()
            lists, counted = make_list(directory, item.key, given, families)
        buckets = _buckets(directory / f"limit-{number}") if rule.limit is not None else 0
        hits = hit_counters(directory, item.key, counted) if counted else 0
        own = (buckets, item.at_tc, counted, hits, rule.counts_only)
        rules.append(SlotRule(slot, rule.match, lists, rule.limit, *own))
    return rules


def rules_to_compile(directory: Path, items: Iterable[RequestedRule]) -> list[SlotRule]:
    """Return rules with what determines their code, without creating maps; raises FwtopError, OSError.

    All long IPv4 lists compile to the same code. That for an IPv6 list depends on the list: then the result
    is empty.
    """
    rules = []
    for item in items:
        check_xdp(item.rule)
        lists, counted = _lists(directory, item)
        if item.listed and not lists:
            if item.of_ports:
                lists = {PORTS: ListPorts()}
            elif 6 in item.families:
                return []
            else:
                four = List4() if item.counted else UncountedList4()
                lists, counted = {("src", 4): four}, int(item.counted)
                if item.list_key:
                    lists["src", 6] = List6()
        rule = item.rule
        own = (0, item.at_tc, counted, 0, rule.counts_only)
        rules.append(SlotRule(item.slot, rule.match, lists, rule.limit, *own))
    return rules


def _lists(directory: Path, item: RequestedRule) -> tuple[Lists, int]:
    """Return the pinned lists of a rule, and how many of its source prefixes have a counter."""
    if item.listed:
        return find_list(directory, item.key)
    return {}, len(disjoint(item.rule.match.sources))


def _buckets(path: Path) -> int:
    if path.exists():
        return bpf.open_pin(path)
    descriptor = xdp_lists.create_buckets()
    bpf.pin(descriptor, path)
    return descriptor


def assign_slots(shared: dict[str, int], rules: list[SlotRule], numbers: dict[int, int]) -> None:
    """Assign slots to new rules, disabled and with counters at 0; `numbers` is the rule number by slot.

    Rules that are only planned have the number 0.
    """
    import numpy as np

    size = possible_cpus() * COUNTERS_BYTES
    with (
        map_array(shared["slots"], MAX_RULES * SLOT_BYTES, writable=True) as slots_map,
        map_array(shared["counters"], size, writable=True) as counters_map,
    ):
        slots = np.frombuffer(slots_map, slot_dtype(), MAX_RULES)
        counters = np.frombuffer(counters_map, counters_dtype(), possible_cpus())
        for rule in rules:
            if slots["number"][rule.slot] != numbers[rule.slot] or not numbers[rule.slot]:
                slots["deadline"][rule.slot] = 0
                counters["rules"][:, rule.slot] = 0
                slots["number"][rule.slot] = numbers[rule.slot]
            slots["flags"][rule.slot] = rule.flags
        del slots, counters


def release_slots(
    directory: Path, shared: dict[str, int], numbers: dict[int, int], keys: Collection[str]
) -> None:
    """Release the slots and buckets of rules that are not in `numbers`, and lists that are not in `keys`."""
    import numpy as np

    with map_array(shared["slots"], MAX_RULES * SLOT_BYTES, writable=True) as slots_map:
        slots = np.frombuffer(slots_map, slot_dtype(), MAX_RULES)
        for slot in np.flatnonzero(slots["number"]).tolist():
            if slot not in numbers:
                slots["deadline"][slot] = 0
                slots["number"][slot] = 0
        del slots
    kept = {str(number) for number in numbers.values()} | {*keys}
    for path in list(directory.iterdir()):
        kind, _, rest = path.name.partition("-")
        if kind in ("list", "limit", "hits") and rest.partition("-")[0] not in kept:
            path.unlink()


def sweep(keep: int) -> None:
    """Remove the pins of network namespaces that no longer exist; `keep` exists."""
    directories = bpffs.directories()  # first, so that directories created meanwhile are safe
    alive = {keep, *namespaces.everywhere()}
    for directory in directories:
        links = [path for path, _, _ in attach.pinned(directory)]
        if int(directory.name) not in alive and not any(_is_attached(path) for path in links):
            bpffs.remove_directory(int(directory.name))


def _is_attached(path: Path) -> bool:
    """Return whether a link's interface exists, as namespaces may be alive without being visible.

    Filters stay attached without their pins.
    """
    if attach.is_filter(path):
        return False
    with closing(bpf.open_pin(path)) as link:
        return bpf.link_interface(link) != 0
