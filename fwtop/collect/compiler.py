"""Turn bpf/*.c into byte code with bcc, without kernel headers.

bcc runs in a forked child, which ends with it: so it can be spared what it would read for nothing, and its
100 MB of LLVM are gone before the programs are loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fwtop.collect import codecache
from fwtop.collect.kallsyms import hide_kernel_symbols
from fwtop.model.errors import FwtopError

SOURCES = Path(__file__).resolve().parents[2] / "bpf"
_LD_IMM64 = 0x18
_KEPT = 16  # sets of programs: by version of fwtop and number of interfaces
_MAP, _MAP_VALUE = 1, 2  # BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE
_CONSTANT = 15  # our own, never loaded: CONSTANT of bpf/kernel.h
_DISTRIBUTION_PACKAGES = "/usr/lib/python3/dist-packages"


def byte_code(files: list[str], definitions: Mapping[str, object], programs: list[str]) -> dict[str, bytes]:
    """Return the byte code of the named programs in files of bpf/, compiled now or on an earlier start.

    Maps are named by number in it: see `relocate`. Raises what `compile_programs` does.
    """
    key = [_sources_hash(), dict(definitions), files]
    kept = codecache.recall("code", key)
    if isinstance(kept, dict) and set(kept) == set(programs):
        return {name: base64.b64decode(text) for name, text in kept.items()}
    code = compile_programs(files, definitions, programs)
    codecache.remember("code", key, {name: base64.b64encode(data).decode() for name, data in code.items()})
    codecache.prune("code", _KEPT)
    return code


def relocate(code: bytes, values: dict[int, int]) -> bytes:
    """Put in what the code names by number: maps' descriptors, constants (struct bpf_insn, LD_IMM64)."""
    patched = bytearray(code)
    for at in range(0, len(code), 8):
        source = code[at + 1] >> 4
        if code[at] == _LD_IMM64 and source in (_MAP, _MAP_VALUE, _CONSTANT):
            value = values[int.from_bytes(code[at + 4 : at + 8], "little")]
            patched[at + 4 : at + 8] = (value & 0xFFFFFFFF).to_bytes(4, "little")
            if source == _CONSTANT:
                patched[at + 1] = code[at + 1] & 0x0F
                patched[at + 12 : at + 16] = (value >> 32).to_bytes(4, "little")
    return bytes(patched)


def compile_programs(
    files: list[str], definitions: Mapping[str, object], programs: list[str]
) -> dict[str, bytes]:
    """Compile files of bpf/ as one module now and return the byte code of the named programs.

    Raises FwtopError: code 3 without bcc, 1 when the compiler refuses (its words go to standard error).
    """
    text = "".join(f'#include "{SOURCES / name}"\n' for name in files)
    return compile_text(text, definitions, programs)


def compile_text(text: str, definitions: Mapping[str, object], programs: list[str]) -> dict[str, bytes]:
    """Compile C that includes headers of bpf/ by their full path; raises as `compile_programs` does."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.write(writer, _answer(text, definitions, programs))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        answer = file.read()
    os.waitpid(child, 0)
    if not answer:
        raise FwtopError("bcc ended without a word while it compiled fwtop's programs; nothing was attached")
    said = json.loads(answer)
    if "error" in said:
        raise FwtopError(said["error"], said["code"])
    return {name: base64.b64decode(code) for name, code in said.items()}


def _answer(text: str, definitions: Mapping[str, object], programs: list[str]) -> bytes:
    try:
        code = _compile(text, definitions, programs)
    except FwtopError as error:
        return json.dumps({"error": str(error), "code": error.code}).encode()
    return json.dumps({name: base64.b64encode(data).decode() for name, data in code.items()}).encode()


def _compile(text: str, definitions: Mapping[str, object], programs: list[str]) -> dict[str, bytes]:
    bpf = _bcc()
    hide_kernel_symbols()
    flags = [f"-D{name}={value}" for name, value in definitions.items()]
    os.environ["BCC_KERNEL_SOURCE"] = str(SOURCES)  # bcc looks for include/linux/… below it
    try:
        module = bpf(text=text.encode(), cflags=["-D__LINUX_BPF_H__", *flags])
    except Exception as error:  # bcc raises nothing narrower
        raise FwtopError(f"bcc could not compile fwtop's programs: {error}") from None
    return {name: module.dump_func(name.encode()) for name in programs}


def _sources_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.[ch]")):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _bcc() -> Callable[..., Any]:
    """Import bcc from the distribution: a virtual environment doesn't see it, and PyPI's is another."""
    if _DISTRIBUTION_PACKAGES not in sys.path:
        sys.path.append(_DISTRIBUTION_PACKAGES)
    try:
        from bcc import BPF
    except ImportError as error:
        raise FwtopError(
            f"bcc is missing ({error}): apt install python3-bpfcc; nothing was attached", 3
        ) from None
    compiler: Callable[..., Any] = BPF
    return compiler
