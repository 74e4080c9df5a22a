"""Documents of a fleet: what is read, what is not, and in what words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fwtop.fleet.document import (
    EVERYWHERE,
    MAX_BYTES,
    SCHEMA,
    Action,
    Confirmation,
    Document,
    Refusal,
    Wave,
    digest,
    encode,
    is_meant,
    read_confirmation,
    read_document,
)
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Mode
from fwtop.model.wire import plain, to_json

KEY = "ssh-ed25519 " + "A" * 68
DOCUMENT = Document(
    fleet="prod", revision=7, rollout="r7", action=Action.RULES, on=("web+eu",), issued=1.0, not_after=2.0,
    rules=({"kind": "ipset"},), waves=(Wave(on=("eu",), most=1),), confirm_key=KEY,
)  # fmt: skip
SAID = Confirmation(fleet="prod", rollout="r7", document="0" * 64, action=Action.KEEP, number=1)


def test_what_is_written_is_read() -> None:
    assert read_document(encode(DOCUMENT)) == DOCUMENT
    switch = replace(DOCUMENT, schema=3, action=Action.SWITCH, rules=(), group="web", mode=Mode.OFF)
    assert read_document(encode(switch)) == switch
    assert read_confirmation(encode(SAID)) == SAID
    assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema": 0}, "schema"), ({"schema": "1"}, "schema"), ({"fleet": "a b"}, None),
        ({"rollout": ""}, None), ({"revision": 0}, "revision"), ({"revision": 1 << 53}, "revision"),
        ({"action": "renew"}, "action"), ({"action": "undo"}, "rules"), ({"rules": []}, "rules"),
        ({"rules": [{}] * 9}, "schema"), ({"rules": [{}] * 65, "schema": 2}, "rules"),
        ({"name": "list:x"}, "schema"), ({"name": "a b", "schema": 2}, "name"),
        ({"sources": {"sha256": "0" * 64, "size": 1, "entries": 1}}, "schema"),
        ({"action": "switch", "rules": [], "group": "web", "mode": "off", "schema": 2}, "group"),
        ({"action": "switch", "rules": [], "group": "web", "schema": 3}, "group"),
        ({"action": "switch", "group": "web", "mode": "off", "schema": 3}, "rules"),
        ({"group": "web", "mode": "off", "schema": 3}, "group"), ({"mode": "dance"}, "mode"),
        ({"action": "switch", "rules": [], "group": "a b", "mode": "off", "schema": 3}, "name"),
        ({"sources": {"sha256": "x", "size": 1, "entries": 1}, "schema": 2}, "sources"),
        ({"sources": {"sha256": "0" * 64, "size": 1, "entries": 5_000_001}, "schema": 2}, "sources"),
        ({"on": []}, "on"), ({"on": ["web+"]}, "on"), ({"on": "web"}, "on"),
        ({"trial_seconds": 0}, "trial_seconds"), ({"trial_seconds": 3601}, "trial_seconds"),
        ({"confirm_key": "ssh-rsa AAAA"}, "confirm_key"), ({"confirm_key": f"{KEY}\nx"}, "confirm_key"),
        ({"more": 1}, "more"), ({"waves": [{"more": 1}]}, "waves[0].more"), ({"issued": "now"}, "issued"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change: dict[str, object], field: str | None) -> None:
    with pytest.raises(FwtopError, match="nothing was changed") as caught:
        read_document(to_json(plain(DOCUMENT) | change))
    assert (caught.value.code, caught.value.field) == (2, field)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"{}", b" " * (MAX_BYTES + 1)])
def test_what_is_no_document(text: bytes) -> None:
    for read in (read_document, read_confirmation):
        with pytest.raises(FwtopError, match="not a fleet document"):
            read(text)


@pytest.mark.parametrize("change", [{"action": "rules"}, {"action": "switch"}, {"number": 0}, {"more": 1}])
def test_what_is_no_confirmation(change: dict[str, object]) -> None:
    with pytest.raises(FwtopError):
        read_confirmation(to_json(plain(SAID) | change))


def test_a_newer_schema_is_unsupported_whatever_else_it_has() -> None:
    newer = plain(DOCUMENT) | {"schema": SCHEMA + 1, "new": {}, "action": "dance"}
    with pytest.raises(FwtopError, match="upgrade fwtop") as caught:
        read_document(to_json(newer))
    assert caught.value.reason == Refusal.UNSUPPORTED


def test_labels_choose_machines() -> None:
    labels = frozenset(("web", "eu", "web-1", EVERYWHERE))
    for on, wanted in (
        (("web",), True), (("web+eu",), True), (("web+us",), False), (("db", "web-1"), True),
        (("all",), True), (("db",), False),
    ):  # fmt: skip
        assert is_meant(on, labels) is wanted
    assert not is_meant(replace(DOCUMENT, on=("db",)).on, frozenset())
