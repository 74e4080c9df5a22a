"""Conditions compiled into a program for XDP, before there is a packet, or for tc ingress."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.addresses.address import Prefix, of_pairs
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.rules.kind import KernelObjects

MAX_DESTINATIONS = 1024
SEARCHED_BYTES = 128  # of the payload, for a match without an offset
FURTHEST_BYTE = 2048  # of the payload: the end of a match with an offset
_PREFIXES = {4: 25_000_000, 6: 5_000_000}


def build(rule: Rule, notes: tuple[str, ...] = ()) -> KernelObjects:
    """Return the rule to be compiled; raises FwtopError (code 2) if it can't be."""
    check_xdp(rule)
    return KernelObjects((), (), notes, instead=rule)


def too_many(prefixes: Sequence[Prefix]) -> str | None:
    """Return why a program's maps can't hold a list; None if they can."""
    if of_pairs(prefixes):
        return "a program of XDP or tc looks up no pairs of networks: use --via ipset or nftables"
    if len(prefixes) <= min(_PREFIXES.values()):
        return None
    from fwtop.model.addresses.prefix_rows import PrefixRows

    for family, most in _PREFIXES.items():
        count = PrefixRows.of(prefixes).count(family)
        if count > most:
            return f"{count:,} IPv{family} prefixes, but an XDP or tc rule takes up to {most:,}"
    return None


def check_xdp(rule: Rule) -> None:
    """Raise FwtopError (code 2) for a rule of kind XDP or TC that can't be compiled."""
    if len(rule.match.destinations) > MAX_DESTINATIONS:
        line = f"an XDP rule takes up to {MAX_DESTINATIONS} destinations; nothing was installed"
        raise FwtopError(line, 2)
    for item in rule.match.payload:
        if not item.data or (item.offset or 0) < 0:
            line = "a payload match needs bytes, and an offset of 0 or more"
            raise FwtopError(f"{line}; nothing was installed", 2)
        if item.offset is None and len(item.data) > SEARCHED_BYTES:
            line = f"XDP searches the first {SEARCHED_BYTES} bytes of the payload; this string is longer"
            raise FwtopError(f"{line}; nothing was installed", 2)
        if item.offset is not None and item.offset + len(item.data) > FURTHEST_BYTE:
            raise FwtopError(f"XDP reads the payload up to byte {FURTHEST_BYTE}; nothing was installed", 2)
