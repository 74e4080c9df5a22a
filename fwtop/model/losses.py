"""What somebody loses to a rule, as a rehearsal finds it (fwtop/rehearsal): a value that answers carry."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


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
