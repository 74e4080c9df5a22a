"""HTTP requests in packets' beginnings (RFC 9112). Reads hostile bytes; never raises on them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fwtop.advise.traffic import Rows, Traffic, payload
from fwtop.model.packets import Mask
from fwtop.model.percent import percent
from fwtop.model.text import payload_text

METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"PATC", b"PRI ", b"CONN")
_WANTED = np.array([int.from_bytes(method, "big") for method in METHODS], np.uint32)
_HELD = 200


@dataclass(frozen=True, slots=True)
class Request:
    """What the sample shows of one request; fields are raw bytes, "" where not in the sample."""

    method: bytes
    path: bytes  # before the question mark
    query: bytes
    host: bytes
    agent: bytes
    template: bytes  # everything after the request line: equal templates come from one tool


def request_mask(traffic: Traffic, rows: Rows) -> Mask:
    """Tell which rows' payload begins with a request method."""
    matrix, length = payload(traffic.packets, rows, 4)
    first = np.zeros(len(rows), np.uint32)
    for i in range(4):
        first = (first << np.uint32(8)) | matrix[:, i]
    return np.asarray(np.isin(first, _WANTED) & (length == 4))


def parse_request(data: bytes) -> Request | None:
    """Read the request line and the headers that are there; None when it isn't a request."""
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
    return Request(
        parts[0], path, query, headers.get(b"host", b""), headers.get(b"user-agent", b""), rest[:96]
    )


def path_mask(traffic: Traffic, rows: Rows, method: bytes, path: bytes) -> Mask:
    """Tell which rows ask for this path with a query."""
    text = method + b" " + path + b"?"
    matrix, length = payload(traffic.packets, rows, len(text))
    return np.asarray((matrix == np.frombuffer(text, np.uint8)).all(1) & (length == len(text)))


def requests(traffic: Traffic, rows: Rows) -> list[Request]:
    """Parse the given rows' requests."""
    packets = traffic.packets
    found = []
    for row in rows.tolist():
        start = int(packets.payload_offset[row])
        request = parse_request(packets.data[row, start : int(packets.captured[row])][:_HELD].tobytes())
        if request is not None:
            found.append(request)
    return found


def describe(parsed: list[Request]) -> list[str]:
    """Say what most requests ask for."""
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
            beside = f", beside {others:,} other{'s' * (others != 1)}" if others else ""
            sentences.append(f"{percent(n / len(given))} have {name} {shown!r}{beside}")
    return sentences
