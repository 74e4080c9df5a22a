"""Values of C expressions as the headers in bpf/ define them, by the host's compiler."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fwtop.xdp.maps import SHARED

BPF = Path(__file__).resolve().parents[2] / "bpf"
_MAPS = [*("COUNTERS", "CONTROL", "SCOPE", "LOCATIONS", "RING"), *(f"XDP_{name.upper()}" for name in SHARED)]
_DEFINITIONS = {
    **{"FWTOP_REASONS": 3, "FWTOP_CPUS": 2, "FWTOP_WATCHED": 3, "FWTOP_RING_BYTES": 4096},
    **{"FRAME_BYTES": 1536, "TEMPLATES": 1, "SOURCES": 1, "SLOTS": 1},
    **{f"FWTOP_{name}_FD": 3 for name in _MAPS},
}
# Functions that nothing calls are not compiled, so BPF helpers needn't be declared.
_OPTIONS = ("-O1", "-w", "-fno-builtin", "-Wno-implicit-function-declaration", "-Wno-int-conversion")


def run_c(source: Path, **definitions: int) -> list[int]:
    """Compile a C file that includes headers of bpf/, run it, and return the numbers that it prints."""
    program = source.with_suffix("")
    defined = [f"-D{name}={value}" for name, value in (_DEFINITIONS | definitions).items()]
    argv = ["gcc", *_OPTIONS, f"-I{BPF}", f"-I{BPF}/include", *defined, str(source), "-o", str(program)]
    subprocess.run(argv, check=True, timeout=60)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=60)
    return [int(line) for line in done.stdout.split()]


def values(
    folder: Path, headers: Iterable[str], expressions: Iterable[str], **definitions: int
) -> dict[str, int]:
    """Return the value of each C expression."""
    wanted = list(expressions)
    lines = ["#include <stdio.h>", "#include <stddef.h>", "#include <linux/kconfig.h>"]
    lines += [f'#include "{name}"' for name in headers]
    lines += ["int main(void) {", *(f'printf("%lld\\n", (long long)({text}));' for text in wanted), "}"]
    source = folder / "values.c"
    source.write_text("\n".join(lines))
    return dict(zip(wanted, run_c(source, **definitions), strict=True))


def layout_of(struct: str, dtype: np.dtype[Any]) -> dict[str, int]:
    """Return what C should say of a struct: the offset of each field, and the size."""
    fields: Mapping[str, Any] = dtype.fields or {}
    offsets = {f"offsetof({struct}, {name})": int(fields[name][1]) for name in fields if name != "padding"}
    return {**offsets, f"sizeof({struct})": dtype.itemsize}
