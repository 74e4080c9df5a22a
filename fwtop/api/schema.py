"""The JSON schema of the stream (docs/api.schema.json), made of the classes that read and write it."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any, get_args

import msgspec

from fwtop.api.messages import Document, Watch
from fwtop.model.addresses.address import Prefix
from fwtop.model.messages import Answer
from fwtop.model.protocol import Hello, Request
from fwtop.model.rule import PROTOCOL_NAME, SOURCES_LEFT, Rule, RuleStatus
from fwtop.model.wire import Hex

_REF = "#/$defs/{name}"
_HIDDEN = {"hello": ("build", "uid", "groups")}  # fields that are of no use to a program
_HERE = ("attached",)  # of the other socket


def schema() -> dict[str, Any]:
    """Return what a line to the guardian is, and a line from it."""
    requests = [cls for cls in get_args(Request) if cls.scope is not None or cls is Hello]
    classes = [Answer, Document, Rule, RuleStatus, Watch, *requests]
    _, defs = msgspec.json.schema_components(classes, ref_template=_REF, schema_hook=_other)
    for made in defs.values():
        if "description" in made:  # a docstring, whose indentation Python 3.13 strips, and earlier ones don't
            made["description"] = cleandoc(made["description"])
    for cls in (*requests, Watch):
        verb = cls.__name__.lower()
        made = defs[cls.__name__]
        for name in (*_HIDDEN.get(verb, ()), *_HERE):
            made["properties"].pop(name, None)
        made["properties"] |= {
            "verb": {"const": verb},
            "number": {"type": "integer", "minimum": 0, "description": "repeated in the answer"},
            "seconds": {"type": "number", "exclusiveMinimum": 0, "description": "how long the program waits"},
        }
        made["required"] = ["verb", *made.get("required", ())]
    for name in ("Plan", "Apply", "RuleChange"):
        defs[name]["properties"]["rule"] = _ref(Rule)
    defs["Rule"]["required"].remove("id")  # of a rule to be made
    match = defs["Match"]["properties"]
    kinds = ("integer", "string", "null")  # a number, or its name
    match["protocol"] = {"anyOf": [{"type": kind} for kind in kinds], "default": None}
    match[PROTOCOL_NAME] = {"type": "string", "description": "of an answer, beside the number"}
    match[SOURCES_LEFT] = {"type": "integer"}  # of a rule that `status` shows
    defs["Answer"]["required"] = ["ok", "error", "code", "data", "number"]  # and of a refusal, the others
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fwtop's stream for programs: a line is one of these",
        "oneOf": [
            {"title": "request", "oneOf": [_ref(cls) for cls in (*requests, Watch)]},
            {"title": "answer", **_ref(Answer)},
            {"title": "document of watch", **_ref(Document)},
        ],
        "$defs": defs,
    }


def _ref(cls: type) -> dict[str, Any]:
    return {"$ref": _REF.format(name=cls.__name__)}


def _other(cls: type) -> dict[str, Any]:
    if cls is Prefix:
        return {"type": "string", "description": "an address or a prefix, as 192.0.2.0/24"}
    if cls is Hex:
        return {"type": "string", "description": "bytes in hexadecimal"}
    raise NotImplementedError(cls)
