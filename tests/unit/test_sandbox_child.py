"""A child that works apart: what its parent believes of it, and that it is always collected."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from fwtop.model.errors import FwtopError
from fwtop.sandbox import child
from fwtop.sandbox.child import NoAnswerError, ask
from fwtop.sandbox.confine import limit

EVIL = "\x1b]0;owned\x07\x9b31m"


class Made(Struct, frozen=True):
    name: str
    data: dict[str, bytes]
    shares: tuple[float, ...] = ()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every test leaves as many descriptors as there were, and no child, not even a dead one."""
    before = os.listdir("/proc/self/fd")
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    running = children.read_text()
    yield
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert children.read_text() == running


def test_an_answer_comes_back_as_its_type() -> None:
    made = Made("x" * 300_000, {"a": b"\0\xff"}, (0.5,))
    parent = os.getpid()
    assert ask(lambda: made, Made, who="it") == made
    assert ask(os.getpid, int, who="it") != parent
    assert ask(lambda: None, Made | None, who="it") is None


def test_a_child_has_no_descriptors_but_those_it_may_keep() -> None:
    with open(os.devnull) as one, open(os.devnull) as other:
        numbers = one.fileno(), other.fileno()

        def there() -> list[int]:
            return [number for number in numbers if os.path.exists(f"/proc/self/fd/{number}")]

        assert ask(there, list[int], who="it") == [*numbers]
        assert ask(there, list[int], who="it", keep=numbers[1:]) == [*numbers[1:]]


def nested() -> Any:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


def closes_and_stays() -> int:
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    signal.pause()
    return 0


NONE: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "an exception": (lambda: 1 // 0, {}, "it failed with ZeroDivisionError; nothing was changed"),
    "an ending": (lambda: os._exit(0), {}, "it died without an answer; nothing was changed"),
    "a signal": (lambda: os.kill(os.getpid(), signal.SIGTERM), {}, "it was killed by signal 15; "),
    "another type": (lambda: "7", {}, "it died without an answer; "),
    "no end": (signal.pause, {"seconds": 0.05}, "it took longer than 0.05 s; "),
    "too much": (lambda: "x" * 9999, {"most_bytes": 999}, "it answered too much; "),
    "too deep": (nested, {}, "it failed with RecursionError; "),
    "no text": (lambda: "\udcff", {}, "it failed with UnicodeEncodeError; "),
    "silence": (closes_and_stays, {}, "it was killed by signal 9; "),
    "memory": (lambda: bytearray(1 << 34), {"enter": lambda: limit(child.mapped_bytes() + (1 << 26))},
               "it failed with MemoryError; "),
}  # fmt: skip


@pytest.mark.parametrize("case", NONE)
def test_what_is_no_answer_is_told(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_ENDING_SECONDS", 0.3)
    monkeypatch.setattr(child, "_KILLED_SECONDS", 60.0)  # on a busy machine even that takes a while
    work, how, line = NONE[case]
    with pytest.raises(NoAnswerError) as raised:
        ask(work, int, who="it", **how)
    assert str(raised.value).startswith(line)
    assert raised.value.late == (case == "no end")


@pytest.mark.parametrize("said", [b"", b"7", b"=", b"=" + b"[" * 100_000, b"=\xff", b"!", b"!{}", b"!7"])
def test_no_words_of_a_child_break_its_parent(said: bytes) -> None:
    assert isinstance(child._understood(said, Any), str)


def test_an_error_of_the_work_is_raised_again_and_sanitised() -> None:
    def fail() -> None:
        raise FwtopError(f"wrong {EVIL}", 2)

    with pytest.raises(FwtopError, match="wrong") as raised:
        ask(fail, None, who="it")
    assert (raised.value.code, type(raised.value)) == (2, FwtopError)
    taken = child._understood(b'!{"line": "wrong \\u001b[31m", "code": 77}', Any)
    assert isinstance(taken, FwtopError)
    assert (str(taken).isprintable(), taken.code) == (True, 1)


def test_a_machine_without_processes_or_descriptors_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    for name in ("fork", "pipe"):
        with monkeypatch.context() as patch:
            patch.setattr(child.os, name, refuse)
            with pytest.raises(FwtopError, match="it could not be started: Resource temporarily unavailable"):
                ask(lambda: 1, int, who="it")


@pytest.mark.parametrize("stop", [None, signal.SIGTERM])
def test_an_interrupted_parent_leaves_no_child(stop: signal.Signals | None, tmp_path: Path) -> None:
    def cleans_up() -> None:
        signal.signal(signal.SIGTERM, lambda *_: (tmp_path / "clean").touch() or os._exit(0))
        while "poll" not in Path(f"/proc/{os.getppid()}/wchan").read_text():
            pass  # a signal on its way into poll(2) would be seen only behind it
        os.kill(os.getppid(), signal.SIGINT)
        signal.pause()

    with pytest.raises(KeyboardInterrupt):
        ask(cleans_up, None, who="it", stop=stop)
    assert (tmp_path / "clean").exists() == (stop is not None)
