"""Fragments that wait for the rest of their packet: arrived, and neither dropped nor delivered.

A flood of fragments that never complete ends here; the kernel throws them away 30 s later, in a place
where a packet's interface is no longer known. So the wait itself is shown as where they ended. What is
known: how many went into reassembly and how many packets came out (SNMP counters, RFC 4293), and of how
many fragments those were made (counted at the end of the hooks).
"""

from __future__ import annotations

from fwtop.collect.procfs import parse_paired, parse_single, read_text
from fwtop.model.counters import DropCount

WAITING = "FRAGMENTS_WAITING"
_SNMP, _SNMP6 = "/proc/net/snmp", "/proc/net/snmp6"
_REASONS = ("DUP_FRAG", "FRAG_")  # dropped in reassembly with a reason of its own
_FUNCTIONS = ("(ip_defrag", "(ip_frag", "(ipv6_frag", "(ip6_frag", "(inet_frag")


class FragmentMeter:
    """Turns running sums into the fragments that are kept waiting longer than an interval."""

    def __init__(self) -> None:
        self._went_in, self._came_out = self._read()
        self._waiting = 0  # since the last interval
        self._unexplained = 0

    def _read(self) -> tuple[int, int]:
        v4 = parse_paired(read_text(_SNMP)).get("Ip", {})
        v6 = parse_single(read_text(_SNMP6))
        return (
            v4.get("ReasmReqds", 0) + v6.get("Ip6ReasmReqds", 0),
            v4.get("ReasmOKs", 0) + v6.get("Ip6ReasmOKs", 0),
        )

    def sample(self, reassembled: int, unexplained: int, drops: list[DropCount]) -> list[DropCount]:
        """Return the row of what waits, if any.

        `reassembled`: fragments beyond the first in the packets that came out and were accepted or dropped;
        `unexplained`: arrived, but neither dropped before delivery nor accepted. The counters are those of
        the whole namespace, so they explain at most that much.
        """
        went_in, came_out = self._read()
        dropped = sum(drop.packets for drop in drops if _in_reassembly(drop.reason))
        grown = went_in - self._went_in - (came_out - self._came_out) - reassembled - dropped
        self._went_in, self._came_out = went_in, came_out
        self._unexplained = max(0, self._unexplained + unexplained)
        kept = max(0, min(self._waiting + min(grown, 0), self._unexplained))
        self._waiting = max(0, grown)
        self._unexplained -= kept
        return [DropCount("ip", WAITING, kept)] if kept else []


def _in_reassembly(reason: str) -> bool:
    return reason.startswith(_REASONS) or any(name in reason for name in _FUNCTIONS)
