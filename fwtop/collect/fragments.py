"""Fragments that wait for the rest of their packet: arrived, and neither dropped nor delivered.

A flood of fragments that never complete ends here; the kernel throws them away 30 s later, in a place
where a packet's interface is no longer known. So the wait itself is shown as where they ended. What is
known: how many went into reassembly and how many packets came out (SNMP counters, RFC 4293), and of how
many fragments those were made (counted at the end of the hooks). nf_defrag_ipv6, which puts packets together
for connection tracking, counts nothing (net/ipv6/netfilter/nf_conntrack_reasm.c): for it the programs count
the fragments that arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

from fwtop.collect.procfs import parse_paired, parse_single, read_text
from fwtop.model.counters import DropCount

WAITING = "FRAGMENTS_WAITING"
_SNMP, _SNMP6 = "/proc/net/snmp", "/proc/net/snmp6"
_REASONS = ("DUP_FRAG", "FRAG_")  # dropped in reassembly with a reason of its own
_FUNCTIONS = ("(ip_defrag", "(ip_frag", "(ipv6_frag", "(ip6_frag", "(inet_frag")


@dataclass(frozen=True, slots=True)
class Sums:
    """Fragments that went into reassembly, and packets that came out of it."""

    went_in: int
    came_out: int

    @property
    def waiting(self) -> int:
        """How many more went in: those that wait, and those beyond the first of each that came out."""
        return self.went_in - self.came_out

    def since(self, before: Sums) -> Sums:
        """Return the growth since an earlier reading."""
        return Sums(self.went_in - before.went_in, self.came_out - before.came_out)


class FragmentMeter:
    """Turns running sums into the fragments that are kept waiting longer than an interval."""

    def __init__(self) -> None:
        self._v4, self._v6 = self._read()
        self._waiting = 0  # since the last interval
        self._unexplained = 0
        self._layer = "ip"  # where they wait

    def _read(self) -> tuple[Sums, Sums]:
        v4 = parse_paired(read_text(_SNMP)).get("Ip", {})
        v6 = parse_single(read_text(_SNMP6))
        return (
            Sums(v4.get("ReasmReqds", 0), v4.get("ReasmOKs", 0)),
            Sums(v6.get("Ip6ReasmReqds", 0), v6.get("Ip6ReasmOKs", 0)),
        )

    def sample(
        self, beyond_first: int, unexplained: int, drops: list[DropCount], counted: Sums
    ) -> list[DropCount]:
        """Return the row of what waits, if any.

        `beyond_first`: fragments beyond the first in the packets that came out and were accepted or dropped;
        `counted`: what the programs saw of IPv6;
        `unexplained`: arrived, but neither dropped before delivery nor accepted. The counters are those of
        the whole namespace, so they explain at most that much.
        """
        v4, v6 = self._read()
        four, six = v4.since(self._v4), v6.since(self._v6)
        self._v4, self._v6 = v4, v6
        # Where connection tracking puts IPv6 packets together it keeps no such counters
        tracked = six.went_in == 0 and counted.went_in > 0
        six = counted if tracked else six
        dropped = sum(drop.packets for drop in drops if _in_reassembly(drop.reason))
        grown = four.waiting + six.waiting - beyond_first - dropped
        self._unexplained = max(0, self._unexplained + unexplained)
        kept = max(0, min(self._waiting + min(grown, 0), self._unexplained))
        self._waiting = max(0, grown)
        self._unexplained -= kept
        layer, self._layer = self._layer, "conntrack" if tracked else "ip"
        return [DropCount(layer, WAITING, kept)] if kept else []


def _in_reassembly(reason: str) -> bool:
    return reason.startswith(_REASONS) or any(name in reason for name in _FUNCTIONS)
