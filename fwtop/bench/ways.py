"""Ways to end a packet on an arena's victim, each a context: there while the block lasts, gone afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from fwtop.bench.arena import Arena
from fwtop.bench.frame import progress
from fwtop.bench.programs import run_fwtop
from fwtop.bench.receiver import PORT
from fwtop.lab.network import VICTIM_INTERFACE
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

Context = contextlib.AbstractContextManager[None]
Way = Callable[[], Context]
TO_PORT = ["-p", "udp", "--dport", str(PORT)]
FWTOP_PORT = ["--proto", "udp", "--dport", str(PORT)]
_CHAIN = "table {} bench {{\n chain only {{\n  {}\n }}\n}}\n"
_TRACK = "type filter hook input priority 0; ct state new accept"
_NETDEV = f"type filter hook ingress device {VICTIM_INTERFACE} priority -500; udp dport {PORT} drop"


def ending(arena: Arena, seconds: float, way: Way) -> float:
    """Return the packets a second that the victim gets rid of in this way."""
    with way():
        return arena.core_pps(seconds)


def raw(arena: Arena, *words: str) -> Context:
    """Have one rule at the start of raw PREROUTING."""
    return iptables(arena, "raw", "PREROUTING", *words)


def iptables(arena: Arena, table: str, chain: str, *words: str) -> Context:
    """Have one rule at the start of a chain."""
    start = ["iptables", "-t", table]
    return arena.rules([[*start, "-I", chain, *words]], [[*start, "-D", chain, *words]])


def raw_drop(arena: Arena) -> Context:
    """Drop at the start of raw PREROUTING."""
    return raw(arena, *TO_PORT, "-j", "DROP")


def notrack(arena: Arena) -> Context:
    """Keep the flood out of connection tracking."""
    return raw(arena, *TO_PORT, "-j", "CT", "--notrack")


def tracking(arena: Arena) -> Context:
    """Have a stateful rule, so that connections are tracked."""
    return _nft(arena, "inet", _TRACK)


def netdev_drop(arena: Arena) -> Context:
    """Drop in nftables' netdev ingress hook."""
    return _nft(arena, "netdev", _NETDEV)


@contextlib.contextmanager
def _nft(arena: Arena, family: str, chain: str) -> Iterator[None]:
    arena.run("nft", "-f", "-", text=_CHAIN.format(family, chain))
    try:
        yield
    finally:
        arena.run("nft", "delete", "table", family, "bench")


@contextlib.contextmanager
def both(*ways: Way) -> Iterator[None]:
    """Have several at once."""
    with contextlib.ExitStack() as stack:
        for way in ways:
            stack.enter_context(way())
        yield


@contextlib.contextmanager
def quiet(context: contextlib.AbstractContextManager[object]) -> Iterator[None]:
    """Have something of which only the presence matters."""
    with context:
        yield


@contextlib.contextmanager
def own_rule(arena: Arena, words: list[str]) -> Iterator[None]:
    """Install a rule of fwtop's own on the victim, as an operator would, and take it back."""
    run_fwtop(*words, "--yes", "--netns", arena.victim)
    try:
        yield
    finally:
        run_fwtop("undo", "--all", "--netns", arena.victim)


def usable(arena: Arena, commands: Mapping[str, list[str]], notes: list[str]) -> dict[str, Way]:
    """Return fwtop's ways by name; one that this machine or build refuses becomes a note."""
    found: dict[str, Way] = {}
    for name, words in commands.items():
        way = partial(own_rule, arena, words)
        progress(f"trying {name}")
        try:
            with way():
                found[name] = way
        except FwtopError as error:
            notes.append(f"{name} is left out: {safe_text(error)}")
    return found
