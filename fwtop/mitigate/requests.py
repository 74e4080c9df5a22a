"""What a request asks of the rules, and an answer to it whatever happens meanwhile."""

from __future__ import annotations

import syslog
from collections.abc import Callable, Sequence
from typing import Any

from fwtop.mitigate.service import Service
from fwtop.model.address import Prefix
from fwtop.model.bulk import read_sources
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Answer, Apply, Keep, Plan, Request, Undo, Why
from fwtop.model.text import safe_text


def carry_out(
    service: Service, request: Request, attached: int | None, owner: object | None
) -> dict[str, Any]:
    """Do what takes time; runs in a job's thread.

    `attached` is the descriptor of a list that came along; a provisional rule falls with `owner`.
    Raises FwtopError, and ValueError for a list that can't be read.
    """
    match request:
        case Why():
            return {"sentences": service.why(request.id)}
        case Keep():
            return service.keep(request.id, request.ttl_seconds)
        case Undo():
            return service.undo(request.ids, everything=request.all)
        case Plan():
            return service.plan(request.rule, _sources(attached))
        case Apply():
            return service.apply(
                request.rule,
                _sources(attached),
                request.confirm_seconds,
                force=request.force,
                owner=owner,
            )
    raise TypeError("not a request that takes time")


def _sources(attached: int | None) -> Sequence[Prefix]:
    return read_sources(attached) if attached is not None else ()


def check_attached(request: Request, attached: int | None) -> None:
    """Raise ValueError unless request and message agree on whether a list came along."""
    announced = isinstance(request, Plan | Apply) and request.attached
    if announced != (attached is not None):
        raise ValueError("a list is announced or attached, but not both")


def guarded(request: Request, work: Callable[[], dict[str, Any]]) -> Answer:
    """Return the answer to a request, whatever happens while it is worked on."""
    try:
        return Answer(True, data=work())
    except FwtopError as error:
        return Answer(False, safe_text(error, limit=1000), error.code)
    except ValueError as error:
        return Answer(False, safe_text(f"not understood: {error}"), 2)
    except Exception as error:
        # Whatever a request broke, the other clients' rules still need their guardian.
        line = safe_text(f"{type(request).__name__.lower()} failed: {type(error).__name__}: {error}")
        syslog.syslog(syslog.LOG_ERR, line)
        return Answer(False, line, 1)
