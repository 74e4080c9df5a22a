"""HTTP requests at the start of payloads (RFC 9112). Never raises on hostile bytes."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np
from msgspec import Struct

from fwtop.analysis.window.traffic import Rows, Traffic, payload, payload_texts
from fwtop.model.text import payload_text
from fwtop.model.traffic.packets import I64, Mask, PacketBatch
from fwtop.render.numbers import percent

METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"PATC", b"PRI ", b"CONN")
_WANTED = np.array([int.from_bytes(method, "big") for method in METHODS], np.uint32)
_ANSWER = np.frombuffer(b"HTTP/1.", np.uint8)
_HELD = 200
_FORWARDED = (  # what proxies and content networks add (RFC 7239, RFC 9110 7.6.3, and older custom)
    b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-proto", b"x-real-ip", b"x-client-ip",
    b"true-client-ip", b"cf-connecting-ip", b"cdn-loop",
)  # fmt: skip
_FRAME = 9  # bytes of a frame's header
_FLAT, _LETTERS = 0.95, 400  # of the greatest entropy that letters can have, and how many tell
_ONE_TOOL = 0.7  # of the requests have identical headers: no browser version has that share
_PARAMETER = 16  # bytes of a parameter name; longer ones are values without a name
_BROWSERS = (b"Mozilla", b"Opera", b"Dalvik")
_QUERIES = 30  # query strings before they say something


class Request(Struct, frozen=True):
    """The captured part of one request; fields are raw bytes, empty if not captured."""

    method: bytes
    path: bytes  # before the question mark
    query: bytes
    host: bytes
    agent: bytes
    forwarded: bool  # names the client for whom a proxy asks
    upgrades: bool  # asks to go on with another protocol (RFC 9110 7.8), such as WebSocket
    template: bytes  # everything after the request line: equal templates come from one tool


def starts_request(packets: PacketBatch, rows: Rows) -> Mask:
    """Mark the rows whose payload starts with a request method."""
    matrix, length = payload(packets, rows, 4)
    first = np.zeros(len(rows), np.uint32)
    for i in range(4):
        first = (first << np.uint32(8)) | matrix[:, i]
    return np.asarray(np.isin(first, _WANTED) & (length == 4))


def starts_page(packets: PacketBatch, rows: Rows) -> Mask:
    """Mark the rows whose payload starts with the status line of an answer."""
    matrix, length = payload(packets, rows, len(_ANSWER))
    return np.asarray((matrix == _ANSWER).all(1) & (length == len(_ANSWER)))


@lru_cache(maxsize=512)  # tools send the same again and again
def parse_request(data: bytes) -> Request | None:
    """Parse the request line and the captured headers; None if it isn't a request."""
    line, _, rest = data.partition(b"\r\n")
    parts = line.split(b" ")
    if len(parts) < 2 or not parts[0].isalpha():
        return None
    path, _, query = parts[1].partition(b"?")
    headers: dict[bytes, bytes] = {}
    for header in rest.split(b"\r\n")[:32]:
        name, colon, value = header.partition(b":")
        if colon:
            headers.setdefault(name.strip().lower(), value.strip())
    upgrades = b"upgrade" in headers or b"upgrade" in headers.get(b"connection", b"").lower()
    host, agent = headers.get(b"host", b""), headers.get(b"user-agent", b"")
    forwarded = any(name in headers for name in _FORWARDED)
    return Request(parts[0], path, query, host, agent, forwarded, upgrades, rest[:96])


def path_mask(traffic: Traffic, rows: Rows, method: bytes, path: bytes) -> Mask:
    """Mark the requests for this path with a query string."""
    return line_mask(traffic, rows, method + b" " + path + b"?")


def line_mask(traffic: Traffic, rows: Rows, text: bytes) -> Mask:
    """Mark the rows whose payload begins with a text."""
    matrix, length = payload(traffic.packets, rows, len(text))
    return np.asarray((matrix == np.frombuffer(text, np.uint8)).all(1) & (length == len(text)))


