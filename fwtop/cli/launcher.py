"""Launch a console for the screen or one observation: start the guardian, drop root, restore the terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import socket
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from msgspec.structs import replace

from fwtop.cli.files import screen_files
from fwtop.cli.options import Verb, add_geoip, add_interfaces, add_observation, flag, option, seconds
from fwtop.console.handoff import Handoff, Options, send_handoff
from fwtop.dissect.supervisor import start_dissector
from fwtop.kernel import namespaces
from fwtop.kernel.descriptors import close_all
from fwtop.kernel.programs import module_argv
from fwtop.kernel.waiting import CLEAR_LINE, waiting
from fwtop.model.errors import CONSOLE_DATA_BYTES, FwtopError
from fwtop.model.paths import CONSOLE_USER, ROOT
from fwtop.model.wire import to_json
from fwtop.sandbox.confine import close_inherited, drop_privileges, end_with, unprivileged_user

# Leave the alternate screen; show the cursor; disable mouse, focus and paste reports; reset colours, title.
_RESTORE_SCREEN = (
    b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1004l\x1b[?2004l\x1b[<u\x1b[0m"
    b"\x1b[23;2t"
)

_OOM_CONSOLE = 500

# Return the memory of a tick's arrays to the system: one malloc arena, a low trim threshold (mallopt(3)), and
# no pool of BLAS threads, which nothing here uses.
_FRUGAL = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "4194304", "OPENBLAS_NUM_THREADS": "1"}


def require_root(doing: str) -> None:
    """Raise FwtopError (3) unless running as root."""
    if os.geteuid() != 0:
        raise FwtopError(f"{doing} needs root; nothing was started; try: sudo fwtop", 3)


def launch(options: Options, interfaces: Sequence[str] = ()) -> int:
    """Run a console that watches interfaces (none: as the guardian chooses); return its exit status.

    The console starts first, so that its imports overlap with the start of the guardian.
    """
    require_root("watching")
    unprivileged_user()
    namespaces.enter_named(options.netns)
    options = replace(options, netns=options.netns or namespaces.lasting_name())
    dissector = start_dissector() if options.mode == "tui" else None
    if dissector is not None:
        options = replace(options, dissector_fd=dissector.fileno())
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if options.service_fd is not None:
        _become_console(options, interfaces, mine, theirs)
    terminal = _terminal_state()  # before the console changes it, which a busy machine may run first
    console = _start_console(options, theirs)
    theirs.close()
    if dissector is not None:
        dissector.close()
    with waiting("starting to watch") if options.mode == "tui" else contextlib.nullcontext():
        _hand_over(mine, options, interfaces)
    return _wait(console, terminal)


def _hand_over(mine: socket.socket, options: Options, interfaces: Sequence[str]) -> None:
    """Send the console the guardian's descriptors, or why there are none."""
    try:
        handoff, descriptors = _prepare(options, interfaces)
        if options.mode == "tui":
            files = [(file.path, file.text, file.wrong) for file in screen_files()]
            handoff = replace(handoff, settings=files)
    except FwtopError as error:
        handoff, descriptors = Handoff({}, error=str(error), code=error.code), []
    with mine, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        send_handoff(mine, handoff, descriptors)
        if options.mode == "tui" and not handoff.error:
            mine.recv(1)  # which ends once the console has started and taken them
    close_all(descriptors)


