"""A service: an address, a protocol, a port, and who listens there; or one that this host asks."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from msgspec import Struct

from fwtop.model.traffic.protocols import NUMBERS


class Owner(Struct, frozen=True):
    """Who holds a socket; all of it sanitised, "" where it is not known."""

    process: str = ""
    user: str = ""  # its number in a container, whose names are others
    unit: str = ""  # of systemd
    container: str = ""  # "docker 3f2a1b0c9d8e", "lxc web"

    @property
    def name(self) -> str:
        """What stays the same over restarts and deployments; "" where nobody is known.

        Containers get a new id with each deployment, and logins a new scope: their process and user tell.
        """
        if self.unit.endswith(".service") and not self.container:
            return self.unit
        runtime = self.container.partition(" ")[0]
        return f"{runtime} {self.process} {self.user}".strip() if self.process else ""


NOBODY = Owner()


class ServiceKey(Struct, frozen=True):
    """What a service is told from others by: what is normal, and who its clients are, belongs to that."""

    protocol: str  # "tcp", "udp"
    port: int
    address: str = ""  # "": several, or all
    owner: str = ""

    @property
    def number(self) -> int:
        """The key in 32 bits, the same in each session; protocol and port where nothing else is known."""
        if not self.address and not self.owner:
            return plain_number(self.protocol, self.port)
        return zlib.crc32(f"{self.protocol} {self.port} {self.address} {self.owner}".encode()) | 1 << 31


class Service(Struct, frozen=True):
    """A service of this host, with the accepted packets that it got, or one that this host asks."""

    protocol: str
    port: int
    name: str  # of its process; of what usually has this port where the process isn't known
    pps: float = 0.0
    addresses: tuple[str, ...] = ()  # (): all of this host's
    published: tuple[tuple[str, int], ...] = ()  # where clients reach it: address and port before DNAT
    user: str = ""
    unit: str = ""
    container: str = ""

    @property
    def key(self) -> ServiceKey:
        """What it is told from others by."""
        owner = Owner(self.name, self.user, self.unit, self.container) if self.user else NOBODY
        address = self.addresses[0] if len(self.addresses) == 1 else ""
        return ServiceKey(self.protocol, self.port, address, owner.name)

    @property
    def doors(self) -> tuple[tuple[str, int], ...]:
        """Address ("": all) and port by which packets reach it, as they arrive and as they are delivered."""
        return (*((address, self.port) for address in self.addresses or ("",)), *self.published)

    @property
    def words(self) -> str:
        """Where it is and who listens, besides the process, in words."""
        where = f" on {', '.join(self.addresses)}" if self.addresses else ""
        published = ", ".join(f"{address} port {port}" for address, port in self.published)
        parts = (
            f"{self.protocol} port {self.port}{where}",
            self.unit,
            self.container and f"container {self.container}",
            self.user and f"user {self.user}",
            published and f"published as {published}",
        )
        return ", ".join(part for part in parts if part)


def plain_number(protocol: str, port: int) -> int:
    """Return the number of a service of which nothing but this is known."""
    return NUMBERS[protocol] << 16 | port


def service_at(services: Iterable[Service], protocol: str, address: str, port: int) -> Service | None:
    """Return the service that a packet reached: the one at this very address, else at all of them."""
    doors = {door: service for service in services if service.protocol == protocol for door in service.doors}
    return doors.get((address, port)) or doors.get(("", port))
