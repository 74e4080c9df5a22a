"""What a console tells of attacks: each beginning and each end once, also after a guardian that was gone."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from stored_samples import attack

from fwtop.console.sightings import Sightings
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Seen


class Link:
    """A guardian's connection, which may be lost."""

    def __init__(self) -> None:
        self.told: list[tuple[int, bool]] = []
        self.lost = False

    def demand(self, request: Seen, **_: object) -> None:
        if self.lost:
            raise FwtopError("lost")
        self.told += [(item.id, item.ended is not None) for item in request.attacks]


def test_each_beginning_and_each_end_is_told_once() -> None:
    link: Any = Link()
    sightings = Sightings(link)
    one, two = (replace(attack(), id=number, ended=None) for number in (1, 2))
    sightings.tell([one])
    sightings.tell([one, two])
    assert link.told == [(1, False), (2, False)]
    link.lost = True
    sightings.tell([replace(one, ended=one.since + 5), two])
    sightings.tell([two])
    link.lost = False
    sightings.tell([two])
    assert link.told[2:] == [(1, True)], "told once it can be"
    sightings.tell([])
    sightings.tell([replace(two, ended=two.since + 9)])
    assert link.told[3:] == [(2, True)]
