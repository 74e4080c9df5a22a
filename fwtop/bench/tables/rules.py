"""The cost of rules: Strongarm's table ("Testing the performance of the Linux firewall", 2016), and P11.

Packets of 128 bytes, as many as one core gets through. The published figures are of a small cloud machine
that sent to itself; what compares across machines is each row's ratio to the first. Each of fwtop's rules
comes right after the bare rule of its kind, with which it is compared: the rest is the cost of the allow-list
and the dead man's switch. The bare rule with a set that has a timeout says what one lookup costs alone. Bare
rules and fwtop's are also measured with a flood that they don't match, which a last rule drops.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fwtop.bench import drop_methods
from fwtop.bench.drop_methods import FWTOP_PORT, TO_PORT, DropMethod, throughput
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.testbed import PAYLOAD_START, SOURCES, STRONGARM, Testbed, flood_text

_FIRST = "accept, conntrack on"
_MANY = 250_000
_IPSET, _STRING, _NETDEV = "ipset of 1 entry", "string, Boyer-Moore", "nftables netdev ingress drop"
_HASHLIMIT = "hashlimit per /16, 1,000/s accepted"
_NOT_SOURCES, _NOT_TEXT, _NOT_PORT = "203.0.113.0/24", "not in there", 9
_OTHER_PORT = ["--proto", "udp", "--dport", str(_NOT_PORT)]
_LIMIT = ["--per", "16", "--rate", "1000/s"]
_OWN = {  # bare rule → fwtop's
    _IPSET: ("fwtop block (ipset)", ["block", SOURCES]),
    _HASHLIMIT: ("fwtop limit (hashlimit per /16)", ["limit", *FWTOP_PORT, *_LIMIT]),
    _STRING: ("fwtop match (string)", ["match", "--string", PAYLOAD_START, *FWTOP_PORT]),
    _NETDEV: ("fwtop drop (nftables)", ["drop", *FWTOP_PORT, "--via", "nftables"]),
}
_MISSED, _TIMED = ", none matches", ", one set asked"
_OWN_MISSED = {
    _IPSET: ["block", _NOT_SOURCES],
    _HASHLIMIT: ["limit", *_OTHER_PORT, *_LIMIT],
    _STRING: ["match", "--string", _NOT_TEXT, *FWTOP_PORT],
    _NETDEV: ["drop", *_OTHER_PORT, "--via", "nftables"],
}


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 1), 0.5 if options.quick else 1.0
    notes: list[str] = []
    with Testbed(flood_text(STRONGARM)) as testbed:
        rows = [
            _row(name, kpps, partial(throughput, testbed, seconds, method))
            for name, kpps, method in (*_accepting(testbed), *_dropping(testbed))
        ]
        for bare, own, method in (*_timed(testbed), *_pairs(testbed, notes)):
            at = [row.name for row in rows].index(bare) + 1
            rows.insert(at, Row(own, drop_methods.UNIT, partial(throughput, testbed, seconds, method), bare))
        return Document("rules", rounds, measure(rows, rounds), tuple(notes))


_Method = tuple[str, float | None, DropMethod]  # row name, published kpps, method


_row = partial(drop_methods.row, (_FIRST, 87.0))


def _accepting(testbed: Testbed) -> list[_Method]:
    def received(method: DropMethod) -> DropMethod:
        return partial(drop_methods.all_of, method, testbed.receiver)

    return [
        (_FIRST, 87, received(partial(drop_methods.tracking, testbed))),
        ("accept, conntrack off", 106, received(partial(drop_methods.notrack, testbed))),
    ]


def _dropping(testbed: Testbed) -> list[_Method]:
    others = [
        partial(drop_methods.raw, testbed, "-p", "udp", "-s", f"203.0.113.{number}", "-j", "DROP")
        for number in range(5)
    ]
    drop = partial(drop_methods.raw_drop, testbed)
    in_filter = partial(drop_methods.iptables, testbed, "filter", "INPUT", *TO_PORT, "-j", "DROP")
    return [
        ("drop at the start of raw", 280, drop),
        ("drop in raw after 5 rules", 250, partial(drop_methods.all_of, drop, *others)),
        ("drop in filter", 250, in_filter),
        (_IPSET, 255, partial(drop_methods.ipset_drop, testbed, 1)),
        (f"ipset of {_MANY:,} entries", 255, partial(drop_methods.ipset_drop, testbed, _MANY)),
        (_STRING, 255, partial(drop_methods.string_drop, testbed, "bm")),
        ("string, Knuth-Morris-Pratt", 235, partial(drop_methods.string_drop, testbed, "kmp")),
        (_HASHLIMIT, 225, partial(drop_methods.hashlimit_drop, testbed, 16)),
        (_NETDEV, None, partial(drop_methods.netdev_drop, testbed)),
        *(
            (name + _MISSED, None, partial(drop_methods.all_of, drop, method))
            for name, method in _missing(testbed).items()
        ),
    ]


def _missing(testbed: Testbed) -> dict[str, DropMethod]:
    """Return each bare rule as it matches no packet of the flood."""
    return {
        _IPSET: partial(drop_methods.ipset_drop, testbed, 1, _NOT_SOURCES),
        _HASHLIMIT: partial(drop_methods.hashlimit_drop, testbed, 16, _NOT_PORT),
        _STRING: partial(drop_methods.string_drop, testbed, "bm", _NOT_TEXT),
        _NETDEV: partial(drop_methods.netdev_drop, testbed, _NOT_PORT),
    }


def _timed(testbed: Testbed) -> Iterator[tuple[str, str, DropMethod]]:
    """Yield bare rules that also ask a set with a timeout: the bare name, the row's name, and how."""
    limit = partial(drop_methods.hashlimit_drop, testbed, 16)
    search = partial(drop_methods.string_drop, testbed, "bm")
    for bare, method in (
        (_HASHLIMIT, partial(drop_methods.timed, testbed, limit)),
        (_STRING, partial(drop_methods.timed, testbed, search)),
        (_NETDEV, partial(drop_methods.netdev_drop, testbed, timed=True)),
    ):
        yield bare, bare + _TIMED, method


def _pairs(testbed: Testbed, notes: list[str]) -> Iterator[tuple[str, str, DropMethod]]:
    """Yield fwtop's rules that work here: the bare rule's name, its own, and how to install it."""
    names = {own: bare for bare, (own, _) in _OWN.items()}
    for own, method in drop_methods.installable(testbed, dict(_OWN.values()), notes).items():
        yield names[own], own, method
        missed = partial(drop_methods.fwtop_rule, testbed, _OWN_MISSED[names[own]])
        drop = partial(drop_methods.raw_drop, testbed)
        yield names[own] + _MISSED, own + _MISSED, partial(drop_methods.all_of, drop, missed)
