"""What the guardian reports and never changes: plans, status, explanations, the host's own addresses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from fwtop.guardian.limits import Limits
from fwtop.guardian.mechanisms.mechanism import Wanted
from fwtop.guardian.ownership import single_threaded
from fwtop.guardian.records.journal import Entry, own_sources
from fwtop.guardian.rules import connections
from fwtop.guardian.rules.guard import check_share
from fwtop.guardian.rules.state import GuardianState
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import ATTACH_ABOVE, sealed
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.wire import plain
from fwtop.rehearsal.operators import around_sessions
from fwtop.rehearsal.rehearse import clients_words
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import of

_MAX_PEERS = 256  # for the screen's marks


@single_threaded
class Reports:
    """Answers to the requests that only read. Owned by the worker's thread."""

    def __init__(
        self,
        state: GuardianState,
        *,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """`wait` may serve urgent requests meanwhile."""
        self.state = state
        self._wait = wait
        self._allow: tuple[tuple[AllowedPeer, ...], bytes] = (), b"[]"  # entries, and how they are encoded

    def limits(self) -> tuple[Limits, tuple[str, ...]]:
        """Read the operator's file: its settings, and what is wrong with it."""
        return self.state.limits()

    def plan(
        self,
        data: dict[str, Any],
        sources: Sequence[Prefix] = (),
        *,
        owner: object | None = None,
        follows: bool = False,
        was: str = "",
    ) -> dict[str, Any]:
        """Return the commands, warnings and the guard's verdict for a rule, without installing anything.

        `owner` is the console that asks, None for the command line; `follows` as in the request; `was` is the
        number of the active rule that would become this one.
        """
        state = self.state
        rule = replace(state.rule_of(data, sources), id="0")
        others = [other for other in state.other_rules(rule) if other.id != was]
        allow = state.fresh_allow()
        rule, spared = around_sessions(rule, allow)
        verdict = state.judge(rule, others, console=owner is not None)
        commands: list[str] = []
        notes: list[str] = []
        refused = state.journal.trouble() or verdict.refused
        code = 1 if refused else 0
        if refused is None:
            try:
                check_share(rule, others, state.limits()[0])
                objects = state.objects_of(rule)
                notes += objects.notes
                commands = state.kernel.plan(Wanted(rule, objects, allow, rule.ttl_seconds), follows=follows)
                if rule.replaces:
                    notes.append(f"rule {rule.replaces} ends once this one is confirmed")
                if rule.close_open:
                    notes.append(self._closes(rule))
            except FwtopError as error:
                refused, code = str(error), error.code
        return {
            "commands": [re.sub(r"\b(fwtop-|r)0\b", r"\1N", line) for line in commands],
            "warnings": state.told_of(rule, [*spared, *verdict.warnings], notes),
            "refused": refused,
            "code": code,
            "needs_force": verdict.broad or "",
            "losses": plain(verdict.losses),
            "clients": clients_words(rule, state.host),
        }

    def _closes(self, rule: Rule) -> str:
        try:
            found = connections.to_close(rule, self.state.allow)
        except OSError as error:
            return f"open connections go on: {safe_text(error.strerror or error)}"
        if not found:
            return "no connection is open that it would close"
        return f"it also closes {connections.describe(found)}; undo does not bring them back"

    def status(self, *, finished: bool, allow: bool = True) -> dict[str, bytes]:
        """Return the active rules with counters, each part of the answer as JSON, which clients share.

        On request also `finished`, all rules with the finished ones at the end (latest first), and the
        allow-list.
        """
        state = self.state
        if state.active:
            state.counters.read()
        elif allow:
            state.fresh_allow()
        rules = [state.status_of(entry, entries=True) for entry in list(state.active.values())]
        data = {
            "rules": _encoded(rules),
            "warnings": _encoded([*state.warnings(), *state.allow.warnings]),
            "peers": _encoded(self._peers()),
            "logins": _encoded(self._logins()),
            "login_ports": _encoded(sorted(state.allow.login_ports)),
        }
        if finished:
            over = [state.counters.status_of(entry) for entry in state.journal.finished_entries()]
            data["finished"] = _encoded([*rules, *over])
        if allow:
            data["allow"] = self._encoded_allow()
        return data

    def _encoded_allow(self) -> bytes:
        """Encode the allow-list once for each change of it, an entry at a time."""
        allow = self.state.allow
        entries = allow.entries + allow.behind
        if entries != self._allow[0]:
            self._allow = entries, b"[" + b", ".join(_encoded(entry.to_dict()) for entry in entries) + b"]"
        return self._allow[1]

    def _peers(self) -> list[list[str | int]]:
        """Return prefix, role and port of allow-listed peers, those found by fwtop first; a bounded number.

        Only SSH sessions have a port, the peer's; it is 0 for all others. Conversations of hosts behind come
        last, with the host, the protocol and its port.
        """
        allow = self.state.allow
        entries = sorted(allow.entries, key=lambda entry: entry.role is Role.OPERATOR)
        found: list[list[str | int]] = [
            [str(entry.prefix), entry.role.value, entry.port] for entry in entries[:_MAX_PEERS]
        ]
        return found + [
            [str(of.peer), item.role.value, of.port, str(of.host), of.protocol]
            for item in allow.behind[:_MAX_PEERS]
            if (of := item.conversation)
        ]

    def _logins(self) -> list[list[str | int]]:
        """Return prefix and port here of those who are logged in: all that they send there passes."""
        passes = [self.state.allow.passes(family) for family in (4, 6)]
        found: list[list[str | int]] = [[str(who), port] for item in passes for who, port in item.logins]
        return found[:_MAX_PEERS]

    def rule(self, rule_id: str) -> dict[str, Any]:
        """Return a rule with all of its sources; raises FwtopError where they are not kept.

        The descriptor of a long list is the caller's, as data["descriptors"]; a named list stays where it is.
        """
        entry = self._entry(rule_id)
        if entry.sources_cut:
            line = f"rule {entry.rule.id} has ended, and {entry.sources_cut:,} of its sources are not kept"
            raise FwtopError(f"{line}; block the list again: sudo fwtop block @FILE")
        sources = own_sources(entry.rule)
        if len(sources) <= ATTACH_ABOVE:
            rule = replace(entry.rule, match=replace(entry.rule.match, sources=sources))
            return {"rule": rule.to_dict(), "stamp": entry.stamp}
        rule = replace(entry.rule, match=replace(entry.rule.match, sources=()))
        return {"rule": rule.to_dict(), "stamp": entry.stamp, "descriptors": [sealed(sources)]}

    def _entry(self, rule_id: str) -> Entry:
        entry = self.state.active.get(rule_id) or self.state.journal.find(rule_id)
        if entry is None:
            shown = safe_text(rule_id, limit=20)
            line = f"there is no rule {shown!r}: see 'fwtop status --all'"
            raise FwtopError(line, reason="not_found", field="id")
        return entry

    def why(self, rule_id: str) -> list[str]:
        """Explain in sentences what a rule matches or what keeps it from matching; takes about a second."""
        from fwtop.guardian.diagnose.explain import explain, over_text  # for nothing else

        state = self.state
        entry = state.active.get(rule_id)
        if entry is None:
            return [over_text(self._entry(rule_id))]
        if of(entry.rule.kind).layer is Layer.NOWHERE and not entry.rule.parts:
            return state.kernel.settings.sentences(rule_id)
        return explain(state, entry, self._wait)

    def allow_changed(self) -> None:
        """Read the allow-list again shortly: a route or an own address changed."""
        self.state.allow_changed()

    def host_addresses(self) -> dict[str, Any]:
        """Return the host's own addresses, for a console that starts to watch."""
        allow = self.state.fresh_allow()
        own = [str(entry.prefix) for entry in allow.entries if entry.role is Role.OWN]
        return {"own_addresses": own}


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode()
