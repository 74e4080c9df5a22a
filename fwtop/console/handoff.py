"""What the launcher (root) hands to the console (unprivileged): options, the guardian's socket, observers."""

from __future__ import annotations

import socket
from typing import Any

from msgspec import Struct, field

from fwtop.model.traffic.severity import Threshold
from fwtop.model.wire import of_json, to_json

MAX_DESCRIPTORS = 64
_MAX_MESSAGE = 1 << 20


class DropOptions(Struct, frozen=True):
    """Where dropped packets go, and how many."""

    descriptors: tuple[int, ...]  # two files, or a listening socket
    is_socket: bool
    pcapng: bool
    payload: bool
    per_second: int
    most_bytes: int  # of both files


class Options(Struct, frozen=True):
    """The console's command line, as the launcher parsed it."""

    mode: str  # tui, snapshot, record, dry_run
    seconds: float = 5.0
    json: bool = False
    top: int = 50
    fail_on: Threshold | None = None  # snapshot: what the exit status tells of
    slow: bool = False
    readonly: bool = False
    netns: str | None = None
    geoip: str | None = None
    store: bool = True
    ready_fd: int | None = None  # snapshot: write "ready" here once all observers are attached
    dissector_fd: int | None = None  # screen: the dissector's socket
    jsonl_fd: int | None = None  # record: write JSON lines here
    jsonl_top: int = 10  # entries of each list in a line
    jsonl_seconds: float = 1.0  # from one line to the next
    jsonl_bytes: int = 1 << 30  # a file's limit
    metrics_fd: int | None = None  # record: answer scrapes on this listening socket
    alarms_fd: int | None = None  # record: the alarms' process reads this pipe
    alarms: dict[str, Any] = field(default_factory=dict)  # AlarmConfig
    automatic: dict[str, Any] = field(default_factory=dict)  # record: Policy; none: nothing by itself
    service_fd: int | None = None  # record: the service manager's notification socket
    drops: DropOptions | None = None  # record: write dropped packets

    def inherited(self) -> list[int]:
        """Return the descriptors that the console inherits besides its socket and standard ones."""
        outputs = (self.jsonl_fd, self.metrics_fd, self.alarms_fd, self.service_fd)
        drops = () if self.drops is None else self.drops.descriptors
        found = (self.ready_fd, self.dissector_fd, *outputs, *drops)
        return [descriptor for descriptor in found if descriptor is not None]


class Handoff(Struct, frozen=True):
    """The launcher's only message: the guardian's answer to Watch, and the names of its descriptors."""

    watch: dict[str, Any]
    names: list[str] = field(default_factory=list)
    error: str = ""  # if set, nothing can be watched: print this and exit with `code`
    code: int = 0
    settings: list[tuple[str, str, str]] = field(default_factory=list)  # ConfigText of the screen's files


def send_handoff(to: socket.socket, handoff: Handoff, descriptors: list[int]) -> None:
    """Send the handoff with its descriptors: the guardian's socket, then those listed in `names`."""
    socket.send_fds(to, [to_json(handoff)], descriptors)


def receive_handoff(source: socket.socket) -> tuple[Handoff, list[int]]:
    """Wait for the handoff; raises EOFError if the launcher exited without sending one."""
    message, descriptors, flags, _ = socket.recv_fds(source, _MAX_MESSAGE, MAX_DESCRIPTORS)
    if not message or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise EOFError("the launcher ended early")
    return of_json(Handoff, message), descriptors
