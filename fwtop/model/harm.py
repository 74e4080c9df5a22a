"""What a rule does to others than the attackers, as values that every screen, text and program shares.

Clients that it is predicted to hit and has surely hit since, addresses that it reaches, and what a rehearsal
(fwtop/rehearsal) found that somebody loses.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import asdict

from fwtop.model.traffic.protocols import UDP


class ClientHarm(Struct, frozen=True, forbid_unknown_fields=True):
    """Known clients of the attacked service, and of others, that lose packets to a rule.

    In an attack that completes handshakes nobody knows which of the new ones are bots, so these are apart as
    `unsure`, and `known` are those from before it. `hit` is the least then, `most` the most.
    """

    known: int = 0  # of the attacked service; 0: nothing is known
    hit: int = 0  # of these lose anything
    hit_half: int = 0  # lose more than half of their packets
    unsure: int = 0  # new in the attack, and hit
    others: int = 0  # known clients of other services
    others_hit: int = 0
    share: float = 0.0  # that `known` lose, weighted by how long each is known
    protocol: int = 0
    port: int = 0  # of the attacked service; 0: all services are attacked

    @property
    def most(self) -> int:
        """The most clients of the attacked service that may be hit."""
        return self.hit + self.unsure

    @property
    def worst_share(self) -> float:
        """The share of their packets that known clients lose, or of clients that lose most of theirs."""
        return max(self.share, self.hit_half / self.known) if self.known else 0.0

    @property
    def short(self) -> str:
        """The count for a cell."""
        if not self.known:
            return "not known"
        least = f"{self.hit:,}–{self.most:,}" if self.unsure else f"{self.hit:,}"
        return f"{least} of {self.known:,}"

    @property
    def words(self) -> str:
        """The count as a sentence without its end."""
        return "; ".join(self.parts)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of that sentence."""
        return tuple(part for part in (self._mine(), self._unsure(), self._others()) if part)

    def to_dict(self) -> dict[str, float]:
        """Return data for JSON."""
        return asdict(self) | {"share": round(self.share, 6)}

    def _mine(self) -> str:
        if not self.known:
            return f"no client{self._service()} is known{' from before the attack' * bool(self.unsure)}"
        whose = f"{self.known:,} client{'s' * (self.known != 1)}{self._service()}"
        if not self.hit:
            return f"none of {whose} loses anything"
        if self.hit_half == self.hit:
            return f"{self.hit:,} of {whose} {'loses' if self.hit == 1 else 'lose'} it"
        rest = f", {self.hit_half:,} more than half" if self.hit_half else ""
        return f"{self.hit:,} of {whose} {'loses' if self.hit == 1 else 'lose'} packets{rest}"

    def _service(self) -> str:
        if not self.port:
            return ""
        return f" of {'UDP ' * (self.protocol == UDP)}{self.port}"

    def _unsure(self) -> str:
        return f"up to {self.unsure:,} new, clients or bots" if self.unsure else ""

    def _others(self) -> str:
        return f"{self.others_hit:,} of {self.others:,} of other services" if self.others_hit else ""


class Who(StrEnum):
    """Who loses something."""

    OPERATORS = "operators"  # logged in by ssh, or listed
    LOGINS = "logins"  # new ones, from anywhere
    ASKED = "asked"  # whom this host asks: their answers
    EVERYBODY = "everybody"
    CLIENTS = "clients"  # known ones
    NOBODY = "nobody"  # other rules or limits speak against it


class Weight(StrEnum):
    """What follows from a loss."""

    TOLD = "told"
    NEEDS_FORCE = "needs force"
    REFUSED = "refused"


class Loss(Struct, frozen=True):
    """One finding of a rehearsal: who, what in a sentence without its end, and what follows."""

    who: Who
    words: str
    weight: Weight = Weight.TOLD


_HARM = 1 / 3  # of what clients got: fewer than two of three get through
_HARM_TO_CLIENTS, _SEVERAL = 0.1, 2  # of the clients that get nothing more; one may share a bot's address


class ClientLoss(Struct, frozen=True):
    """What clients of the services that a rule touches began a second, before the rule and since it is in.

    Over TCP these are handshakes or packets with data, over UDP datagrams. `sure` is the least share that is
    lost, of which chance explains more in one test of 30,000 only. Single clients may tell where a sum
    doesn't.
    """

    rule: str  # id
    service: str  # "80/tcp"; "": several
    before: float  # a second
    now: float
    sure: float  # 0 to 1
    silent: int = 0  # clients that get less than half of the usual: then `before` and `now` are theirs
    clients: int = 0  # of the service that send: `sure` is that share of them

    @property
    def is_harm(self) -> bool:
        """Whether so much is lost that the rule does harm."""
        return self.sure >= (_HARM_TO_CLIENTS if self.silent >= _SEVERAL else _HARM)

    @property
    def words(self) -> str:
        """The loss in a few words."""
        whose = f"clients of {self.service}" if self.service else "clients"
        whose = f"{self.silent:,} of {self.clients:,} {whose}" if self.silent else whose
        return f"{whose} {rate_words(self.before)} → {rate_words(self.now)}"


def rate_words(per_second: float) -> str:
    """Write what clients get in a second, as everywhere beside a loss."""
    digits = 1 if 0 < per_second < 10 else 0
    return f"{per_second:,.{digits}f}/s"


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
