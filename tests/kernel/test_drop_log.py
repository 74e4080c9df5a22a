"""`fwtop record --drops`: what other programs get of the packets that are dropped on a real machine."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fwtop.bench.measured_harm import forget_session
from fwtop.bench.programs import run_fwtop
from fwtop.kernel.programs import module_argv
from fwtop.lab.run import Lab

pytestmark = pytest.mark.kernel
Poll = Callable[..., Any]
READER = Path(__file__).parents[2] / "docs/read_drops.py"
_LINE = re.compile(
    r"(?P<at>\d+\.\d+) ×(?P<times>\d+) (?P<length>\d+) bytes, (?P<why>.*): (?P<data>[0-9a-f]*)"
)


@pytest.fixture(scope="module")
def running() -> Iterator[Lab]:
    with Lab("few_sources") as lab:
        yield lab
        forget_session(lab)


@pytest.fixture
def lab(running: Lab) -> Iterator[Lab]:
    """The file's lab, without a flood and rules again after each test."""
    yield running
    running.stop()
    run_fwtop("undo", "--all", "--netns", running.victim)


@contextmanager
def recording(lab: Lab, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        module_argv("fwtop", "record", "--netns", lab.victim, "--no-alarms", *options),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        print(process.communicate(timeout=120)[0])


def read(path: Path) -> list[dict[str, str]]:
    """Read a file with the program of the documentation."""
    if not path.exists():
        return []
    argv = [sys.executable, READER, path]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    found = [_LINE.fullmatch(line) for line in done.stdout.splitlines()]
    assert all(found)
    return [match.groupdict() for match in found if match is not None]


def test_frames_name_the_rule_and_a_reader_goes_on_after_damage(
    lab: Lab, open_path: Path, poll_until: Poll
) -> None:
    path = open_path / "drops"
    with recording(lab, "--drops", str(path), "--drops-rate", "200"):
        poll_until(path.exists)  # it is starting: both need the maps of compiled rules
        lab.start_flood(5_000)
        poll_until(lambda: read(path))  # what the kernel drops, as nobody takes it
        run_fwtop("drop", "--proto", "udp", "--via", "xdp", "--yes", "--force", "--netns", lab.victim)
        poll_until(lambda: sum(frame["why"].startswith("rule ") for frame in read(path)) > 300)
    frames = read(path)
    of_rule = [frame for frame in frames if frame["why"].startswith("rule ")]
    assert {frame["why"] for frame in frames} - {of_rule[0]["why"]}, "and some reasons of the kernel"
    times = [float(frame["at"]) for frame in of_rule]
    seconds = max(times) - min(times)
    assert len(of_rule) <= 200 * (seconds + 2)
    assert sum(int(frame["times"]) for frame in of_rule) / seconds == pytest.approx(5_000, rel=0.5)
    assert all(len(frame["data"]) // 2 <= 14 + 20 + 8 for frame in of_rule), "no payload unless asked"
    whole = bytearray(path.read_bytes())
    for place in range(50, len(whole), 5_000):
        whole[place] ^= 0x55
    damaged = open_path / "damaged"
    damaged.write_bytes(b"\xf7DRP\xff\xff" + whole[20:-3])
    kept = read(damaged)
    assert len(frames) - len(whole) // 5_000 - 4 <= len(kept) < len(frames)
    assert all(frame in frames for frame in kept)


def test_two_files_take_turns_within_their_limit(lab: Lab, open_path: Path, poll_until: Poll) -> None:
    path, other = open_path / "d.pcapng", open_path / "d.1.pcapng"
    options = ("--drops-mib", "1", "--drops-payload", "--drops-rate", "20000")
    with recording(lab, "--drops", str(path), *options):
        poll_until(path.exists)
        lab.start_flood(20_000)
        run_fwtop("drop", "--proto", "udp", "--via", "xdp", "--yes", "--force", "--netns", lab.victim)
        poll_until(lambda: other.exists() and other.stat().st_size > 100_000)
        most = max(one.stat().st_size for one in (path, other))
    assert most <= 1 << 19
    for file in (path, other):
        done = subprocess.run(
            ["tcpdump", "-nr", file, "-c", "200"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.count("UDP") > 100, done.stderr
        assert b"; stands for " in file.read_bytes()


@pytest.mark.matrix  # test_drop_log_blocks has a slow reader without a flood
def test_a_reader_that_does_not_read_holds_nobody_up(lab: Lab, open_path: Path, poll_until: Poll) -> None:
    path, told = open_path / "s", open_path / "told"
    with recording(lab, "--drops", f"unix:{path}", "--drops-rate", "20000", "--jsonl", "-") as process:
        assert process.stdout is not None
        poll_until(path.exists)
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as slow, told.open("wb") as file:
            slow.connect(str(path))
            reader = subprocess.Popen([sys.executable, READER, f"unix:{path}"], stdout=file)
            lab.start_flood(30_000)
            run_fwtop("drop", "--proto", "udp", "--via", "xdp", "--yes", "--force", "--netns", lab.victim)
            assert next(line for line in process.stdout if "left out for 1 slow readers" in line)
            lines = len(told.read_text().splitlines())
            poll_until(lambda: len(told.read_text().splitlines()) > lines)
            reader.terminate()
            reader.wait(20)
