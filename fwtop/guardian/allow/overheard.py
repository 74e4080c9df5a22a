"""Capture packets at the ports of bridges and the interfaces of a router, as evidence of conversations.

Nothing here looks into a packet. It goes, unread, to a process without privileges (dissect/listening.py),
which tells the conversations that it heard both directions of. It runs only where this machine forwards.
"""

from __future__ import annotations

import selectors
import subprocess
import threading
import time
from contextlib import suppress

from fwtop.dissect.findings import FINDING_BYTES, PORT, parse_finding
from fwtop.guardian.allow.behind import Evidence
from fwtop.kernel import children
from fwtop.kernel.bridges import list_bridges
from fwtop.kernel.links import Link, readable_links
from fwtop.kernel.packet_sockets import Overhearing, Wanted
from fwtop.kernel.procfs import read_text
from fwtop.model.addresses.roles import BFD_PORTS, BGP_PORT, DNS_PORT, NTP_PORT, ROUTING

_MAX_PORTS = 64
_FORWARDING = ("/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding")
_MODULE = "fwtop.dissect.listening"
_AT_ONCE = 128  # packets of a port, or findings, in one turn
_BUSY_PPS = 50_000  # of a port: from then on it is listened to for a tenth of the time
_OPEN_SECONDS, _SHUT_SECONDS, _LOOK_SECONDS = 0.2, 1.8, 5.0


def forwards_by_route() -> bool:
    """Return whether this namespace is a router."""
    return any(read_text(path).strip() == "1" for path in _FORWARDING)


def forwarding_links() -> list[Link]:
    """Return where to listen: ports of bridges, and a router's interfaces, whether it tracks or not."""
    links = readable_links()
    ports = [port for bridge in list_bridges(links) for port in bridge.ports]
    if not forwards_by_route():
        return ports
    masters = {link.master for link in links}
    plain = [link for link in links if link.up and not link.loopback and not link.master]
    return ports + [link for link in plain if link.index not in masters]


class _Reader:
    """The process that reads the packets."""

    def __init__(self, ssh_ports: tuple[int, ...]) -> None:
        """Start it; raises OSError."""
        self._process, self.channel = children.start_with_socket(_MODULE, *map(str, ssh_ports))
        self.channel.setblocking(False)

    def pass_on(self, port: int, packet: bytes) -> None:
        """Pass a packet on, or none to say that a port is gone; raises OSError if the process has ended."""
        with suppress(BlockingIOError):  # it can't keep up
            self.channel.send(PORT.pack(port) + packet)

    def note(self, evidence: Evidence) -> None:
        """Take what it found; raises OSError if it has ended or does not keep to the form."""
        for _ in range(_AT_ONCE):
            try:
                message = self.channel.recv(FINDING_BYTES + 1)
                evidence.note(*parse_finding(message), time.monotonic())
            except BlockingIOError:
                return
            except ValueError:
                raise ConnectionError from None

    def close(self) -> None:
        """End it."""
        self.channel.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)


class Listener:
    """A thread that listens where this namespace forwards, for as long as the process runs."""

    def __init__(self, evidence: Evidence) -> None:
        self.ssh_ports: tuple[int, ...] | None = None  # None: it does not listen; another thread sets this
        self._listening_for: tuple[int, ...] | None = None
        self._evidence = evidence
        self._reader: _Reader | None = None
        self._ports: dict[int, tuple[str, Overhearing]] = {}
        self._received: dict[int, tuple[float, int]] = {}  # by port: when, packets since it exists
        self._busy: set[int] = set()
        self._selector = selectors.DefaultSelector()

    def start(self) -> None:
        """Begin to listen, here and now in this thread's namespace."""
        threading.Thread(target=self._run, name="listener", daemon=True).start()

    def _run(self) -> None:
        look_at = 0.0
        while True:
            now = time.monotonic()
            if now >= look_at:
                self._look(now)
                look_at = now + _LOOK_SECONDS
            if self._busy:
                time.sleep(_OPEN_SECONDS)
            for key, _ in self._selector.select(0 if self._busy else _LOOK_SECONDS):
                self._take(key.data)
            if self._busy:
                self._shut_for_a_while()

    def _take(self, port: int | None) -> None:
        """Pass on what has arrived at a port, or note what the reader found (None)."""
        if self._reader is None or (port is not None and port not in self._ports):
            return  # closed in this turn
        try:
            if port is None:
                self._reader.note(self._evidence)
            else:
                for packet in self._arrived(port):
                    self._reader.pass_on(port, packet)
        except OSError:
            self._end_reader()

    def _arrived(self, port: int) -> list[bytes]:
        try:
            return list(self._ports[port][1].packets(_AT_ONCE))
        except OSError:  # the interface is gone
            self._close(port)
            return []

    def _look(self, now: float) -> None:
        """Listen at the ports that there are now, and find out which are busy."""
        links = forwarding_links()[:_MAX_PORTS] if self.ssh_ports is not None else []
        if self._reader is not None and (not links or self.ssh_ports != self._listening_for):
            self._end_reader()
        self._listening_for = self.ssh_ports
        with suppress(OSError):  # no process to be had: the next look tries again
            if links and self._reader is None:
                self._reader = _Reader(self._listening_for or ())
                self._selector.register(self._reader.channel, selectors.EVENT_READ, None)
        self._busy = {link.index for link in links if self._is_busy(link, now)}
        for port in set(self._ports) - {link.index for link in links}:
            self._close(port)
            self._forget(port)
        for link in links:
            self._open(link.index, link.name)

    def _end_reader(self) -> None:
        for port in list(self._ports):
            self._close(port)
        if self._reader is not None:
            self._selector.unregister(self._reader.channel)
            self._reader.close()
            self._reader = None

    def _forget(self, port: int) -> None:
        """Have the reader forget what arrived at a port that is gone: another may get its number."""
        with suppress(OSError):  # the next packet shows that the reader has ended
            if self._reader is not None:
                self._reader.pass_on(port, b"")

    def _is_busy(self, link: Link, now: float) -> bool:
        before, packets = self._received.get(link.index, (now, link.stats.packets))
        self._received[link.index] = now, link.stats.packets
        return link.stats.packets - packets > _BUSY_PPS * max(now - before, 1.0)

    def _shut_for_a_while(self) -> None:
        """Take the sockets away from busy ports: there each packet would pay for them."""
        shut = {port: self._ports[port][0] for port in self._busy if port in self._ports}
        for port in shut:
            self._close(port)
        time.sleep(_SHUT_SECONDS)
        for port, name in shut.items():
            self._open(port, name)

    def _open(self, port: int, name: str) -> None:
        if port in self._ports or self._reader is None:
            return
        with suppress(OSError):  # it is gone again
            ssh_ports = self._listening_for or ()
            tcp, udp = (*ssh_ports, DNS_PORT, BGP_PORT), (DNS_PORT, NTP_PORT, *BFD_PORTS)
            channel = Overhearing(name, Wanted(ROUTING, tcp, udp))
            self._ports[port] = name, channel
            self._selector.register(channel, selectors.EVENT_READ, port)

    def _close(self, port: int) -> None:
        _, channel = self._ports.pop(port)
        self._selector.unregister(channel)
        channel.close()
