"""Who the legitimate clients are: addresses drawn from the scenario's seed, and what they ask for."""

from __future__ import annotations

import random
from dataclasses import dataclass

from fwtop.lab.pools import public_address

CLIENTS_4, CLIENTS_6 = 12, 4
OPERATOR_PORT = 50_122
PAGES = ("/", "/news", "/shop?page=2", "/style.css", "/logo.svg")
ZONE = "victim.example"
HOSTS = ("www", "mail", "ns1", "shop", "cdn")


def request(page: str) -> bytes:
    """Return what a visitor's browser sends for a page."""
    return (
        f"GET {page} HTTP/1.1\r\nHost: {ZONE}\r\nUser-Agent: Mozilla/5.0\r\n"
        "Accept: */*\r\nConnection: close\r\n\r\n"
    ).encode()


@dataclass(frozen=True, slots=True)
class People:
    """The addresses of everyone who means no harm; the operator's is one of its own."""

    clients: tuple[str, ...]
    operator: str

    @property
    def all(self) -> list[str]:
        """Every address."""
        return [*self.clients, self.operator]


def people(seed: int) -> People:
    """Draw them; the same seed gives the same."""
    rng = random.Random(f"people/{seed}")  # noqa: S311
    clients = [str(public_address(4, rng)) for _ in range(CLIENTS_4)]
    clients += [str(public_address(6, rng)) for _ in range(CLIENTS_6)]
    return People(tuple(clients), str(public_address(4, rng)))
