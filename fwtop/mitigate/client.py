"""The way to a guardian: find the one of this network namespace, or start one, and say hello."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import time
from pathlib import Path

from fwtop.mitigate import netns as namespaces
from fwtop.mitigate.peer import enlarge
from fwtop.mitigate.run import GUARDIAN_ENVIRONMENT
from fwtop.model import paths
from fwtop.model.bulk import detach_sources
from fwtop.model.errors import FwtopError
from fwtop.model.modules import module_argv
from fwtop.model.protocol import (
    MAX_MESSAGE,
    Answer,
    Apply,
    Hello,
    Plan,
    ProtocolError,
    Request,
    Watch,
    encode_request,
    parse_answer,
)
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text

ANSWER_SECONDS = 60.0  # a list of a million prefixes takes a while
_CONNECT_SECONDS = 15.0
_RETRY_SECONDS = 0.05
_MAX_DESCRIPTORS = 64
_GUARDIAN = "fwtop.mitigate.guardian"


class GuardianClient:
    """A connection on which hello was said. Not for several threads at once."""

    def __init__(self, sock: socket.socket, about: dict[str, object]) -> None:
        self._sock = sock
        self.about = about  # pid, build, netns, variant, readonly

    def request(self, request: Request, *, timeout: float = ANSWER_SECONDS) -> Answer:
        """Send a request and return its answer, whatever it says; raises FwtopError when there is none."""
        answer, descriptors = _exchange(self._sock, request, timeout)
        for descriptor in descriptors:
            os.close(descriptor)
        return answer

    def demand(self, request: Request, *, timeout: float = ANSWER_SECONDS) -> Answer:
        """Send a request; raises FwtopError with the guardian's words and code when it refuses."""
        answer = self.request(request, timeout=timeout)
        if not answer.ok:
            raise FwtopError(answer.error, answer.code or 1)
        return answer

    def plan(self, rule: Rule) -> Answer:
        """Ask what a rule would run, however long its list of sources is; raises FwtopError when refused."""
        return self._demand_with_sources(Plan({}), rule)

    def apply(self, rule: Rule, confirm_seconds: int, *, force: bool = False) -> Answer:
        """Install a rule, however long its list of sources is; raises FwtopError when refused."""
        return self._demand_with_sources(Apply({}, confirm_seconds, force), rule)

    def _demand_with_sources(self, request: Plan | Apply, rule: Rule) -> Answer:
        whole, attached = detach_sources(request, rule)
        try:
            answer, _ = _exchange(self._sock, whole, ANSWER_SECONDS, attached)
        finally:
            if attached is not None:
                os.close(attached)
        if not answer.ok:
            raise FwtopError(answer.error, answer.code or 1)
        return answer

    def watch(self, request: Watch, *, timeout: float = ANSWER_SECONDS) -> tuple[Answer, list[int]]:
        """Attach observers: the answer, and the descriptors that its data["fds"] names, in order."""
        return _exchange(self._sock, request, timeout)

    def detach(self) -> int:
        """Give the socket's descriptor away (to a console); this object is over."""
        return self._sock.detach()

    def close(self) -> None:
        """Hang up."""
        self._sock.close()

    def __enter__(self) -> GuardianClient:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self.close()


def enter_netns(name: str | None) -> None:
    """Move this process into a named namespace (None: stay); raises FwtopError."""
    if name is not None:
        descriptor = namespaces.open_netns(name)
        try:
            namespaces.enter(descriptor)
        finally:
            os.close(descriptor)


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

    A guardian of another build ends, leaving its rules to the journal, and a new one adopts them.
    Raises FwtopError: 2 for an unknown namespace, 3 without root, 1 when no guardian could be had.
    """
    if os.geteuid() != 0:
        raise FwtopError("talking to the guardian needs root; nothing was changed; try: sudo fwtop", 3)
    descriptor = namespaces.open_netns(netns)
    try:
        path = run_directory / f"{namespaces.inode(descriptor)}.sock"
        hello = Hello(role, paths.build_id() if build is None else build, readonly)
        end = time.monotonic() + _CONNECT_SECONDS
        while time.monotonic() < end:
            client = _try(path, hello)
            if client is not None:
                return client
            _spawn(descriptor, run_directory, ("--build", hello.build, *guardian_arguments))
    finally:
        os.close(descriptor)
    raise FwtopError(f"no guardian answers on {path}; nothing was changed")


def _try(path: Path, hello: Hello) -> GuardianClient | None:
    """Connect and say hello; None when there is no guardian, or it just ended."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        enlarge(sock)
        sock.settimeout(ANSWER_SECONDS)
        sock.connect(str(path))
        answer, _ = _exchange(sock, hello, ANSWER_SECONDS)
    except (OSError, FwtopError):
        sock.close()
        return None
    if answer.ok:
        return GuardianClient(sock, answer.data.get("guardian", {}))
    sock.close()
    if "retired" in answer.data:
        return None
    raise FwtopError(answer.error, answer.code or 1)


def _spawn(netns_descriptor: int, run_directory: Path, arguments: tuple[str, ...]) -> None:
    """Start a guardian and wait until it is ready; raises FwtopError with its complaint."""
    argv = module_argv(
        _GUARDIAN, "--netns-fd", str(netns_descriptor), "--run-directory", str(run_directory), *arguments
    )
    try:
        done = subprocess.run(
            argv,
            pass_fds=[netns_descriptor],
            env=GUARDIAN_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_CONNECT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FwtopError("the guardian did not get ready in time; nothing was changed") from None
    if done.returncode and b"another guardian" in done.stderr:
        time.sleep(_RETRY_SECONDS)  # somebody else started one at the same moment
    elif done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["the guardian failed"]
        raise FwtopError(
            safe_text(lines[-1], limit=500), done.returncode if done.returncode in (1, 2, 3) else 1
        )


def _exchange(
    sock: socket.socket, request: Request, timeout: float, attached: int | None = None
) -> tuple[Answer, list[int]]:
    message = encode_request(request)
    if len(message) > MAX_MESSAGE:
        raise FwtopError("this rule is too long for one message; nothing was changed", 2)
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * descriptors.itemsize)
    try:
        sock.settimeout(timeout)
        socket.send_fds(sock, [message], [attached] if attached is not None else [])
        received, ancillary, _, _ = sock.recvmsg(MAX_MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        line = f"the guardian does not answer ({error.strerror or error}); active rules end by themselves"
        raise FwtopError(line) from None
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if not received:
        raise FwtopError("the guardian ended before it answered; active rules end by themselves")
    try:
        return parse_answer(received), list(descriptors)
    except ProtocolError:
        raise FwtopError("the guardian's answer is not understood") from None
