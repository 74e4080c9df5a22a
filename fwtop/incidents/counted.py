"""Whom rules that only count would have hit: sources, services and long-known clients, poll by poll.

The kernel says how many packets such a rule matched, of one on sources also from whom. Of all others the
samples of what arrives tell, for as long as a watch lasts: hours, or days. What a rule would pass, because
the allow-list spares it or a limit is not reached, is not its doing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.clients import client_key
from fwtop.analysis.memory import Baseline
from fwtop.analysis.proposals.limits import sustained
from fwtop.analysis.proposals.matching import allowed_rows, always_pass, match_rows
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import Rows, mix
from fwtop.model.addresses.address import format_address
from fwtop.model.addresses.roles import AllowedPeer
from fwtop.model.errors import FwtopError
from fwtop.model.rule import ACTIVE_STATES, Counted, Mode, Rule, RuleStatus
from fwtop.model.traffic.packets import F64, Hook, PacketBatch
from fwtop.model.traffic.protocols import TCP, UDP, protocol_name
from fwtop.rules.kinds import as_kept
from fwtop.stats.services import plain_numbers

_RULES = 16  # are followed, the newest
_LONG_LIST = 10_000  # sources: searching longer lists takes too long
_AGAIN_SECONDS, _RETRY_SECONDS = (
    60.0,
    5.0,
)  # until a list is read anew, which may have changed; or was not read
_ROOM = 4_096  # sources, and clients, that are remembered of each rule
_NEW = 256  # sources of one poll, the busiest
_NAMED = 5
_LEAST = 0.01  # of the packets: a source or service of which less came is not named

Read = Callable[[str], Rule]  # a rule with all of its sources, by id; raises FwtopError


class _Seen(Struct):
    """What a rule has matched so far."""

    since: float
    stamp: int
    rule: Rule | None = None  # with all of its sources, if they are known
    due: float = 0.0  # Unix seconds, when they are read again
    packets: float = 0.0
    sources: dict[str, float] = field(default_factory=dict)
    services: dict[str, float] = field(default_factory=dict)
    clients: dict[str, float] = field(default_factory=dict)
    known: int = 0  # clients, lately

    def told(self) -> Counted:
        named = sorted(self.clients.items(), key=lambda item: -item[1])[:_NAMED]
        return Counted(
            self.since,
            self._shares(self.sources),
            self._shares(self.services),
            {name: round(packets) for name, packets in named},
            len(self.clients),
            self.known,
        )

    def _shares(self, sums: dict[str, float]) -> dict[str, float]:
        most = sorted(sums.items(), key=lambda item: -item[1])[:_NAMED]
        whole = max(self.packets, 1e-9)
        return {name: round(value / whole, 4) for name, value in most if value >= _LEAST * whole}


class CountWatch:
    """Follows the rules that only count."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._rules: dict[str, _Seen] = {}
        self._reader: threading.Thread | None = None

    def add(
        self,
        batch: PacketBatch,
        seconds: float,
        statuses: Iterable[RuleStatus],
        *,
        learned: Baseline,
        allowed: Iterable[AllowedPeer],
        now: float,
    ) -> None:
        """Take the samples of one poll."""
        found = (one for one in statuses if one.state in ACTIVE_STATES and one.rule.mode is Mode.COUNT)
        counting = sorted(found, key=lambda one: -one.rule.created)[:_RULES]
        before = self._rules
        self._rules = {one.rule.id: self._followed(one, before.get(one.rule.id), now) for one in counting}
        if not counting:
            return
        arrived = batch.select((batch.hook == Hook.INGRESS) | (batch.hook == Hook.XDP))
        arrived = arrived.select(~always_pass(arrived) & ~allowed_rows(allowed, arrived))
        for status in counting:
            seen = self._rules[status.rule.id]
            if seen.rule is not None and status.rule.id in before:  # its first packets may be older than it
                self._note(seen, _part(seen.rule, arrived, seconds), arrived, learned)

    def with_hits(self, statuses: Iterable[RuleStatus]) -> tuple[RuleStatus, ...]:
        """Return the statuses; those of rules that are followed say whom they would have hit."""
        return tuple(
            replace(one, hits=seen.told())
            if (seen := self._rules.get(one.rule.id)) is not None and seen.rule is not None
            else one
            for one in statuses
        )

    def _followed(self, status: RuleStatus, before: _Seen | None, now: float) -> _Seen:
        seen = before if before is not None and before.stamp == status.stamp else _Seen(now, status.stamp)
        rule = status.rule
        if rule.protection is not None or rule.connections is not None or status.sources_total > _LONG_LIST:
            seen.rule = None  # samples can't be compared with it
        elif not (status.sources_left or rule.list_name):  # entries of a list may say more than sources
            seen.rule = rule
        elif now >= seen.due and not (self._reader is not None and self._reader.is_alive()):
            seen.due = now + _AGAIN_SECONDS
            self._reader = threading.Thread(target=self._complete, args=(seen, rule.id), daemon=True)
            self._reader.start()
        return seen

    def _complete(self, seen: _Seen, rule_id: str) -> None:
        """Read all sources, in a thread: the guardian may be busy for seconds."""
        try:
            rule = self._read(rule_id)
            seen.rule = rule if rule.match.sources else None  # without any, all would match
        except FwtopError:
            seen.due -= _AGAIN_SECONDS - _RETRY_SECONDS

    @staticmethod
    def _note(seen: _Seen, part: F64, packets: PacketBatch, learned: Baseline) -> None:
        rows = np.flatnonzero(part)
        weight = packets.weight[rows] * part[rows]
        seen.packets += float(weight.sum())
        _add(seen.services, rows, weight, plain_numbers(packets.protocol[rows], packets.dport[rows]),
             lambda row: _service(packets, row))  # fmt: skip
        source = mix(packets.src_hi[rows], packets.src_lo[rows])
        _add(seen.sources, rows, weight, source, lambda row: _source(packets, row))
        keys = client_key(source, learned.doors.numbers(packets, rows))
        clients = learned.clients.key[learned.clients.long_known]
        known, seen.known = among(keys, clients), len(clients)
        _add(seen.clients, rows[known], weight[known], keys[known],
             lambda row: f"{_source(packets, row)} at {_service(packets, row)}")  # fmt: skip


