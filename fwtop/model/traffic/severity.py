"""How bad something is: its class, which resource it exhausts, and how near that resource's end is."""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

NEAR = 0.5  # to a resource's end: from here its clients may notice


class Harm(StrEnum):
    """The class of what was found, the worst first."""

    ATTACK = "attack"  # exhausts something, or is nothing but an attack at a rate that isn't known
    ABUSE = "abuse"  # harmful, such as scanning or guessing passwords, but exhausts nothing
    UNUSUAL = "unusual"  # neither: worth a look, no reason to wake anybody

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Harm).index(self)


class Resource(StrEnum):
    """What an attack may exhaust, as screen and JSON call it."""

    LINK = "link"
    SOFTIRQ = "softirq"
    TABLE = "connection table"
    BACKLOG = "SYN backlog"
    ACCEPT = "accept queue"
    WORKERS = "workers"
    UPLINK = "bandwidth out"
    SERVICE = "service"


class Severity(Struct, frozen=True):
    """The class of an attack, and the resource that it brings nearest to its end."""

    harm: Harm = Harm.ATTACK
    exhausts: Resource | None = None  # None: nothing that is known
    nearness: float | None = None  # to its end, 0 to 1; None: unknown
    assumed: bool = False  # for a modest host, as this one's wasn't measured

    @property
    def order(self) -> tuple[int, float]:
        """Sorts by class, then by tenths of the way to the end: rates that waver change no order."""
        return self.harm.rank, -round(self.nearness or 0.0, 1)

    @property
    def is_near(self) -> bool:
        """Whether a resource is measured to be near its end: clients notice, whatever reaches services."""
        return not self.assumed and (self.nearness or 0.0) >= NEAR

    @property
    def is_harmful(self) -> bool:
        """Whether somebody should do something about it."""
        return self.harm is not Harm.UNUSUAL


class Threshold(Struct, frozen=True):
    """What `snapshot` and `read` tell by their exit status: a class or worse, and how near its end."""

    harm: Harm
    nearness: float = 0.0  # 0 to 1

    @staticmethod
    def parse(text: str) -> Threshold:
        """Read "attack", "abuse", "unusual", each also with a share: "attack:0.5"."""
        harm, _, share = text.partition(":")
        if harm not in set(Harm) or not re.fullmatch(r"(0(\.\d+)?|1)?", share, re.ASCII):
            raise ValueError(
                f"{text[:40]!r} is not attack, abuse or unusual, or one of them with a share: attack:0.5"
            )
        return Threshold(Harm(harm), float(share or 0))

    def reached(self, severity: Severity) -> bool:
        """Check a severity; a nearness that isn't known counts as near."""
        near = severity.nearness is None or severity.nearness >= self.nearness
        return severity.harm.rank <= self.harm.rank and near
