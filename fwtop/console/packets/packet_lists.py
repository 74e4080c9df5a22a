"""The packets of the Packets tab: the ring's with verdicts and senders, or those of a capture's window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from fwtop.analysis.packets.recent import PacketList, RecentPackets, captured_packets
from fwtop.analysis.packets.verdicts import verdicts
from fwtop.analysis.standing import Standing, who_of
from fwtop.model.addresses.roles import AllowedPeer
from fwtop.model.rule import RuleStatus
from fwtop.model.traffic.window import Window


def judged_packets(
    recent: RecentPackets, statuses: Sequence[RuleStatus], peers: Sequence[AllowedPeer], standing: Standing
) -> PacketList:
    """Return what the ring holds, with what is known about each packet.

    Called in a thread, and only while somebody looks, so it costs nothing otherwise.
    """
    places, kinds = verdicts(recent, statuses, peers)
    who = who_of(recent.arrived, peers, standing)
    return PacketList(recent.arrived, recent.numbers, recent.clock_ns, who, places, kinds, seen=recent.seen)


class CapturedPackets:
    """Lists the packets of the window of a capture that is shown."""

    def __init__(self, shown: Callable[[], tuple[Window, Standing]]) -> None:
        self._shown = shown
        self._made: tuple[Window, PacketList] | None = None

    def packets(self) -> PacketList:
        """Return the first packets of the window."""
        window, standing = self._shown()
        if self._made is None or self._made[0] is not window:
            found = captured_packets(window.arrived)
            self._made = window, replace(found, who=who_of(found.packets, (), standing))
        return self._made[1]
