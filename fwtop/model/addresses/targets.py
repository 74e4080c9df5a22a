"""What an operator names as sources: prefixes, an AS, a country; for command line and screen."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

ASN, COUNTRY = "asn:", "country:"
MAX_NAME = 18  # of a list: an ipset's name has 31 characters, and ours have 13 around it
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}")


def check_name(name: str) -> str:
    """Return the name of a named list; raises FwtopError (code 2)."""
    if not _NAME.fullmatch(name):
        raise FwtopError(
            f"{safe_text(name, limit=40)!r} is no name for a list: 1 to {MAX_NAME} letters, digits, "
            "'-', '_' and '.', a letter or digit first; nothing was changed",
            2,
        )
    return name


def prefixes_of(targets: Iterable[str]) -> tuple[Prefix, ...]:
    """Parse prefixes, each once; raises FwtopError (code 2)."""
    try:
        return tuple(dict.fromkeys(Prefix.parse(target) for target in targets))
    except ValueError as error:
        raise FwtopError(f"{safe_text(error)}; nothing was changed", 2) from None


def origin_of(target: str) -> str:
    """Check `asn:N` or `country:CC` and return it as rules name it; "" if neither; raises FwtopError."""
    kind, colon, name = target.partition(":")
    if kind + colon == ASN:
        return f"{ASN}{asn_of(name)}"
    if kind + colon == COUNTRY:
        return f"{COUNTRY}{country_of(name)}"
    return ""


def asn_of(name: str) -> int:
    """Parse the number of an AS; raises FwtopError (code 2)."""
    if not (name.isascii() and name.isdigit() and 0 < int(name[:11]) < 1 << 32):
        raise FwtopError(f"{safe_text(name, limit=20)!r} is not an AS: give its number, as in asn:64500", 2)
    return int(name)


def country_of(code: str) -> str:
    """Parse an ISO 3166-1 code; raises FwtopError (code 2)."""
    if len(code) != 2 or not (code.isascii() and code.isalpha()):
        line = f"{safe_text(code, limit=20)!r} is not a country: give two letters, as in country:NL"
        raise FwtopError(line, 2)
    return code.upper()
