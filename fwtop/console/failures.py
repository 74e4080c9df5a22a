"""What fails without ending the watch: a line for the operator, and a log for the developer."""

from __future__ import annotations

from msgspec.structs import replace

from fwtop.model.traffic.snapshot import Judgement
from fwtop.sandbox.crash_log import CRASHES, failure_words


def failure_line(what: str, failure: Exception) -> str:
    """Return what failed and where the log is; `what` as in "judging"."""
    try:
        path = CRASHES.path_of(failure)
    except MemoryError:  # the failure itself, most likely: there is none left for a log
        path = ""
    where = f"; details in {path}" if path else ""  # first: a narrow screen cuts the end off
    return f"{what} failed{where} ({failure_words(failure)})"


def not_judged(last: Judgement, failure: Exception, what: str = "judging") -> Judgement:
    """Return the judgement of a window that could not be judged: the last one's attacks, marked as such."""
    return replace(last, not_judged=failure_line(what, failure))
