"""Checks of privileges and kernel that only read files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from fwtop.cli.doctor.check import MISSING, OK, UNKNOWN, WARNING, Check
from fwtop.model.errors import FwtopError

_GROUP = "kernel"
_RING_BUFFER, _REASONS, _TCX = (5, 8), (5, 17), (6, 6)


def checks() -> Iterator[Check]:
    """Check privileges, kernel version, BTF, bpffs, lockdown and the BPF JIT."""
    yield _rights()
    yield _version()
    yield _types()
    yield _bpffs()
    yield _lockdown()
    yield _hardening()


def _rights() -> Check:
    if os.geteuid() == 0:
        return Check(_GROUP, "privileges", OK, "root")
    return Check(_GROUP, "privileges", UNKNOWN, "not root: some checks were skipped", "sudo fwtop doctor")


def _version() -> Check:
    release = os.uname().release
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < _RING_BUFFER:
        why = f"{release}: fwtop needs Linux 5.8 or newer (BPF ring buffer)"
        return Check(
            _GROUP, "version", MISSING, why, "install a newer kernel of the distribution", essential=True
        )
    lacking = [
        text
        for since, text in (
            (_REASONS, "no drop reasons before 5.17"),
            (_TCX, "no TCX before 6.6: clsact is used"),
        )
        if version < since
    ]
    return Check(_GROUP, "version", OK, "; ".join([release, *lacking]), essential=True)


def _types() -> Check:
    from fwtop.compile.compiler import Kernel

    try:
        kernel = Kernel.read()
    except FwtopError as error:
        mend = "install the distribution's own kernel (it has CONFIG_DEBUG_INFO_BTF)"
        return Check(_GROUP, "BTF", MISSING, str(error), mend, essential=True)
    if not kernel.reasons:
        return Check(_GROUP, "BTF", WARNING, "readable, but the kernel gives no drop reasons", essential=True)
    return Check(_GROUP, "BTF", OK, f"readable, {len(kernel.reasons)} drop reasons", essential=True)


def _bpffs() -> Check:
    mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    if " /sys/fs/bpf bpf " in mounts:
        return Check(_GROUP, "bpffs", OK, "mounted on /sys/fs/bpf")
    detail = "not mounted: XDP rules would not outlive the guardian"
    return Check(_GROUP, "bpffs", WARNING, detail, "mount -t bpf bpf /sys/fs/bpf")


def _lockdown() -> Check:
    try:
        text = Path("/sys/kernel/security/lockdown").read_text(encoding="ascii")
    except OSError:
        return Check(_GROUP, "lockdown", OK, "not in force")
    if "[confidentiality]" in text:
        mend = "boot without lockdown=confidentiality"
        return Check(
            _GROUP, "lockdown", MISSING, "confidentiality: BPF may not read packets", mend, essential=True
        )
    return Check(_GROUP, "lockdown", OK, text.strip())


def _hardening() -> Check:
    path = Path("/proc/sys/net/core/bpf_jit_enable")
    try:
        enabled = path.read_text(encoding="ascii").strip()
    except OSError:
        return Check(_GROUP, "BPF compiler", UNKNOWN, f"{path} can't be read")
    if enabled == "0":
        return Check(
            _GROUP, "BPF compiler", WARNING, "off: BPF is interpreted", "sysctl net.core.bpf_jit_enable=1"
        )
    return Check(_GROUP, "BPF compiler", OK, "on")
