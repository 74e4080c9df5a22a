"""A forked child that does one piece of work and answers: apart from root's rights, memory, or libraries.

What parses foreign text may be taken over by it. So the parent believes no more of the answer than its type,
waits no longer and reads no more than it wants to, and collects the child in any case.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from msgspec import Struct

from fwtop.kernel.descriptors import closing
from fwtop.kernel.procfs import read_text
from fwtop.model.errors import FwtopError
from fwtop.model.paths import CONSOLE_USER
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, to_json
from fwtop.sandbox.confine import (
    Profile,
    close_inherited,
    close_others,
    confine,
    drop_privileges,
    unprivileged_user,
)

MOST_BYTES = 1 << 28  # of an answer
_PIECE = 1 << 16
_ENDING_SECONDS = 1.0  # from the end of the answer to that of the child
_KILLED_SECONDS = 1.0  # from its kill
_LONGEST_ERROR = 2000
_RESULT, _ERROR = b"=", b"!"  # first byte of an answer

T = TypeVar("T")


class NoAnswerError(FwtopError):
    """A child gave no answer that makes sense; `how` says why, `late` that it took too long."""

    def __init__(self, line: str, how: str, *, late: bool = False) -> None:
        super().__init__(line)
        self.how = how
        self.late = late


class _Error(Struct, frozen=True):
    """What a child answers instead of a result; without `line` the error was not foreseen."""

    line: str = ""
    code: int = 1
    kind: str = ""
    reason: str = ""
    field: str | None = None


def ask(
    work: Callable[[], T],
    kind: Any,  # noqa: ANN401 - an annotation: type[T], or a generic
    *,
    who: str,
    after: str = "nothing was changed",
    enter: Callable[[], None] = lambda: None,
    keep: Collection[int] | None = None,
    seconds: float | None = None,
    most_bytes: int = MOST_BYTES,
    stop: signal.Signals | None = None,
) -> T:
    """Have a child `enter` what confines it and do the work; return its result, which is of type `kind`.

    The result's texts are the child's words: check or sanitise them. An error of the work is raised again,
    sanitised; NoAnswerError, which begins with `who` and ends with `after`, where there is no answer.
    Besides standard streams the child has only the descriptors of `keep`, or all (None). If we are
    interrupted, it gets `stop` and may take its time to clean up.
    """
    try:
        reading, writing = os.pipe()
    except OSError as error:
        raise _no_start(who, after, error) from None
    try:
        child = os.fork()
    except OSError as error:  # out of memory or processes, as is likely under attack
        os.close(reading)
        os.close(writing)
        raise _no_start(who, after, error) from None
    if not child:
        os.close(reading)
        if keep is not None:
            close_others((writing, *keep))
        _serve(work, enter, writing)
    os.close(writing)
    wrong, late = "", False
    try:
        said = _read(reading, seconds, most_bytes)
    except (TimeoutError, OverflowError) as error:
        said, wrong, late = b"", str(error), isinstance(error, TimeoutError)
    except BaseException:
        if stop is None:
            _collect(child, 0.0)
        else:
            os.kill(child, stop)
            os.waitpid(child, 0)
        raise
    finally:
        os.close(reading)
    status = _collect(child, 0.0 if wrong else _ENDING_SECONDS)
    if not said and not wrong and status is not None and status < 0:
        wrong = f"was killed by signal {-status}"
    found = wrong or _understood(said, kind)
    if isinstance(found, str):
        raise NoAnswerError(f"{who} {found}; {after}", found, late=late)
    if isinstance(found, FwtopError):
        raise found
    result: T = found[0]
    return result


def unprivileged(
    profile: Profile | None,
    *,
    read: Iterable[Path | str] = (),
    write: Iterable[Path] = (),
    user: str = CONSOLE_USER,
) -> None:
    """Leave the terminal, the caller's files and root, and enter the sandbox; for `enter` of `ask`."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    if nowhere > 2:
        os.close(nowhere)
    close_inherited()
    drop_privileges(unprivileged_user(user))
    if profile is not None:
        confine(profile, read=read, write=write)


def mapped_bytes() -> int:
    """Return how much memory this process has mapped, which a forked child has from its start."""
    return int(read_text("/proc/self/statm").split()[0]) * resource.getpagesize()


def _no_start(who: str, after: str, error: OSError) -> FwtopError:
    return FwtopError(f"{who} could not be started: {error.strerror}; {after}")


def _serve(work: Callable[[], object], enter: Callable[[], None], writing: int) -> NoReturn:
    """Work and answer, in the child."""
    status = 1
    try:
        try:
            enter()
            answer = _RESULT + to_json(work())
        except FwtopError as error:
            line = safe_text(error, limit=_LONGEST_ERROR)
            answer = _ERROR + to_json(_Error(line, error.code, reason=error.reason, field=error.field))
        except Exception as error:
            answer = _ERROR + to_json(_Error(kind=type(error).__name__))
        with open(writing, "wb", closefd=False) as pipe:
            pipe.write(answer)
        status = 0
    finally:
        os._exit(status)


def _read(reading: int, seconds: float | None, most_bytes: int) -> bytes:
    """Return what the child says; raises TimeoutError and OverflowError with how it failed."""
    said = bytearray()
    end = None if seconds is None else time.monotonic() + seconds
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    while poller.poll(None if end is None else max(0.0, end - time.monotonic()) * 1000):
        piece = os.read(reading, _PIECE)
        if not piece:
            return bytes(said)
        said += piece
        if len(said) > most_bytes:
            raise OverflowError("answered too much")
    raise TimeoutError(f"took longer than {seconds:g} s")


def _collect(child: int, seconds: float) -> int | None:
    """Collect a child that may take so long to end, then by force; None: not even that ends it now."""
    with closing(os.pidfd_open(child)) as descriptor:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(seconds * 1000):
            os.kill(child, signal.SIGKILL)
            poller.poll(_KILLED_SECONDS * 1000)
        found, status = os.waitpid(child, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if found else None


def _understood(said: bytes, kind: Any) -> tuple[Any] | FwtopError | str:  # noqa: ANN401 - as in `ask`
    """Return the result, in a tuple; the error that the child tells; or how it failed."""
    with suppress(ValueError):
        if said[:1] == _RESULT:
            return (of_json(kind, said[1:]),)
        if said[:1] == _ERROR:
            error = of_json(_Error, said[1:])
            if not error.line:
                return f"failed with {safe_text(error.kind, limit=80)}"
            code = error.code if error.code in (1, 2, 3) else 1
            line, words = safe_text(error.line, limit=_LONGEST_ERROR), (error.reason, error.field or "")
            reason, where = (safe_text(word, limit=80) for word in words)
            return FwtopError(line, code, reason=reason, field=where or None)
    return "died without an answer"
