"""What the kernel said of fwtop's own lines and sets when fwtop had just written them.

A line that somebody edits still has its place, its set and its target, so what it says is compared as well.
The kernel doesn't list a rule as it was given (iptables rounds rates, nft names sets), so what is expected is
read back at once. It outlives the guardian: the next one sees what was changed in between.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Callable, Iterable, Sequence

Contents = tuple[str, ...]


def digest(*parts: bytes) -> str:
    """Return a short text that differs where the parts do."""
    found = 0
    for part in parts:
        found = crc32(len(part).to_bytes(4, "little") + part, found)
    return f"{found:08x}"


def head_key(place: str, chain: str, head: Sequence[str]) -> str:
    """Return what the first lines of a chain are kept under: other lines are kept apart."""
    return f"{place}/{chain}/{digest(*(line.encode() for line in head))}"


class Baseline:
    """Digests by key; keys begin with the place: a variant of iptables and a family, or a table."""

    def __init__(self, known: dict[str, list[str]], keep: Callable[[dict[str, list[str]]], None]) -> None:
        """Take what an earlier guardian kept, and what keeps it for the next one."""
        self._known: dict[str, Contents] = {key: tuple(found) for key, found in known.items()}
        self._keep = keep

    def note(self, key: str, found: Iterable[str], *, anew: bool = False) -> None:
        """Take what is there as it should be; where something is known, only if it was written `anew`."""
        if anew or key not in self._known:
            contents = tuple(found)
            if self._known.get(key) != contents:
                self._known[key] = contents
                self._save()

    def differs(self, key: str, found: Iterable[str]) -> bool:
        """Return whether something else was there."""
        wanted = self._known.get(key)
        return wanted is not None and wanted != tuple(found)

    def forget(self, is_over: Callable[[str], bool]) -> None:
        """Forget what is gone by fwtop's own doing."""
        over = [key for key in self._known if is_over(key)]
        for key in over:
            del self._known[key]
        if over:
            self._save()

    def _save(self) -> None:
        self._keep({key: list(found) for key, found in self._known.items()})
