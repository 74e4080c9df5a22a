"""What the fleet wants, as it lies on the board WANTED: documents, who has been started, what confirms them.

Of each roll-out ID: `ID.document` and `ID.undo` (signed by operators), `ID.confirmed` (by the roll-out's own
key, the newest), and `ID.started`: which machines' turn it is. The last one is not signed. It can only have a
machine try what an operator has signed for it, and what nobody confirms ends with its trial.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct

from fwtop.fleet.document import (
    EVERYWHERE,
    Action,
    Document,
    Sealed,
    is_meant,
    read_confirmation,
    read_document,
)
from fwtop.model.errors import FwtopError
from fwtop.model.wire import of_json, to_json

DOCUMENT, UNDO, CONFIRMED, STARTED = "document", "undo", "confirmed", "started"
KINDS = (DOCUMENT, UNDO, CONFIRMED, STARTED)


class Started(Struct, frozen=True):
    """The machines whose turn it has been so far, or all that the document is for, now and later."""

    number: int = 0  # rises; of two the higher one counts
    machines: tuple[str, ...] = ()
    everyone: bool = False


class Question(Struct, frozen=True):
    """What all are asked: how they fare, and what they say to a document."""

    nonce: str
    sealed: Sealed | None = None
    fetch: bool = False  # only fetch its lists, and say how far that is

    @staticmethod
    def new(sealed: Sealed | None = None, *, fetch: bool = False) -> Question:
        """Return a question to which no older answer fits."""
        return Question(os.urandom(12).hex(), sealed, fetch)

    @staticmethod
    def of(message: bytes) -> Question:
        """Read a question; what makes no sense asks nothing but how the machine fares."""
        try:
            question: Question = of_json(Question, message)
        except ValueError:
            return Question("")
        return question if len(question.nonce) <= 64 else Question("")


class Step(Struct, frozen=True):
    """Something to hand to the guardian."""

    rollout: str
    kind: str  # DOCUMENT, UNDO or CONFIRMED
    sealed: Sealed

    @property
    def confirms(self) -> bool:
        """Whether the roll-out's own key signed it."""
        return self.kind == CONFIRMED


class _Rollout(Struct):
    document: tuple[Document, Sealed] | None = None
    undo: tuple[Document, Sealed] | None = None
    confirmed: tuple[Action, int, Sealed] | None = None  # and its number
    started: Started = Started()


class Wanted:
    """The newest of everything on the board, as far as it makes sense; nothing older takes its place."""

    def __init__(self) -> None:
        self._rollouts: dict[str, _Rollout] = {}

    def replace(self, board: Mapping[str, bytes]) -> None:
        """Take the whole board; roll-outs that are gone from it are forgotten."""
        for name, document in board.items():
            self.take(name, document)
        there = {name.partition(".")[0] for name in board}
        self._rollouts = {name: one for name, one in self._rollouts.items() if name in there}

    def take(self, name: str, document: bytes) -> None:
        """Take one entry; what makes no sense is passed over, as is what is older."""
        rollout, _, kind = name.partition(".")
        if kind not in KINDS:
            return
        known = self._rollouts.setdefault(rollout, _Rollout())
        try:
            self._take(known, kind, document)
        except (ValueError, FwtopError):
            return

    def _take(self, known: _Rollout, kind: str, document: bytes) -> None:
        if kind == STARTED:
            started: Started = of_json(Started, document)
            if started.number >= known.started.number:
                known.started = started
            return
        sealed: Sealed = of_json(Sealed, document)
        text = sealed.text.encode()
        if kind == CONFIRMED:
            told = read_confirmation(text)
            if known.confirmed is None or told.number > known.confirmed[1]:
                known.confirmed = told.action, told.number, sealed
        elif kind == UNDO:
            known.undo = read_document(text), sealed
        else:
            known.document = read_document(text), sealed

    def steps(self, machine: str, labels: frozenset[str]) -> list[Step]:
        """Return what to hand over on a machine, in the order of revisions: an older one would be refused."""
        found: list[tuple[int, Step]] = []
        for name, one in self._rollouts.items():
            if one.document is None:
                continue
            document, sealed = one.document
            action = one.confirmed[0] if one.confirmed else None
            is_for_me = is_meant(document.on, labels | {machine, EVERYWHERE})
            turn = machine in one.started.machines or (one.started.everyone and is_for_me)
            over = action is Action.UNDO or one.undo is not None
            if turn and not over:
                found.append((document.revision, Step(name, DOCUMENT, sealed)))
            if one.confirmed is not None and (turn or (over and is_for_me)):
                found.append((document.revision, Step(name, CONFIRMED, one.confirmed[2])))
            if one.undo is not None and is_for_me:
                found.append((one.undo[0].revision, Step(name, UNDO, one.undo[1])))
        return [step for _, step in sorted(found, key=lambda item: item[0])]


def encoded(value: Sealed | Started | Question) -> bytes:
    """Return an entry or a question as it is sent."""
    return to_json(value)
