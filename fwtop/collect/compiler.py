"""Turn bpf/*.c into byte code with bcc, without kernel headers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fwtop.model.errors import FwtopError

SOURCES = Path(__file__).resolve().parents[2] / "bpf"
_DISTRIBUTION_PACKAGES = "/usr/lib/python3/dist-packages"


def compile_programs(
    files: list[str], definitions: dict[str, object], programs: list[str]
) -> dict[str, bytes]:
    """Compile files of bpf/ as one module and return the byte code of the named programs.

    Raises FwtopError: code 3 without bcc, 1 when the compiler refuses (its words go to standard error).
    """
    bpf = _bcc()
    flags = [f"-D{name}={value}" for name, value in definitions.items()]
    text = "".join(f'#include "{SOURCES / name}"\n' for name in files)
    os.environ["BCC_KERNEL_SOURCE"] = str(SOURCES)  # bcc looks for include/linux/… below it
    try:
        module = bpf(text=text.encode(), cflags=["-D__LINUX_BPF_H__", *flags])
    except Exception as error:  # bcc raises nothing narrower
        raise FwtopError(f"bcc could not compile fwtop's programs: {error}") from None
    return {name: module.dump_func(name.encode()) for name in programs}


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
