"""What somebody else's XDP program drops in the driver: the kernel counts it nowhere, so what is missing.

A driver with an XDP program counts what it received before the program ran (veth, virtio_net, i40e, ixgbe,
ice and others; of those that count later nothing is missing and nothing is told). What of it neither reached
tc ingress nor was dropped by fwtop's own rules was dropped, or sent elsewhere, by the other program.
"""

from __future__ import annotations

# Between the driver's counter and tc, and between reading one and the other
_ON_THEIR_WAY_SECONDS = 0.005
_ON_THEIR_WAY = 20  # at least


class ForeignXdp:
    """Follows by how much the driver's counter is ahead; a few packets are never told."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def sample(self, received: int, seen: int, seconds: float) -> int:
        """Return how many packets of the interval, or just before it, went missing.

        `received` by drivers with a native XDP program, `seen` of these at tc ingress or dropped by us.
        """
        self._ahead += received - seen
        on_their_way = received / seconds * _ON_THEIR_WAY_SECONDS if seconds > 0 else float(received)
        on_their_way = max(on_their_way, _ON_THEIR_WAY)
        missing = int(max(0.0, self._ahead - on_their_way))
        self._ahead -= missing
        return missing

    def forget(self) -> None:
        """Begin anew: no such program is there, or not everything is watched."""
        self._ahead = 0.0
