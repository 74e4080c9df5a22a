"""Find the guardian of a network namespace, or start one, and say hello."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fwtop.client.connection import Connection, EndedError
from fwtop.kernel import namespaces
from fwtop.kernel.children import enlarge
from fwtop.kernel.descriptors import close_all, closing, is_served, locked
from fwtop.kernel.procfs import read_text
from fwtop.kernel.programs import GUARDIAN_ENVIRONMENT, CommandError, module_argv, run
from fwtop.model import messages, paths, protocol
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import detach_sources, read_sources, sealed
from fwtop.model.errors import FwtopError
from fwtop.model.paths import GUARDIAN_UNIT, SYSTEMD_BOOTED
from fwtop.model.rule import Rule, RuleStatus
from fwtop.model.text import safe_text

ANSWER_SECONDS = protocol.SHORT_SECONDS
_STARTS = 12  # of guardians that end, or meet another one, before one answers
_START_SECONDS = 120.0  # that a guardian may take to be ready while it lives, however busy the machine
_BESIDE_SECONDS = 10.0  # for another client's, before one is started beside it
_RETRY_SECONDS = 0.05
_GUARDIAN = "fwtop.guardian"


class GuardianClient:
    """A connection on which hello was said. Not for several threads at once."""

    def __init__(
        self, connection: Connection, about: dict[str, object], greeting: dict[str, Any] | None = None
    ) -> None:
        self._connection = connection
        self.about = about  # pid, build, netns, variant, readonly
        self.greeting = greeting or {}  # all that the answer to hello told

    def request(self, request: protocol.Request, *, timeout: float | None = None) -> messages.Answer:
        """Send a request and return its answer, whatever it says; raises FwtopError when there is none."""
        answer, descriptors = exchange(self._connection, request, timeout or request.seconds)
        close_all(descriptors)
        return answer

    def demand(
        self, request: protocol.Request, attached: int | None = None, *, timeout: float | None = None
    ) -> messages.Answer:
        """Send a request, perhaps with a descriptor, which is closed then; raises FwtopError when refused."""
        try:
            answer, descriptors = self.exchange(request, attached, timeout=timeout)
        finally:
            close_all([attached] if attached is not None else [])
        close_all(descriptors)
        return answer

    def exchange(
        self, request: protocol.Request, attached: int | None = None, *, timeout: float | None = None
    ) -> tuple[messages.Answer, list[int]]:
        """Do the same, and return the descriptors that came with the answer; `attached` stays open."""
        answer, descriptors = exchange(self._connection, request, timeout or request.seconds, attached)
        if not answer.ok:
            close_all(descriptors)
        return answer.agreed(), descriptors

    def plan(self, rule: Rule) -> messages.Answer:
        """Ask what a rule would run, however long its list of sources is; raises FwtopError when refused."""
        return self.demand(*detach_sources(protocol.Plan({}), rule))

    def apply(self, rule: Rule, confirm_seconds: int, *, force: bool = False) -> messages.Answer:
        """Install a rule, however long its list of sources is; raises FwtopError when refused."""
        return self.demand(*detach_sources(protocol.Apply({}, confirm_seconds, force), rule))

    def change(
        self,
        rule_id: str,
        rule: Rule,
        confirm_seconds: int,
        *,
        force: bool = False,
        if_stamp: int | None = None,
    ) -> messages.Answer:
        """Have an active rule become this one, in place; raises FwtopError when refused."""
        request = protocol.RuleChange(rule_id, {}, confirm_seconds, force, if_stamp=if_stamp)
        return self.demand(*detach_sources(request, rule))

    def read_rule(self, rule_id: str) -> tuple[Rule, int]:
        """Return a rule with all of its sources, and its stamp; raises FwtopError."""
        answer, files = self.exchange(protocol.RuleRead(rule_id))
        try:
            rule = Rule.from_dict(answer.data["rule"])
            sources = read_sources(files[0]) if files else rule.match.sources
            return replace(rule, match=replace(rule.match, sources=sources)), answer.data["stamp"]
        finally:
            close_all(files)

    def rules(self) -> list[RuleStatus]:
        """Return the active rules; raises FwtopError."""
        found = self.demand(protocol.Status(allow=False)).data["rules"]
        return [RuleStatus.from_dict(item) for item in found]

    def change_list(self, request: protocol.ListChange, entries: Sequence[Prefix] = ()) -> messages.Answer:
        """Change a named list, however many entries that takes; raises FwtopError when refused."""
        attached = sealed(entries) if entries else None
        return self.demand(replace(request, attached=attached is not None), attached)

    def read_list(self, name: str) -> tuple[Sequence[Prefix], Sequence[float]]:
        """Return a named list's entries, and the seconds that each has left (0: it stays), if any ends.

        Raises FwtopError.
        """
        _, files = self.exchange(protocol.ListRead(name))
        try:
            left = array.array("d")
            if len(files) > 1:
                with open(files[1], "rb", closefd=False) as stream:
                    stream.seek(0)
                    left.frombytes(stream.read())
            return read_sources(files[0]), left
        finally:
            close_all(files)

    def watch(
        self, request: protocol.Watch, *, timeout: float = ANSWER_SECONDS
    ) -> tuple[messages.Answer, list[int]]:
        """Attach observers: the answer, and the descriptors that its data["fds"] names, in order."""
        return exchange(self._connection, request, timeout)

    def detach(self) -> int:
        """Release the socket's descriptor for a console; this object is unusable then."""
        return self._connection.detach()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> GuardianClient:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()


