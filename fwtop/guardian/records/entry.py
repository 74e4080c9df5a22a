"""A rule with its life, and how the journal's rows and the runtime copy encode it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import ATTACH_ABOVE, pack_prefixes, unpack_prefixes
from fwtop.model.rule import SOURCES_LEFT, Rule, State

KEPT_SOURCES = 200  # in the row of a rule with a long list, which has a row of its own until the rule ends
_MAX_SECONDS = 4e9  # Unix time until 2096, and less than the longest timeout of threading.Condition
COLUMNS = "id, boot, netns, variant, rule, sources, state, expires, confirm_by, packets, bytes, ended, note"


class Entry(Struct, frozen=True):
    """A rule and its life. Times are CLOCK_MONOTONIC seconds, which all processes of one boot share."""

    rule: Rule
    variant: str  # of iptables
    state: State
    expires: float
    confirm_by: float | None = None
    packets: int = 0
    bytes: int = 0
    ended: float | None = None  # Unix seconds
    note: str = ""
    sources_cut: int = 0  # of a rule that has ended: how many of its sources are not kept


def rule_text(rule: Rule, sources_cut: int = 0) -> str:
    """Encode a rule as JSON, without its sources."""
    data = replace(rule, match=replace(rule.match, sources=())).to_dict()
    if sources_cut:
        data["match"][SOURCES_LEFT] = sources_cut
    return json.dumps(data)


def own_sources(rule: Rule) -> Sequence[Prefix]:
    """Return the sources to be recorded with a rule: a named list has a record of its own (list_log.py)."""
    return rule.match.sources if rule.list_name is None else ()


def is_long(rule: Rule) -> bool:
    """Return whether a rule's sources get a row of their own."""
    return len(own_sources(rule)) > ATTACH_ABOVE


def inline_sources(rule: Rule) -> bytes:
    """Encode the sources that the rule's own row holds: of a long list, the first."""
    sources = own_sources(rule)
    return bytes(pack_prefixes(sources[:KEPT_SOURCES] if is_long(rule) else sources))


def row_of(entry: Entry, boot: str, netns: int) -> tuple[Any, ...]:
    """Encode an entry as the values of COLUMNS."""
    return (
        *(int(entry.rule.id), boot, netns, entry.variant),
        *(rule_text(entry.rule), inline_sources(entry.rule), entry.state.value),
        *(entry.expires, entry.confirm_by, entry.packets, entry.bytes, entry.ended, entry.note),
    )


def entry_of_row(row: tuple[Any, ...]) -> Entry:
    """Decode COLUMNS, with all sources; raises ValueError, KeyError, TypeError or AttributeError.

    SQLite keeps text in a column of numbers, too: every value is checked.
    """
    number, _, _, variant, text, sources, state, expires, confirm_by, packets, size, ended, note = row
    data = json.loads(text)
    cut = _whole(data["match"].get(SOURCES_LEFT, 0))
    rule = Rule.from_dict(data)
    rule = replace(rule, id=str(number), match=replace(rule.match, sources=unpack_prefixes(sources)))
    return Entry(
        *(rule, _text(variant), State(state)),
        *(_clock(expires), _clock(confirm_by) if confirm_by is not None else None),
        *(_whole(packets), _whole(size)),
        *(_clock(ended) if ended is not None else None, _text(note)),
        sources_cut=cut,
    )


def record_of(entry: Entry) -> dict[str, Any]:
    """Encode an entry for the runtime copy, without its sources."""
    return {
        "rule": json.loads(rule_text(entry.rule)),
        "sources": len(own_sources(entry.rule)),
        "variant": entry.variant,
        "state": entry.state.value,
        "expires": entry.expires,
        "confirm_by": entry.confirm_by,
        "packets": entry.packets,
        "bytes": entry.bytes,
        "ended": entry.ended,
        "note": entry.note,
    }


def entry_of_record(rule_id: str, record: dict[str, Any], blob: bytes | None) -> Entry:
    """Decode a record of the runtime copy and its sources; raises as `entry_of_row` does."""
    sources = unpack_prefixes(blob or b"")
    if len(sources) != record["sources"]:
        raise ValueError("its sources are missing")
    rule = Rule.from_dict(record["rule"])
    rule = replace(rule, id=str(int(rule_id)), match=replace(rule.match, sources=sources))
    confirm_by, ended = record["confirm_by"], record["ended"]
    return Entry(
        *(rule, _text(record["variant"]), State(record["state"])),
        *(_clock(record["expires"]), _clock(confirm_by) if confirm_by is not None else None),
        *(_whole(record["packets"]), _whole(record["bytes"])),
        *(_clock(ended) if ended is not None else None, _text(record["note"])),
    )


def _clock(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_SECONDS:
        raise ValueError(f"{value!r} is no time")
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value
