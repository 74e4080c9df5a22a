"""Whom a rule reaches beyond the attack, counted once for every screen, text and program."""

from __future__ import annotations

from msgspec import Struct


class Reach(Struct, frozen=True, forbid_unknown_fields=True):
    """The addresses that a rule's list covers, and what it closes to a service's clients."""

    addresses: int = 0  # that its sources hold, of IPv6 networks of 64 bits; 0: it chooses by no address
    attackers: int = 0  # of these that were seen to attack
    closes: str = ""  # the service that its clients can't reach any more, as "25/tcp"
    to: str = ""  # whom

    @property
    def covers(self) -> str:
        """The addresses in words; "" if it chooses by no address."""
        seen = f"{self.attackers:,}" if self.attackers else "none"
        whole = f"covers {self.addresses:,} address{'es' * (self.addresses != 1)}"
        return f"{whole}, of which {seen} attacked" if self.addresses else ""

    @property
    def closing(self) -> str:
        """What it closes in words; "" if nothing."""
        return f"closes {self.closes} to {self.to}" if self.closes else ""


NO_REACH = Reach()
