"""The machine's rule set as the guardian last read it."""

from __future__ import annotations

from fwtop.console.control.guardian_link import GuardianLink
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Rules
from fwtop.model.ruleset import Ruleset
from fwtop.model.wire import of_plain

_SECONDS = 5.0


def read_ruleset(link: GuardianLink) -> Ruleset | None:
    """Ask for the last reading, which has the next one begun; None before the first.

    Raises FwtopError.
    """
    data = link.demand(Rules(), seconds=_SECONDS).data["ruleset"]
    try:
        return None if data is None else of_plain(Ruleset, data)
    except (KeyError, TypeError) as error:
        raise FwtopError(f"the guardian's answer about rules makes no sense: {error}") from None
