"""The filter language: a subset of Wireshark's display filters (docs/FILTER.md), parsed by hand.

filter  = both { ("||" | "or") both }
both    = one { ("&&" | "and") one }
one     = ("!" | "not") one | "(" filter ")" | test
test    = field [ "&" number ] [ relation value | "in" "{" element { "," element } "}" | "contains" bytes ]
"""

from __future__ import annotations

import difflib
import ipaddress
import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.analysis.packets.fields import (
    FIELDS,
    Field,
    Network,
    Span,
    Test,
    Type,
    Value,
    compare,
    headers_of,
    present,
)  # fmt: skip
from fwtop.model.text import safe_text
from fwtop.model.traffic.packets import Mask, PacketBatch

MAX_LENGTH = 1000  # characters
MAX_DEPTH = 32  # of parentheses and negations
MAX_TESTS = 100  # tests, and elements of one set

_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!&(){},])|(?P<word>[\w.:/\-]+))'
)
_WORDS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&&", "or": "||", "not": "!",
}  # fmt: skip
_RELATIONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,19}")
_BYTES = re.compile(r"[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2})+")
_PREFIX = re.compile(r"[0-9a-fA-F.:]+(?:/[0-9]{1,3})?")
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_LITERALS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_TRUTH = {"1": 1, "0": 0, "True": 1, "False": 0, "TRUE": 1, "FALSE": 0}


class FilterError(ValueError):
    """The filter is wrong at a position (from 0); the text is one line to show."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at {position + 1}: {reason}")
        self.position = position
        self.reason = reason


class PacketFilter(Struct, frozen=True):
    """A parsed filter."""

    text: str
    test: Test | None = None  # None selects every packet

    def mask(
        self,
        packets: PacketBatch,
        *,
        verdicts: NDArray[np.str_] | None = None,
        who: NDArray[np.str_] | None = None,
    ) -> Mask:
        """Mark the packets that the filter selects; without verdicts or `who`, fwtop's fields are absent."""
        if self.test is None or not len(packets):
            return np.ones(len(packets), np.bool_)
        texts = {"fwtop.verdict": verdicts, "fwtop.who": who}
        known = {name: values for name, values in texts.items() if values is not None}
        return self.test(headers_of(packets, known))


def parse_filter(text: str) -> PacketFilter:
    """Parse a filter; an empty one selects everything. Raises FilterError."""
    if len(text) > MAX_LENGTH:
        raise FilterError(MAX_LENGTH, f"a filter has at most {MAX_LENGTH} characters")
    tokens = _tokens(text)
    if not tokens:
        return PacketFilter(text)
    return PacketFilter(text, _Parser(tokens, len(text)).whole())


class _Token(Struct, frozen=True):
    kind: str  # text, sign, word
    value: str
    at: int


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            reason = "this text has no closing quote" if text[at] == '"' else f"unexpected {_shown(text[at])}"
            raise FilterError(at, reason)
        value = match[match.lastgroup]
        found.append(_Token(match.lastgroup, value, match.start(match.lastgroup)))
        at = match.end()
    return found


def _shown(text: str) -> str:
    return f'"{safe_text(text, limit=30)}"'


