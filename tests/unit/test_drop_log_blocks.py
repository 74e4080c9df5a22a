"""The log of dropped packets: what is left out is told, whoever reads slowly, and disks fill."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fwtop.cli.main import main
from fwtop.console.publish import drops
from fwtop.console.publish.drops import (
    _READER_BYTES,
    DroppedPacket,
    DropPicker,
    _Frames,
    _Readers,
    _TwoFiles,
    frame_of,
)
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import Hook, PacketBatch

Poll = Callable[..., Any]
PACKET = DroppedPacket(1_700_000_000_000_000_000, 5, 60, "rule 7", bytes(1_000))


@pytest.mark.parametrize(("per_second", "weight"), [(1_000, 1.0), (1_000, 1.3), (40, 1.0), (3, 2.7)])
def test_what_is_picked_stands_for_all_however_unevenly_polls_come(
    monkeypatch: pytest.MonkeyPatch, per_second: int, weight: float
) -> None:
    clock = [0.0]
    monkeypatch.setattr(drops.time, "monotonic", lambda: clock[0])
    picker, sent, picked = DropPicker(per_second, payload=False), 0.0, []
    for poll in range(400):
        clock[0] += 0.001 if poll % 3 else 0.1
        batch = PacketBatch.zeros(7, 64)
        batch.weight[:], batch.hook[:] = weight, Hook.DROP
        sent += float(batch.weight.sum())
        picked += picker.pick(batch, Counters(0.1, 7, 700))
    assert len(picked) <= per_second * (clock[0] + 1)
    assert len(picked) == 2_800 or per_second < 1_000
    most = max(item.weight for item in picked)
    assert sent - 1.5 * most <= sum(item.weight for item in picked) <= sent + 1


def test_a_slow_reader_is_told_what_it_missed(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    sink = _Readers(_Frames, listener.detach())
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(tmp_path / "s"))
        for _ in range(4):
            sink.write([PACKET] * 1_000, 0)
        assert "1 slow readers" in sink.problem
        slow.setblocking(False)
        got = b""
        for _ in range(10_000):
            try:
                got += slow.recv(1 << 16)
            except BlockingIOError:
                sink.write([PACKET], 0)
                if b"left out" in got:
                    break
        assert len(got) < 2 * _READER_BYTES
        assert b"left out" in got
        assert sink.problem == ""
    sink.write([PACKET], 0)
    assert not sink._readers
    with socket.socket(socket.AF_UNIX) as reader:
        reader.connect(str(tmp_path / "s"))
        sink.write([PACKET], 0)
        sink.close()
        assert reader.recv(1 << 16) == frame_of(PACKET)
        assert reader.recv(1) == b"", "it is told that nothing more comes"
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
        late.connect(str(tmp_path / "s"))


def test_a_full_disk_takes_no_half_frames(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    first = os.open(tmp_path / "a", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    second = os.open(tmp_path / "b", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    sink = _TwoFiles(_Frames, (full, first), 10_000)
    sink.write([PACKET], 0)
    assert "No space left on device" in sink.problem
    sink = _TwoFiles(_Frames, (first, second), 10_000)
    sink.write([PACKET] * 25, 3)
    sizes = [(tmp_path / name).stat().st_size for name in "ab"]
    assert max(sizes) <= 10_000
    assert sum(sizes) % len(frame_of(PACKET)) in (0, sizes[0] % len(frame_of(PACKET)))
    assert sink.problem == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("-", "takes a file or unix:/PATH"),
        ("unix:here", "must begin with a slash"),
        ("unix:/nowhere/at/all", "No such file"),
        ("/nowhere/at/all", "No such file"),
        ("/dev/full", "neither a file nor a pipe"),
    ],
)
def test_wrong_places_are_refused_before_anything_starts(
    name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["record", "--drops", name, "--no-alarms", "--netns", "none"])
    except FwtopError as error:
        code = error.code
        print(error)
    assert code == 2
    told = capsys.readouterr()
    assert why in told.out + told.err
