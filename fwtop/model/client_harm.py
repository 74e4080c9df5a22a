"""How many known clients a rule hits, counted once for every screen, text and program."""

from __future__ import annotations

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
