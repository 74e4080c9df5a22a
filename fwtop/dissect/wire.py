"""What the dissecting process and its client say to each other over the process's pipes.

Request: length (u32) and link type (u8), big-endian, then that many bytes. Link 1 begins with the
Ethernet header, 0 with the IP header. Answer: one line of JSON, `{"layers": [[name, [[field, value]…]]…],
"problem": text}`. Neither side trusts the other: both cut and sanitise.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from fwtop.model.dissection import Dissection, Layer
from fwtop.model.text import safe_text

HEADER = struct.Struct("!IB")
MAX_PACKET = 65_535
MAX_LAYERS = 32
MAX_FIELDS = 96  # of one layer
MAX_VALUE = 200  # characters
MAX_LINE = 1 << 20  # bytes of an answer


def request(data: bytes, link: int) -> bytes:
    """Write one packet; what is longer than any IP packet is cut."""
    cut = data[:MAX_PACKET]
    return HEADER.pack(len(cut), link) + cut


def answer(dissection: Dissection) -> bytes:
    """Write one dissection as a line."""
    layers = [[layer.name, [list(pair) for pair in layer.fields]] for layer in dissection.layers]
    return json.dumps({"layers": layers, "problem": dissection.problem}).encode() + b"\n"


def parse_answer(line: bytes) -> Dissection:
    """Read one dissection, cut and sanitised anew; raises ValueError on anything else."""
    try:
        data: Any = json.loads(line)
        layers = tuple(bounded(name, fields) for name, fields in data["layers"][:MAX_LAYERS])
        return Dissection(layers, safe_text(data["problem"]))
    except (KeyError, TypeError, RecursionError, AttributeError) as error:
        raise ValueError(f"not an answer ({type(error).__name__})") from None


def bounded(name: object, fields: Sequence[tuple[object, object]]) -> Layer:
    """Make a layer of whatever was found: short, harmless, not too many fields."""
    kept = tuple(
        (safe_text(key, limit=60), safe_text(value, limit=MAX_VALUE)) for key, value in fields[:MAX_FIELDS]
    )
    return Layer(safe_text(name, limit=60), kept)
