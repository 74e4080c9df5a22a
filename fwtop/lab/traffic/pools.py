"""Source addresses: pools as slots, one drawn for each packet, and legitimate clients."""

from __future__ import annotations

import random

from msgspec import Struct

from fwtop.lab.scenario import Pool
from fwtop.model.addresses.address import Prefix

# First octets with nothing but public unicast addresses: no private, shared, loopback, test, multicast ones.
PUBLIC_OCTETS = tuple(
    octet for octet in range(1, 224) if octet not in (10, 100, 127, 169, 172, 192, 198, 203)
)
_PUBLIC_6 = (0x2400, 0x2404, 0x2406, 0x2409, 0x2600, 0x2607, 0x2620, 0x2800, 0x2804, 0x2A00, 0x2A01, 0x2A02)
_FORGED_PREFIXES_6 = 512
_WEIGHTED_SLOTS = 4096


class Slot(Struct, frozen=True):
    """One entry of the kernel's table: a source prefix and its TTL."""

    prefix: Prefix
    ttl: int


def public_address(family: int, rng: random.Random) -> Prefix:
    """Draw a public unicast address."""
    if family == 4:
        low = rng.getrandbits(16) << 8 | rng.randint(1, 254)
        return Prefix(4, rng.choice(PUBLIC_OCTETS) << 24 | low, 32)
    return Prefix(6, rng.choice(_PUBLIC_6) << 112 | rng.getrandbits(16) << 96 | rng.getrandbits(64), 128)


def entries(pool: Pool, family: int, rng: random.Random) -> list[tuple[Prefix, float]]:
    """Return a pool's prefixes with their weights, deterministically from the seed."""
    if pool.prefixes:
        weights = pool.weights or (1.0,) * len(pool.prefixes)
        return list(zip(pool.prefixes, weights, strict=True))
    if pool.count:
        found: dict[Prefix, None] = {}
        while len(found) < pool.count:
            found[public_address(family, rng)] = None
        weights = pool.weights or tuple(1 / (rank + 1) ** pool.skew for rank in range(pool.count))
        return list(zip(found, weights, strict=True))
    if family == 4:
        return [(Prefix(4, octet << 24, 8), 1.0) for octet in PUBLIC_OCTETS]
    drawn = {rng.choice(_PUBLIC_6) << 16 | rng.getrandbits(16) for _ in range(_FORGED_PREFIXES_6)}
    return [(Prefix(6, head << 96, 32), 1.0) for head in sorted(drawn)]


def slots(pool: Pool, family: int, ttl: tuple[int, int], rng: random.Random) -> list[Slot]:
    """Return slots such that a uniform pick honours the weights (to about 1 in 4,096)."""
    weighted = entries(pool, family, rng)
    total = sum(weight for _, weight in weighted)
    uneven = len({weight for _, weight in weighted}) > 1
    room = max(_WEIGHTED_SLOTS, 4 * len(weighted))
    made: list[Slot] = []
    for prefix, weight in weighted:
        copies = max(1, round(room * weight / total)) if uneven else 1
        made += [Slot(prefix, rng.randint(*ttl))] * copies
    return made


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
