"""Follow the watched interfaces while they come and go: taken down, renamed, removed and made anew.

An interface that is made anew has another number: the observers are attached to it in the old one's place,
which the console may do itself (see fwtop.collect.shutter). Interfaces that come to stand on a watched one
(a VLAN, a bond) are taken in, so that what they drop is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fwtop.collect.links import Link, LinkStats, list_links, lowest_links, watched_indexes
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text


@dataclass(slots=True)
class _Chosen:
    name: str
    index: int
    ethernet: bool
    present: bool = True


class Interfaces:
    """The chosen interfaces, as they are at each look.

    `chosen` are name, number and whether packets start with an Ethernet header. `move(old, new)` attaches to
    another number and raises OSError; None: only root can. `watch` tells the programs which numbers are ours,
    and returns whether there was room for all.
    """

    def __init__(
        self,
        chosen: list[tuple[str, int, bool]],
        *,
        move: Callable[[int, int], None] | None,
        watch: Callable[[list[int]], bool],
    ) -> None:
        self._chosen = [_Chosen(*item) for item in chosen]
        self._move = move
        self._watch = watch
        self._seen: list[tuple[int, str, bool, int, int]] = []
        self._lowest: frozenset[int] = frozenset()
        self.notes: tuple[str, ...] = ()

    def look(self) -> dict[int, LinkStats]:
        """Return the counters of those that packets pass first, by number; none where netlink fails."""
        try:
            links = list_links()
        except OSError:
            return {}
        seen = [(link.index, link.name, link.up, link.link, link.master) for link in links]
        if seen != self._seen:  # their relations cost more to work out than the rest
            self._seen = seen
            self._follow(links)
        return {link.index: link.stats for link in links if link.index in self._lowest}

    def _follow(self, links: list[Link]) -> None:
        notes = [note for chosen in self._chosen if (note := self._find(chosen, links))]
        by_index = {link.index: link for link in links}
        present = [by_index[chosen.index] for chosen in self._chosen if chosen.present]
        self._lowest = frozenset(link.index for link in lowest_links(links, present))
        if not self._watch(watched_indexes(links, present)):
            notes.append("more interfaces stand on those watched than at the start: start fwtop again")
        self.notes = tuple(notes)

    def _find(self, chosen: _Chosen, links: list[Link]) -> str:
        """Find an interface again and return what is to be said about it, if anything."""
        name = safe_text(chosen.name)
        link = next((link for link in links if link.index == chosen.index), None)
        if link is None or not chosen.present:
            link = next((link for link in links if link.name == chosen.name), None)
            failed = self._replace(chosen, link)
            if failed or link is None:
                back = ": it is watched again when it is back" if self._move else ""
                return failed or f"{name} is gone{back}"
        if link.name != chosen.name:
            return f"{name} is called {safe_text(link.name)} now"
        return "" if link.up else f"{name} is down"

    def _replace(self, chosen: _Chosen, link: Link | None) -> str:
        """Attach to the interface that took the place of one that is gone; return why not."""
        again = f"{safe_text(chosen.name)} was made anew"
        chosen.present = False
        if self._move is None:
            return f"{again}, and this kernel lets only root attach: start fwtop again" if link else ""
        if link is not None and link.ethernet != chosen.ethernet:
            return f"{again} as another kind of interface: start fwtop again to watch it"
        try:
            # Of one that went into another namespace, the program is taken off
            self._move(chosen.index, link.index if link else chosen.index)
        except (OSError, FwtopError) as error:
            return f"{again}, and can't be watched ({safe_text(error)}): start fwtop again"
        if link is not None:
            chosen.index, chosen.present = link.index, True
        return ""
