"""Sanitising: text from the network or the kernel is made safe to display here, once.

Terminals obey control characters (ESC, C1), bidirectional overrides reorder text, and wide or combining
characters break columns. All are replaced: see Unicode TR 36 and
https://cwe.mitre.org/data/definitions/150.html.
"""

from __future__ import annotations

from collections.abc import Sequence

PLACEHOLDER = "·"
_ELLIPSIS = "…"
_NAME = 253  # characters of a DNS name (RFC 1035)
_PRINTABLE = {code: chr(code) for code in range(0x20, 0x7F)}
_BYTE_TEXT = "".join(_PRINTABLE.get(code, PLACEHOLDER) for code in range(256))


def payload_text(data: bytes, *, limit: int = 64) -> str:
    """Return bytes 0x20 to 0x7e as ASCII and a dot for each other one, cut to `limit` characters."""
    text = data[:limit].decode("latin-1").translate(_TRANSLATION)
    return text + _ELLIPSIS if len(data) > limit else text


def safe_text(value: object, *, limit: int = 256) -> str:
    """Sanitise a string from outside (an AS name, an interface, an error message) for any output.

    Printable characters of any script are kept; format, control, surrogate, private-use, combining, wide and
    line-separating ones become the placeholder. Cut to `limit` characters.
    """
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    cut = text[:limit]
    if not cut.isascii() or not cut.isprintable():
        cut = "".join(char if _is_safe(char) else PLACEHOLDER for char in cut)
    return cut + _ELLIPSIS if len(text) > limit else cut


def dns_name_text(labels: list[bytes]) -> str:
    r"""Format DNS labels as a dotted name, escaped as in RFC 1035 master files (`\.`, `\DDD`)."""
    shown = ".".join("".join(_dns_char(code) for code in label) for label in labels)
    return (shown[:_NAME] + _ELLIPSIS if len(shown) > _NAME else shown) or "."


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as their longest cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _dns_char(code: int) -> str:
    if code in (0x2E, 0x5C):
        return "\\" + chr(code)
    return _PRINTABLE[code] if 0x21 <= code < 0x7F else f"\\{code:03d}"


def _is_safe(char: str) -> bool:
    import unicodedata

    if char == " ":
        return True
    category = unicodedata.category(char)
    return category[0] not in "CMZ" and unicodedata.east_asian_width(char) not in "WF"


_TRANSLATION = {code: _BYTE_TEXT[code] for code in range(256)}
