"""Requests of those who watch: observers, the functions that drop packets, a survey of the host.

Of the event loop's thread. What takes time is done by a loader child (observers.py) or the worker.
"""

from __future__ import annotations

import selectors
from functools import partial
from typing import Any

from fwtop.guardian.functions import Functions
from fwtop.guardian.mechanisms.compiled.rules import CompiledRules
from fwtop.guardian.serving.connections import Connections
from fwtop.guardian.serving.observers import Loading, Observers
from fwtop.guardian.serving.peer import Client, Peer
from fwtop.guardian.serving.reports import Reports
from fwtop.guardian.serving.worker import Worker
from fwtop.guardian.survey import LastSurvey
from fwtop.model.protocol import Answer, Rescan, Survey, Symbols, Watch
from fwtop.model.text import safe_text
from fwtop.xdp.messages import Loaded


class Watching:
    """Serves the requests of those who watch. `observers` are what is attached for them."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        connections: Connections,
        worker: Worker,
        compiled: CompiledRules,
        reports: Reports,
    ) -> None:
        """Take what answers go to; `compiled` and `reports` are for the worker's thread alone."""
        self.observers = Observers(self._await_loader, connections.reply)
        self._selector = selector
        self._connections = connections
        self._worker = worker
        self._compiled = compiled
        self._reports = reports
        self._functions = Functions()  # for the worker
        self._survey = LastSurvey()

    def serve(self, peer: Peer, client: Client, request: Watch | Rescan | Survey | Symbols) -> None:
        """Answer a request, or have the worker or a loader do so."""
        match request:
            case Watch():
                self._start(peer, client, request)
            case Rescan():
                self.observers.rescan()
                self._connections.reply(peer, Answer(True))
            case Survey():
                self._connections.reply(peer, Answer(True, data=self._survey.data))
                self._renew_survey()
            case Symbols():
                self._name_locations(peer, client)

    def _loaded(self, loading: Loading) -> None:
        """Take the answer of a loader, and pass it on to the client that asked."""
        self._selector.unregister(loading.sock)
        taken = self.observers.take(loading)
        if taken is None:
            return
        answer, forward, maps = taken
        peer = loading.wanted.peer
        if not answer.ok:
            self._connections.reply(peer, answer)
            return

        def done(found: Answer) -> None:
            self.observers.maps = found.data.pop("maps", self.observers.maps)
            whole = Answer(True, data={**answer.data, **found.data}) if found.ok else found
            self._connections.reply(peer, whole, forward)

        self._worker.ask(Watch(), lambda: self._with_maps(maps), done)

    def _start(self, peer: Peer, client: Client, request: Watch) -> None:
        if client.slot is not None:
            self._connections.reply(peer, Answer(False, "this client watches already", 1))
            return

        def work() -> dict[str, Any]:
            self._compiled.interfaces.update(request.interfaces)
            return dict(self._compiled.descriptors)

        def done(answer: Answer) -> None:
            if peer not in self._connections:
                return
            self.observers.maps = answer.data
            self.observers.watch(peer, client, request)

        self._connections.suspend(peer)
        self._worker.ask(request, work, done)

    def _await_loader(self, loading: Loading) -> None:
        self._selector.register(loading.sock, selectors.EVENT_READ, lambda: self._loaded(loading))

    def _with_maps(self, maps: dict[str, int]) -> dict[str, Any]:
        self._compiled.take_maps(Loaded(maps=maps))
        return {**self._reports.host_addresses(), "maps": dict(self._compiled.descriptors)}

    def _name_locations(self, peer: Peer, client: Client) -> None:
        """Tell a client which functions dropped packets, without their addresses."""
        try:
            addresses = self.observers.locations(client)
        except OSError as error:
            self._connections.reply(peer, Answer(False, safe_text(error), 1))
            return

        self._connections.suspend(peer)
        done = partial(self._connections.reply, peer)
        self._worker.ask(Symbols(), lambda: {"names": self._functions.names(addresses)}, done)

    def _renew_survey(self) -> None:
        """Have the worker make a new survey if the last one is old; nobody waits for it."""
        if not self._survey.due():
            return
        interfaces = self.observers.interfaces()

        def done(answer: Answer) -> None:
            self._survey.data = answer.data if answer.ok else self._survey.data

        self._worker.ask(Survey(), lambda: self._survey.read(interfaces), done)
