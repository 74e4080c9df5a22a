"""What an XDP rule can ask: the contract of the guardian that refuses and the loader that compiles."""

from __future__ import annotations

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule

COMPILED_PREFIXES = 64  # of a rule become comparisons in the program; more of them become maps
MAX_DESTINATIONS = 1024
SEARCHED_BYTES = 128  # of the payload, for bytes without an offset
BUCKETS = 65_536  # source prefixes that a rate limit tells apart; 6 MiB of the kernel's memory
FURTHEST_BYTE = 2048  # of the payload that an offset may reach


def check_xdp(rule: Rule) -> None:
    """Raise FwtopError (code 2) for a rule (of kind XDP or TC) that no program can be compiled for."""
    if len(rule.match.destinations) > MAX_DESTINATIONS:
        line = f"an XDP rule takes up to {MAX_DESTINATIONS} destinations; nothing was installed"
        raise FwtopError(line, 2)
    for item in rule.match.payload:
        if not item.data or (item.offset or 0) < 0:
            raise FwtopError("a payload match needs bytes and a place; nothing was installed", 2)
        if item.offset is None and len(item.data) > SEARCHED_BYTES:
            line = f"XDP searches the first {SEARCHED_BYTES} bytes of the payload, and the string is longer"
            raise FwtopError(f"{line}; nothing was installed", 2)
        if item.offset is not None and item.offset + len(item.data) > FURTHEST_BYTE:
            raise FwtopError(f"XDP reads {FURTHEST_BYTE} bytes of the payload; nothing was installed", 2)
