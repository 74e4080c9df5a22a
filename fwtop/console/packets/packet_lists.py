"""The packets of the Packets tab: the ring's with verdicts and senders, or those of a capture's window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from fwtop.analysis.packets.recent import PacketList, RecentPackets, captured_packets
from fwtop.analysis.packets.verdicts import verdicts
from fwtop.analysis.standing import Standing, who_of
from fwtop.model.addresses.roles import AllowedPeer
from fwtop.model.rule import RuleStatus
from fwtop.model.traffic.window import Window

Surroundings = tuple[Sequence[RuleStatus], Sequence[AllowedPeer], Standing]


class PacketLists(Protocol):
    """Makes lists of packets; called in a thread, never in the observing one."""

    def packets(self) -> PacketList:
        """Return the newest list."""
        ...


class LivePackets:
    """Judges what the ring holds. Only asked while somebody looks, so it costs nothing otherwise."""

    def __init__(self, recent: Callable[[], RecentPackets], known: Callable[[], Surroundings]) -> None:
        self._recent = recent
        self._known = known

    def packets(self) -> PacketList:
        """Return the newest packets with what is known about each."""
        recent = self._recent()
        statuses, peers, standing = self._known()
        places, kinds = verdicts(recent, statuses, peers)
        who = who_of(recent.arrived, peers, standing)
        return PacketList(
            recent.arrived, recent.numbers, recent.clock_ns, who, places, kinds, seen=recent.seen
        )


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