def connect(
    *,
    role: str = "cli",
    netns: str | None = None,
    readonly: bool = False,
    build: str | None = None,
    run_directory: Path = paths.RUN_DIRECTORY,
    guardian_arguments: tuple[str, ...] = (),
) -> GuardianClient:
    """Connect to the guardian of a namespace (None: the present one), starting it if none runs.

    A guardian of another build ends, leaving its rules to the journal, and a new one adopts them. Patience is
    counted in guardians, not in seconds: one that starts on a busy machine is waited for as long as it lives.
    Raises FwtopError: 2 for an unknown namespace, 3 without root, 1 when no guardian could be had.
    """
    if os.geteuid() != 0:
        raise FwtopError("talking to the guardian needs root; nothing was changed; try: sudo fwtop", 3)
    with closing(namespaces.open_netns(netns)) as descriptor:
        hello = protocol.Hello(role, paths.build_id() if build is None else build, readonly)
        return reach(hello, descriptor, run_directory, guardian_arguments)


def reach(
    hello: protocol.Hello, netns: int, run_directory: Path, guardian_arguments: tuple[str, ...]
) -> GuardianClient:
    """Say hello to the guardian of an open namespace, starting it if none runs; raises FwtopError."""
    path = run_directory / f"{namespaces.inode(netns)}.sock"
    for _ in range(_STARTS):
        if (client := _try(path, hello)) is not None:
            return client
        _start(netns, path, ("--build", hello.build or paths.build_id(), *guardian_arguments))
    if (client := _try(path, hello)) is not None:
        return client
    raise _silent(path, "")


def ask(netns: str | None, request: protocol.Request, *, readonly: bool = False) -> dict[str, Any]:
    """Ask the guardian of a namespace one thing; returns its answer's data, raises FwtopError."""
    with connect(netns=netns, readonly=readonly) as guardian:
        return guardian.demand(request).data


def _try(path: Path, hello: protocol.Hello) -> GuardianClient | None:
    """Connect and say hello; None when there is no guardian, or it just ended.

    Raises FwtopError if one is there and neither answers nor ends.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        enlarge(sock)
        sock.settimeout(ANSWER_SECONDS)
        sock.connect(str(path))
        if _stopped(sock):
            raise TimeoutError
        connection = Connection(sock)
        answer, _ = connection.exchange(hello, ANSWER_SECONDS, None)
    except TimeoutError:
        stopped = _stopped(sock)  # perhaps since
        sock.close()
        raise _silent(path, stopped) from None
    except (OSError, messages.ProtocolError):
        sock.close()
        return None
    if answer.ok:
        return GuardianClient(connection, answer.data.get("guardian", {}), answer.data)
    sock.close()
    if "retired" not in answer.data:
        answer.agreed()
    return None


def _silent(path: Path, stopped: str) -> FwtopError:
    """Return what to say of a guardian without an answer; gives back the sysctls that it should have."""
    argv = module_argv(_GUARDIAN, "--run-directory", str(path.parent), "--overdue=everywhere")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            argv, env=GUARDIAN_ENVIRONMENT, capture_output=True, timeout=ANSWER_SECONDS, check=False
        )
    return FwtopError(stopped or f"no guardian answers on {path}; nothing was changed")


def _stopped(sock: socket.socket) -> str:
    """Say what to do where the guardian is stopped by a signal or a debugger (proc_pid_stat(5)); else ""."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = int.from_bytes(credentials[:4], sys.byteorder)
        if read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] in ("T", "t"):
            return f"the guardian, process {pid}, is stopped; nothing was changed; try: kill -CONT {pid}"
    return ""


