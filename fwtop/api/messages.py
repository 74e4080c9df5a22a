"""What goes over the stream beside the guardian's requests, and the schema of it (docs/api.schema.json)."""

from __future__ import annotations

import os
from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fwtop.guardian.serving.requests import blamed
from fwtop.kernel.descriptors import close_all
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import ATTACH_ABOVE, bundle, prefix_text, read_sources, sealed
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer
from fwtop.model.protocol import (
    MAX_PAGE,
    Apply,
    Hello,
    ListChange,
    ListRead,
    Plan,
    PolicyChange,
    PolicyRead,
    Request,
    RuleChange,
    RuleRead,
)
from fwtop.model.rule import PROTOCOL_NAME, SOURCES_LEFT, Rule, RuleStatus
from fwtop.model.wire import Hex

Exchange = Callable[[Request, int | None], tuple[Answer, list[int]]]
_TRIES = 3  # to read a list that is changed meanwhile
EVENTS = tuple(
    [f"{what}_{how}" for what in ("table", "chain", "rule", "set", "object", "flowtable", "list")
     for how in ("added", "changed", "removed")]
    + ["set_replaced", "fwtop_rule", "alarm", "alarm_over", "more_changes", "notifications_lost",
       "attack_began", "attack_ended", "guardian_started", "gap", "state", "watching"]
)  # fmt: skip


class Watch(Struct, frozen=True, forbid_unknown_fields=True):
    """Follow this machine on this connection, which takes no further requests then."""

    since: str = ""  # a document's cursor: go on behind it; "" : begin with the state
    events: tuple[str, ...] = ()  # only these; beside them always `gap` and `guardian_started`
    by: str = ""  # only of "fwtop", or of "other"
    state: bool = True  # begin with the state where there is no cursor, or it is too old


class Document(Struct, frozen=True):
    """A line of `watch`; what else it has is by its event (docs/JSON.md)."""

    seq: int
    cursor: str
    at: Annotated[str, Meta(description="RFC 3339, UTC")]
    event: str
    how: str
    by: str
    source: str


def carried(exchange: Exchange, request: Request) -> dict[str, Any]:
    """Have a request carried out whatever the length of its lists, and return the data of the answer.

    What would come beside the answer, a program gets within it. Raises FwtopError.
    """
    if isinstance(request, ListRead) and request.count is None:
        return _whole_list(exchange, request)
    try:
        request, attached = _detached(request)
    except FwtopError as error:
        error.field = blamed(request, error.field)
        raise
    try:
        answer, files = exchange(request, attached)
    finally:
        if attached is not None:
            os.close(attached)
    try:
        data = answer.agreed().data
        if files and isinstance(request, RuleRead):
            data["rule"]["match"]["sources"] = [prefix_text(item) for item in read_sources(files[0])]
        elif files:
            data["texts"] = dict(zip(data["files"], map(_text, files), strict=True))
        return data
    finally:
        close_all(files)


def _detached(request: Request) -> tuple[Request, int | None]:
    """Return a request with a long list in a memory file, whose descriptor is the caller's."""
    if getattr(request, "attached", False):
        raise FwtopError("attached: lists go into the request here", 2, field="attached")
    match request:
        case ListChange() if len(request.entries) > ATTACH_ABOVE:
            return replace(request, entries=(), attached=True), _sealed(request.entries)
        case Plan() | Apply() | RuleChange():
            match = request.rule.get("match")
            sources = match.get("sources") if isinstance(match, dict) else None
            if isinstance(match, dict) and isinstance(sources, list) and len(sources) > ATTACH_ABOVE:
                rule = {**request.rule, "match": {**match, "sources": []}}
                return replace(request, rule=rule, attached=True), _sealed(sources)
        case PolicyRead() | PolicyChange() if request.lists:
            from fwtop.model.addresses.named_list import entries_of

            lists = {name: entries_of(texts) for name, texts in request.lists.items()}
            return replace(request, lists={}, attached=True), bundle(lists)
    return request, None


def _sealed(texts: Any) -> int:  # noqa: ANN401 - of a request: texts, or whatever a program sent
    from fwtop.model.addresses.named_list import entries_of

    if not all(isinstance(text, str) for text in texts):
        raise FwtopError("sources must be a list of text", 2, field="rule.match.sources")
    return sealed(entries_of(texts))


def _text(file: int) -> str:
    with open(file, encoding="utf-8", closefd=False) as stream:
        stream.seek(0)
        return stream.read()


def _whole_list(exchange: Exchange, request: ListRead) -> dict[str, Any]:
    """Read a list page by page; raises FwtopError also if it is changed all the time."""
    for _ in range(_TRIES):
        entries: list[Any] = []
        while True:
            answer, _ = exchange(replace(request, first=len(entries), count=MAX_PAGE), None)
            page = answer.agreed().data
            entries += page["entries"]
            if not page["entries"] or len(entries) >= page["total"]:
                break
        if len(entries) == page["total"]:
            return {**page, "entries": entries}
    line = f"list {request.name} is changed all the time; read it page by page"
    raise FwtopError(line, reason="busy", retryable=True)


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
    del defs["RuleStatus"]["properties"]["hits"], defs["Counted"]  # the guardian sees no packets
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
