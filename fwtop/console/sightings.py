"""What the guardian is told of traffic, for programs that ask it (docs/API.md): attacks, clients, totals."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.clients import Clients
from fwtop.console.guardian_link import GuardianLink
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import MAX_CLIENTS, Foreseen, KnownClients, Seen, SeenAttack, Summary
from fwtop.model.rule import Preview, Rule
from fwtop.model.traffic.session import flow_of
from fwtop.model.traffic.snapshot import Incident, Snapshot
from fwtop.render.verdict import verdict_of

_SECONDS = 2.0  # for the guardian, which only notes it
_CLIENTS_SECONDS = 30.0  # between two tables of clients
_SUMMARY_SECONDS, _CALM_SECONDS = 1.0, 5.0  # between two summaries under attack, and in calm
_CALM_RATES = 30  # of clients' connections, of which the mean is what is usual


class Sightings:
    """Tells each beginning and each end once; what the guardian could not be told is told with the next."""

    def __init__(self, link: GuardianLink) -> None:
        self._link = link
        self._on: dict[int, Incident] = {}  # told, and not over
        self._clients = b""  # told
        self._clients_due = 0.0  # monotonic
        self._summary_due = 0.0
        self._calm: deque[float] = deque(maxlen=_CALM_RATES)

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

    def tell_clients(self, clients: Clients) -> None:
        """Tell who is long known, now and then where others are; never raises."""
        if time.monotonic() < self._clients_due:
            return
        self._clients_due = time.monotonic() + _CLIENTS_SECONDS
        known = clients.select(clients.long_known)
        known = known.select(np.argsort(-known.seconds, kind="stable")[:MAX_CLIENTS])
        if (now := np.sort(known.key).tobytes()) == self._clients:
            return
        columns = (known.family, known.hi, known.lo, known.door)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        told = tuple(
            (str(Prefix.of_columns(family, hi, lo, 128 if family == 6 else 32)), door >> 16, door & 0xFFFF)
            for family, hi, lo, door in rows
        )
        with suppress(FwtopError):
            self._link.demand(KnownClients(told), seconds=_SECONDS)
            self._clients = now

    def tell_summary(self, snapshot: Snapshot, preview: Callable[[Rule], Preview]) -> None:
        """Tell how this machine fares, and what rules would stop that the guardian asks of; never raises."""
        if (now := time.monotonic()) < self._summary_due:
            return
        is_calm = not (snapshot.judgement.harmful or snapshot.judgement.not_judged)
        self._summary_due = now + (_CALM_SECONDS if is_calm else _SUMMARY_SECONDS)
        tcp, verdict, flow = snapshot.tcp, verdict_of(snapshot, snapshot.at), flow_of(snapshot)
        clients = tcp.clients_per_s if tcp is not None else None
        if is_calm and clients is not None:
            self._calm.append(clients)
        usual = sum(self._calm) / len(self._calm) if self._calm else None
        totals = snapshot.tables.totals
        told = Summary(
            snapshot.at, verdict.badge.value, totals.pps, totals.bps, flow.reaches if flow else totals.pps,
            flow.mine if flow else 0.0, clients, usual, verdict.loss.words if verdict.loss else "",
        )  # fmt: skip
        with suppress(FwtopError):
            if asked := self._link.demand(told, seconds=_SECONDS).data.get("foresee"):
                self._link.demand(
                    replace(told, foreseen=_foreseen(asked, preview, totals.pps)), seconds=_SECONDS
                )


def _foreseen(
    asked: dict[str, Any], preview: Callable[[Rule], Preview], arrives_pps: float
) -> dict[str, Foreseen]:
    found = {}
    for key, rule in asked.items():
        with suppress(FwtopError, ValueError):
            one = preview(Rule.from_dict(rule))
            found[key] = Foreseen(
                one.total_pps, arrives_pps, one.attack, one.attack_share, one.collateral_share
            )
    return found


def _is_over(attack: Incident | None) -> bool:
    return attack is None or attack.ended is not None


def _seen(attack: Incident, *, over: bool = False) -> SeenAttack:
    ended = (attack.ended or attack.last or attack.since) if over else None
    return SeenAttack(
        attack.id, attack.kind, attack.title, attack.severity.harm.value, attack.target, attack.sources,
        attack.since, ended, round(attack.peak_pps if over else attack.pps, 1), round(attack.bps, 1),
    )  # fmt: skip
