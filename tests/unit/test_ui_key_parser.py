from __future__ import annotations

import pytest
from textual import events

from fwtop.ui.key_parser import KeyParser


def keys(*parts: str) -> list[str]:
    parser = KeyParser()
    found = [event for part in parts for event in parser.feed(part)]
    return [event.key if isinstance(event, events.Key) else type(event).__name__ for event in found]


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("u", ["u"]),
        ("\x1b[A", ["up"]),
        ("\x1bOP", ["f1"]),
        ("\x1b\r", ["escape", "enter"]),
        ("\x1by", ["escape", "y"]),
        ("\x1bA", ["escape", "A"]),
        ("\x1b1\r", ["escape", "1", "enter"]),
        ("\x1bb", ["escape", "b"]),
        ("\x1b/zz\r", ["escape", "slash", "z", "z", "enter"]),
        ("\x1b\t", ["escape", "tab"]),
        ("\x1b\x1b[B", ["escape", "down"]),
        ("\x1b[200~aq\x1b[201~b", ["Paste", "b"]),
        ("\x1b[<0;3;4M", ["MouseDown"]),
    ],
)
def test_escape_is_a_key_however_soon_another_follows(sent: str, read: list[str]) -> None:
    assert keys(sent) == read
    if "200~" not in sent:
        assert keys(*sent) == read


@pytest.mark.parametrize(
    "pasted", ["", "a\x1bq", "\x1b", "\x1b\x1b[200~u\x1b[20", "\x1b[A\x1b\ry", "x" * 3000 + "\x1bq"]
)
def test_what_is_pasted_never_leaks_keys_however_it_is_cut(pasted: str) -> None:
    sent = f"u\x1b[200~{pasted}\x1b[201~b"
    for size in (1, 2, 3, 5, 7, 1024, 10_000):
        parser = KeyParser()
        parts = [sent[at : at + size] for at in range(0, len(sent), size)]
        found = [event for part in parts for event in parser.feed(part)]
        assert [event.key for event in found if isinstance(event, events.Key)] == ["u", "b"]
        (paste,) = (event for event in found if isinstance(event, events.Paste))
        assert paste.text == pasted.replace("\x1b", "")
        assert list(parser.feed("")) == []
