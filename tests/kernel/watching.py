"""A console's live session in the test's own process, on what a guardian's observers see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from guardian_bench import Bench

from fwtop.client.discovery import GuardianClient
from fwtop.console.live import LiveSession
from fwtop.incidents.advisor import Advisor
from fwtop.live.connections import TcpServiceMeter
from fwtop.live.source import LiveSource
from fwtop.model.protocol import Watch
from fwtop.model.traffic.packets import NoOrigin
from fwtop.model.traffic.snapshot import Origin, Snapshot
from fwtop.observe.messages import decode_reply
from fwtop.stats.engine import Engine
from tests.kernel.wire import inside


class Link:
    """A guardian's client as the live session uses it."""

    lost = ""

    def __init__(self, client: GuardianClient) -> None:
        self._client = client

    def demand(self, request: Any, **_: float) -> Any:
        return self._client.demand(request)


@contextmanager
def watched(
    bench: Bench, service: TcpServiceMeter | None = None, undo: Callable[[str, str], object] | None = None
) -> Iterator[LiveSession]:
    """Watch the victim's interface; the session's window begins here and has no end."""
    interface = bench.pair.victim.interface
    with bench.connect("console") as console:
        answer, descriptors = console.watch(Watch((interface,)))
        assert answer.ok, answer.error
        with inside(bench.netns):
            source = LiveSource(*decode_reply(answer, descriptors))
        try:
            session = LiveSession(
                Link(console),  # type: ignore[arg-type]
                source,
                Engine(NoOrigin(), window_seconds=None, live=True),
                Advisor(),
                service or TcpServiceMeter(),
                host="victim",
                origin=Origin("live", (interface,)),
                undo=undo,
            )
            with inside(bench.netns):
                session.start()
            yield session
        finally:
            with inside(bench.netns):
                source.close()


def tick(bench: Bench, session: LiveSession) -> Snapshot:
    """Let the session look once."""
    with inside(bench.netns):
        shown = session.tick()
    assert isinstance(shown, Snapshot)
    return shown