def _part(rule: Rule, packets: PacketBatch, seconds: float) -> F64:
    """Return the share of each packet that the rule would drop, or one of its parts."""
    found = np.zeros(len(packets))
    for one in rule.parts or (rule,):
        part, limit = match_rows(one.match, packets).astype(np.float64), as_kept(one)
        if limit is not None:
            rows = np.flatnonzero(part)
            part[rows] = sustained(limit, packets, rows, packets.weight[rows], seconds)
        found = np.maximum(found, part)
    return found


def _add(
    sums: dict[str, float], rows: Rows, weight: F64, keys: np.ndarray, name: Callable[[int], str]
) -> None:
    """Add the weights by name, of the busiest keys; those with little make room once there is none."""
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    each = np.bincount(place, weight, len(first))
    for at in np.argsort(-each)[:_NEW].tolist():
        of = name(int(rows[first[at]]))
        sums[of] = sums.get(of, 0.0) + float(each[at])
    if len(sums) > _ROOM:
        for of, _ in sorted(sums.items(), key=lambda item: item[1])[: len(sums) - _ROOM // 2]:
            del sums[of]


def _source(packets: PacketBatch, row: int) -> str:
    return format_address(int(packets.family[row]), int(packets.src_hi[row]), int(packets.src_lo[row]))


def _service(packets: PacketBatch, row: int) -> str:
    protocol, port = int(packets.protocol[row]), int(packets.dport[row])
    return f"{port}/{protocol_name(protocol)}" if protocol in (TCP, UDP) else protocol_name(protocol)
