"""JSON lines: whole lines or none, whatever becomes of the disk or the reader."""

from __future__ import annotations

import errno
import json
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_samples import POISON, START, attack, snapshot

from fwtop.cli.recorder import open_lines
from fwtop.console.publish import outputs
from fwtop.console.publish.outputs import JsonLines
from fwtop.model.errors import FwtopError

Poll = Callable[..., Any]
TICK = snapshot(START, attacks=(attack(),), proposals=True)
MANY = 1 << 30


def lines_to(descriptor: int, *, most: int = MANY, every: float = 1e-9) -> JsonLines:
    return JsonLines(descriptor, top=3, every_seconds=every, most_bytes=most)


def write(lines: JsonLines, path: Path, poll_until: Poll, count: int) -> None:
    for number in range(1, count + 1):
        lines.take(TICK)
        poll_until(lambda number=number: path.read_bytes().count(b"\n") == number)


@pytest.fixture
def file(tmp_path: Path):
    path = tmp_path / "lines"
    descriptor = open_lines(str(path))
    yield path, descriptor
    os.close(descriptor)


def test_each_line_is_an_observation_with_lists_cut(file, poll_until: Poll) -> None:
    path, descriptor = file
    lines = lines_to(descriptor)
    write(lines, path, poll_until, 2)
    lines.close()
    for line in path.read_text().splitlines():
        document = json.loads(line)
        assert document["schema"] == 1
        assert len(document["sources"]["address"]) == 3
    assert path.stat().st_mode & 0o007 == 0


def test_a_poisoned_observation_is_one_line_of_ascii(file, poll_until: Poll) -> None:
    path, descriptor = file
    lines = lines_to(descriptor)
    lines.take(snapshot(START, attacks=(attack(kind=POISON),)))
    poll_until(lambda: path.read_bytes().endswith(b"\n"))
    lines.close()
    text = path.read_bytes()
    assert text.count(b"\n") == 1
    assert text.isascii()
    assert b"\x1b" not in text


def test_lines_come_at_their_interval(file, poll_until: Poll) -> None:
    path, descriptor = file
    lines = lines_to(descriptor, every=3600)
    for _ in range(5):
        lines.take(TICK)
    lines.close()
    assert path.read_bytes().count(b"\n") == 1


def test_a_file_at_its_limit_gets_no_line_until_it_is_rotated(file, poll_until: Poll) -> None:
    path, descriptor = file
    lines = lines_to(descriptor, most=1 << 20)
    os.truncate(path, (1 << 20) - 10)
    lines.take(TICK)
    poll_until(lambda: lines.problem)
    assert lines.problem == "the JSON lines have reached their limit of 1 MiB: rotate the file"
    assert path.stat().st_size == (1 << 20) - 10
    os.truncate(path, 0)  # logrotate's copytruncate
    write(lines, path, poll_until, 1)
    poll_until(lambda: lines.problem == "")
    lines.close()
    assert json.loads(path.read_text())["schema"] == 1


def test_a_full_disk_leaves_no_half_line_and_lines_resume(file, poll_until: Poll, monkeypatch) -> None:
    path, descriptor = file
    lines = lines_to(descriptor)
    write(lines, path, poll_until, 1)

    def half(where: int, data: bytes) -> None:
        os.write(where, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(outputs, "_write_whole", half)
        lines.take(TICK)
        poll_until(lambda: lines.problem)
    assert lines.problem == "no JSON lines are written (No space left on device); watching goes on"
    write_again = path.read_bytes()
    assert write_again.count(b"\n") == 1
    assert write_again.endswith(b"\n")
    lines.take(TICK)
    poll_until(lambda: path.read_bytes().count(b"\n") == 2)
    lines.close()
    assert [json.loads(line)["schema"] for line in path.read_text().splitlines()] == [1, 1]
    assert not lines.ended.is_set()


def test_a_closed_pipe_ends_the_lines(poll_until: Poll) -> None:
    reading, writing = os.pipe()
    lines = lines_to(writing)
    os.close(reading)
    lines.take(TICK)
    poll_until(lines.ended.is_set)
    assert lines.problem == "JSON lines have ended: their reader closed the pipe"
    lines.take(TICK)
    lines.close()
    os.close(writing)


def test_a_reader_that_stalls_holds_nothing_up(poll_until: Poll) -> None:
    reading, writing = os.pipe()
    lines = lines_to(writing)
    poll_until(lambda: lines.take(TICK) or not select.select([], [writing], [], 0)[1])  # the pipe is full
    skipped = "the reader of the JSON lines is too slow, so lines are skipped"
    poll_until(lambda: lines.take(TICK) or lines.problem == skipped)
    os.close(reading)
    poll_until(lambda: lines.take(TICK) or lines.ended.is_set())
    lines.close()
    os.close(writing)


@pytest.mark.parametrize("what", ["link", "directory", "fifo", "missing"])
def test_what_can_t_be_appended_to_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "link":
        path.symlink_to(tmp_path / "y")
    elif what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path = tmp_path / "no/x"
    with pytest.raises(FwtopError, match="nothing was started") as raised:
        open_lines(str(path))
    assert raised.value.code == 2
    assert not (tmp_path / "y").exists()
