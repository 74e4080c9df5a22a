"""ipset: sets of our own, filled in one go, swapped when rebuilt.

hash:net refuses /0 (linux/net/netfilter/ipset/ip_set_hash_net.c); `ipset restore` stops at the first
bad line, so everything is checked before it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fwtop.mitigate.artifacts import SetSpec
from fwtop.mitigate.run import CommandError, run
from fwtop.model.address import Prefix
from fwtop.model.xtables import create_line

PREFIX = "fwtop-"
MAX_TIMEOUT_SECONDS = 2147483  # ipset(8): the kernel's milliseconds are 32 bits wide
_ASIDE = "-new"
_RESTORE_TIMEOUT_SECONDS = 120.0
_ENTRY = re.compile(r"^(\S+) .*?packets (\d+) bytes (\d+)")


def fill(spec: SetSpec, timeout_seconds: int) -> None:
    """Make a rule's set and fill it; what is there already is taken over. Raises FwtopError."""
    if spec.timed:
        restore(fill_text(spec, timeout_seconds))
        return
    restore(_head(spec, timeout_seconds) + "\n")
    # Imported here: a guardian without a long list needn't carry numpy.
    from fwtop.mitigate.ipset_wire import add_all
    from fwtop.model.bulk_rows import PrefixRows

    add_all(spec.name, spec.family, PrefixRows.of(spec.elements))
    restore("".join([f"add {spec.name} {prefix} nomatch\n" for prefix in spec.exceptions]))


def fill_text(spec: SetSpec, timeout_seconds: int) -> str:
    """Return what `ipset -exist restore` reads to make and fill a rule's set."""
    clock = f" timeout {timeout_seconds}" if spec.timed else ""
    lines = [_head(spec, timeout_seconds)]
    lines += [f"add {spec.name} {prefix}{clock}" for prefix in spec.elements]
    lines += [f"add {spec.name} {prefix}{clock} nomatch" for prefix in spec.exceptions]
    return "\n".join([*lines, ""])


def _head(spec: SetSpec, timeout_seconds: int) -> str:
    count = len(spec.elements) + len(spec.exceptions)
    return create_line(spec.name, spec.family, count, timeout_seconds if spec.timed else None)


def shown_text(spec: SetSpec, timeout_seconds: int, count: int) -> list[str]:
    """Return the first lines of `fill_text`, `count` elements of them, and how many more there are."""
    cut = SetSpec(spec.name, spec.family, spec.elements[:count], spec.exceptions[:count], spec.timed)
    lines = [_head(spec, timeout_seconds), *fill_text(cut, timeout_seconds).splitlines()[1:]]
    more = len(spec.elements) + len(spec.exceptions) - (len(lines) - 1)
    shown = [f"ipset {line}" for line in lines]
    how = "ipset restore" if spec.timed else "netlink in batches"
    return [*shown, f"# … and {more:,} more elements, by {how}"] if more else shown


def renew(spec: SetSpec, timeout_seconds: int) -> None:
    """Give every element of a set a new timeout; those that expired or were deleted come back."""
    if spec.timed:
        restore(fill_text(spec, timeout_seconds).partition("\n")[2])  # a set's own default can't be changed
    elif element_count(spec.name) != len(spec.elements) + len(spec.exceptions):
        fill(spec, timeout_seconds)


def restore(text: str) -> None:
    """Hand lines to `ipset restore`; existing sets and elements are taken over."""
    if text:
        run(["ipset", "-exist", "restore"], text=text, timeout=_RESTORE_TIMEOUT_SECONDS)


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
