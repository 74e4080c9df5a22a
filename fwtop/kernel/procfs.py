"""Counters in /proc of this process's network namespace, readable without privilege.

Sources: proc(5), net/netfilter/nf_conntrack_standalone.c, net/ipv4/proc.c.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from msgspec import Struct

_LOOK_SECONDS = 10.0  # between two looks for threads: to list the kernel's takes half a millisecond


class ConntrackStats(Struct, frozen=True):
    """Totals over all CPUs of /proc/net/stat/nf_conntrack."""

    insert_failed: int = 0  # entries that clashed with another one, or found their bucket full
    drop: int = 0  # packets that found the table full
    early_drop: int = 0


def read_text(path: str) -> str:
    """Return a file's text, "" if it can't be read: the kernel may lack the feature."""
    try:
        with open(path, "rb", buffering=0) as file:  # a third of the time of a text file
            return file.readall().decode(errors="replace")
    except OSError:
        return ""


def routed_families() -> tuple[int, ...]:
    """Return the IP versions whose packets this namespace forwards by its routes."""
    switches = {4: "/proc/sys/net/ipv4/ip_forward", 6: "/proc/sys/net/ipv6/conf/all/forwarding"}
    return tuple(family for family, path in switches.items() if read_text(path).strip() == "1")


def parse_conntrack_stats(text: str) -> ConntrackStats:
    """Sum the per-CPU rows of hexadecimal numbers below a line of column names.

    The kernel counts an entry that clashes with another one as `insert_failed` and as `drop`, one that finds
    its bucket full as `insert_failed` alone, and a packet that finds the table full as `drop` alone
    (nf_conntrack_core.c: nf_ct_resolve_clash, __nf_conntrack_confirm, nf_conntrack_in).
    """
    lines = text.splitlines()
    if len(lines) < 2:
        return ConntrackStats()
    names = lines[0].split()
    rows = [[int(word, 16) for word in line.split()] for line in lines[1:]]
    totals = dict(zip(names, (sum(column) for column in zip(*rows, strict=True)), strict=False))
    failed, bucket_full = totals.get("insert_failed", 0), totals.get("chainlength", 0)
    return ConntrackStats(
        insert_failed=failed,
        drop=max(0, totals.get("drop", 0) - max(0, failed - bucket_full)),
        early_drop=totals.get("early_drop", 0),
    )


def parse_paired(text: str) -> dict[str, dict[str, int]]:
    """Parse /proc/net/snmp: pairs of lines, `Ip: NAME …` and `Ip: NUMBER …`."""
    tables: dict[str, dict[str, int]] = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        group, *keys = names.split()
        numbers = values.split()[1:]
        tables[group.rstrip(":")] = {key: int(number) for key, number in zip(keys, numbers, strict=False)}
    return tables


def parse_single(text: str) -> dict[str, int]:
    """Parse /proc/net/snmp6: a name and a number per line."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


class Ticks(NamedTuple):
    """Where a processor's time went, in jiffies; waiting for disks is idle."""

    idle: int = 0
    softirq: int = 0
    total: int = 0


def parse_ticks(text: str) -> dict[int | None, Ticks]:
    """Parse /proc/stat: the time of each processor by its number, and of all together (None)."""
    found: dict[int | None, Ticks] = {}
    for name, *words in map(str.split, text.splitlines()):
        if name[:3] == "cpu" and (name == "cpu" or name[3:].isdigit()) and len(words) >= 8:
            ticks = [int(word) for word in words[:8]]  # user nice system idle iowait irq softirq steal
            found[int(name[3:]) if name[3:] else None] = Ticks(ticks[3] + ticks[4], ticks[6], sum(ticks))
    return found


class NapiThreads:
    """The kernel's threads that receive packets where an interface leaves that to them, not to softirqs."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}  # the kernel's threads, by their ids; whether one is such a thread
        self._looked = -math.inf

    def ticks(self) -> int:
        """Return the jiffies that they have run; threads are looked for now and then."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            known, threads = self._known, read_text("/proc/2/task/2/children").split()
            self._known = {one: known[one] if one in known else _is_napi(one) for one in threads}
        run = 0
        for thread in (one for one, is_napi in self._known.items() if is_napi):
            words = read_text(f"/proc/{thread}/stat").rpartition(")")[2].split()
            run += sum(map(int, words[11:13]))  # utime and stime (proc_pid_stat(5))
        return run


def _is_napi(thread: str) -> bool:
    return read_text(f"/proc/{thread}/comm").startswith("napi/")


def parse_devices(text: str) -> dict[str, list[int]]:
    """Parse /proc/net/dev: the numbers of each interface, of which bytes and packets received are first."""
    lines = (line.partition(":") for line in text.splitlines()[2:])
    return {name.strip(): [int(word) for word in numbers.split()] for name, _, numbers in lines}


def read_int(path: str) -> int:
    """Return the number in a file, 0 if there is none."""
    text = read_text(path).strip()
    return int(text) if text.isdigit() else 0
