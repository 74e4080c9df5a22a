"""Starting a console: the guardian found or started, privileges dropped, the terminal kept whole."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import termios
from collections.abc import Callable
from dataclasses import asdict
from types import FrameType
from typing import Any

from fwtop.console.handoff import Handoff, Options, send_handoff
from fwtop.console.privileges import drop_privileges, unprivileged_user
from fwtop.model.errors import FwtopError
from fwtop.model.modules import module_argv
from fwtop.model.paths import CONSOLE_USER, ROOT
from fwtop.model.protocol import Watch

# Leave the alternate screen, show the cursor, end mouse, focus and bracketed-paste reports, reset colours.
_RESTORE_SCREEN = (
    b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1004l\x1b[?2004l\x1b[<u\x1b[0m"
)

# Arrays of a tick live for a tick: glibc would keep their pages in an arena for each thread, and a pool of
# BLAS threads, which nothing here uses, would bring stacks and buffers (mallopt(3)).
_FRUGAL = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "4194304", "OPENBLAS_NUM_THREADS": "1"}


def require_root(doing: str) -> None:
    """Raise FwtopError (3) unless running as root."""
    if os.geteuid() != 0:
        raise FwtopError(f"{doing} needs root; nothing was started; try: sudo fwtop", 3)


def launch(options: Options, watch: Watch) -> int:
    """Run a console on the guardian of a namespace and return its exit status.

    The console starts at once, so that its imports run beside the guardian's compiling.
    """
    require_root("watching")
    unprivileged_user()
    from fwtop.mitigate import client

    client.enter_netns(options.netns)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    console = _start_console(options, theirs)
    theirs.close()
    try:
        handoff, descriptors = _prepare(options, watch)
    except FwtopError as error:
        handoff, descriptors = Handoff({}, error=str(error), code=error.code), []
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        send_handoff(mine, handoff, descriptors)
    mine.close()
    for descriptor in descriptors:
        os.close(descriptor)
    return _wait(console)


def _prepare(options: Options, watch: Watch) -> tuple[Handoff, list[int]]:
    from fwtop.mitigate import client

    guardian = client.connect(role="console", readonly=options.readonly)
    answer, descriptors = guardian.watch(watch)
    if not answer.ok:
        guardian.close()
        raise FwtopError(answer.error, answer.code or 1)
    names = list(answer.data.get("fds", []))
    return Handoff(answer.data, names), [guardian.detach(), *descriptors]


def _start_console(options: Options, handoff: socket.socket) -> int:
    child = os.fork()
    if child:
        return child
    try:
        handoff.set_inheritable(True)
        if options.ready_fd is not None:
            os.set_inheritable(options.ready_fd, True)
        os.chdir("/")
        drop_privileges()
        if not os.access(ROOT / "fwtop/console", os.R_OK | os.X_OK):  # a clone below /root, most likely
            raise FwtopError(f"user {CONSOLE_USER} can't read {ROOT}: run 'make setup', then 'sudo fwtop'")
        argv = module_argv("fwtop.console", str(handoff.fileno()), json.dumps(asdict(options)))
        os.execve(argv[0], argv, _environment())  # noqa: S606 - no shell, and an environment of our own
    except BaseException as error:
        print(f"fwtop: the console could not be started: {error}", file=sys.stderr)
    finally:
        os._exit(1)


def _environment() -> dict[str, str]:
    """Keep what a terminal program needs; root's environment is nobody else's business."""
    wanted = ("TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "TZ", "TEXTUAL_THEME", "TERM_PROGRAM")
    kept = {name: os.environ[name] for name in wanted if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name == "LANG" or name.startswith("LC_")}
    return kept | {"PATH": "/usr/bin:/bin", "HOME": "/var/lib/fwtop", "PYTHONUTF8": "1"} | _FRUGAL


def _wait(console: int) -> int:
    """Wait for the console, pass signals on, and mend the terminal if it could not do so itself."""
    terminal = _terminal_state()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _forward_to(console))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    drop_privileges()
    _, status = os.waitpid(console, 0)
    code = os.waitstatus_to_exitcode(status)
    if terminal is not None:
        _restore_terminal(*terminal, killed=code < 0)
    if code < 0:
        name = signal.Signals(-code).name
        print(f"fwtop: the console was ended by {name}; unconfirmed rules are taken back", file=sys.stderr)
        return 128 - code
    return code


def _forward_to(console: int) -> Callable[[int, FrameType | None], None]:
    def forward(number: int, _frame: FrameType | None) -> None:
        # The launcher has given root away too, to the same user: it may signal the console.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(console, number)

    return forward


def _terminal_state() -> tuple[int, list[Any]] | None:
    descriptor = sys.__stderr__.fileno() if sys.__stderr__ is not None else -1
    for candidate in (0, descriptor):
        with contextlib.suppress(termios.error, OSError):
            return candidate, termios.tcgetattr(candidate)
    return None


def _restore_terminal(descriptor: int, attributes: list[Any], *, killed: bool) -> None:
    with contextlib.suppress(termios.error, OSError):
        if killed and os.isatty(2):
            os.write(2, _RESTORE_SCREEN)
        # The console may have left a background process group: writing attributes must not stop us.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)
