"""Carry out requests in the worker, those about named lists too, and answer them whatever goes wrong."""

from __future__ import annotations

import os
import re
import syslog
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fwtop.guardian.ownership import single_threaded
from fwtop.guardian.rules.lifecycle import Lifecycle
from fwtop.guardian.rules.state import GuardianState
from fwtop.guardian.serving.reports import Reports
from fwtop.model.addresses.address import Prefix, says_more
from fwtop.model.addresses.prefix_list import read_sources, sealed
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer, ProtocolError
from fwtop.model.protocol import (
    LIST_ACTIONS,
    MAX_PAGE,
    Apply,
    FleetConfirm,
    FleetDocument,
    FleetStatus,
    Keep,
    KnownClients,
    ListChange,
    ListRead,
    ListShow,
    ListTest,
    Plan,
    PolicyChange,
    PolicyRead,
    Renew,
    Repair,
    Request,
    RuleChange,
    RuleMode,
    RuleRead,
    Undo,
    Why,
)
from fwtop.model.rule import Mode
from fwtop.model.text import safe_text
from fwtop.model.wire import plain

if TYPE_CHECKING:  # numpy and more, which a guardian without lists or a fleet needn't carry
    from fwtop.guardian.fleet.authority import Authority
    from fwtop.guardian.rules.named_lists import Done


class Handlers(Struct, frozen=True):
    """What carries requests out, in the worker's thread alone."""

    lifecycle: Lifecycle
    reports: Reports
    lists: ListRequests
    fleet: FleetRequests


def carry_out(  # noqa: PLR0911 - requests of a kind a case
    handlers: Handlers, request: Request, attached: int | None, owner: object | None, by: str = ""
) -> dict[str, Any]:
    """Carry out a request that changes rules or reads the kernel; runs in the worker's thread.

    `attached` is the descriptor of a list that came with it; a provisional rule falls with `owner`, the
    console that asks. `by` names who asks, "" for the command line.
    Raises FwtopError, and ValueError for a list that can't be read.
    """
    reports = handlers.reports
    match request:
        case Why() | RuleRead():
            reads = isinstance(request, RuleRead)
            return reports.rule(request.id) if reads else {"sentences": reports.why(request.id)}
        case KnownClients():
            reports.state.know_clients(owner, request.clients)
            return {}
        case ListRead() if owner is not None and not reports.state.lists.users(request.name):
            line = "a screen may read only lists that rules are on; in another terminal: sudo fwtop list"
            raise FwtopError(f"{line}; nothing was changed", 3)
        case ListChange() | ListShow() | ListTest() | ListRead():
            return handlers.lists.carry_out(request, _sources(attached))
        case FleetDocument() | FleetConfirm() | FleetStatus():
            return handlers.fleet.carry_out(request, by, attached)
        case Keep() | Renew() | Repair() | Undo() | RuleMode() | RuleChange():
            return _change(handlers.lifecycle, request, _sources(attached), owner=owner, by=by)
        case Plan():
            sources = _sources(attached)
            return reports.plan(request.rule, sources, owner=owner, follows=request.follows)
        case Apply():
            return handlers.lifecycle.apply(
                request.rule,
                _sources(attached),
                request.confirm_seconds,
                force=request.force,
                owner=owner,
            )
    raise TypeError("not a request that takes time")


def _change(
    lifecycle: Lifecycle,
    request: Keep | Renew | Repair | Undo | RuleMode | RuleChange,
    sources: Sequence[Prefix],
    *,
    owner: object | None,
    by: str,
) -> dict[str, Any]:
    console = owner is not None
    match request:
        case Keep():
            return lifecycle.keep(request.id, request.ttl_seconds, console=console)
        case Renew():
            return lifecycle.renew(request.id, request.confirm_seconds)
        case Repair():
            return lifecycle.repair(request.id)
        case Undo():
            why, everything = request.why, request.all
            return lifecycle.undo(request.ids, everything=everything, console=console, by=by, why=why)
        case RuleMode():
            mode, force = request.mode, request.force
            confirm = request.confirm_seconds if mode is Mode.DROP else 0  # only that is tried
            return lifecycle.changing.set_mode(request.ids, mode, confirm, force=force, owner=owner)
        case RuleChange():
            return lifecycle.changing.change(request, sources, owner)


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
        return refused(request, error)
    except ValueError as error:
        return Answer(False, safe_text(f"not understood: {error}"), 2)
    except Exception as error:  # whatever a request broke, the other clients' rules need their guardian
        return Answer(False, fault(request.verb(), error), 1, reason="internal")


