"""What the guardian reads of the host: its survey and its rule set, parsed and made safe once."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from fwtop.console.control.guardian_link import GuardianLink
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Rules, Survey
from fwtop.model.ruleset import Ruleset
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import FilterChain, Listener, Ring, Surroundings
from fwtop.model.wire import of_plain

_POLL_SECONDS = 2.0
_RETRY_SECONDS = 0.25  # until the guardian has made its first survey
_TIMEOUT_SECONDS = 0.2
_NAME = 15


class SurveyMonitor:
    """Asks for the survey every 2 s; a failed request keeps the last one."""

    def __init__(self, link: GuardianLink, interfaces: Collection[str]) -> None:
        """Take the connection of the observation, and the names of the watched interfaces."""
        self._link = link
        self._interfaces = interfaces
        self._due = 0.0
        self.last = Surroundings()

    def poll(self) -> None:
        """Ask for a new survey if that is due."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _POLL_SECONDS
        try:
            data = self._link.demand(Survey(), seconds=_TIMEOUT_SECONDS).data
        except FwtopError:  # the screen reports a lost guardian
            return
        if data:
            self.last = parse_survey(data, self._interfaces)
        else:
            self._due = now + _RETRY_SECONDS


def parse_survey(data: dict[str, Any], interfaces: Collection[str]) -> Surroundings:
    """Parse an answer; `rings` are those of the watched interfaces."""
    return Surroundings(
        tuple(
            Listener(safe_text(protocol, limit=4), int(port), safe_text(name, limit=_NAME))
            for protocol, port, name in data.get("listeners", ())
        ),
        tuple(
            Ring(safe_text(name), int(size), int(most))
            for name, size, most in data.get("rings", ())
            if name in interfaces
        ),
        tuple(
            FilterChain(safe_text(stage, limit=8), safe_text(name, limit=64), bool(drops))
            for stage, name, drops in data.get("chains", ())
        ),
    )


_SECONDS = 5.0


def read_ruleset(link: GuardianLink) -> Ruleset | None:
    """Ask for the last reading, which has the next one begun; None before the first.

    Raises FwtopError.
    """
    data = link.demand(Rules(), seconds=_SECONDS).data.get("ruleset")
    try:
        return None if data is None else of_plain(Ruleset, data)
    except ValueError as error:
        raise FwtopError(f"the guardian's answer about rules makes no sense: {error}") from None
