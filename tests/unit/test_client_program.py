"""The client for programs, without a guardian."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fwtop.client.program import FwtopError, Program, connect

ROOT = Path(__file__).parents[2]
HELLO = {"ok": True, "code": 0, "number": 1, "data": {"scopes": ["read"], "guardian": {"netns": 7}}}


def serving(path: Path, *talks: Callable[[socket.socket], None]) -> threading.Thread:
    """Listen at a path, and let each connection in turn have its talk."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def run() -> None:
        with listener:
            for talk in talks:
                with listener.accept()[0] as taken:
                    talk(taken)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def say(sock: socket.socket, *documents: dict[str, object]) -> None:
    sock.sendall(b"".join(json.dumps(item).encode() + b"\n" for item in documents))


def refusal(reason: str) -> dict[str, object]:
    about = {"reason": reason, "field": None, "retryable": True}
    return {"ok": False, "error": "no: " + reason, "code": 1, "number": 0, "data": {}, **about}


def test_it_needs_the_standard_library_only(tmp_path: Path) -> None:
    """Two files that a program may carry along, with any interpreter: no msgspec, no numpy."""
    for name in (
        "__init__.py",
        "client/__init__.py",
        "client/program.py",
        "model/__init__.py",
        "model/errors.py",
    ):
        (tmp_path / "fwtop" / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "fwtop" / name, tmp_path / "fwtop" / name)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from fwtop.client import connect; print(connect)"
    )
    done = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("<function connect"), done.stderr


def test_a_connection_too_many_is_told_as_such(tmp_path: Path) -> None:
    def refuse(taken: socket.socket) -> None:
        say(taken, refusal("too_many"))
        taken.shutdown(socket.SHUT_RDWR)

    server = serving(tmp_path / "a.sock", refuse)
    with pytest.raises(FwtopError, match="no: too_many") as found:
        Program(tmp_path / "a.sock", None)
    assert (found.value.reason, found.value.retryable) == ("too_many", True)
    server.join()


def test_nobody_and_another_namespace_are_told(tmp_path: Path) -> None:
    with pytest.raises(FwtopError, match="nobody serves programs") as found:
        connect("blue", run_directory=tmp_path)
    assert (found.value.code, found.value.reason) == (3, "unavailable")
    server = serving(tmp_path / "a.sock", lambda taken: say(taken, HELLO))
    with pytest.raises(FwtopError, match="serves another network namespace"):
        Program(tmp_path / "a.sock", 8)
    server.join()


@pytest.mark.parametrize("verb", ["status", "undo"])
def test_after_a_lost_connection_reading_is_repeated_and_a_change_is_not(tmp_path: Path, verb: str) -> None:
    def greet_and_go(taken: socket.socket) -> None:
        say(taken, HELLO)
        lines = taken.makefile("rb")
        lines.readline()  # hello
        lines.readline()  # the request, which gets no answer

    def answer(taken: socket.socket) -> None:
        say(taken, HELLO)
        lines = taken.makefile("rb")
        lines.readline()
        number = json.loads(lines.readline())["number"]
        say(taken, {"ok": True, "code": 0, "number": number, "data": {"rules": []}})

    server = serving(tmp_path / "a.sock", greet_and_go, answer)
    with Program(tmp_path / "a.sock", 7) as fwtop:
        if verb == "undo":
            with pytest.raises(FwtopError, match="nobody knows whether it was done") as found:
                fwtop.undo("1")
            assert found.value.retryable
        assert fwtop.status() == {"rules": []}, "the next request makes another connection"
    server.join()


def test_who_follows_goes_on_behind_the_last_document(tmp_path: Path) -> None:
    asked: list[str] = []

    def documents(*cursors: str) -> Callable[[socket.socket], None]:
        def talk(taken: socket.socket) -> None:
            lines = taken.makefile("rb")
            lines.readline()
            say(taken, HELLO)
            request = json.loads(lines.readline())
            asked.append(request["since"])
            say(taken, {"ok": True, "code": 0, "number": request["number"], "data": {"cursor": "x-0"}})
            say(taken, *({"cursor": item} for item in cursors))

        return talk

    def greet(taken: socket.socket) -> None:
        say(taken, HELLO)

    server = serving(tmp_path / "a.sock", greet, documents("x-1", "x-2"), documents("x-3"))
    with Program(tmp_path / "a.sock", 7) as program:
        followed = program.watch()
    assert [next(followed)["cursor"] for _ in range(3)] == ["x-1", "x-2", "x-3"]
    followed.close()
    server.join()
    assert asked == ["", "x-2"]
