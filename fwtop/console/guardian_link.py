"""The console's connections to the guardian, usable from any thread, and what it is told of the traffic."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.clients import Clients
from fwtop.client.connection import Connection, Late
from fwtop.kernel.descriptors import close_all
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import detach_sources, read_sources
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer, ProtocolError
from fwtop.model.protocol import (
    MAX_CLIENTS,
    Apply,
    Connect,
    KnownClients,
    Plan,
    Request,
    RuleChange,
    RuleRead,
    Seen,
    SeenAttack,
    Summary,
)
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import flow_of
from fwtop.model.traffic.snapshot import Incident, Snapshot
from fwtop.render.verdict import verdict_of

_CONNECT_SECONDS = 5.0


class GuardianLost(FwtopError):
    """The guardian no longer answers; active rules still expire in the kernel."""


class GuardianLink:
    """An authenticated connection. If it is lost, it reconnects through another one of the same client.

    A request that times out still completes in the guardian; `late` reports its answer.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._connection = Connection(connected)
        self._lock = threading.Lock()
        self._others: list[GuardianLink] = []
        self.lost = ""  # the reason, if reconnecting failed too

    def another(self) -> GuardianLink:
        """Open another connection of the same client, independent of requests on this one.

        Raises FwtopError.
        """
        made = GuardianLink(self._connect())
        made._others = [self, *self._others]
        for link in made._others:
            link._others.append(made)
        return made

    def ask(self, request: Request, attached: int | None = None, *, seconds: float | None = None) -> Answer:
        """Send a request and return its answer, including refusals.

        `attached` is a descriptor to pass along; the caller keeps it. Raises FwtopError if no answer arrives
        within `seconds`, GuardianLost if the connection can't be restored.
        """
        with self._lock:
            return self._exchange(request, attached, seconds)[0]

    def demand(self, request: Request, *, seconds: float | None = None) -> Answer:
        """Send a request and return its answer; raises FwtopError if the guardian refuses."""
        return self.ask(request, seconds=seconds).agreed()

    def demand_for_rule(self, request: Plan | Apply | RuleChange, rule: Rule) -> Answer:
        """Send a request with a rule, however long its source list; raises FwtopError if refused."""
        whole, attached = detach_sources(request, rule)
        try:
            return self.ask(whole, attached).agreed()
        finally:
            if attached is not None:
                os.close(attached)

    def whole_rule(self, rule_id: str) -> Rule:
        """Return a rule with all of its sources; raises FwtopError."""
        request = RuleRead(rule_id)
        with self._lock:
            answer, descriptors = self._exchange(request, None, None)
        try:
            rule = Rule.from_dict(answer.agreed().data["rule"])
            if descriptors:
                rule = replace(rule, match=replace(rule.match, sources=read_sources(descriptors[0])))
            return rule
        finally:
            close_all(descriptors)

    def late(self) -> list[str]:
        """Return a line for each answer that arrived after its request timed out; never blocks."""
        if not self._lock.acquire(blocking=False):
            return []
        try:
            return [_late_line(item) for item in self._connection.take_late()]
        except (OSError, ProtocolError):
            return []  # the next request will notice
        finally:
            self._lock.release()

    def close(self) -> None:
        """Disconnect; after the last connection the guardian removes unconfirmed rules."""
        self._connection.close()

    def _exchange(
        self, request: Request, attached: int | None, seconds: float | None
    ) -> tuple[Answer, list[int]]:
        if self.lost:
            self._renew(self.lost)
        limit = request.seconds if seconds is None else seconds
        try:
            answer, descriptors = self._connection.exchange(request, limit, attached)
            if "retired" in answer.data:  # its last words
                self._renew(answer.error)
            return answer, descriptors
        except TimeoutError:
            line = f"no answer within {limit:g} s; the guardian continues, and the result will follow"
            raise FwtopError(line) from None
        except (OSError, ProtocolError) as error:
            reason = getattr(error, "strerror", None) or error
            self._renew(f"the guardian does not answer ({reason})")
            raise FwtopError(
                "the connection to the guardian was lost and restored; check whether that was done"
            ) from None

    def _renew(self, why: str) -> None:
        """Reconnect through another connection; raises GuardianLost if none is left."""
        self._connection.close()
        for link in self._others:
            try:
                self._connection = Connection(link._connect())
            except FwtopError:
                continue
            self.lost = ""
            return
        self.lost = why
        raise GuardianLost(why)

    def _connect(self) -> socket.socket:
        # Time-limited: two links lost at the same moment may wait for each other.
        if self.lost or not self._lock.acquire(timeout=_CONNECT_SECONDS):
            raise GuardianLost(self.lost or "the guardian is busy")
        try:
            answer, descriptors = self._connection.exchange(Connect(), _CONNECT_SECONDS)
        except (OSError, ProtocolError) as error:
            raise GuardianLost(f"the guardian does not answer ({error})") from None
        finally:
            self._lock.release()
        if "retired" in answer.data:
            self.lost = answer.error
        answer.agreed()
        return socket.socket(fileno=descriptors[0])


def _late_line(late: Late) -> str:
    verb = late.request.verb()
    if not late.answer.ok:
        return f"{verb}, answered late: {safe_text(late.answer.error)}"
    status = late.answer.data.get("status")
    what = f"rule {safe_text(status['rule']['id'])} is {safe_text(status['state'])}" if status else "done"
    return f"{verb}, answered late: {what}"


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

    def tell_summary(self, snapshot: Snapshot) -> None:
        """Tell how this machine fares; never raises."""
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
            self._link.demand(told, seconds=_SECONDS)


def _is_over(attack: Incident | None) -> bool:
    return attack is None or attack.ended is not None


def _seen(attack: Incident, *, over: bool = False) -> SeenAttack:
    ended = (attack.ended or attack.last or attack.since) if over else None
    return SeenAttack(
        attack.id, attack.kind, attack.title, attack.severity.harm.value, attack.target, attack.sources,
        attack.since, ended, round(attack.peak_pps if over else attack.pps, 1), round(attack.bps, 1),
    )  # fmt: skip
