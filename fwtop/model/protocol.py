"""The messages between the guardian and its clients (console, command line, programs: docs/API.md).

Each message is a JSON object of at most MAX_MESSAGE bytes on a Unix SOCK_SEQPACKET socket; descriptors
accompany the answers to `watch` and `connect` (SCM_RIGHTS). Each request gets exactly one answer, in order,
with the request's number; an answer longer than PART bytes is split (`split_answer`). The guardian trusts no
client: `parse_request` rejects anything that is not exactly one of these verbs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from msgspec import Struct, field
from msgspec.structs import asdict

from fwtop.model.text import safe_text
from fwtop.model.wire import of_plain, to_json

MAX_MESSAGE = 1 << 20
PART = 1 << 17  # bytes of an answer in one message: well below the size of any socket buffer
MAX_SECONDS = 3600.0  # of a request's time limit
MORE, LAST = b"+", b"."  # first byte of a part of an answer; a whole answer starts with "{"
DEFAULT_CONFIRM_SECONDS = 30
API_VERSION = 1  # of what docs/API.md promises to programs
PROGRAM = "program"  # their role
SCOPES = ("read", "lists", "rules", "policies")  # what they may be allowed, in [access] of guard.toml
MAX_PAGE = 10_000  # entries of a list in one answer


class ProtocolError(ValueError):
    """A message that violates the protocol; `number` is its request's, 0 where none can be read."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


class Hello(Struct, frozen=True, forbid_unknown_fields=True):
    """The first message of a client. A `console` client's provisional rules end with its connection."""

    role: str  # "console", "cli", "program"
    build: str = ""  # hash of the installed program; a guardian of another build hands over and exits
    readonly: bool = False
    version: int = 0  # of a program: the API_VERSION that it was written for, as it knows no builds


class Watch(Struct, frozen=True, forbid_unknown_fields=True):
    """Attach the observers and return their descriptors."""

    interfaces: tuple[str, ...] = ()  # empty: those with a default route


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """Return what installing a rule would run and whether the guard permits it."""

    rule: dict[str, Any]
    attached: bool = False  # the sources are in a descriptor beside the message (prefix_list.py)
    follows: bool = False  # it is to be installed together with the rules planned just before


class Apply(Struct, frozen=True, forbid_unknown_fields=True):
    """Install a rule, provisional for `confirm_seconds`; 0: confirmed."""

    rule: dict[str, Any]
    confirm_seconds: int = DEFAULT_CONFIRM_SECONDS
    force: bool = False  # the operator confirmed an overly broad rule by typing
    attached: bool = False  # as in Plan


class Keep(Struct, frozen=True, forbid_unknown_fields=True):
    """Confirm a provisional rule, or renew a confirmed one's time to live."""

    id: str
    ttl_seconds: int | None = None


class Repair(Struct, frozen=True, forbid_unknown_fields=True):
    """Reinstall what is missing of an active rule; its time to live is unchanged."""

    id: str


class Undo(Struct, frozen=True, forbid_unknown_fields=True):
    """Remove rules by id, or all of them."""

    ids: tuple[str, ...] = ()
    all: bool = False


class Status(Struct, frozen=True, forbid_unknown_fields=True):
    """List rules with their counters, the allow-list and the guardian's state."""

    finished: bool = False  # also ended rules
    allow: bool = True  # also the allow-list, which may be long


class Connect(Struct, frozen=True, forbid_unknown_fields=True):
    """Open another connection for the same client; the answer carries its descriptor."""


class Why(Struct, frozen=True, forbid_unknown_fields=True):
    """Explain in sentences (data["sentences"]) what a rule matches or why it doesn't match."""

    id: str


class RuleRead(Struct, frozen=True, forbid_unknown_fields=True):
    """Return a rule with all of its sources (data["rule"]), of which `status` shows the first.

    A long list comes in a sealed memory file beside the answer, and is empty in the rule then.
    """

    id: str


class Symbols(Struct, frozen=True, forbid_unknown_fields=True):
    """Name the kernel functions at this client's drop locations (data["names"], by index; "": unknown)."""


