"""Requests about named lists: changes, what they hold, and their entries as memory files."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fwtop.guardian.ownership import single_threaded
from fwtop.guardian.rules.state import GuardianState
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import sealed
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import LIST_ACTIONS, MAX_PAGE, ListChange, ListRead, ListShow, ListTest
from fwtop.model.wire import plain

if TYPE_CHECKING:  # numpy, which a guardian without lists needn't carry
    from fwtop.guardian.rules.named_lists import Done


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
            case ListRead(count=None):
                return {"descriptors": self._files(request.name)}
            case ListRead():
                return self._page(request)

    def _change(self, request: ListChange, entries: Sequence[Prefix]) -> Done:
        lists, name, ttl = self._state.lists, request.name, request.ttl_seconds
        match request.action:
            case "create":
                return lists.create(name, entries, ttl)
            case "add":
                return lists.add(name, entries, ttl, force=request.force)
            case "remove":
                return lists.remove(name, entries)
            case "replace":
                return lists.replace(name, entries, ttl, force=request.force)
            case "delete":
                return lists.delete(name)
        raise FwtopError(f"a list takes {', '.join(LIST_ACTIONS)}; nothing was changed", 2)

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
        counts: dict[str, int] = {}
        seen = set()
        for entry in self._state.lists.users(name):
            mechanism = entry.rule.kind
            if mechanism not in seen:  # the rules of one share their counters
                seen.add(mechanism)
                for prefix, packets in self._state.counters.busiest(entry.rule).items():
                    counts[prefix] = counts.get(prefix, 0) + packets
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
        first = max(0, request.first)
        last = first + min(MAX_PAGE, max(0, request.count or 0))
        found = named.texts(slice(first, last))
        ends = named.ends[first:last].tolist() if named.ends is not None else [0.0] * len(found)
        left = [max(0.0, end - now) if end else None for end in ends]
        told = [list(item) for item in zip(found, left, strict=True)]
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
