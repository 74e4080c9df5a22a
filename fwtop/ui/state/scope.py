"""The attacks' letters, and the attack that the operator looks at."""

from __future__ import annotations

from string import ascii_uppercase

from msgspec import Struct, field

from fwtop.model.traffic.snapshot import Attack, Snapshot

_FORGET_SECONDS = 600.0  # after its end an attack keeps its letter this long


class Scope(Struct):
    """Gives each attack a letter while it lasts, and remembers which one is selected.

    `chosen` is the key of the attack that scopes every tab; "" means all.
    """

    chosen: str = ""
    _letters: dict[str, tuple[str, float]] = field(default_factory=dict)  # key → letter, last seen

    def take(self, snapshot: Snapshot, now: float) -> None:
        """Give new attacks the first free letters; forget those that ended long ago."""
        for key, (_, seen) in list(self._letters.items()):
            if now - seen > _FORGET_SECONDS:
                del self._letters[key]
        for attack in snapshot.judgement.attacks:
            letter = self._letters[attack.key][0] if attack.key in self._letters else self._free()
            self._letters[attack.key] = letter, now
        if self.chosen not in self._letters:
            self.chosen = ""

    def _free(self) -> str:
        taken = {letter for letter, _ in self._letters.values()}
        return next((letter for letter in ascii_uppercase if letter not in taken), "+")

    def letter(self, key: str) -> str:
        """Return an attack's letter; "" if it has none."""
        return self._letters.get(key, ("", 0.0))[0]

    def attack(self, snapshot: Snapshot) -> Attack | None:
        """Return the attack that scopes the tabs; None: all."""
        return next((found for found in snapshot.judgement.attacks if found.key == self.chosen), None)