def _become_console(
    options: Options, interfaces: Sequence[str], mine: socket.socket, theirs: socket.socket
) -> NoReturn:
    """Replace this process by the console, so that it is what a service manager watches and asks to end.

    There is no terminal to restore. A child, which nobody has to wait for, stays root for the hand-over.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if os.fork() == 0:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # it starts programs
            theirs.close()
            _hand_over(mine, options, interfaces)
        finally:
            os._exit(0)
    mine.close()
    _run_console(options, theirs)


def _prepare(options: Options, interfaces: Sequence[str]) -> tuple[Handoff, list[int]]:
    # Imported only now: the console, which takes longer, has been started.
    from fwtop.client import discovery
    from fwtop.model.protocol import Watch

    guardian = discovery.connect(role="console", readonly=options.readonly)
    answer, descriptors = guardian.watch(Watch(tuple(interfaces)))
    if not answer.ok:
        guardian.close()
    answer.agreed()
    names = list(answer.data.get("fds", []))
    return Handoff(answer.data, names), [guardian.detach(), *descriptors]


def _start_console(options: Options, handoff: socket.socket) -> int:
    launcher = os.getpid()
    child = os.fork()
    if child == 0:
        _run_console(options, handoff, launcher)
    return child


def _run_console(options: Options, handoff: socket.socket, launcher: int | None = None) -> NoReturn:
    """Drop root and execute the console; with its launcher ends what would go on drawing on the terminal."""
    try:
        close_inherited(keep=options.inherited())
        handoff.set_inheritable(True)
        for descriptor in options.inherited():
            os.set_inheritable(descriptor, True)
        os.chdir("/")
        _offer_to_oom_killer()
        resource.setrlimit(resource.RLIMIT_DATA, (CONSOLE_DATA_BYTES, CONSOLE_DATA_BYTES))
        drop_privileges()
        if launcher is not None:
            end_with(launcher)
        if not os.access(ROOT / "fwtop/console", os.R_OK | os.X_OK):  # a clone below /root, most likely
            raise FwtopError(f"user {CONSOLE_USER} can't read {ROOT}: run 'make setup', then 'sudo fwtop'")
        argv = module_argv("fwtop.console", str(handoff.fileno()), to_json(options).decode())
        os.execve(argv[0], argv, _environment())  # noqa: S606 - no shell, and an environment of our own
    except BaseException as error:
        print(f"fwtop: the console could not be started: {error}", file=sys.stderr)
    finally:
        os._exit(1)


def _offer_to_oom_killer() -> None:
    """Make this process an early choice of the OOM killer: rules work without it (proc(5))."""
    file = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        file.write_text(str(max(_OOM_CONSOLE, int(file.read_text()))))


def _environment() -> dict[str, str]:
    """Return only the variables that a terminal program needs, none of root's others."""
    wanted = ("TERM", "COLORTERM", "NO_COLOR", "TZ", "TEXTUAL_THEME", "TERM_PROGRAM")
    kept = {name: os.environ[name] for name in wanted if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name == "LANG" or name.startswith("LC_")}
    return kept | {"PATH": "/usr/bin:/bin", "HOME": "/var/lib/fwtop", "PYTHONUTF8": "1"} | _FRUGAL


def _wait(console: int, terminal: tuple[int, list[Any]] | None) -> int:
    """Wait for the console, forward signals, and restore the terminal if the console could not."""
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
        # The launcher has become the same unprivileged user, so it may signal the console.
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
            os.write(2, _RESTORE_SCREEN + CLEAR_LINE.encode())
        # If the console left us in a background process group, tcsetattr() must not stop us.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    add_interfaces(parser)
    add_geoip(parser)
    flag(parser, "--slow", "send less to the terminal, for a slow SSH link")
    flag(parser, "--readonly", "never change anything")
    flag(parser, "--no-store", "do not record this session")


def _watch(args: argparse.Namespace) -> int:
    """Open the screen; returns when the operator quits."""
    require_root("watching")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise FwtopError("the screen needs a terminal; nothing was started; use 'fwtop snapshot' instead", 2)
    options = Options(
        mode="tui",
        slow=args.slow,
        readonly=args.readonly,
        netns=args.netns,
        geoip=args.geoip,
        store=not args.no_store,
    )
    return launch(options, args.interface)


def _snapshot_arguments(parser: argparse.ArgumentParser) -> None:
    add_interfaces(parser)
    option(parser, "--seconds", "S", "how long (default 5)", seconds, default=5.0)
    flag(parser, "--no-store", "do not record this observation")
    add_observation(parser)


def _snapshot(args: argparse.Namespace) -> int:
    ready = os.environ.get("FWTOP_READY_FD", "")
    options = Options(
        mode="snapshot",
        seconds=args.seconds,
        json=args.json,
        top=args.top,
        netns=args.netns,
        geoip=args.geoip,
        store=not args.no_store,
        fail_on=args.fail_on,
        ready_fd=int(ready) if ready.isdigit() else None,
    )
    return launch(options, args.interface)


VERBS = {
    "watch": Verb(
        "Watch the traffic that hits this machine, and stop attacks with one key.",
        "sudo fwtop -i eth0",
        _watch_arguments,
        _watch,
    ),
    "snapshot": Verb(
        "Observe for a few seconds, then print the traffic, the attacks, and rules that would stop them.",
        "sudo fwtop snapshot --seconds 5 --json | jq '.attacks'",
        _snapshot_arguments,
        _snapshot,
    ),
}
