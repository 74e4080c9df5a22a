"""Which attacks began or ended: told to the guardian, for the programs that follow it (docs/API.md)."""

from __future__ import annotations

from collections.abc import Iterable

from fwtop.console.guardian_link import GuardianLink
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Seen, SeenAttack
from fwtop.model.traffic.snapshot import Incident

_SECONDS = 2.0  # for the guardian, which only notes it


class Sightings:
    """Tells each beginning and each end once; what the guardian could not be told is told with the next."""

    def __init__(self, link: GuardianLink) -> None:
        self._link = link
        self._on: dict[int, Incident] = {}  # told, and not over

    def tell(self, attacks: Iterable[Incident]) -> None:
        """Tell what is new of the attacks of a judgement; never raises."""
        now = {attack.id: attack for attack in attacks}
        began = [attack for key, attack in now.items() if key not in self._on and attack.ended is None]
        over = [now.get(key, attack) for key, attack in self._on.items() if _is_over(now.get(key))]
        if not began and not over:
            return
        told = tuple(map(_seen, began)) + tuple(_seen(attack, over=True) for attack in over)
        try:
            self._link.demand(Seen(told), seconds=_SECONDS)
        except FwtopError:  # an older guardian, or none
            return
        gone = {attack.id for attack in over}
        self._on = {key: item for key, item in self._on.items() if key not in gone}
        self._on |= {attack.id: attack for attack in began}


def _is_over(attack: Incident | None) -> bool:
    return attack is None or attack.ended is not None


def _seen(attack: Incident, *, over: bool = False) -> SeenAttack:
    ended = (attack.ended or attack.last or attack.since) if over else None
    return SeenAttack(
        attack.id, attack.kind, attack.title, attack.severity.harm.value, attack.target, attack.sources,
        attack.since, ended, round(attack.peak_pps if over else attack.pps, 1), round(attack.bps, 1),
    )  # fmt: skip
