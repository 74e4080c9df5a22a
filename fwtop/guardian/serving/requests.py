"""Carry out requests in the worker, and answer them whatever goes wrong."""

from __future__ import annotations

import syslog
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from fwtop.guardian.rules.lifecycle import Lifecycle
from fwtop.guardian.serving.list_requests import ListRequests
from fwtop.guardian.serving.reports import Reports
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import read_sources
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import (
    Answer,
    Apply,
    Keep,
    ListChange,
    ListRead,
    ListShow,
    ListTest,
    Plan,
    ProtocolError,
    Repair,
    Request,
    RuleRead,
    Undo,
    Why,
)
from fwtop.model.text import safe_text


class Handlers(Struct, frozen=True):
    """What carries requests out, in the worker's thread alone."""

    lifecycle: Lifecycle
    reports: Reports
    lists: ListRequests


def carry_out(
    handlers: Handlers, request: Request, attached: int | None, owner: object | None, by: str = ""
) -> dict[str, Any]:
    """Carry out a request that changes rules or reads the kernel; runs in the worker's thread.

    `attached` is the descriptor of a list that came with it; a provisional rule falls with `owner`, the
    console that asks. `by` names who asks, "" for the command line.
    Raises FwtopError, and ValueError for a list that can't be read.
    """
    match request:
        case Why():
            return {"sentences": handlers.reports.why(request.id)}
        case RuleRead():
            return handlers.reports.rule(request.id)
        case ListChange() | ListShow() | ListTest() | ListRead():
            return handlers.lists.carry_out(request, _sources(attached))
        case Keep() | Repair() | Undo():
            return _change(handlers.lifecycle, request, console=owner is not None, by=by)
        case Plan():
            sources = _sources(attached)
            return handlers.reports.plan(request.rule, sources, owner=owner, follows=request.follows)
        case Apply():
            return handlers.lifecycle.apply(
                request.rule,
                _sources(attached),
                request.confirm_seconds,
                force=request.force,
                owner=owner,
            )
    raise TypeError("not a request that takes time")


def _change(lifecycle: Lifecycle, request: Keep | Repair | Undo, *, console: bool, by: str) -> dict[str, Any]:
    """Confirm a rule, put it back, or end some."""
    match request:
        case Keep():
            return lifecycle.keep(request.id, request.ttl_seconds, console=console)
        case Repair():
            return lifecycle.repair(request.id)
        case Undo():
            return lifecycle.undo(request.ids, everything=request.all, console=console, by=by)


def _sources(attached: int | None) -> Sequence[Prefix]:
    return read_sources(attached) if attached is not None else ()


def check_attached(request: Request, brought: bool, number: int) -> None:
    """Raise ProtocolError unless request and message agree on whether a list came along."""
    announced = getattr(request, "attached", False)
    if announced != brought:
        raise ProtocolError("attached: a list is announced or attached, but not both", number)
    if announced and isinstance(request, ListChange) and request.entries:
        raise ProtocolError("entries: they are in the message or attached, not both", number)


def guarded(request: Request, work: Callable[[], dict[str, Any]]) -> Answer:
    """Run a request's work and return its answer, also for errors."""
    try:
        return Answer(True, data=work())
    except FwtopError as error:
        return Answer(False, safe_text(error, limit=1000), error.code)
    except ValueError as error:
        return Answer(False, safe_text(f"not understood: {error}"), 2)
    except Exception as error:  # whatever a request broke, the other clients' rules need their guardian
        return Answer(False, fault(request.verb(), error), 1)


def fault(what: str, error: Exception) -> str:
    """Log an unforeseen error, and return what its client is told."""
    syslog.syslog(syslog.LOG_ERR, safe_text(f"{what} failed: {type(error).__name__}: {error}"))
    if isinstance(error, OSError) and error.strerror:
        return safe_text(f"{what} failed: {error.strerror}")
    return f"{what} failed inside the guardian: the system's log says how; see 'fwtop status'"
