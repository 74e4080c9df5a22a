"""The packets that are shown, as a pcap file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fwtop.analysis.packets.recent import PacketList
from fwtop.capture.writing import ETHERNET, RAW, pcap_of
from fwtop.model.errors import FwtopError
from fwtop.model.paths import exports_directory
from fwtop.model.traffic.packets import PacketBatch
from fwtop.store.directory import DEFAULT_MAX_BYTES, SESSION_DIRECTORY, drop_old

_BLANK = 14  # bytes of the Ethernet header that stands before packets of interfaces without one
_SAME_NAME = 1_000


def pcap_bytes(packets: PacketBatch, clock_ns: int) -> bytes:
    """Return packets as a capture; those of interfaces without Ethernet begin with the IP header again."""
    raw = _without_ethernet(packets)
    skipped = _BLANK if raw else 0
    rows = zip(packets.time_ns.tolist(), packets.captured.tolist(), packets.length.tolist(), strict=True)
    return pcap_of(
        (
            (time_ns + clock_ns, length, packets.data[row, skipped:captured].tobytes())
            for row, (time_ns, captured, length) in enumerate(rows)
        ),
        RAW if raw else ETHERNET,
    )


def _without_ethernet(packets: PacketBatch) -> bool:
    """Whether every packet has a blank Ethernet header before its IP header."""
    width = packets.data.shape[1]
    if not len(packets) or width < _BLANK or int(packets.captured.min()) <= _BLANK:
        return False
    blank = ~packets.data[:, : _BLANK - 2].any(axis=1)
    return bool(np.all(blank & (packets.family != 0)))


def write_packets(shown: PacketList, directories: Iterable[Path] | None = None) -> str:
    """Write packets into a new file and return its path; raises FwtopError.

    It goes where reports go: beside the sessions or, failing that, into the user's own directory.
    """
    content = pcap_bytes(shown.packets, shown.clock_ns)
    if directories is None:
        with suppress(OSError):
            SESSION_DIRECTORY.mkdir(mode=0o700, exist_ok=True)
        directories = (SESSION_DIRECTORY, exports_directory())
    failure = FwtopError("there is no directory to write to")
    for directory in directories:
        try:
            path = _write_new(directory, content)
        except OSError as error:
            failure = FwtopError(f"nothing was written to {directory}: {error.strerror}")
            continue
        if directory == SESSION_DIRECTORY:
            drop_old(directory, DEFAULT_MAX_BYTES)
        return str(path)
    raise failure


def _write_new(directory: Path, content: bytes) -> Path:
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    for number in range(1, _SAME_NAME):
        path = directory / f"fwtop-{moment}{f'-{number}' if number > 1 else ''}.pcap"
        try:
            handle = os.open(path, flags, 0o600)
        except FileExistsError:
            continue
        with open(handle, "wb") as file:
            file.write(content)
        return path
    raise FileExistsError(0, "a thousand files of this second")
