"""The messages between the guardian and its clients.

Each message is a JSON object of at most MAX_MESSAGE bytes on a Unix SOCK_SEQPACKET socket; descriptors
accompany the answers to `watch` and `connect` (SCM_RIGHTS). Each request gets exactly one answer, in order,
with the request's number; an answer longer than PART bytes is split (`split_answer`). The guardian trusts no
client: `parse_request` rejects anything that is not exactly one of the requests of protocol.py.
"""

from __future__ import annotations

import json
import re
from typing import Any, get_args

from msgspec import Struct, field
from msgspec.structs import asdict

from fwtop.model.errors import REASONS, FwtopError
from fwtop.model.protocol import MAX_SECONDS, Request
from fwtop.model.text import safe_text
from fwtop.model.wire import FieldError, of_plain, to_json

MAX_MESSAGE = 1 << 20
PART = 1 << 17  # bytes of an answer in one message: well below the size of any socket buffer
MORE, LAST = b"+", b"."  # first byte of a part of an answer; a whole answer starts with "{"
_REQUESTS: dict[str, type[Request]] = {cls.verb(): cls for cls in get_args(Request)}
_NUMBER = re.compile(rb'\s*\{[^{}\[\]]{0,200}?"number"\s*:\s*([0-9]{1,15})\s*[,}]')
_SHOWN = 40  # characters of a name that is not ours
_LONGEST = 200  # of what is wrong with a request


class ProtocolError(ValueError):
    """A message that violates the protocol; `number` is its request's, 0 where none can be read.

    `reason` and `field` as in FwtopError.
    """

    def __init__(
        self, message: str, number: int = 0, reason: str = "not_understood", field: str | None = None
    ) -> None:
        super().__init__(message)
        self.number, self.reason, self.field = number, reason, field

    def answer(self, number: int | None = None) -> Answer:
        """Return what its client is told, perhaps under another number."""
        said = safe_text(f"not understood: {self}", limit=500)
        return Answer(
            False, said, 2, number=self.number if number is None else number,
            reason=self.reason, field=self.field,
        )  # fmt: skip


class NumberedRequest(Struct, frozen=True):
    """A request, its number on this connection, and how many seconds its client waits for the answer."""

    request: Request
    number: int = 0
    seconds: float | None = None


class Answer(Struct, frozen=True):
    """The guardian's answer; `code` is the exit status for the client, 0 for success.

    A refusal has `reason`, `field` and `retryable` as FwtopError has them.
    """

    ok: bool
    error: str = ""
    code: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    number: int = 0  # of the request
    reason: str = ""
    field: str | None = None
    retryable: bool = False

    @staticmethod
    def of(error: FwtopError) -> Answer:
        """Return a refusal for an error."""
        return Answer(
            False, safe_text(error, limit=1000), error.code,
            reason=error.reason, field=error.field, retryable=error.retryable,
        )  # fmt: skip

    def agreed(self) -> Answer:
        """Return itself; raises FwtopError with the guardian's words and code if it refuses."""
        if not self.ok:
            raise FwtopError(
                self.error, self.code or 1, reason=self.reason, field=self.field, retryable=self.retryable
            )
        return self


def encode_request(request: Request, number: int = 0, seconds: float | None = None) -> bytes:
    """Encode a request as one message; `seconds` is how long the client waits for the answer."""
    envelope: dict[str, Any] = {"verb": request.verb()}
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
            raise ProtocolError("number must be a whole number from 0", field="number")
        if b"\\u" in message and not _is_text(given):
            raise ProtocolError("the message has half a character in JSON (a lone surrogate)")
        seconds = given.pop("seconds", None)
        if seconds is not None and not (type(seconds) in (int, float) and 0 < seconds <= MAX_SECONDS):
            raise ProtocolError(f"seconds must be above 0 and at most {MAX_SECONDS:g}", field="seconds")
        return NumberedRequest(_request(given), number, seconds)
    except ProtocolError as error:
        raise ProtocolError(str(error), number, error.reason, error.field) from None


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
        offered = ["hello", "watch", *(name for name, one in _REQUESTS.items() if one.scope is not None)]
        raise ProtocolError(f"{why}; there are {', '.join(offered)}", 0, "unknown_verb", "verb")
    try:
        return of_plain(cls, given)
    except FieldError as error:
        said = f"{verb}: {safe_text(error, limit=_LONGEST)}"
        raise ProtocolError(said, 0, "invalid", error.field) from None


def encode_answer(answer: Answer) -> bytes:
    """Encode an answer."""
    # asdict would copy the data, which may be long
    told = {name: getattr(answer, name) for name in ("ok", "error", "code", "data", "number")}
    if not answer.ok:
        reason = answer.reason or REASONS.get(answer.code, REASONS[1])
        told |= {"reason": reason, "field": answer.field, "retryable": answer.retryable}
    return json.dumps(told).encode()


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
    except RecursionError:
        raise ProtocolError("the message's JSON is nested too deeply") from None
    except ValueError:
        raise ProtocolError("the message is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise ProtocolError("the message is not a JSON object")
    return value