def refused(request: Request, error: FwtopError) -> Answer:
    """Return the answer to a request that can't be carried out."""
    error.field = blamed(request, error.field)
    return Answer.of(error)


def blamed(request: Request, field: str | None) -> str | None:
    """Return the field of this very request to blame: what found the fault knows only its own name for it."""
    if field is None:
        return None
    first = re.split(r"[.\[]", field)[0]
    if isinstance(request, FleetDocument | FleetConfirm):
        # Imported here: few machines are of a fleet.
        from fwtop.fleet.document import Confirmation, Document

        known = Document if isinstance(request, FleetDocument) else Confirmation
        return f"text.{field}" if first in known.__struct_fields__ else "text"
    mine = None
    match request:
        case Undo() | RuleMode():
            mine = "ids"
        case ListTest():
            mine = "entry"
        case PolicyRead() | PolicyChange():
            mine = {"entries": "lists"}.get(field, "text")
        case Plan() | Apply() | RuleChange():
            lists = "rule.protection.lists" if request.rule.get("protection") else "rule.origin"
            mine = {"id": "rule.replaces", "name": lists, "entries": "rule.match.sources"}.get(field, "rule")
    return field if first in request.__struct_fields__ else mine


def fault(what: str, error: Exception) -> str:
    """Log an unforeseen error, and return what its client is told."""
    syslog.syslog(syslog.LOG_ERR, safe_text(f"{what} failed: {type(error).__name__}: {error}"))
    if isinstance(error, OSError) and error.strerror:
        return safe_text(f"{what} failed: {error.strerror}")
    return f"{what} failed inside the guardian: the system's log says how; see 'fwtop status'"


