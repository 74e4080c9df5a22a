"""What a console tells of attacks: each beginning and each end once, also after a guardian that was gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from stored_samples import attack
from test_analysis_clients import after, connected

from fwtop.console import sightings as sightings_module
from fwtop.console.sightings import Sightings
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import KnownClients, Seen


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


def test_who_is_long_known_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[KnownClients] = []
    link: Any = SimpleNamespace(demand=lambda request, **_: told.append(request))
    clients = after((0, True, connected(range(1, 4))), (60, True, connected(range(1, 3))))
    sightings = Sightings(link)
    sightings.tell_clients(clients)
    assert sorted(told[0].clients) == [("0.0.0.1", 6, 443), ("0.0.0.2", 6, 443)]
    sightings.tell_clients(clients)
    assert len(told) == 1, "not yet again"
    monkeypatch.setattr(sightings_module, "_CLIENTS_SECONDS", 0.0)
    sightings = Sightings(link)
    for _ in range(2):
        sightings.tell_clients(clients)
    assert len(told) == 2, "they are the same"
    sightings.tell_clients(clients.select(clients.lo == 1))
    assert told[2].clients == (("0.0.0.1", 6, 443),)
