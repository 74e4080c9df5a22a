"""What lists show: rows, their order, the selection, and the part of the traffic that the rows cover."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from rich.style import Style

from fwtop.model.errors import FwtopError
from fwtop.model.traffic.snapshot import Incident, PartTraffic, Snapshot, Source, TrafficPart
from fwtop.render.rows.field import RowType
from fwtop.render.rows.traffic import SOURCE_LISTS
from fwtop.ui.style import Line


class LogEntry(Struct, frozen=True):
    """A line of the log."""

    number: int  # in order
    at: float  # Unix seconds
    kind: str
    words: str  # the kind for people
    subject: str  # an attack's kind, a rule's id or a proposal's command; "" for none
    text: str
    style: Style
    count: int = 1
    details: tuple[Line, ...] = ()
    incident: int = 0  # id of the one that it is about


class Fold(Struct, frozen=True):
    """Rows in one line of a list, or under it."""

    key: str
    rows: tuple[Any, ...]
    letters: tuple[str, ...] = ()  # of their attacks
    is_open: bool = False


FREEZE_SECONDS = 3.0  # a key holds the order this long
RESORT_SECONDS = 3.0  # rows change their order at most this often
GONE_SECONDS = 30.0  # the longest that a selected row stays after it dropped out of the list
SEEN_SECONDS = 0.5  # what came under the cursor more recently has not been seen


class RowList(Struct):
    """The rows of one view of one panel, their order, and the selected one.

    The operator acts on rows while they move. So the selection belongs to a key, not to a line; rows
    change places at most every RESORT_SECONDS, and not for FREEZE_SECONDS after a key press; and a
    selected row that drops out of the list stays for GONE_SECONDS, marked as gone, unless the selection
    leaves it.
    """

    row: RowType
    newest_last: bool = False  # the cursor follows the end
    group: Callable[[Any], str] | None = None  # heading of a group that stands below the others
    numbered: bool = False  # rows stand where their numbers say, and are never filtered
    begins: Callable[[Any, Sequence[Incident]], bool] | None = None  # the first such row is selected at first
    items: Sequence[Struct] = ()
    selected: int = 0
    gone_at: float | None = None  # since when the selected item is no longer in the list
    followed: bool = True  # until the first key the cursor stays on the row to begin with
    sort: int = -1  # index of `sorts`; -1: as the list came
    filter: str = ""
    grouped: bool = False  # below their headings
    forged: bool = False  # the others may be in the name of whoever sends nothing: the groups are above them
    hidden: int = 0  # rows that the filter hides
    frozen_until: float = 0.0
    sorted_at: float = float("-inf")
    _before: tuple[Struct, float] | None = None  # what a following cursor left, and when

    def update(self, items: Sequence[Struct], now: float, attacks: Sequence[Incident] = ()) -> None:
        """Show the next list; the selected key stays selected."""
        chosen = self.current()
        shown = [item for item in items if self._matches(item)]
        self.hidden = len(items) - len(shown)
        if self.sort >= 0:
            shown.sort(key=self._rank, reverse=True)
        if self.numbered:
            pass
        elif 0 < self.frozen_until - now <= FREEZE_SECONDS or 0 <= now - self.sorted_at < RESORT_SECONDS:
            shown = self._in_frozen_order(shown)
        else:
            self.sorted_at = now
        self._regroup(shown)
        key, gone_at, self.gone_at = self._key, self.gone_at, None
        if gone_at is not None and now - gone_at >= GONE_SECONDS and now >= self.frozen_until:
            self.followed = not self.newest_last
        # Of numbered rows one that is gone gives its number to another, but not under the operator's hand
        held = not self.numbered or 0 < self.frozen_until - now <= FREEZE_SECONDS
        if chosen is not None and not self.followed and (held or key(chosen) in map(key, shown)):
            self._keep_selected(shown, chosen, now if gone_at is None else gone_at)
        self.items = shown
        last = max(len(shown) - 1, 0)
        first = next(
            (line for line, item in enumerate(shown) if self.begins and self.begins(item, attacks)), 0
        )
        followed = last if self.newest_last else first
        self.selected = followed if self.followed else max(min(self.selected, last), 0)
        if chosen is not None and self.followed and shown and key(shown[followed]) != key(chosen):
            self._before = chosen, now

    def clear(self) -> None:
        """Have no rows until the next update."""
        self.items, self.selected, self.gone_at, self._before = (), 0, None, None

    @property
    def gone(self) -> bool:
        """Whether the selected item is no longer in the list."""
        return self.gone_at is not None

    def current(self) -> Struct | None:
        """Return the selected item."""
        return self.items[self.selected] if self.selected < len(self.items) else None

    def latest(self, item: Struct) -> Struct:
        """Return the present figures of an item, or the item itself if it is no longer listed."""
        wanted = self._key(item)
        return next((shown for shown in self.items if self._key(shown) == wanted), item)

    def target(self, now: float) -> Struct | None:
        """Return the item that an action applies to, and select it for good.

        It is the item that was seen when the key was pressed: a following cursor that changed rows a
        moment ago still means the row before.
        """
        if self.followed and self._before is not None and 0 <= now - self._before[1] < SEEN_SECONDS:
            shown = list(self.items)
            self._keep_selected(shown, self._before[0], now)
            self.items = shown
        self.pin(now)
        return self.current()

    def select(self, index: int, now: float) -> None:
        """Move the selection to a line and hold the order."""
        if not self.items:
            return
        last = len(self.items) - 1
        self.selected = max(min(index, last), 0)
        self.pin(now)
        self.followed = self.newest_last and self.selected == last

    def pin(self, now: float) -> None:
        """Keep the selected item selected, and hold the order for FREEZE_SECONDS."""
        self.followed = False
        self._before = None
        self.freeze(now)

    def follow(self) -> None:
        """Return to the first row and stay with whichever is first, unless the list grows at its end."""
        self.selected, self.begins = 0, None
        self.followed = not self.newest_last
        self._sort_next()

    def freeze(self, now: float) -> None:
        """Hold the present order for FREEZE_SECONDS."""
        self.frozen_until = now + FREEZE_SECONDS

    def _sort_next(self) -> None:
        self.frozen_until, self.sorted_at = 0.0, float("-inf")

    def next_sort(self) -> str:
        """Change to the next order and return its name."""
        self.sort = self.sort + 1 if self.sort + 1 < len(self.row.sorts) else -1
        self._sort_next()
        return self.sort_name

    def sort_by(self, name: str) -> None:
        """Change to an order by its name; any other than the list's is its own."""
        names = [known for known, _ in self.row.sorts]
        self.sort = names.index(name) if name in names else -1
        self._sort_next()

    @property
    def sort_name(self) -> str:
        """Name of the present order; "" for the list's own."""
        return self.row.sorts[self.sort][0] if self.sort >= 0 else ""

    def _key(self, item: Struct) -> str:
        return item.key if isinstance(item, Fold) else self.row.key(item)

    def _rank(self, item: Struct) -> Any:  # noqa: ANN401 - of each order's type
        """Return the place of a row in the chosen order; what is no row comes last."""
        return self.row.sorts[self.sort][1](item) if isinstance(item, self.row.of) else -math.inf

    def _matches(self, item: Struct) -> bool:
        if isinstance(item, Fold):
            return any(self._matches(row) for row in item.rows)
        return not self.filter or self.filter.lower() in self.row.search(item).lower()

    def _in_frozen_order(self, shown: list[Struct]) -> list[Struct]:
        place = {self._key(item): line for line, item in enumerate(self.items)}
        return sorted(shown, key=lambda item: place.get(self._key(item), len(place)))

    def _keep_selected(self, shown: list[Struct], chosen: Struct, gone_at: float) -> None:
        wanted = self._key(chosen)
        for line, item in enumerate(shown):
            if self._key(item) == wanted:
                self.selected = line
                return
        if self._matches(chosen) and not isinstance(chosen, Fold):
            self.selected = min(self.selected, len(shown))
            shown.insert(self.selected, chosen)
            self._regroup(shown)
            self.selected = shown.index(chosen)
            self.gone_at = gone_at

    def _regroup(self, shown: list[Struct]) -> None:
        shown.sort(key=lambda item: bool(self.heading(item)) is not self.forged)

    def heading(self, item: Struct) -> str:
        """Return the heading of an item's group; "" if it has none."""
        return self.group(item) if self.group is not None and self.grouped else ""


class Scope(Struct):
    """The incident that scopes every tab, by its id; 0: all."""

    chosen: int = 0
    letter: str = ""

    def choose(self, incident: Incident | None) -> None:
        """Show one incident, or all."""
        self.chosen, self.letter = (incident.id, incident.letter) if incident is not None else (0, "")

    def take(self, snapshot: Snapshot) -> None:
        """Show all again once the incident is no longer listed."""
        self.choose(self.attack(snapshot))

    def attack(self, snapshot: Snapshot) -> Incident | None:
        """Return the incident that scopes the tabs; None: all."""
        return snapshot.judgement.incident(self.chosen)


_ALL = TrafficPart()
PART_PANELS = frozenset({"sources", "ports", "payloads"})  # that show a part


class PartView(Struct):
    """Asks for the part that is shown, and puts its tables into snapshots.

    Until the answer comes, and where there is none, the rows of the whole that are in the part stand in.
    """

    ask_for: Callable[[TrafficPart], Awaitable[PartTraffic | None]]
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
            found = await self.ask_for(part)
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
        letter = self.scope.letter
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