@single_threaded
class ListRequests:
    """Owned by the worker's thread."""

    def __init__(self, state: GuardianState) -> None:
        self._state = state

    def carry_out(
        self, request: ListChange | ListShow | ListTest | ListRead, entries: Sequence[Prefix]
    ) -> dict[str, Any]:
        """Carry out a request with the entries that came beside it; raises FwtopError.

        The answer of ListRead without a count holds descriptors, the caller's then, as data["descriptors"].
        """
        match request:
            case ListChange():
                done: dict[str, Any] = plain(self._change(request, entries or self._parsed(request.entries)))
                return done
            case ListShow():
                return self._show(request.name)
            case ListTest():
                return self._test(request)
            case ListRead() if request.first < 0 or (request.count or 0) < 0:
                field = "first" if request.first < 0 else "count"
                raise FwtopError(f"listread: {field} goes from 0", 2, field=field)
            case ListRead(count=None):
                return {"descriptors": self._files(request.name)}
            case ListRead():
                return self._page(request)

    def _change(self, request: ListChange, entries: Sequence[Prefix]) -> Done:
        lists, name, ttl = self._state.lists, request.name, request.ttl_seconds
        changes: dict[str, Callable[[], Done]] = {
            "create": lambda: lists.create(name, entries, ttl),
            "add": lambda: lists.add(name, entries, ttl, force=request.force),
            "remove": lambda: lists.remove(name, entries),
            "replace": lambda: lists.replace(name, entries, ttl, force=request.force),
            "delete": lambda: lists.delete(name),
        }
        if request.action not in changes:
            line = f"a list takes {', '.join(LIST_ACTIONS)}; nothing was changed"
            raise FwtopError(line, 2, field="action")
        stamp = request.if_stamp
        if stamp is not None and lists.stamp_of(name) != stamp:
            line = f"list {name} was changed since stamp {stamp}; nothing was changed"
            raise FwtopError(line, reason="changed", field="if_stamp")
        return changes[request.action]()

    @staticmethod
    def _parsed(texts: tuple[str, ...]) -> Sequence[Prefix]:
        if not texts:
            return ()
        # Imported here: a guardian without lists needn't carry numpy.
        from fwtop.model.addresses.named_list import entries_of

        return entries_of(texts)

    def _show(self, name: str) -> dict[str, Any]:
        lists = self._state.lists
        found = [lists.told(name) for name in ([name] if name else lists.names())]
        if name:
            found[0]["busiest"] = self._busiest(name)
        return {"lists": found}

    def _busiest(self, name: str) -> dict[str, int]:
        """Return packets by entry that has some, of all rules on the list."""
        counts = self._state.list_counts(name, busiest=True)
        found = [(prefix, packets) for prefix, packets in counts.items() if packets]
        return dict(sorted(found, key=lambda item: -item[1]))

    def _test(self, request: ListTest) -> dict[str, Any]:
        named = self._state.lists.find(request.name)
        found = named.covering(request.entry)
        if found is None:
            return {"entry": None, "seconds_left": None}
        end = named.end_of(found)
        return {"entry": found, "seconds_left": max(0.0, end - time.monotonic()) if end else None}

    def _page(self, request: ListRead) -> dict[str, Any]:
        lists, now = self._state.lists, time.monotonic()
        named = lists.find(request.name)
        first, count = request.first, request.count or 0
        last = first + min(MAX_PAGE, count)
        found = named.texts(slice(first, last))
        ends = named.ends[first:last].tolist() if named.ends is not None else [0.0] * len(found)
        left = [max(0.0, end - now) if end else None for end in ends]
        told: list[list[str | float | None]] = [list(item) for item in zip(found, left, strict=True)]
        if request.counters:
            counts = self._state.list_counts(request.name)
            told = [[*item, _count_of(text, counts)] for text, item in zip(found, told, strict=True)]
        return {"entries": told, "total": len(named.rows), "stamp": lists.stamp_of(request.name)}

    def _files(self, name: str) -> list[int]:
        named = self._state.lists.find(name)
        files = [sealed(named.rows)]
        if named.ends is not None:
            left = (named.ends - time.monotonic()).clip(min=0.001)
            left[named.ends == 0] = 0
            file = os.memfd_create("fwtop-ends", os.MFD_CLOEXEC)
            files.append(file)
            with open(file, "wb", closefd=False) as stream:
                stream.write(left.astype("<f8").tobytes())
        return files


@single_threaded
class FleetRequests:
    """Owned by the worker's thread."""

    def __init__(self, make: Callable[[], Authority], member: Path) -> None:
        """Take what makes the authority, once it is needed; where `member` exists, that is at once."""
        self._make = make
        self._member = member
        self._authority: Authority | None = None
        self._began = False

    def carry_out(
        self, request: FleetDocument | FleetConfirm | FleetStatus, by: str, attached: int | None
    ) -> dict[str, Any]:
        """Carry out a request that `by` brought, with the lists beside it; raises FwtopError."""
        if self._authority is None:
            self._authority = self._make()
        return self._authority.carry_out(request, by, attached)

    def note(self) -> None:
        """Have recorded what became of a fleet's rules."""
        if not self._began:
            self._began = True
            self._authority = self._make() if self._member.exists() else None
        if self._authority is not None:
            self._authority.note()

    def finish(self) -> None:
        """Wait for what is being recorded, as long as a healthy disk takes at most."""
        if self._authority is not None:
            self._authority.finish()


def _count_of(text: str, counts: Mapping[str, int]) -> int | None:
    """Return the packets of an entry, of one that kernels hold as several those of all; None: not counted."""
    if text in counts or not ("-" in text or text.endswith("/0")):
        return counts.get(text)
    from fwtop.model.addresses.list_rows import parse_entries, texts_of

    rows = parse_entries((text,))
    listed = texts_of(rows.single) if says_more(rows) else []
    found = [counts[name] for name in listed if name in counts]
    return sum(found) if found else None
