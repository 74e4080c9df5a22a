"""Compiled rules at tc ingress: by a TCX link, or before Linux 6.6 by a filter under clsact.

A link stays by its name in bpffs, a filter by the interface that it is on; the filter's program has a name
there as well, which tells that rules of ours are on that interface.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from fwtop.collect import bpf, bpf_objects, clsact

FILTER = "filter"  # pins are named KIND-MODE-INTERFACE


def attach(directory: Path, program: int, ifindex: int, mode: str) -> None:
    """Attach a program last in the line and keep it; raises OSError."""
    try:
        descriptor = bpf.attach_tcx_ingress(program, ifindex, last=True)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel before 6.6 doesn't know it
            raise
        attach_filter(directory, program, ifindex, mode)
        return
    try:
        bpf_objects.pin(descriptor, directory / f"link-{mode}-{ifindex}")
    finally:
        os.close(descriptor)


def attach_filter(directory: Path, program: int, ifindex: int, mode: str) -> None:
    """Attach a program by a filter, or swap it for the one that is there; raises OSError."""
    clsact.put_rules(program, ifindex, mode)
    path = directory / f"{FILTER}-{mode}-{ifindex}"
    path.unlink(missing_ok=True)
    bpf_objects.pin(program, path)


def detach_filter(ifindex: int, mode: str) -> None:
    """Take the filter off, if its interface is still there."""
    with contextlib.suppress(OSError):
        clsact.remove_rules(ifindex, mode)