def headers_frame(traffic: Traffic, rows: Rows) -> I64:
    """Return the length of the HEADERS frame that each payload starts with (RFC 9113 4.1, 6.2); 0 if none.

    Only frames that hold a whole request count: END_HEADERS, and a stream that a client may open.
    """
    matrix, length = payload(traffic.packets, rows, _FRAME)
    size = (matrix[:, 0].astype(np.int64) << 16) | (matrix[:, 1].astype(np.int64) << 8) | matrix[:, 2]
    flags, opened = matrix[:, 4], (matrix[:, 5] < 0x80) & ((matrix[:, 8] & 1) == 1)
    good = (length == _FRAME) & (matrix[:, 3] == 1) & ((flags & ~np.uint8(0x2D)) == 0) & ((flags & 4) != 0)
    fits = (size > 0) & (size + _FRAME <= traffic.packets.payload_length[rows])
    return np.where(good & opened & fits, size + _FRAME, 0)


def requests(traffic: Traffic, rows: Rows) -> list[Request]:
    """Parse the given rows' requests."""
    texts = payload_texts(traffic.packets, rows)
    return [*filter(None, (parse_request(text[:_HELD]) for text in texts))]


def describe(parsed: list[Request]) -> list[str]:
    """Describe the most common request, Host and User-Agent."""
    if not parsed:
        return []
    (method, path), n = Counter((r.method, r.path) for r in parsed).most_common(1)[0]
    text = payload_text(method + b" " + path, limit=60)
    sentences = [f"{percent(n / len(parsed))} of the requests are {text!r}"]
    for name, values in (("Host", [r.host for r in parsed]), ("User-Agent", [r.agent for r in parsed])):
        given = [value for value in values if value]
        if given:
            value, n = Counter(given).most_common(1)[0]
            shown = payload_text(value, limit=50)
            others = len(set(given)) - 1
            beside = f", and {others:,} other{'s' * (others != 1)}" if others else ""
            sentences.append(f"{percent(n / len(given))} have {name} {shown!r}{beside}")
    return sentences


def look_drawn(paths: list[bytes]) -> bool:
    """Check for paths whose last part has letters and digits about as often as each other; not numbers."""
    last = [path.rpartition(b"/")[2].partition(b".")[0].lower() for path in paths]
    if sum(map(bytes.isdigit, last)) > 0.5 * len(last):
        return False
    text = np.frombuffer(b"".join(last), np.uint8)
    counts = np.bincount(text, minlength=256)
    p = counts[counts > 0] / max(1, len(text))
    entropy = float(-(p * np.log2(p)).sum())
    return len(text) >= _LETTERS and entropy > _FLAT * np.log2(max(2, min(len(p), 36)))


def unique_queries(parsed: list[Request]) -> tuple[Request, float] | None:
    """Find one path that a tool requests with a unique query string each time."""
    asked = [request for request in parsed if request.query]
    if len(asked) < _QUERIES or len(asked) < 0.2 * len(parsed):
        return None
    (method, path), n = Counter((request.method, request.path) for request in asked).most_common(1)[0]
    mine = [request for request in asked if (request.method, request.path) == (method, path)]
    distinct = len({request.query for request in mine}) / n
    if n < 0.5 * len(asked) or distinct < 0.8:
        return None
    same_words = Counter(whole_words(mine)).most_common(1)[0][1] >= _ONE_TOOL * n
    if not (same_words or _names_differ(mine) or _no_browser(mine)):
        return None
    return mine[0], distinct


def _names_differ(mine: list[Request]) -> bool:
    """Check for query strings whose parameter names vary; those of a real page don't."""
    names = [request.query.partition(b"=")[0] for request in mine if b"=" in request.query]
    short = {name for name in names if 0 < len(name) <= _PARAMETER}
    return len(names) > 0.8 * len(mine) and len(short) > 0.5 * len(names)


def _no_browser(mine: list[Request]) -> bool:
    """Check for requests to / with unique query strings by one program that is no browser."""
    products = Counter(request.agent.split(b"/")[0] for request in mine if request.agent)
    name, n = products.most_common(1)[0] if products else (b"Mozilla", 0)
    return mine[0].path == b"/" and name not in _BROWSERS and n > 0.5 * len(mine)


def whole_words(parsed: list[Request]) -> list[bytes]:
    """Return what follows the request lines, cut to the length that nearly all samples hold."""
    held = sorted(len(request.template) for request in parsed)[len(parsed) // 20]
    return [request.template[:held] for request in parsed]
