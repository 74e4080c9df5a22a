"""The legitimate clients: their addresses, and what they ask the victim for."""

from __future__ import annotations

import random

from msgspec import Struct

from fwtop.lab.traffic.pools import public_address

CLIENTS_4, CLIENTS_6 = 12, 4
OPERATOR_PORT = 50_122
PAGES = ("/", "/news", "/shop?page=2", "/style.css", "/logo.svg")
ZONE = "victim.example"
HOSTS = ("www", "mail", "ns1", "shop", "cdn")


def request(page: str) -> bytes:
    """Return a visitor's HTTP request for a page."""
    return (
        f"GET {page} HTTP/1.1\r\nHost: {ZONE}\r\nUser-Agent: Mozilla/5.0\r\n"
        "Accept: */*\r\nConnection: close\r\n\r\n"
    ).encode()


class LegitimateClients(Struct, frozen=True):
    """The addresses of the legitimate clients; the operator has one of its own."""

    clients: tuple[str, ...]
    operator: str

    @property
    def all(self) -> list[str]:
        """All addresses."""
        return [*self.clients, self.operator]


def draw_clients(seed: int) -> LegitimateClients:
    """Draw the legitimate clients' addresses, deterministically from the seed."""
    rng = random.Random(f"people/{seed}")  # noqa: S311
    clients = [str(public_address(4, rng)) for _ in range(CLIENTS_4)]
    clients += [str(public_address(6, rng)) for _ in range(CLIENTS_6)]
    return LegitimateClients(tuple(clients), str(public_address(4, rng)))
