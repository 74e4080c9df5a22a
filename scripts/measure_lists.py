"""Measure lookups in a list of a million prefixes by data structure.

sudo PYTHONPATH=. .venv/bin/python scripts/measure_lists.py prints nanoseconds per packet (BPF_PROG_TEST_RUN,
the fastest of many runs), seconds to fill and memory. The figures in fwtop/xdp/lists.py come from it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from fwtop.compile.compiler import SOURCES, compile_text, relocate
from fwtop.kernel import bpf
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.rule import Match
from fwtop.xdp import lists as xdp_lists
from fwtop.xdp.build import count_functions
from fwtop.xdp.ipv6_lists import lookup_lines6, with_placeholders
from fwtop.xdp.maps import SHARED, List4, List6, SlotRule, possible_cpus

COUNT, RUNS, REPEAT = 1_000_000, 15, 100_000
_TEST_RUN, _UPDATE_BATCH = 10, 26  # bpf(2) commands
_MAP_HASH, _LPM_TRIE, _F_NO_PREALLOC, _BATCH = 1, 11, 1, 65_536
_LENGTHS = {4: (20, 22, 24, 24, 24, 28, 32, 32, 32, 32), 6: (36, 40, 44, 48, 48, 48, 56, 64, 64, 128)}
_NETWORKS = 20_000  # /32s that the IPv6 prefixes lie in
_ASKED = 1 << 16  # sources, of which each packet has a random one
_TRIE, _HASH, _HITS, _SOURCES, _OWN = 1, 2, 3, 4, 5  # maps by number
_COUNTED, _PARTS, _SEVERAL = 20, 21, 22  # constants by number
_FULL = (1 << 64) - 1
_CHANCE = np.random.default_rng(20261121)


def main() -> None:
    """Measure and print."""
    for family in (4, 6):
        prefixes = mixed_prefixes(family)
        maps, constants, own = filled_maps(family, prefixes)
        print("MiB:", {number: round(memory(held) / 2**20, 1) for number, held in maps.items()})
        lengths = np.unique(columns(family, prefixes)[2]).tolist()
        bodies = {
            "nothing": "",
            "LPM trie": ask(_TRIE, family, 32 if family == 4 else 128),
            "hash by length": "".join(ask(_HASH, family, length) for length in lengths),
            "own": "hit = listed(hi, lo);",
            "own, counted": f"hit = listed(hi, lo); if (hit) count_source(0, {family}, hi, lo, 1);",
        }
        for name, body in bodies.items():
            costs = []
            for where, sources in sources_of(family, prefixes).items():
                bpf.set_element(maps[_SOURCES], bytes(4), np.resize(sources, (_ASKED, 2)).tobytes())
                costs.append(f"{where} {cost(own, body, maps | constants)}")
            print(f"{name:15}", *costs, sep=", ")
        for descriptor in maps.values():
            os.close(descriptor)


def mixed_prefixes(family: int = 4) -> PrefixRows:
    """Draw lengths and places: of IPv4 as the bench `bulk` does, of IPv6 in some thousand networks."""
    lengths = _CHANCE.choice(_LENGTHS[family], COUNT).astype(np.int64)
    if family == 4:
        values = _CHANCE.integers(1 << 24, 200 << 24, COUNT, np.int64)
        return PrefixRows.of_columns([(values >> (32 - lengths) << (32 - lengths), lengths)])
    halves = _CHANCE.integers(0, _FULL, (COUNT, 2), np.uint64, endpoint=True)
    halves[:, 0] &= np.uint64(0xFFFFFFFF)
    halves[:, 0] |= networks()[_CHANCE.integers(0, _NETWORKS, COUNT)]
    for half, most in ((0, 64), (1, 128)):
        free = np.clip(most - lengths, 0, 64)
        halves[:, half] &= ~np.where(free == 64, _FULL, (1 << (free % 64).astype(np.uint64)) - 1).astype(
            np.uint64
        )
    return PrefixRows.of_columns([], [(halves[:, 0], halves[:, 1], lengths)])


def networks() -> np.ndarray:
    """Return the same /32s each time."""
    return np.random.default_rng(1).integers(0x20010000, 0x2C000000, _NETWORKS).astype(
        np.uint64
    ) << np.uint64(32)


def sources_of(family: int, prefixes: PrefixRows) -> dict[str, np.ndarray]:
    """Return sources to ask for, as pairs of halves: one, all over the place, near the listed, listed."""
    drawn = _CHANCE.integers(0, _FULL, (_ASKED, 2), np.uint64, endpoint=True)
    if family == 4:
        drawn = np.column_stack([np.zeros(_ASKED, np.uint64), drawn[:, 1] % np.uint64(0xC8000000)])
        one = np.array([[0, 0xC6130005]], np.uint64)
        near = {}
    else:
        one = np.array([[0x20010DB8 << 32, 5]], np.uint64)
        inside = drawn.copy()
        inside[:, 0] = drawn[:, 0] & np.uint64(0xFFFFFFFF) | np.resize(networks(), _ASKED)
        drawn[:, 0] = drawn[:, 0] >> np.uint64(3) | np.uint64(1 << 61)
        near = {"near": inside}
    hi, lo, _ = columns(family, prefixes)
    rows = _CHANCE.integers(0, len(prefixes), _ASKED)
    return {"one source": one, "random": drawn, **near, "listed": np.column_stack([hi[rows], lo[rows]])}


def columns(family: int, prefixes: PrefixRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the halves of the addresses, and the lengths."""
    if family == 6:
        return prefixes.columns6()
    value, lengths = prefixes.columns4()
    return np.zeros(len(value), np.uint64), value.astype(np.uint64), lengths


