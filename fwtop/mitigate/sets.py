"""ipset: sets of our own, filled in one go, swapped when rebuilt.

hash:net refuses /0 (linux/net/netfilter/ipset/ip_set_hash_net.c); `ipset restore` stops at the first
bad line, so everything is checked before it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fwtop.mitigate.artifacts import SetSpec
from fwtop.mitigate.run import CommandError, feed, run
from fwtop.model.address import Prefix
from fwtop.model.bulk import prefix_text
from fwtop.model.xtables import create_line

PREFIX = "fwtop-"
MAX_TIMEOUT_SECONDS = 2147483  # ipset(8): the kernel's milliseconds are 32 bits wide
_ASIDE = "-new"
_RENEWED_IN_PLACE = 1_000
_CHUNK_ELEMENTS = 20_000
_RESTORE_TIMEOUT_SECONDS = 120.0
_ENTRY = re.compile(r"^(\S+) .*?packets (\d+) bytes (\d+)")


def fill_text(spec: SetSpec, timeout_seconds: int) -> str:
    """Return what `ipset -exist restore` reads to make and fill a rule's set."""
    return "".join(fill_chunks(spec, timeout_seconds))


def fill_chunks(spec: SetSpec, timeout_seconds: int) -> Iterator[str]:
    """Return the same in pieces, so that ipset works on one while the next is written.

    Elements of a long list get the set's own timeout, which is the same and needn't be read each time.
    """
    count = len(spec.elements) + len(spec.exceptions)
    clock = f" timeout {timeout_seconds}" if count <= _RENEWED_IN_PLACE else ""
    yield create_line(spec.name, spec.family, count, timeout_seconds) + "\n"
    for start in range(0, len(spec.elements), _CHUNK_ELEMENTS):
        part = spec.elements[start : start + _CHUNK_ELEMENTS]
        yield "".join([f"add {spec.name} {prefix_text(prefix)}{clock}\n" for prefix in part])
    yield "".join([f"add {spec.name} {prefix}{clock} nomatch\n" for prefix in spec.exceptions])


def shown_text(spec: SetSpec, timeout_seconds: int, count: int) -> list[str]:
    """Return the first lines of `fill_text`, `count` elements of them, and how many more there are."""
    head = create_line(spec.name, spec.family, len(spec.elements) + len(spec.exceptions), timeout_seconds)
    cut = SetSpec(spec.name, spec.family, spec.elements[:count], spec.exceptions[:count])
    lines = [head, *fill_text(cut, timeout_seconds).splitlines()[1:]]
    more = len(spec.elements) + len(spec.exceptions) - (len(lines) - 1)
    shown = [f"ipset {line}" for line in lines]
    return [*shown, f"# … and {more:,} more elements, by ipset restore"] if more else shown


def renew(spec: SetSpec, timeout_seconds: int) -> None:
    """Give every element of a set a new timeout, those that expired too.

    A short list is added again. A long one is built aside and swapped: the kernel needs ten times as long
    to renew a million elements as to add them (54 s against 5 s, Linux 6.18). Elements' counters begin
    anew either way, the rule's own do not.
    """
    if len(spec.elements) <= _RENEWED_IN_PLACE:
        restore(fill_text(spec, timeout_seconds).partition("\n")[2])  # a set's own default can't be changed
        return
    aside = SetSpec(f"{spec.name}{_ASIDE}", spec.family, spec.elements, spec.exceptions)
    destroy(aside.name)
    restore(fill_text(aside, timeout_seconds) + f"swap {aside.name} {spec.name}\ndestroy {aside.name}\n")


def restore(text: str | Iterable[str]) -> None:
    """Hand lines to `ipset restore`; existing sets and elements are taken over."""
    chunks = [text] if isinstance(text, str) else text
    feed(["ipset", "-exist", "restore"], chunks, timeout=_RESTORE_TIMEOUT_SECONDS)


def names() -> set[str]:
    """Return the names of all sets of ours in this namespace."""
    return {name for name in run(["ipset", "list", "-n"]).split() if name.startswith(PREFIX)}


def destroy(name: str) -> None:
    """Destroy a set if it is there; raises CommandError while something refers to it."""
    if name in names():
        run(["ipset", "destroy", name])


def replace(name: str, family: int, elements: Iterable[Prefix]) -> None:
    """Give a set without timeouts a new content in one step: build aside, swap, destroy the old one."""
    wanted = list(elements)
    aside = f"{name}{_ASIDE}"
    have = names()
    lines = [f"flush {aside}", f"destroy {aside}"] if aside in have else []
    if name not in have:
        lines.append(create_line(name, family, len(wanted), None))
    lines.append(create_line(aside, family, len(wanted), None))
    lines += [f"add {aside} {prefix}" for prefix in wanted]
    lines += [f"swap {aside} {name}", f"destroy {aside}"]
    restore("\n".join(lines) + "\n")


def element_count(name: str) -> int | None:
    """Return how many elements a set holds, None if there is no such set.

    The kernel counts expired elements too until its next sweep.
    """
    try:
        listing = run(["ipset", "list", "-t", name])
    except CommandError:
        return None
    found = re.search(r"^Number of entries: (\d+)", listing, re.MULTILINE)
    return int(found.group(1)) if found else None


def entry_counters(name: str, *, top: int) -> dict[str, int]:
    """Return the `top` elements that matched most: prefix → packets."""
    counted: list[tuple[int, str]] = []
    for line in run(["ipset", "list", name]).splitlines():
        found = _ENTRY.match(line)
        if found:
            counted.append((int(found.group(2)), found.group(1)))
    return {prefix: packets for packets, prefix in sorted(counted, reverse=True)[:top]}