class _Parser:
    """Recursive descent; the depth and the number of tests are bounded."""

    def __init__(self, tokens: list[_Token], end: int) -> None:
        self._tokens = tokens
        self._next = 0
        self._end = end
        self._depth = 0
        self._tests = 0

    def whole(self) -> Test:
        """Parse all tokens."""
        node = self._either()
        if (token := self._token()) is not None:
            raise FilterError(token.at, f"expected && or ||, not {_shown(token.value)}")
        return node

    def _either(self) -> Test:
        parts = [self._both()]
        while self._take("||"):
            parts.append(self._both())
        return lambda headers: np.logical_or.reduce([part(headers) for part in parts])

    def _both(self) -> Test:
        parts = [self._one()]
        while self._take("&&"):
            parts.append(self._one())
        return lambda headers: np.logical_and.reduce([part(headers) for part in parts])

    def _one(self) -> Test:
        at = self._position()
        for sign in ("!", "("):
            if not self._take(sign):
                continue
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise FilterError(at, f"nested more than {MAX_DEPTH} deep")
            node = _negated(self._one()) if sign == "!" else self._either()
            if sign == "(":
                self._expect(")")
            self._depth -= 1
            return node
        return self._test()

    def _test(self) -> Test:
        token = self._of_kind("word", "a field such as tcp.dstport")
        field = _field(token)
        self._tests += 1
        if self._tests > MAX_TESTS:
            raise FilterError(token.at, f"more than {MAX_TESTS} tests")
        bits = self._bits(field)
        at, sign = self._position(), self._peek()
        if sign in _RELATIONS:
            self._next += 1
            _check_relation(field, sign, at)
            return compare(field, sign, (self._value(field),), bits)
        if sign == "in":
            self._next += 1
            if field.type in (Type.PROTOCOL, Type.BYTES):
                raise FilterError(at, f"{field.name} has no values to be in a set")
            return compare(field, "in", self._set(field), bits)
        if sign == "contains":
            self._next += 1
            return compare(field, "contains", (self._needle(field, at),))
        if bits is not None:
            return compare(field, "&", (), bits)
        return present(field)

    def _bits(self, field: Field) -> int | None:
        at = self._position()
        if not self._take("&"):
            return None
        if field.type is not Type.NUMBER:
            raise FilterError(at, f"& needs a number, and {field.name} is not one")
        return _number(field, self._of_kind("word", "a number"))

    def _set(self, field: Field) -> tuple[Value, ...]:
        self._expect("{")
        values: list[Value] = []
        while True:
            values.append(self._element(field))
            if len(values) > MAX_TESTS:
                raise FilterError(self._position(), f"more than {MAX_TESTS} elements")
            if not self._take(","):
                break
        self._expect("}")
        return tuple(values)

    def _element(self, field: Field) -> Value:
        token = self._token()
        if token is None or token.kind != "word" or ".." not in token.value or field.type is not Type.NUMBER:
            value = self._value(field)
            return Span(value.low, value.low) if isinstance(value, Span) else value
        self._next += 1
        low, _, high = token.value.partition("..")
        ends = [_number(field, _Token("word", part, token.at)) for part in (low, high)]
        return Span(*ends)

    def _value(self, field: Field) -> Value:
        if field.type is Type.TEXT:
            token = self._of_kind("text", f'"text" in quotes: {field.name} is text')
            return _unquoted(token).decode("utf-8", "replace")
        article = "an" if field.type in (Type.IPV4, Type.IPV6) else "a"
        token = self._of_kind("word", f"{article} {field.type.value}")
        if field.type is Type.BOOLEAN:
            if token.value not in _TRUTH:
                raise FilterError(token.at, f"{field.name} is 1 or 0")
            return Span(_TRUTH[token.value], _TRUTH[token.value])
        if field.type is Type.NUMBER:
            number = _number(field, token)
            return Span(number, number)
        return _network(field, token)

    def _needle(self, field: Field, at: int) -> Value:
        if field.type is Type.TEXT:
            return _unquoted(self._of_kind("text", '"text" in quotes')).decode("utf-8", "replace")
        if field.type is not Type.BYTES:
            raise FilterError(at, f"{field.name} has no contains: frame, tcp.payload and udp.payload have")
        expected = '"text" or bytes such as 01:02:ff'
        ahead = self._token()
        if ahead is not None and ahead.kind == "text":
            token = self._of_kind("text", expected)
            data = _unquoted(token)
            if not data:
                raise FilterError(token.at, "an empty text is in every packet")
            return data
        token = self._of_kind("word", expected)
        if _BYTES.fullmatch(token.value) is None:
            raise FilterError(token.at, f"expected {expected}, not {_shown(token.value)}")
        return bytes.fromhex(re.sub("[:-]", "", token.value))

    # -- tokens

    def _token(self) -> _Token | None:
        """Return the next token, None at the end."""
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _position(self) -> int:
        token = self._token()
        return self._end if token is None else token.at

    def _peek(self) -> str:
        """Return the next sign, or word that stands for one; "" if neither comes."""
        token = self._token()
        return _WORDS.get(token.value, token.value) if token is not None and token.kind != "text" else ""

    def _take(self, sign: str) -> bool:
        found = self._peek() == sign
        self._next += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise FilterError(self._position(), f"expected {_shown(sign)}{self._instead()}")

    def _of_kind(self, kind: str, expected: str) -> _Token:
        token = self._token()
        if token is None or token.kind != kind:
            raise FilterError(self._position(), f"expected {expected}{self._instead()}")
        self._next += 1
        return token

    def _instead(self) -> str:
        token = self._token()
        return ", but the filter ends" if token is None else f", not {_shown(token.value)}"


def _negated(test: Test) -> Test:
    return lambda headers: np.logical_not(test(headers))


def _field(token: _Token) -> Field:
    field = FIELDS.get(token.value)
    if field is not None:
        return field
    near = difflib.get_close_matches(token.value[:40], FIELDS, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise FilterError(token.at, f"{_shown(token.value)} is not a field{hint}")


def _check_relation(field: Field, sign: str, at: int) -> None:
    if field.type is Type.PROTOCOL:
        raise FilterError(at, f"{field.name} is a protocol: it stands alone")
    if field.type is Type.BYTES:
        raise FilterError(at, f"{field.name} has only contains")
    if sign not in ("==", "!=") and field.type is not Type.NUMBER:
        raise FilterError(at, f"{field.name} has no order: use == or !=")


def _number(field: Field, token: _Token) -> int:
    if _NUMBER.fullmatch(token.value) is None:
        raise FilterError(token.at, f"{_shown(token.value)} is not a number")
    number = int(token.value, 0)
    if number > field.most:
        raise FilterError(token.at, f"{field.name} is at most {field.most}")
    return number


def _network(field: Field, token: _Token) -> Network:
    version = 4 if field.type is Type.IPV4 else 6
    try:
        if _PREFIX.fullmatch(token.value) is None:
            raise ValueError
        network = ipaddress.ip_network(token.value, strict=False)
        if network.version != version:
            raise ValueError
    except ValueError:
        raise FilterError(token.at, f"{_shown(token.value)} is not an {field.type.value} or prefix") from None
    value, mask = int(network.network_address), int(network.netmask)
    low = (1 << 64) - 1
    return Network(value >> 64, value & low, mask >> 64, mask & low)


def _unquoted(token: _Token) -> bytes:
    """Return what a quoted text stands for, in UTF-8; \\xhh is a byte."""

    def written(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code[1:], 16)]) if len(code) == 3 else _LITERALS.get(code, code)

    return _ESCAPE.sub(written, token.value[1:-1].encode())
