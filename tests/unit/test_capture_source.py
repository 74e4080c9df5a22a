"""What a capture is read from: files, pipes, standard input; and all that is refused in one line."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from capture_files import block, pcap, section
from frames import ethernet, ipv4, udp

from fwtop.capture import records
from fwtop.capture.reader import open_source, read_capture
from fwtop.capture.records import Stream
from fwtop.cli.sessions import playing
from fwtop.model.errors import FwtopError

FRAME = ethernet(ipv4(udp(53, 4000, b"four"), 17, "192.0.2.4"), 0x0800)
START_NS = 1_700_000_000_000_000_000
CAPTURE = pcap([(START_NS + number * 1000, FRAME, len(FRAME)) for number in range(50)])
READ = [sys.executable, "-m", "fwtop", "read", "--json"]


def reading(
    path: str | Path, stdin: int | None = None, stderr: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*READ, str(path)], stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
    )


def packets_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    out, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    return json.loads(out)["totals"]["packets"], (told or b"").decode()


@pytest.mark.parametrize("data", [CAPTURE, gzip.compress(CAPTURE)])
def test_a_named_pipe_is_read_as_it_comes_and_waiting_is_told(tmp_path: Path, data: bytes) -> None:
    os.mkfifo(tmp_path / "pipe")
    tmp_path.chmod(0o755)
    with reading(tmp_path / "pipe") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"fwtop: waiting for data from pipe; Ctrl-C ends\n"
        with (tmp_path / "pipe").open("wb", buffering=0) as writer:
            for at in range(0, len(data), 1000):
                writer.write(data[at : at + 1000])
        assert packets_of(process) == (50, "")


def test_standard_input_is_read_until_ctrl_c_and_judged(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with reading("-", reader) as process:
        os.close(reader)
        assert process.stderr is not None
        assert b"waiting for data from standard input" in process.stderr.readline()
        os.write(writer, CAPTURE[:-10])
        while select_bytes(writer):
            pass
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        os.close(writer)
    document = json.loads(out)
    assert document["totals"]["packets"] == 49
    assert document["source"]["file"] == "standard input"


def select_bytes(pipe: int) -> int:
    """Return how many bytes of a pipe nobody has read yet."""
    import array
    import fcntl
    import termios

    left = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, left)
    return left[0]


def make_directory(path: Path) -> None:
    path.mkdir()


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (make_directory, "is a directory, not a capture; nothing was read"),
        (make_socket, "is a socket, not a capture; nothing was read"),
        (make_device, "is a device, not a capture; nothing was read"),
        (Path.touch, "is empty; nothing was read"),
        (lambda path: None, "No such file or directory; nothing was read"),
    ],
)
def test_what_can_hold_no_capture_is_refused(tmp_path: Path, make: Callable[[Path], None], what: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(FwtopError, match=what):
        read_capture(tmp_path / "x")


def test_a_terminal_is_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    with pytest.raises(FwtopError, match="standard input is a terminal"):
        open_source("-")


EMPTY, FREE = 300_000, 20_000
LARGE = (START_NS, bytes(1 << 20), 1 << 20)
BOMBS: dict[str, Callable[[], bytes]] = {
    "packets": lambda: pcap([]) + bytes(16 * EMPTY),
    "blocks": lambda: section() + block(0x0BAD, b"") * EMPTY,
    "bytes": lambda: pcap([LARGE] * 40),
}  # made by the tests: it takes a second


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bounds that small files reach; the list gets the bytes of each block that is unpacked."""
    sizes: list[int] = []
    once = Stream._read

    def counted(self: Stream, size: int) -> bytes:
        data = once(self, size)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(Stream, "_read", counted)
    monkeypatch.setattr(records, "_FREE_RECORDS", FREE)
    monkeypatch.setattr(records, "_FREE_BYTES", 1 << 20)
    monkeypatch.setattr(records, "_BLOCK", 1 << 18)
    return sizes


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_early_and_says_so(name: str, small_bounds: list[int], tmp_path: Path) -> None:
    plain = BOMBS[name]()
    (tmp_path / "x").write_bytes(gzip.compress(plain))
    capture = read_capture(tmp_path / "x")
    count = sum(map(len, capture.batches()))
    assert f"reading stopped early, after {count:,} packets" in capture.notes[0]
    assert sum(small_bounds) < len(plain) // 2


def test_a_file_with_holes_is_a_bomb_too_and_a_copy_of_it_is_not(
    small_bounds: list[int], tmp_path: Path
) -> None:
    sparse = tmp_path / "x"
    with sparse.open("wb") as file:
        file.write(pcap([]))
        file.truncate(24 + 16 * EMPTY)
    capture = read_capture(sparse)
    assert sum(map(len, capture.batches())) < EMPTY / 2
    assert "reading stopped early" in capture.notes[0]
    (tmp_path / "copy").write_bytes(sparse.read_bytes())
    capture = read_capture(tmp_path / "copy")
    assert (sum(map(len, capture.batches())), capture.notes) == (EMPTY, [])


def test_a_flood_s_capture_is_read_whole(small_bounds: list[int]) -> None:
    """What compresses best of what is captured: equal packets, ten a microsecond."""
    data = gzip.compress(pcap([(START_NS + number * 100, FRAME, len(FRAME)) for number in range(EMPTY)]), 9)
    capture = read_capture(io.BytesIO(data), "x")
    assert (sum(map(len, capture.batches())), capture.notes) == (EMPTY, [])


def test_progress_is_a_bar_of_a_file_on_a_terminal_and_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(CAPTURE)
    main, other = pty.openpty()
    with os.fdopen(other, "w") as terminal, open_source(tmp_path / "x") as source:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(playing, "_SILENT_SECONDS", 0.0)
        shown = playing.Progress(source)
        source.read(len(CAPTURE) // 2)
        shown.read(25)
        shown.end()
        said = b""
        while said.count(b"\x1b[K") < 2:  # the line, and that it is taken away: two writes
            said += os.read(main, 1000)
    os.close(main)
    assert said.decode() == f"\r\x1b[Kreading x {'█' * 12}{'░' * 12}  50%  25 packets\r\x1b[K"


def test_progress_leaves_the_document_alone(tmp_path: Path) -> None:
    main, other = pty.openpty()
    os.mkfifo(tmp_path / "pipe")
    tmp_path.chmod(0o755)
    with reading(tmp_path / "pipe", stderr=other) as process:
        os.close(other)
        said = b""
        while b"waiting for data" not in said:
            said += os.read(main, 1000)
        (tmp_path / "pipe").write_bytes(CAPTURE)
        assert packets_of(process)[0] == 50
    os.close(main)
