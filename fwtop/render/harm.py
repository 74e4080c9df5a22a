"""Whom a rule hits, in words: known clients where there are any, with the share of packets beside them."""

from __future__ import annotations

from fwtop.model.harm import ClientHarm
from fwtop.render.numbers import percent


def hit_words(share: float, clients: ClientHarm | None, *, guess: bool) -> str:
    """Return a sentence without its end; `share` is that of normal traffic, 0 to 1."""
    whole = f"{percent(share, 2)} of normal traffic"
    estimated = f"{whole}, a guess without a baseline" if guess else whole
    if clients is not None and (clients.known or clients.unsure):
        return f"{clients.words} ({estimated})"
    return f"hits {estimated}"