class Rescan(Struct, frozen=True, forbid_unknown_fields=True):
    """Find the watched interfaces again, after they or what is stacked on them changed."""


class Survey(Struct, frozen=True, forbid_unknown_fields=True):
    """Tell what the guardian last saw around the rules; empty before its first reading.

    data["listeners"]: [protocol, port, process]; data["rings"]: [interface, size, most];
    data["chains"]: [stage, name, whether its policy drops].
    """


LIST_ACTIONS = ("create", "add", "remove", "replace", "delete")


class ListChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Change a named list, in whole or not at all; the answer counts entries (data["added"], …)."""

    name: str
    action: str  # one of LIST_ACTIONS
    ttl_seconds: int | None = None  # of the entries; None: they stay
    force: bool = False  # the operator insists, although a rule on the list becomes overly broad
    attached: bool = False  # the entries are in a descriptor beside the message, as in Plan
    entries: tuple[str, ...] = ()  # or here, as text


class ListShow(Struct, frozen=True, forbid_unknown_fields=True):
    """Describe the named lists (data["lists"]), or one of them with its busiest entries."""

    name: str = ""


class ListTest(Struct, frozen=True, forbid_unknown_fields=True):
    """Tell which entry of a list holds an address or prefix (data["entry"], None for none)."""

    name: str
    entry: str


class ListRead(Struct, frozen=True, forbid_unknown_fields=True):
    """Return all entries of a list: a sealed memory file comes with the answer.

    Where some end, another one comes: the seconds that each has left, as doubles; 0 for those that stay.
    With a `count` up to so many are answered as text from `first` on, as far as MAX_PAGE: data["entries"],
    each with its seconds or null; data["total"]; data["stamp"], another one after each change.
    """

    name: str
    first: int = 0
    count: int | None = None


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """Tell every rule and set on the machine, as last read; data["ruleset"] is null before that.

    The longest rule sets are cut to those that matter most.
    """


POLICY_READS = ("check", "diff", "history", "export")
POLICY_CHANGES = ("apply", "rollback", "keep", "undo")
POLICY_FORMATS = ("nft", "iptables", "sh")  # of an export
MAX_POLICY = 1 << 18  # bytes of a policy's text in a request


class PolicyRead(Struct, frozen=True, forbid_unknown_fields=True):
    """Tell of a policy: whether its text is right, what it would change, what was kept before.

    `export` answers with a memory file for each of data["files"].
    """

    action: str  # one of POLICY_READS
    text: str = ""
    format: str = POLICY_FORMATS[0]
    attached: bool = False  # lists come in a descriptor beside the message (model/addresses/list_bundle.py)


class PolicyChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Try a policy, or an older version; keep what this connection tries, or take it out again."""

    action: str  # one of POLICY_CHANGES
    text: str = ""
    version: int | None = None  # with rollback; None: the one before
    confirm_seconds: int = DEFAULT_CONFIRM_SECONDS  # 0: keep it at once
    attached: bool = False  # as in PolicyRead


Request = (
    Hello | Watch | Plan | Apply | Keep | Repair | Undo | Status | Why | Symbols | Rescan | Survey | Connect
    | ListChange | ListShow | ListTest | ListRead | Rules | RuleRead | PolicyRead | PolicyChange
)  # fmt: skip
_REQUESTS: dict[str, type[Request]] = {cls.__name__.lower(): cls for cls in get_args(Request)}
_NUMBER = re.compile(rb'\s*\{[^{}\[\]]{0,200}?"number"\s*:\s*([0-9]{1,15})\s*[,}]')
_SHOWN = 40  # characters of a name that is not ours
_LONGEST = 200  # of what is wrong with a request


class NumberedRequest(Struct, frozen=True):
    """A request, its number on this connection, and how many seconds its client waits for the answer."""

    request: Request
    number: int = 0
    seconds: float | None = None


class Answer(Struct, frozen=True):
    """The guardian's answer; `code` is the exit status for the client, 0 for success."""

    ok: bool
    error: str = ""
    code: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    number: int = 0  # of the request


