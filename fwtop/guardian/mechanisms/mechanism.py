"""What each mechanism does with the kernel objects that are its own: in, out, read back, compared."""

from __future__ import annotations

from binascii import crc32
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Mode, Rule
from fwtop.rules.kind import KernelObjects, Layer

_T = TypeVar("_T")
HEAD_CHANGED = "the first lines of chain"  # how the reason begins why a rule does not act then


class Expected(Struct, frozen=True):
    """What the kernel should have of a rule."""

    rule: Rule
    objects: KernelObjects


class Wanted(Expected, frozen=True):
    """The same, to be put there: who is to be spared, and the clock that it gets."""

    allow: AllowList
    seconds: int


class Changed(Wanted, frozen=True):
    """The same, in place of what the kernel has of the rule."""

    before: KernelObjects


class Count(Struct, frozen=True):
    """Packets and bytes that a rule matched since it was installed."""

    packets: int
    bytes: int

    def plus(self, other: Count) -> Count:
        """Return the sum of two."""
        return Count(self.packets + other.packets, self.bytes + other.bytes)

    def minus(self, other: Count) -> Count:
        """Return the difference of two, of which none is below 0."""
        return Count(max(0, self.packets - other.packets), max(0, self.bytes - other.bytes))


class Shortfall(Struct, frozen=True):
    """Why a rule does not act, or not in full."""

    text: str
    elements_only: bool = False  # `keep` fills its sets again
    obstructed: bool = False  # complete, but a foreign rule lets packets pass first

    def is_worse_than(self, other: Shortfall) -> bool:
        """Return whether more is needed to mend it."""
        return (self.elements_only, self.obstructed) < (other.elements_only, other.obstructed)


class Remains(Struct, frozen=True):
    """What the kernel says of a rule that no record is left of."""

    kind: Kind
    match: Match
    seconds: int  # that its clock has left
    mode: Mode = Mode.DROP


class Mechanism:
    """One way of acting; by default it has nothing of a rule to see to. What is not there is no error."""

    layers: Collection[Layer] = ()  # where it counts the sources of a rule

    def is_used(self, objects: KernelObjects) -> bool:
        """Return whether a rule with these objects needs it."""
        raise NotImplementedError

    def plan(self, wanted: Wanted, *, follows: bool) -> list[str]:
        """Return the commands that `install` amounts to; raises FwtopError where it would."""
        raise NotImplementedError

    def install(self, wanted: Wanted) -> str:
        """Put a rule in; returns where it runs, "" where its kind says so. Raises FwtopError."""
        raise NotImplementedError

    def renew(self, wanted: Wanted) -> None:
        """Set a rule's clock; what expired is put in again. Raises FwtopError."""

    def restore(self, wanted: Wanted) -> None:
        """Put in what the kernel lacks of an active rule; raises FwtopError."""
        raise NotImplementedError

    def change(self, changes: Sequence[Changed]) -> None:
        """Put active rules as they are to be in place of what is there, all at once, with their counters.

        At each moment a packet meets the rules of before or those of after. A rule that is off stays empty.
        Raises FwtopError; what is in the kernel then is to be restored.
        """

    def follow(self, wanted: Wanted) -> bool:
        """Adapt a rule to another allow-list; returns whether its objects are others now."""
        del wanted
        return False

    def disable(self, rule_ids: set[str]) -> None:
        """Stop the effect of rules at once, reading nothing of others; raises FwtopError."""

    def remove(self, rule_ids: set[str]) -> None:
        """Remove what is left of disabled rules; raises FwtopError."""

    def destroy(self, rule_ids: set[str]) -> None:
        """Remove what the kernel refuses to as long as something else asks it; raises FwtopError."""

    def forget(self, rule_ids: set[str]) -> None:
        """Forget rules that ended."""

    def present(self, expected: Expected) -> bool:
        """Return whether the kernel has all of a rule (its elements may have expired); raises FwtopError."""
        raise NotImplementedError

    def compare(self, rules: Sequence[Expected]) -> dict[str, Shortfall]:
        """Return which rules the kernel has not as they should be."""
        found = {}
        for item in rules:
            try:
                short = self.shortfall(item)
            except Exception as error:  # one rule that can't be looked at must not hide the others
                short = Shortfall(f"can't be checked: {FwtopError.of(error)}")
            if short is not None:
                found[item.rule.id] = short
        return found

    def shortfall(self, expected: Expected) -> Shortfall | None:
        """Return what the kernel lacks of a rule; raises FwtopError where that can't be told."""
        raise NotImplementedError

    def refresh_allow(self, allow: AllowList) -> None:
        """Update the allow-list that its rules ask; raises FwtopError."""

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules with an object of its own; raises FwtopError."""
        return set()

    def remains(self, rule_id: str) -> Remains | None:
        """Return what its sets say of a rule, None if it has none; raises FwtopError or ValueError."""
        del rule_id
        return None

    def counts(self) -> dict[str, Count]:
        """Return what each rule matched since it was installed."""
        return {}

    def entries(self, rule: Rule, most: int) -> dict[str, int]:
        """Return the packets of a rule's busiest sources, at most so many."""
        del rule, most
        return {}


def digest(*parts: bytes) -> str:
    """Return a short text that differs where the parts do."""
    found = 0
    for part in parts:
        found = crc32(len(part).to_bytes(4, "little") + part, found)
    return f"{found:08x}"


def head_key(place: str, chain: str, head: Sequence[str]) -> str:
    """Return what the first lines of a chain are kept under: other lines are kept apart."""
    return f"{place}/{chain}/{digest(*(line.encode() for line in head))}"


class Baseline:
    """What the kernel said of fwtop's own lines and sets when fwtop had just written them: digests by key.

    A line that somebody edits still has its place, its set and its target, so what it says is compared as
    well. The kernel doesn't list a rule as it was given (iptables rounds rates, nft names sets), so what is
    expected is read back at once. It outlives the guardian: the next one sees what was changed in between.
    Keys begin with the place: a variant of iptables and a family, or a table.
    """

    def __init__(self, known: dict[str, list[str]], keep: Callable[[dict[str, list[str]]], None]) -> None:
        """Take what an earlier guardian kept, and what keeps it for the next one."""
        self._known = known
        self._keep = keep

    def note(self, key: str, found: Iterable[str], *, anew: bool = False) -> None:
        """Take what is there as it should be; where something is known, only if it was written `anew`."""
        if anew or key not in self._known:
            contents = list(found)
            if self._known.get(key) != contents:
                self._known[key] = contents
                self._keep(self._known)

    def differs(self, key: str, found: Iterable[str]) -> bool:
        """Return whether something else was there."""
        wanted = self._known.get(key)
        return wanted is not None and wanted != list(found)

    def forget(self, is_over: Callable[[str], bool]) -> None:
        """Forget what is gone by fwtop's own doing."""
        kept = {key: found for key, found in self._known.items() if not is_over(key)}
        if len(kept) < len(self._known):
            self._known = kept
            self._keep(kept)


def each(work: Callable[[_T], object], items: Iterable[_T]) -> None:
    """Work on each item; raises FwtopError afterwards, with what was said of all that failed."""
    errors: list[FwtopError] = []
    for item in items:
        try:
            work(item)
        except Exception as error:
            errors.append(FwtopError.of(error))
    if errors:
        raise FwtopError("; ".join(dict.fromkeys(map(str, errors))), errors[0].code)


def readable(read: Callable[[], _T], nothing: _T) -> _T:
    """Return what `read` returns, or `nothing` if it fails: that must keep no rule from ending."""
    try:
        return read()
    except Exception:
        return nothing
