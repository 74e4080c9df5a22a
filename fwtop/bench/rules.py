"""What rules cost: Strongarm's table ("Testing the performance of the Linux firewall", 2016).

Packets of 128 bytes, one processor, as many as it gets through. The published figures were those of a small
cloud machine sending to itself: what compares is each row against the first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fwtop.bench import ways
from fwtop.bench.arena import PAYLOAD_START, SOURCES, STRONGARM, Arena, flood_text
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.ways import FWTOP_PORT, TO_PORT, Context, Way, ending

_FIRST = "accept, conntrack on"
_PUBLISHED_FIRST_KPPS = 87.0
_MANY = 250_000
_SET = "bench"
_OWN = {
    "fwtop block (ipset)": ["block", SOURCES],
    "fwtop limit (hashlimit per /16)": ["limit", *FWTOP_PORT, "--per", "16", "--rate", "1000/s"],
    "fwtop match (string)": ["match", "--string", PAYLOAD_START, *FWTOP_PORT],
}


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 1), 0.5 if options.quick else 1.0
    notes: list[str] = []
    with Arena(flood_text(STRONGARM)) as arena:
        table = [*_accepting(arena), *_dropping(arena)]
        table += [(name, None, way) for name, way in ways.usable(arena, _OWN, notes).items()]
        rows = [_row(name, kpps, partial(ending, arena, seconds, way)) for name, kpps, way in table]
        return Document("rules", rounds, measure(rows, rounds), tuple(notes))


def _row(name: str, kpps: float | None, value: Callable[[], float]) -> Row:
    published = kpps / _PUBLISHED_FIRST_KPPS if kpps is not None else None
    return Row(name, "packets/s and core", value, None if name == _FIRST else _FIRST, published)


def _accepting(arena: Arena) -> list[tuple[str, float | None, Way]]:
    def listening(way: Way) -> Way:
        return partial(ways.both, way, lambda: ways.quiet(arena.receiver()))

    return [
        (_FIRST, 87, listening(partial(ways.tracking, arena))),
        ("accept, conntrack off", 106, listening(partial(ways.notrack, arena))),
    ]


def _dropping(arena: Arena) -> list[tuple[str, float | None, Way]]:
    others = [
        partial(ways.raw, arena, "-p", "udp", "-s", f"203.0.113.{number}", "-j", "DROP")
        for number in range(5)
    ]
    drop = partial(ways.raw_drop, arena)
    return [
        ("drop at the start of raw", 280, drop),
        ("drop in raw after 5 rules", 250, partial(ways.both, drop, *others)),
        ("drop in filter", 250, partial(ways.iptables, arena, "filter", "INPUT", *TO_PORT, "-j", "DROP")),
        ("ipset of 1 entry", 255, partial(_ipset, arena, 1)),
        (f"ipset of {_MANY:,} entries", 255, partial(_ipset, arena, _MANY)),
        ("string, Boyer-Moore", 255, partial(_string, arena, "bm")),
        ("string, Knuth-Morris-Pratt", 235, partial(_string, arena, "kmp")),
        ("hashlimit per /16, 1,000 a second accepted", 225, partial(_hashlimit, arena)),
    ]


def _string(arena: Arena, algorithm: str) -> Context:
    match = ["-m", "string", "--string", PAYLOAD_START, "--algo", algorithm]
    return ways.raw(arena, *TO_PORT, *match, "-j", "DROP")


def _hashlimit(arena: Arena) -> Context:
    match = ["-m", "hashlimit", "--hashlimit-name", _SET, "--hashlimit-mode", "srcip"]
    match += ["--hashlimit-srcmask", "16", "--hashlimit-above", "1000/s"]
    return ways.raw(arena, *TO_PORT, *match, "-j", "DROP")


def _ipset(arena: Arena, entries: int) -> Context:
    """Drop by a set that holds the flood's sources, and others up to so many entries."""
    lines = [f"create {_SET} hash:net family inet maxelem 1048576", f"add {_SET} {SOURCES}"]
    lines += [
        f"add {_SET} {20 + number // 65536}.{number // 256 % 256}.{number % 256}.0/24"
        for number in range(entries - 1)
    ]

    def listed() -> Context:
        arena.run("ipset", "restore", text="\n".join(lines) + "\n")
        return arena.rules([], [["ipset", "destroy", _SET]])

    match = ["-m", "set", "--match-set", _SET, "src"]
    return ways.both(listed, partial(ways.raw, arena, *TO_PORT, *match, "-j", "DROP"))
