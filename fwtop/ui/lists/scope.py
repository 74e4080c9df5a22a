"""Which part of the traffic the tabs show: that of the selected attack, and of what was drilled into."""

from __future__ import annotations

from string import ascii_uppercase

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.traffic.snapshot import Attack, PartTraffic, Snapshot, Source, TrafficPart
from fwtop.render.rows.source import SOURCE_LISTS
from fwtop.ui.feed import Controls

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


_ALL = TrafficPart()
PANELS = frozenset({"sources", "ports", "payloads"})  # that show a part


class PartView(Struct):
    """Asks for the part that is shown, and puts its tables into snapshots.

    Until the answer comes, and where there is none, the rows of the whole that are in the part stand in.
    """

    controls: Controls
    scope: Scope
    _steps: list[tuple[TrafficPart, str]] = field(default_factory=list)  # part, and the view above it
    _found: PartTraffic | None = None
    _missing: TrafficPart | None = None  # there are no tables of it

    @property
    def part(self) -> TrafficPart:
        """Return what is shown."""
        inner = self._steps[-1][0] if self._steps else _ALL
        return replace(inner, attack=self.scope.chosen)

    def enter(self, source: Source, view: str) -> bool:
        """Drill into a prefix, a network or a country; False if the row is none of these."""
        inner = self._steps[-1][0] if self._steps else _ALL
        if source.prefix is not None and not source.prefix.is_address:
            inner = replace(inner, prefix=source.prefix)
        elif source.prefix is None and source.asn is not None:
            inner = replace(inner, asn=source.asn)
        elif source.prefix is None and len(source.key) == len("NL"):
            inner = replace(inner, country=source.key)
        else:
            return False
        self._steps.append((inner, view))
        return True

    def leave(self) -> str:
        """Go back up; return the view from which the part was entered, "" at the top."""
        return self._steps.pop()[1] if self._steps else ""

    def clear(self) -> None:
        """Go back to the top."""
        self._steps.clear()

    async def ask(self) -> bool:
        """Ask for the tables of the part; return whether there is something to draw."""
        part = self.part
        if part == _ALL:
            return False
        try:
            found = await self.controls.traffic(part)
        except FwtopError:
            found = None
        self._found, self._missing = found, part if found is None else None
        return self.part == part

    def over(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot whose tables are those of the part."""
        part = self.part
        if part == _ALL:
            return snapshot
        if self._found is None or self._found.part != part:
            return narrowed(snapshot, part)
        tables = replace(self._found.tables, ledger=snapshot.tables.ledger)
        judgement = replace(
            snapshot.judgement, payloads=self._found.payloads, signatures=self._found.signatures
        )
        return replace(snapshot, tables=tables, judgement=judgement)

    def words(self) -> str:
        """Name the part: "of A from 203.0.113.0/24"; "" for everything."""
        part = self.part
        told = part != self._missing
        letter = self.scope.letter(part.attack)
        words = [f"of {letter}" if told else f"of all: {letter} can't be told apart"] if part.attack else []
        inner = [str(part.prefix)] if part.prefix is not None else []
        inner += [f"AS{part.asn}"] if part.asn is not None else []
        inner += [part.country] if part.country else []
        if inner:
            words.append(f"from {' in '.join(inner)}" + ("" if told else ", as far as listed"))
        return " ".join(words)


def narrowed(snapshot: Snapshot, part: TrafficPart) -> Snapshot:
    """Keep the sources that are in a part, by their rows alone."""

    def inside(row: Source) -> bool:
        if part.prefix is not None and (row.prefix is None or not part.prefix.contains(row.prefix)):
            return False
        if part.asn is not None and row.asn != part.asn:
            return False
        return not part.country or row.country == part.country

    sources = snapshot.tables.sources
    kept = replace(sources, **{name: tuple(filter(inside, getattr(sources, name))) for name in SOURCE_LISTS})
    return replace(snapshot, tables=replace(snapshot.tables, sources=kept))
