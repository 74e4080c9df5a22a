"""The console's connections to the guardian, usable from any thread; one request at a time on each."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

from msgspec.structs import replace

from fwtop.client.connection import Connection, Late
from fwtop.kernel.descriptors import close_all
from fwtop.model.addresses.prefix_list import detach_sources, read_sources
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer, ProtocolError
from fwtop.model.protocol import (
    Apply,
    Connect,
    ListRead,
    Plan,
    Request,
    RuleChange,
    RuleRead,
)
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text

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
        """Return a rule with all of its sources, also of one on a list; raises FwtopError."""
        rule = self._whole(RuleRead(rule_id), lambda answer: Rule.from_dict(answer.data["rule"]))
        if rule.list_name is None:
            return rule
        return self._whole(ListRead(rule.list_name), lambda _: rule)

    def _whole(self, request: RuleRead | ListRead, read: Callable[[Answer], Rule]) -> Rule:
        """Ask for a rule, or the list that it is on, and add the sources that come beside the answer."""
        with self._lock:
            answer, descriptors = self._exchange(request, None, None)
        try:
            rule = read(answer.agreed())
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
