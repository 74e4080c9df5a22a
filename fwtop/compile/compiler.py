"""Compile bpf/*.c to byte code with bcc, without kernel headers.

bcc runs in a forked child, so that its 100 MB of LLVM are freed before the programs are loaded.

For each compilation bcc reads and sorts the 200,000 lines of /proc/kallsyms, only to find out whether the
kernel has bpf_probe_read_kernel (b_frontend_action.cc). Kernels since 5.5 have it, and fwtop needs 5.8 for
the ring buffer, so bcc is shown a file of two lines instead.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fwtop.compile import cache
from fwtop.model.errors import FwtopError
from fwtop.model.paths import BPF_DIRECTORY
from fwtop.sandbox.child import NoAnswerError, ask

SOURCES = BPF_DIRECTORY
_KALLSYMS = BPF_DIRECTORY / "include" / "kallsyms"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CLONE_NEWNS = 0x00020000  # linux/sched.h
_MS_BIND, _MS_PRIVATE = 1 << 12, 1 << 18  # linux/mount.h
_LD_IMM64 = 0x18
_MAP, _MAP_VALUE = 1, 2  # BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE
_CONSTANT = 15  # fwtop's own, never loaded: CONSTANT of bpf/kernel.h
_CACHED = 16  # sets of programs: by version of fwtop and number of interfaces
_DISTRIBUTION_PACKAGES = "/usr/lib/python3/dist-packages"


def byte_code(files: list[str], definitions: Mapping[str, object], programs: list[str]) -> dict[str, bytes]:
    """Return the byte code of the named programs in files of bpf/, from the cache if possible.

    It refers to maps by number: see `relocate`. Raises as `compile_programs` does.
    """
    key = [_sources_hash(), dict(definitions), files]
    cached = cache.load("code", key)
    if isinstance(cached, dict) and set(cached) == set(programs):
        return {name: base64.b64decode(text) for name, text in cached.items()}
    code = compile_programs(files, definitions, programs)
    cache.store("code", key, {name: base64.b64encode(data).decode() for name, data in code.items()})
    cache.prune("code", _CACHED)
    return code


def relocate(code: bytes, values: dict[int, int]) -> bytes:
    """Replace map and constant numbers by their values (struct bpf_insn, LD_IMM64); KeyError if unknown."""
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
    """Compile files of bpf/ as one module and return the byte code of the named programs.

    Raises FwtopError: code 3 without bcc, 1 if the compiler fails (its messages go to standard error).
    """
    text = "".join(f'#include "{SOURCES / name}"\n' for name in files)
    return compile_text(text, definitions, programs)


def compile_text(text: str, definitions: Mapping[str, object], programs: list[str]) -> dict[str, bytes]:
    """Compile C that includes headers of bpf/ by their full path; raises as `compile_programs` does."""
    parent = os.getpid()

    def enter() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    try:
        return ask(lambda: _compile(text, definitions, programs), dict[str, bytes], who="bcc", enter=enter)
    except NoAnswerError as error:
        how = f": it {error.how}" + ("; is memory short?" if "signal" in error.how else "")
        raise FwtopError(f"bcc died while compiling fwtop's programs{how}; nothing was attached") from None


def _compile(text: str, definitions: Mapping[str, object], programs: list[str]) -> dict[str, bytes]:
    bpf = _bcc()
    hide_kernel_symbols()
    flags = [f"-D{name}={value}" for name, value in definitions.items()]
    os.environ["BCC_KERNEL_SOURCE"] = str(SOURCES)  # bcc looks for include/linux/… below it
    try:
        # Without -g0 bcc asks for debug information, a tenth of the time for the same code
        module = bpf(text=text.encode(), cflags=["-D__LINUX_BPF_H__", "-g0", *flags])
    except Exception as error:  # bcc raises nothing narrower
        raise FwtopError(f"bcc could not compile fwtop's programs: {error}") from None
    return {name: module.dump_func(name.encode()) for name in programs}


def compile_in_process(file: str, definitions: Mapping[str, object]) -> Any:  # noqa: ANN401 - bcc has no types
    """Compile a file of bpf/ in this process and return bcc's object, which owns the maps.

    LLVM stays in memory: only for the lab's short-lived sender. Raises FwtopError.
    """
    bpf = _bcc()
    hide_kernel_symbols()
    os.environ["BCC_KERNEL_SOURCE"] = str(SOURCES)
    os.environ["BCC_LINUX_VERSION_CODE"] = str(6 << 16)
    flags = ["-D__LINUX_BPF_H__", "-w", f"-I{SOURCES}"]
    flags += [f"-D{name}={value}" for name, value in definitions.items()]
    try:
        return bpf(src_file=str(SOURCES / file), cflags=flags)
    except Exception as error:  # bcc raises nothing narrower
        raise FwtopError(f"bpf/{file} could not be compiled: {error}", 3) from None


def hide_kernel_symbols() -> None:
    """Mount a short list over /proc/kallsyms for this process and its children, in a new mount namespace.

    Without the privilege, compiling only takes longer.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0 and libc.mount(None, b"/proc", None, _MS_PRIVATE, None) == 0:
        libc.mount(os.fsencode(_KALLSYMS), b"/proc/kallsyms", None, _MS_BIND, None)


def _sources_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.[ch]")):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _bcc() -> Callable[..., Any]:
    """Import the distribution's bcc: a virtual environment hides it, and PyPI's is unrelated."""
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
