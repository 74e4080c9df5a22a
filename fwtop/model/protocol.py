"""The messages between a client (console, command line) and the guardian.

One JSON object a message over a Unix SOCK_SEQPACKET socket, at most MAX_MESSAGE bytes; descriptors
travel beside the answer to `watch` (SCM_RIGHTS). Every request gets exactly one answer, in order.
The guardian trusts no client: `parse_request` refuses whatever is not exactly one of these verbs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

MAX_MESSAGE = 1 << 20
DEFAULT_CONFIRM_SECONDS = 30
SOCKET_DIRECTORY = "/run/fwtop"


class ProtocolError(ValueError):
    """A message that is not in the protocol; the text says what was wrong."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of every client. A `console` client's provisional rules fall with its socket."""

    role: str  # "console", "cli"
    build: str  # hash of the installed program: a guardian of another build hands over and ends
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class Watch:
    """Attach the observers and hand their descriptors over."""

    interfaces: tuple[str, ...] = ()  # empty: those with a default route
    xdp: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Say what a rule would run and whether the guard would let it, without doing it."""

    rule: dict[str, Any]
    attached: bool = False  # the rule's sources come with the message as a descriptor: model/bulk.py


@dataclass(frozen=True, slots=True)
class Apply:
    """Install a rule: provisional for `confirm_seconds`, or confirmed at once when 0."""

    rule: dict[str, Any]
    confirm_seconds: int = DEFAULT_CONFIRM_SECONDS
    force: bool = False  # the operator typed the confirmation that a broad rule needs
    attached: bool = False  # as in Plan


@dataclass(frozen=True, slots=True)
class Keep:
    """Confirm a provisional rule, or renew a confirmed one's time to live."""

    id: str
    ttl_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Undo:
    """Take rules back; all of them when `all`."""

    ids: tuple[str, ...] = ()
    all: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """List rules with their counters, the allow-list and the guardian's state."""

    finished: bool = False  # also rules that are over


@dataclass(frozen=True, slots=True)
class Why:
    """Say in sentences (data["sentences"]) what a rule matches, or what keeps it from matching."""

    id: str


Request = Hello | Watch | Plan | Apply | Keep | Undo | Status | Why
_REQUESTS: dict[str, type[Request]] = {
    cls.__name__.lower(): cls for cls in (Hello, Watch, Plan, Apply, Keep, Undo, Status, Why)
}
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "int | None": (int, type(None)),
    "dict[str, Any]": (dict,),
    "tuple[str, ...]": (list,),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The guardian's answer. `code` is the exit status that the client should report (0: done)."""

    ok: bool
    error: str = ""
    code: int = 0
    data: dict[str, Any] = field(default_factory=dict)


def encode_request(request: Request) -> bytes:
    """Write a request as one message."""
    return json.dumps({"verb": type(request).__name__.lower(), **asdict(request)}).encode()


def parse_request(message: bytes) -> Request:
    """Read a request; raises ProtocolError on anything that is not exactly one."""
    fields_given = _object(message)
    verb = fields_given.pop("verb", None)
    cls = _REQUESTS.get(verb) if isinstance(verb, str) else None
    if cls is None:
        raise ProtocolError("unknown verb")
    annotations = {name: item.type for name, item in cls.__dataclass_fields__.items()}
    values: dict[str, Any] = {}
    for name, value in fields_given.items():
        if name not in annotations or type(value) not in _TYPES[str(annotations[name])]:
            raise ProtocolError(f"{verb}: field {name[:40]!r} is unknown or of the wrong type")
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise ProtocolError(f"{verb}: {name} takes texts")
        values[name] = tuple(value) if isinstance(value, list) else value
    try:
        return cls(**values)
    except TypeError:
        raise ProtocolError(f"{verb}: a field is missing") from None


def encode_answer(answer: Answer) -> bytes:
    """Write an answer as one message."""
    return json.dumps(asdict(answer)).encode()


def parse_answer(message: bytes) -> Answer:
    """Read an answer; raises ProtocolError."""
    try:
        return Answer(**_object(message))
    except TypeError:
        raise ProtocolError("not an answer") from None


def _object(message: bytes) -> dict[str, Any]:
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        raise ProtocolError("not JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError("not a JSON object")
    return value
