"""The schema of the stream is that of the document, and what it says is what is read and written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from fwtop.api.messages import Watch, schema
from fwtop.api.watcher import EventLog
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer, encode_answer, parse_request
from fwtop.model.protocol import Hello, Request
from fwtop.model.rule import Kind, Match, PayloadMatch, RateLimit, Rule, RuleStatus, State
from fwtop.model.ruleset import NOTIFIED, RuleEvent
from fwtop.model.wire import Hex

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads(json.dumps(schema()))
DEFS = SCHEMA["$defs"]
RULE = Rule(
    "7",
    Kind.HASHLIMIT,
    Match(sources=(Prefix.parse("192.0.2.0/24"),), dport=80, payload=(PayloadMatch(Hex(b"ab"), 0),)),
    "a limit",
    600,
    limit=RateLimit(10, 20),
    labels={"team": "soc"},
)
NUMBERS = ("integer", "number")
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), None: object}
TYPES |= {"integer": int, "number": (int, float)}
KEYWORDS = {
    "title",
    "description",
    "default",
    "$ref",
    "anyOf",
    "oneOf",
    "const",
    "enum",
    "type",
    "properties",
}
KEYWORDS |= {"required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "minimum"}
KEYWORDS |= {"exclusiveMinimum"}


def faults(value: Any, said: dict[str, Any], place: str = "$") -> Iterator[str]:
    """Yield where a value is not what a schema says, as far as msgspec writes schemas."""
    assert said.keys() <= KEYWORDS, "a keyword that this reader lacks"
    if "$ref" in said:
        yield from faults(value, DEFS[said["$ref"].rpartition("/")[2]], place)
    for choices in (said.get("anyOf"), said.get("oneOf")):
        if choices is not None and all([*faults(value, one, place)] for one in choices):
            yield f"{place}: none of the choices"
    if value != said.get("const", value) or value not in said.get("enum", [value]):
        yield f"{place}: another value"
    if not isinstance(value, TYPES[said.get("type")]) or (said.get("type") in NUMBERS and value is True):
        yield f"{place}: no {said['type']}"
    elif isinstance(value, dict):
        yield from in_object(value, said, place)
    elif isinstance(value, list):
        first = said.get("prefixItems", [])
        for number, item in enumerate(value):
            inner = first[number] if number < len(first) else said.get("items") or {}
            yield from faults(item, inner, f"{place}[{number}]")


def in_object(value: dict[str, Any], said: dict[str, Any], place: str) -> Iterator[str]:
    known, others = said.get("properties", {}), said.get("additionalProperties", True)
    yield from (f"{place}.{name}: missing" for name in set(said.get("required", ())) - value.keys())
    for name, item in value.items():
        if name not in known and others is False:
            yield f"{place}.{name}: unknown"
        inner = known.get(name, others if isinstance(others, dict) else {})
        yield from faults(item, inner, f"{place}.{name}")


def wrong(value: Any, said: dict[str, Any]) -> str:
    """Return the first fault, "" if there is none."""
    return next(faults(value, said), "")


def test_the_document_is_what_is_generated() -> None:
    assert json.loads((ROOT / "docs/api.schema.json").read_text()) == SCHEMA, "make docs"


REQUESTS = {cls.verb(): cls for cls in get_args(Request) if cls.scope is not None or cls is Hello}


@pytest.mark.parametrize("verb", REQUESTS)
def test_a_request_as_the_schema_has_it_is_understood(verb: str) -> None:
    """Every field that it names, of the type that it names; and no field more."""
    said = DEFS[REQUESTS[verb].__name__]
    samples = {"string": "a", "boolean": False, "integer": 1, "number": 1.0, "object": {}, "array": []}
    request: dict[str, Any] = {}
    for name, given in said["properties"].items():
        one = given["anyOf"][0] if "anyOf" in given else given
        request[name] = one.get("const", samples.get(one.get("type", "")))
        if "$ref" in one:
            referred = DEFS[one["$ref"].rpartition("/")[2]]
            request[name] = referred["enum"][0] if "enum" in referred else RULE.to_dict()
        if "minItems" in one:
            request[name] = [1] * one["minItems"]
    assert not wrong(request, said)
    assert parse_request(json.dumps(request).encode()).request.verb() == verb
    assert wrong({**request, "quark": 1}, said) == "$.quark: unknown"
    if verb == "hello":
        assert not {"build", "uid", "groups", "attached"} & said["properties"].keys()


def test_rules_answers_and_documents_are_as_the_schema_says() -> None:
    status = RuleStatus(RULE, State.CONFIRMED, sources_total=9)
    assert not wrong(RULE.to_dict(), DEFS["Rule"])
    assert not wrong(status.to_dict(), DEFS["RuleStatus"])
    made = {name: value for name, value in RULE.to_dict().items() if name != "id"}
    assert not wrong(made, DEFS["Rule"]), "a program numbers no rule"
    assert wrong({**made, "ttl_seconds": "9"}, DEFS["Rule"]).startswith("$.ttl_seconds: no integer")
    refused = Answer.of(FwtopError("no", 2, field="name"))
    for answer in (Answer(True, data={"a": 1}), refused):
        assert not wrong(json.loads(encode_answer(answer)), DEFS["Answer"])
    told = json.loads(encode_answer(refused))
    assert (told["reason"], told["field"], told["retryable"]) == ("invalid", "name", False)
    log = EventLog()
    log.put(RuleEvent(1.0, "fwtop_rule", NOTIFIED, "fwtop", "fwtop", {"status": status.to_dict()}))
    [kept], _ = log.after(0, 0.0)
    assert not wrong(json.loads(kept.line), DEFS["Document"])


def test_every_event_that_is_told_can_be_asked_for() -> None:
    from fwtop.api.messages import EVENTS

    text = (ROOT / "docs/JSON.md").read_text()
    told = set(
        re.findall(
            r"`(\w+_(?:added|removed|changed|replaced|lost|changes|started|rule|over)|gap|alarm)`", text
        )
    )
    assert told - {"events_lost"} <= {*EVENTS}
    assert Watch.__struct_fields__ == ("since", "events", "by", "state")
