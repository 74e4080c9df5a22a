"""What a lookup in a list of a million IPv4 prefixes costs a packet, by the structure that holds them.

sudo .venv/bin/python scripts/measure_lists.py: nanoseconds a packet by BPF_PROG_TEST_RUN (the fastest of many
runs, all else being the same), seconds to fill, memory. The table in fwtop/collect/xdp_lists.py is from here.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path

import numpy as np

from fwtop.collect import bpf, bpf_objects, xdp_lists, xdp_maps
from fwtop.collect.compiler import SOURCES, compile_text, relocate
from fwtop.model.bulk_rows import PrefixRows

COUNT, RUNS, REPEAT = 1_000_000, 15, 300_000
_TEST_RUN, _LPM_TRIE, _BATCH = 10, 11, 65_536
SOURCES_OF = {"one source": "0xc6130005", "random": "bpf_get_prandom_u32() % 0xc8000000"}


def main() -> None:
    """Measure and print."""
    prefixes = mixed_prefixes()
    address, lengths = prefixes.columns()
    keys = np.zeros((len(prefixes), 8), np.uint8)
    keys[:, 0], keys[:, 4:] = lengths, address[:, 12:]
    trie, hashed = (
        filled(bpf.create_map(kind, "lists", entries=1 << 20, key_size=8, value_size=4, flags=flags), keys)
        for kind, flags in ((_LPM_TRIE, bpf_objects.F_NO_PREALLOC), (bpf_objects.MAP_HASH, 0))
    )
    started = time.monotonic()
    table = xdp_lists.build_list4(prefixes)
    print(f"table: {time.monotonic() - started:.2f} s to build")
    maps = {1: trie, 2: hashed, 3: table.blocks, 4: table.parts}
    print("MiB:", {number: round(memory(descriptor) / 2**20) for number, descriptor in maps.items()})
    asked = {
        "nothing": "",
        "LPM trie": ask(1, 32),
        "hash by length": "".join(ask(2, length) for length in np.unique(lengths).tolist()),
        "table": f"hit = in_list4(MAP_VALUE(3), MAP_VALUE(4), {table.count}, src);",
    }
    for name, body in asked.items():
        costs = [f"{where} {cost(source, body, maps)} ns" for where, source in SOURCES_OF.items()]
        print(f"{name:15}", *costs)


def mixed_prefixes() -> PrefixRows:
    """Draw lengths and places as `fwtop bench bulk` does."""
    chance = np.random.default_rng(20261121)
    lengths = chance.choice((20, 22, 24, 24, 24, 28, 32, 32, 32, 32), COUNT).astype(np.int64)
    values = chance.integers(1 << 24, 200 << 24, COUNT, np.int64)
    return PrefixRows.of_ipv4(values >> (32 - lengths) << (32 - lengths), lengths)


def filled(descriptor: int, keys: np.ndarray) -> int:
    """Put all keys into a map by batches, and say how long it took."""
    started = time.monotonic()
    for start in range(0, len(keys), _BATCH):
        part = keys[start : start + _BATCH]
        bpf_objects.set_elements(descriptor, part.tobytes(), bytes(4 * len(part)), len(part))
    print(f"map {descriptor}: {time.monotonic() - started:.2f} s to fill")
    return descriptor


def memory(descriptor: int) -> int:
    """Return the bytes that the kernel accounts to a map."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("memlock")).split()[1])


def ask(number: int, length: int) -> str:
    """Return C that asks a map for the prefix of one length around `src`."""
    mask = (1 << 32) - (1 << 32 - length)
    key = f"struct {{ u32 length, place; }} key = {{{length}, __builtin_bswap32(src & 0x{mask:x}U)}};"
    return f"if (!hit) {{ {key} hit = bpf_map_lookup_elem(MAP({number}), &key) != NULL; }}"


def cost(source: str, body: str, maps: dict[int, int]) -> int:
    """Return the nanoseconds a packet of a program that does this."""
    text = f"""#include "{SOURCES}/xdp_lists.h"
    PROGRAM(lookup) int lookup(struct xdp_md *ctx) {{ u32 src = {source}, hit = 0; OPAQUE(src); {body}
    return hit ? 1 : 2; }}"""
    shared = {f"FWTOP_XDP_{name.upper()}_FD": 9 for name in xdp_maps.SHARED}
    code = compile_text(text, {**shared, "FWTOP_CPUS": 1}, ["lookup"])["lookup"]
    program = bpf.load_program(bpf.XDP, "lookup", relocate(code, maps))
    frame = ctypes.create_string_buffer(64)
    best = 1 << 32
    for _ in range(RUNS):
        order = struct.pack("<IIIIQQII", program, 0, 64, 0, ctypes.addressof(frame), 0, REPEAT, 0)
        attributes = ctypes.create_string_buffer(order, 80)
        bpf._libc.syscall(bpf._NUMBER[os.uname().machine], _TEST_RUN, attributes, 80)
        best = min(best, struct.unpack_from("<I", attributes, 36)[0])
    os.close(program)
    return best


if __name__ == "__main__":
    main()