def encode_request(request: Request, number: int = 0, seconds: float | None = None) -> bytes:
    """Encode a request as one message; `seconds` is how long the client waits for the answer."""
    envelope: dict[str, Any] = {"verb": type(request).__name__.lower()}
    if number:
        envelope["number"] = number
    if seconds is not None:
        envelope["seconds"] = seconds
    return to_json({**envelope, **asdict(request)})


def parse_request(message: bytes) -> NumberedRequest:
    """Decode a request; raises ProtocolError on anything that is not exactly one."""
    number = number_in(message)
    try:
        given = _object(message)
        number = given.pop("number", 0)
        if type(number) is not int or not 0 <= number < 1 << 53:
            number = 0
            raise ProtocolError("number must be a whole number from 0")
        if b"\\u" in message and not _is_text(given):
            raise ProtocolError("the message has half a character in JSON (a lone surrogate)")
        seconds = given.pop("seconds", None)
        if seconds is not None and not (type(seconds) in (int, float) and 0 < seconds <= MAX_SECONDS):
            raise ProtocolError(f"seconds must be above 0 and at most {MAX_SECONDS:g}")
        return NumberedRequest(_request(given), number, seconds)
    except ProtocolError as error:
        raise ProtocolError(str(error), number) from None


def number_in(message: bytes) -> int:
    """Return the number at the beginning of a request that may be cut or broken; 0 if there is none."""
    found = _NUMBER.match(message)
    return int(found[1]) if found is not None else 0


def _request(given: dict[str, Any]) -> Request:
    """Decode what is beside the envelope; raises ProtocolError."""
    verb = given.pop("verb", None)
    cls = _REQUESTS.get(verb) if isinstance(verb, str) else None
    if cls is None:
        why = "verb is missing" if verb is None else f"there is no verb {str(verb)[:_SHOWN]!r}"
        raise ProtocolError(f"{why}; there are {', '.join(_REQUESTS)}")
    try:
        return of_plain(cls, given)
    except ValueError as error:
        raise ProtocolError(f"{verb}: {safe_text(error, limit=_LONGEST)}") from None


def encode_answer(answer: Answer) -> bytes:
    """Encode an answer."""
    fields = ("ok", "error", "code", "data", "number")  # asdict would copy the data, which may be long
    return json.dumps({name: getattr(answer, name) for name in fields}).encode()


def encode_success(number: int, data: Mapping[str, bytes]) -> list[bytes]:
    """Encode an answer whose data is encoded already, in pieces that are not copied."""
    pieces = [f'{{"ok": true, "number": {number}, "data": {{'.encode()]
    for at, (name, value) in enumerate(data.items()):
        pieces += [f"{', ' if at else ''}{json.dumps(name)}: ".encode(), value]
    return [*pieces, b"}}"]


def split_answer(pieces: Sequence[bytes]) -> list[list[bytes | memoryview]]:
    """Split an encoded answer into messages, each a list of buffers: itself, or parts of it.

    A part starts with MORE, the last one with LAST. Long pieces are not copied.
    """
    if sum(map(len, pieces)) <= PART:
        return [[b"".join(pieces)]]
    views = [
        memoryview(piece)[start : start + PART] for piece in pieces for start in range(0, len(piece), PART)
    ]
    return [[LAST if view is views[-1] else MORE, view] for view in views]


def parse_answer(message: bytes) -> Answer:
    """Decode an answer; raises ProtocolError."""
    try:
        return of_plain(Answer, _object(message))
    except ValueError:
        raise ProtocolError("not an answer") from None


def _is_text(given: dict[str, Any]) -> bool:
    """Whether all texts can be written in UTF-8: half a character would fail wherever it is."""
    try:
        json.dumps(given, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _object(message: bytes) -> dict[str, Any]:
    try:
        value = json.loads(message.decode())
    except (ValueError, RecursionError):
        raise ProtocolError("the message is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise ProtocolError("the message is not a JSON object")
    return value