def _start(netns: int, path: Path, arguments: tuple[str, ...]) -> None:
    """Start a guardian unless another client does: it is waited for until it serves. Raises FwtopError.

    However many come at once, on a busy machine all but one process would start in vain, and delay that one.
    """
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            lock = path.with_name(f"start-{path.stem}.lock")
            held.enter_context(locked(lock, _BESIDE_SECONDS, given_up=lambda: is_served(path)))
        except OSError:  # it takes long, or a confined process may not write there: one more is no harm
            pass
        if is_served(path):
            time.sleep(_RETRY_SECONDS)  # it came meanwhile, or is about to end
        else:
            _spawn(netns, path.parent, arguments)


def _spawn(netns_descriptor: int, run_directory: Path, arguments: tuple[str, ...]) -> None:
    """Start a guardian and wait until it is ready; raises FwtopError with its complaint."""
    argv = module_argv(_GUARDIAN, "--run-directory", str(run_directory), *arguments)
    if needs_unit():
        start_unit(argv, netns_descriptor, _START_SECONDS)
        return
    try:
        done = run_starter(argv, netns_descriptor)
    except subprocess.TimeoutExpired:
        raise FwtopError("the guardian was not ready in time; nothing was changed") from None
    if done.returncode and b"another guardian" in done.stderr:
        time.sleep(_RETRY_SECONDS)  # somebody else started one at the same moment
    elif done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["the guardian failed"]
        code = done.returncode if done.returncode in (1, 2, 3) else 1
        raise FwtopError(safe_text(lines[-1], limit=500), code)


def run_starter(argv: list[str], netns_descriptor: int) -> subprocess.CompletedProcess[bytes]:
    """Run a guardian's command line: it returns when the guardian is ready and detached."""
    return subprocess.run(
        [*argv, "--netns-fd", str(netns_descriptor)],
        pass_fds=[netns_descriptor],
        env=GUARDIAN_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=_START_SECONDS,
        check=False,
    )


def exchange(
    connection: Connection, request: protocol.Request, timeout: float, attached: int | None = None
) -> tuple[messages.Answer, list[int]]:
    """Send a request; returns its answer and the descriptors with it, or raises FwtopError."""
    try:
        return connection.exchange(request, timeout, attached)
    except TimeoutError:
        verb = request.verb()
        line = f"no answer within {timeout:g} s; the guardian goes on with it: see 'fwtop status' ({verb})"
        raise FwtopError(line, reason="timeout") from None
    except messages.ProtocolError as error:
        raise FwtopError(f"{error}", 2, reason=error.reason, field=error.field) from None
    except EndedError:
        line = "the guardian ended before it answered; active rules expire by themselves"
        raise FwtopError(line, reason="unavailable", retryable=True) from None
    except OSError as error:
        line = f"the guardian does not answer ({error.strerror or error}); active rules expire by themselves"
        raise FwtopError(line, reason="unavailable", retryable=True) from None


def needs_unit(status: str | None = None, booted: Path = SYSTEMD_BOOTED) -> bool:
    """Return whether this process is confined for good and systemd runs (sd_booted(3))."""
    text = read_text("/proc/self/status") if status is None else status
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return booted.is_dir() and any(fields.get(name, "0").strip() != "0" for name in ("NoNewPrivs", "Seccomp"))


def start_unit(argv: list[str], netns: int, seconds: float) -> None:
    """Run a guardian as a unit of its own until it is ready; raises FwtopError with where its complaint is.

    Mounts, system call filters and lost capabilities stay with everything that a process starts, whatever
    cgroup it moves to: a recorder's guardian must not inherit them, and its end leaves the unit alone.
    `netns` is a descriptor of its network namespace.
    """
    argv = [*argv, "--netns-path", f"/proc/{os.getpid()}/fd/{netns}"]
    unit = f"{GUARDIAN_UNIT}{os.fstat(netns).st_ino}-{os.urandom(4).hex()}"
    try:
        run(unit_argv(argv, unit), timeout=seconds)
    except CommandError as error:
        raise FwtopError(f"systemd did not start the guardian: {error}; see: journalctl -u {unit}") from None


def unit_argv(argv: list[str], unit: str) -> list[str]:
    """Return the call of systemd-run(1) for a guardian, which forks when it is ready."""
    # The shell that restores sysctls outlives the guardian.
    settings = ("Description=fwtop guardian", "Type=forking", "KillMode=process", "OOMPolicy=continue")
    properties = [f"--property={setting}" for setting in settings]
    variables = [f"--setenv={name}={value}" for name, value in GUARDIAN_ENVIRONMENT.items()]
    return ["systemd-run", "--quiet", "--collect", f"--unit={unit}", *properties, *variables, "--", *argv]