def set_elements(descriptor: int, keys: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> None:
    """Put keys with empty values of 4 bytes into a map by one call."""
    keys, values = np.ascontiguousarray(keys), np.zeros(len(keys), np.uint32)
    # in_batch, out_batch, keys, values, count, map_fd, elem_flags, flags
    addresses = (0, 0, keys.ctypes.data, values.ctypes.data)
    bpf.call(_UPDATE_BATCH, struct.pack("<QQQQIIQQ", *addresses, len(keys), descriptor, 0, 0))


def filled_maps(family: int, prefixes: PrefixRows) -> tuple[dict[int, int], dict[int, int], str]:
    """Make all structures, say how long each took; returns the maps, and constants and C for our own."""
    hi, lo, lengths = columns(family, prefixes)
    address = np.column_stack([hi, lo]).astype(">u8").view(np.uint8)
    width = 4 if family == 4 else 16
    keys = np.zeros((len(prefixes), 4 + width), np.uint8)
    keys[:, 0], keys[:, 4:] = lengths, address[:, 16 - width :]
    maps = {_SOURCES: bpf.create_map(bpf.MAP_ARRAY, "lists", entries=1, key_size=4, value_size=_ASKED * 16)}
    for number, kind, flags in (
        (_TRIE, _LPM_TRIE, _F_NO_PREALLOC),
        (_HASH, _MAP_HASH, 0),
    ):
        started = time.monotonic()
        maps[number] = bpf.create_map(
            kind, "lists", entries=1 << 20, key_size=4 + width, value_size=4, flags=flags
        )
        for start in range(0, len(keys), _BATCH):
            part = keys[start : start + _BATCH]
            set_elements(maps[number], part)
        print(f"IPv{family}, map {number}: {time.monotonic() - started:.2f} s to fill")
    started = time.monotonic()
    lists, counted = xdp_lists.build_lists(Match(sources=prefixes), 0)
    maps[_HITS] = xdp_lists.create_hits(counted)
    print(f"IPv{family}, own: {time.monotonic() - started:.2f} s to build")
    found = lists["src", family]
    names = {name: number for number, name in enumerate(xdp_lists.descriptors(found), _OWN)}
    maps |= {names[name]: held for name, held in xdp_lists.descriptors(found).items()}
    named = xdp_lists.with_descriptors(found, names)
    constants = {_COUNTED: counted}
    if isinstance(named, List4):
        constants |= {_PARTS: named.count, _SEVERAL: named.several}
        named = replace(named, count=_PARTS, several=_SEVERAL)
    elif isinstance(named, List6):

        def number(value: int) -> int:
            constants[_SEVERAL + 1 + len(constants)] = value
            return max(constants)

        named = replace(named, tables=tuple(with_placeholders(table, number) for table in named.tables))
    return maps, constants, own_functions(family, named)


def own_functions(family: int, maps: List4 | List6) -> str:
    """Return the C that the loader writes for a rule with this list."""
    if isinstance(maps, List4):
        asked = f"MAP_VALUE({maps.blocks}), MAP_VALUE({maps.parts}), CONSTANT({maps.count})"
        lines = [f"\t\treturn in_list4({asked}, lo);"]
    else:
        lines = lookup_lines6(maps)
    rule = SlotRule(0, Match(), {("src", family): maps}, counted=_COUNTED, hits=_HITS)
    return "\n".join(["INLINE u32 listed(u64 hi, u64 lo) {", *lines, "}", *count_functions([rule])])


def memory(descriptor: int) -> int:
    """Return the bytes that the kernel accounts to a map."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("memlock")).split()[1])


def ask(number: int, family: int, length: int) -> str:
    """Return C that asks a map for the prefix of one length around (hi, lo)."""
    mask = ((1 << length) - 1) << (32 if family == 4 else 128) - length
    place = f"__builtin_bswap32(lo & 0x{mask:x}U)"
    if family == 6:
        high, low = f"hi & 0x{mask >> 64:x}ULL", f"lo & 0x{mask & _FULL:x}ULL"
        place = ", ".join(
            f"__builtin_bswap32(({half}) >> {shift})" for half in (high, low) for shift in (32, 0)
        )
    key = f"u32 key[] = {{{length}, {place}}};"
    return f"if (!hit) {{ {key} hit = bpf_map_lookup_elem(MAP({number}), key) != NULL; }}"


def cost(functions: str, body: str, values: dict[int, int]) -> int:
    """Return the nanoseconds a packet of a program that does this for one of the sources."""
    text = f"""#include "{SOURCES}/xdp_lists.h"
    {functions}
    PROGRAM(lookup) int lookup(struct xdp_md *ctx) {{
        u64 *sources = MAP_VALUE({_SOURCES}), place = bpf_get_prandom_u32() & {_ASKED - 1}, hi, lo;
        u32 hit = 0;
        OPAQUE(place); place &= {_ASKED - 1}; hi = sources[2 * place]; lo = sources[2 * place + 1];
        OPAQUE(hi); OPAQUE(lo); {body}
        return hit ? 1 : 2; }}"""
    shared = {f"FWTOP_XDP_{name.upper()}_FD": 99 for name in SHARED}
    code = compile_text(text, {**shared, "FWTOP_CPUS": possible_cpus()}, ["lookup"])["lookup"]
    program = bpf.load_program(bpf.XDP, "lookup", relocate(code, values))
    frame = ctypes.create_string_buffer(64)
    best = 1 << 32
    for _ in range(RUNS):
        order = struct.pack("<IIIIQQII", program, 0, 64, 0, ctypes.addressof(frame), 0, REPEAT, 0)
        attributes = ctypes.create_string_buffer(order, 80)
        bpf._call(_TEST_RUN, attributes, 80)
        best = min(best, struct.unpack_from("<I", attributes, 36)[0])
    os.close(program)
    return best


if __name__ == "__main__":
    main()
