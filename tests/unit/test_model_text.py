"""Sanitising: nothing passes that could fool a terminal or a reader."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from fwtop.model.text import PLACEHOLDER, dns_name_text, payload_text, safe_text


@given(st.binary(max_size=300))
def test_payload_text_is_printable_ascii_of_the_same_length(data):
    shown = payload_text(data, limit=64)
    assert all(0x20 <= ord(char) < 0x7F or char in (PLACEHOLDER, "…") for char in shown)
    assert len(shown) == min(len(data), 64) + (len(data) > 64)


@given(st.text(max_size=300))
def test_safe_text_has_no_control_format_or_combining_characters(text):
    shown = safe_text(text, limit=100)
    assert all(char == " " or unicodedata.category(char)[0] not in "CMZ" for char in shown)
    assert len(shown) <= 101


def test_terminal_escapes_bidi_and_c1_become_placeholders():
    assert safe_text("a\x1b[31mb") == "a·[31mb"
    assert safe_text("x\u202ey\x9bz") == "x·y·z"
    assert safe_text("漢") == "·"  # two columns wide: would shift every column behind it
    assert safe_text("Müller é") == "Müller é"
    assert payload_text(b"GET / [/] \x1b]0;pwn\x07") == "GET / [/] ·]0;pwn·"


def test_dns_names_are_escaped_as_in_master_files():
    assert dns_name_text([b"www", b"exa.mple", b"\x1b", b"org"]) == "www.exa\\.mple.\\027.org"
    assert dns_name_text([]) == "."
