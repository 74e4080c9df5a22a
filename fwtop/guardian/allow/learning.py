"""When and from what the allow-list for hosts behind this machine is learned, as guard.toml has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from fwtop.guardian.allow.behind import Evidence, Learned, TrackedConversations
from fwtop.guardian.allow.overheard import Listener, forwards_by_route
from fwtop.guardian.limits import Limits
from fwtop.kernel.bridges import list_bridges
from fwtop.kernel.links import readable_links
from fwtop.model.addresses.address import Prefix


class Learning:
    """Of one namespace. Owned by the worker's thread; who listens has another."""

    def __init__(self, limits: Callable[[], tuple[Limits, tuple[str, ...]]]) -> None:
        """Begin to listen, unless the operator switched that off."""
        self._limits = limits
        self._evidence, self._tracked = Evidence(), TrackedConversations()
        self._listener = Listener(self._evidence)
        self._renew()
        self._listener.start()

    def learn(self, own: Collection[Prefix]) -> tuple[tuple[Learned, ...], int]:
        """Return what is on the list now, and how many conversations had no room on it."""
        settings = self._renew()
        if not settings.learn_behind:
            return (), 0
        if _forwards():
            self._tracked.note(self._evidence, own, settings.ssh_ports_behind)
        return self._evidence.listed(time.monotonic())

    def _renew(self) -> Limits:
        settings = self._limits()[0]
        self._listener.ssh_ports = settings.ssh_ports_behind if settings.learn_behind else None
        return settings


def _forwards() -> bool:
    return forwards_by_route() or bool(list_bridges(readable_links()))
