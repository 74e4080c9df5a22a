"""What kinds of rules ask about this machine, in the network namespace of the guardian."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fwtop.guardian.allow.sessions import connections
from fwtop.kernel.links import readable_links, receiving_links
from fwtop.model.addresses.address import Prefix
from fwtop.netfilter.ctnetlink import udp_peers
from fwtop.rules.surroundings import Machine

_MAX_SCALE = 14  # RFC 7323, 2.2


class ThisMachine(Machine):
    """Reads /proc and netlink when it is asked."""

    def memory_bytes(self) -> int:
        """Return its memory; 0: unknown."""
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) << 10
        return 0

    def tcp_peers(self, port: int) -> Sequence[tuple[Prefix, int]]:
        """Return address and port of those who have a connection to a local port now."""
        return [(one.peer, one.peer_port) for _, one in connections((port,))]

    def udp_peers(self, family: int, port: int, most: int) -> Sequence[tuple[str, int]]:
        """Return address and port of those who talk with a local UDP service, by connection tracking."""
        return udp_peers(family, port, most)

    def mtu(self) -> int:
        """Return the smallest MTU of the interfaces that receive, bytes."""
        return min((link.mtu for link in receiving_links(readable_links())), default=1500)

    def window_scale(self) -> int:
        """Return the scale that a listener announces (net/ipv4/tcp_output.c, tcp_select_initial_window)."""
        most = max(int((_text("/proc/sys/net/ipv4/tcp_rmem").split() or ["0"])[-1]),
                   int(_text("/proc/sys/net/core/rmem_max") or 0))  # fmt: skip
        return min(_MAX_SCALE, max(0, most.bit_length() - 16))

    def takes_stamps(self) -> bool:
        """Return whether the SYN proxy can pass time stamps through.

        From the version on that counts TSEcrRejected, a listener checks the echoed time stamp of a
        handshake's last packet; nf_synproxy adds its offset to that one, so it would be refused and sent
        again after a second (measured on Linux 6.18).
        """
        return "TSEcrRejected" not in _text("/proc/net/netstat")


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
