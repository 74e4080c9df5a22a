"""Compile bpf/*.c to byte code with bcc; offsets come from the kernel's BTF, not from headers. Both cached.

bcc runs in a forked child, so that its 100 MB of LLVM are freed before the programs are loaded.

For each compilation bcc reads and sorts the 200,000 lines of /proc/kallsyms, only to find out whether the
kernel has bpf_probe_read_kernel (b_frontend_action.cc). Kernels since 5.5 have it, and fwtop needs 5.8 for
the ring buffer, so bcc is shown a file of two lines instead.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from fwtop.kernel.btf import Btf
from fwtop.model.errors import FwtopError
from fwtop.model.files import replacing
from fwtop.model.paths import BPF_DIRECTORY, RUN_DIRECTORY
from fwtop.model.wire import of_plain, plain
from fwtop.sandbox.child import NoAnswerError, ask
from fwtop.sandbox.confine import end_with

SOURCES = BPF_DIRECTORY
_KALLSYMS = BPF_DIRECTORY / "include" / "kallsyms"
_CLONE_NEWNS = 0x00020000  # linux/sched.h
_MS_BIND, _MS_PRIVATE = 1 << 12, 1 << 18  # linux/mount.h
_LD_IMM64 = 0x18
_MAP, _MAP_VALUE = 1, 2  # BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE
_CONSTANT = 15  # fwtop's own, never loaded: CONSTANT of bpf/kernel.h
_CACHED = 16  # sets of programs: by version of fwtop and number of interfaces
_DISTRIBUTION_PACKAGES = "/usr/lib/python3/dist-packages"
# bcc optimises what clang has optimised already: without clang's passes the code is as short, in two thirds
# of the time. Without -g0 bcc asks for debug information, which takes another tenth.
_FLAGS = ("-D__LINUX_BPF_H__", "-g0", "-Xclang", "-disable-llvm-passes")


def byte_code(files: list[str], definitions: Mapping[str, object], programs: list[str]) -> dict[str, bytes]:
    """Return the byte code of the named programs in files of bpf/, from the cache if possible.

    It refers to maps by number: see `relocate`. Raises as `compile_programs` does.
    """
    key = [_sources_hash(), dict(definitions), files, programs]
    return cached_code("code", key, _CACHED, lambda: compile_programs(files, definitions, programs))


def cached_code(
    kind: str, key: object, most: int, compiled: Callable[[], dict[str, bytes]]
) -> dict[str, bytes]:
    """Return byte code from the cache, or what `compiled` returns, which is kept: of a kind the latest."""
    if isinstance(cached := load_cached(kind, key), dict):
        return {name: base64.b64decode(text) for name, text in cached.items()}
    code = compiled()
    store_cached(kind, key, {name: base64.b64encode(data).decode() for name, data in code.items()})
    prune_cached(kind, most)
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
    enter = partial(end_with, os.getpid(), signal.SIGKILL)
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
        module = bpf(text=text.encode(), cflags=[*_FLAGS, *flags])
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
    flags = [*_FLAGS, "-w", f"-I{SOURCES}", *(f"-D{name}={value}" for name, value in definitions.items())]
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


REASON_PREFIX = "SKB_DROP_REASON_"
_VERSION = 3  # of the cached value: incremented when Kernel changes
_TRACEPOINT = "kfree_skb"
_NONE = 1 << 30  # no reason has this number
_REASONS = ("CPU_BACKLOG", "NETFILTER_DROP", "IP_RPFILTER")  # distinguished by the programs
_OFFSETS = {
    "OFF_HEAD": "sk_buff.head",
    "OFF_DATA": "sk_buff.data",
    "OFF_END": "sk_buff.end",
    "OFF_LEN": "sk_buff.len",
    "OFF_DATA_LEN": "sk_buff.data_len",
    "OFF_DEV": "sk_buff.dev",
    "OFF_CB": "sk_buff.cb",
    "OFF_SKB_IIF": "sk_buff.skb_iif",
    "OFF_PROTOCOL": "sk_buff.protocol",
    "OFF_REFDST": "sk_buff._skb_refdst",
    "OFF_MAC_HEADER": "sk_buff.mac_header",
    "OFF_NETWORK_HEADER": "sk_buff.network_header",
    "OFF_TRANSPORT_HEADER": "sk_buff.transport_header",
    "OFF_GSO_SEGS": "skb_shared_info.gso_segs",
    "OFF_DST_DEV": "dst_entry.dev",
    "OFF_DEV_NET": "net_device.nd_net.net",
    "OFF_DEV_IFINDEX": "net_device.ifindex",
    "OFF_NET_INUM": "net.ns.inum",
    "OFF_SOCK_NET": "sock.__sk_common.skc_net.net",
    "OFF_SOCK_STATE": "sock.__sk_common.skc_state",
    "OFF_STATE_HOOK": "nf_hook_state.hook",
    "OFF_STATE_PF": "nf_hook_state.pf",
    "OFF_STATE_IN": "nf_hook_state.in",
    "OFF_STATE_OUT": "nf_hook_state.out",
    "OFF_FRAG_MAX_V4": "inet_skb_parm.frag_max_size",
    "OFF_FRAG_MAX_V6": "inet6_skb_parm.frag_max_size",
}


class Kernel(Struct, frozen=True):
    """The running kernel as its BTF describes it."""

    definitions: dict[str, Any]
    reasons: dict[int, str]  # without SKB_DROP_REASON_; empty before Linux 5.17
    tracepoint: int  # BTF id of kfree_skb's type
    counts_connections: bool  # conntrack entries can be read

    @property
    def reason_slots(self) -> int:
        """Number of drop counters."""
        return max(self.reasons, default=2) + 1

    @staticmethod
    def read() -> Kernel:
        """Read the running kernel's BTF, or the cached result of an earlier start.

        Raises FwtopError (code 3) if the kernel has no BTF or lacks a member.
        """
        key = [_OFFSETS, _VERSION]
        cached = load_cached("kernel", key)
        if isinstance(cached, dict):
            return of_plain(Kernel, cached)
        kernel = Kernel._look_up(Btf.read())
        store_cached("kernel", key, plain(kernel))
        return kernel

    @staticmethod
    def _look_up(types: Btf) -> Kernel:
        names = types.enum("skb_drop_reason")
        # Numbers from 65536 on are subsystems' own (mac80211, openvswitch)
        reasons = {
            number: name.removeprefix(REASON_PREFIX) for number, name in names.items() if number < 1 << 16
        }
        conntrack = _conntrack(types)
        return Kernel(
            definitions={
                **{name: types.offset(path) for name, path in _OFFSETS.items()},
                **_drop_arguments(types, reasons),
                **conntrack,
            },
            reasons=reasons,
            tracepoint=types.typedef(f"btf_trace_{_TRACEPOINT}") or 0,
            counts_connections=bool(conntrack),
        )


def _drop_arguments(types: Btf, reasons: dict[int, str]) -> dict[str, Any]:
    numbers = {name: number for number, name in reasons.items()}
    arguments = types.arguments(_TRACEPOINT)
    definitions: dict[str, Any] = {
        "FWTOP_NOT_SPECIFIED": numbers.get("NOT_SPECIFIED", 2),
        **{f"FWTOP_{name}": numbers.get(name, _NONE) for name in _REASONS},
    }
    if arguments >= 3:
        definitions["FWTOP_HAS_REASON"] = 1
    if arguments >= 4:
        definitions["FWTOP_HAS_RX_SK"] = 1
    return definitions


def _conntrack(types: Btf) -> dict[str, Any]:
    """Return the offsets of conntrack entries, {} if conntrack is a module, whose types vmlinux lacks."""
    entry, status = types.find_offset("sk_buff._nfct"), types.find_offset("nf_conn.status")
    return {} if entry is None or status is None else {"OFF_NFCT": entry, "OFF_CT_STATUS": status}


# The cache of kernel definitions and compiled programs, until the next boot. Reading BTF and compiling take
# 0.3 s on an idle machine and seconds on one under attack; later starts, and other namespaces, skip both.
# Entries are keyed by kernel and sources and live in /run. Only root writes them, and cached code passes the
# verifier like any other.


def load_cached(name: str, key: object) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return the value stored under this name and key, or None."""
    path = _path(name, key)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
            return json.loads(file.read())
    except (OSError, ValueError):
        return None


def store_cached(name: str, key: object, value: object) -> None:
    """Store a JSON value; failures are ignored, as the next start computes it again."""
    path = _path(name, key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with replacing(path, permissions=0o600) as file:
            json.dump(value, file)


def prune_cached(name: str, keep: int) -> None:
    """Delete all but the latest `keep` entries under this name."""
    with contextlib.suppress(OSError):
        paths = sorted(RUN_DIRECTORY.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)
        for path in paths[: max(0, len(paths) - keep)]:
            path.unlink(missing_ok=True)


def _path(name: str, key: object) -> Path:
    kernel = os.uname()
    text = json.dumps([kernel.release, kernel.version, kernel.machine, key], sort_keys=True)
    return RUN_DIRECTORY / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
