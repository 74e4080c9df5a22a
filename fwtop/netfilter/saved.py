"""iptables-save: the rules of either variant with their counters."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from msgspec import Struct

from fwtop.kernel.procfs import read_text
from fwtop.kernel.programs import ENVIRONMENT
from fwtop.model.ruleset import IPTABLES_LEGACY, ListedRule
from fwtop.model.text import safe_text
from fwtop.netfilter.names import is_own_rule
from fwtop.netfilter.output import output_of

TEXT = 400  # characters of a rule
NAME = 64
_COUNTED = re.compile(r"^\[(\d+):(\d+)\] -A (\S+) ?(.*)$")
_POLICY = re.compile(r"^:(\S+) (\S+) \[(\d+):(\d+)\]$")
_TABLES = {"ip": "/proc/net/ip_tables_names", "ip6": "/proc/net/ip6_tables_names"}
_PROGRAMS = {"ip": "iptables", "ip6": "ip6tables"}


class SavedLine(Struct, frozen=True):
    """A rule, or a chain's policy; not sanitised yet."""

    table: str
    chain: str
    text: str
    packets: int
    bytes: int
    policy: bool = False


def saved_lines(saved: str) -> Iterator[SavedLine]:
    """Yield the rules and policies that `iptables-save -c` printed, in order."""
    table = ""
    for line in saved.split("\n"):  # not splitlines: a comment may hold other line separators
        if line.startswith("["):
            counted = _COUNTED.match(line)
            if counted:
                packets, size, chain, text = counted.groups()
                yield SavedLine(table, chain, text, int(packets), int(size))
        elif line.startswith("*"):
            table = line[1:]
        elif line.startswith(":"):
            policy = _POLICY.match(line)
            if policy and policy[2] != "-":
                text = f"policy {policy[2]}"
                yield SavedLine(table, policy[1], text, int(policy[3]), int(policy[4]), policy=True)


def save_program(family: str, variant: str) -> str:
    """Return the program that prints a variant's rules ("legacy", "nft"), "" if there is none here."""
    named = f"{_PROGRAMS[family]}-{variant}-save"
    if _has(named):
        return named
    other = f"{_PROGRAMS[family]}-{'nft' if variant == 'legacy' else 'legacy'}-save"
    only = f"{_PROGRAMS[family]}-save"  # of a distribution that ships one variant
    is_it = ("nft" in os.path.basename(os.path.realpath(_path(only)))) == (variant == "nft")
    return only if _has(only) and is_it and not _has(other) else ""


def legacy_rules(end: float, most: int) -> tuple[list[ListedRule], list[str], int]:
    """Return the rules of iptables-legacy, what is missing in words, and how many there are.

    Nothing is run where no table is loaded, and no table is loaded by reading.
    """
    found: list[ListedRule] = []
    notes: list[str] = []
    total = 0
    for family, names in _TABLES.items():
        if not read_text(names).split():
            continue
        program = save_program(family, "legacy")
        if not program:
            notes.append(f"{_PROGRAMS[family]}-legacy holds rules, and its program is not installed")
            continue
        output = output_of([program, "-c"], end)
        notes += [output.problem] if output.problem else []
        times: dict[tuple[str, str, str], int] = {}
        for line in saved_lines(output.text):
            total += 1
            if len(found) < most:
                place = line.table, line.chain, line.text
                times[place] = times.get(place, 0) + 1
                found.append(_listed(line, family, times[place]))
    return found, notes, total


def _listed(line: SavedLine, family: str, time: int) -> ListedRule:
    # The same text stands for the same rule, wherever in its chain it has moved to
    kind = "policy" if line.policy else line.text
    return ListedRule(
        f"{IPTABLES_LEGACY} {family} {line.table} {line.chain} {time} {safe_text(kind, limit=TEXT)}",
        IPTABLES_LEGACY,
        family,
        safe_text(f"{line.table} {line.chain}", limit=NAME),
        safe_text(line.text, limit=TEXT),
        is_own_rule(line.table, line.chain, line.text),
        line.packets,
        line.bytes,
    )


def _path(program: str) -> str:
    folders = ENVIRONMENT["PATH"].split(":")
    paths = (f"{folder}/{program}" for folder in folders)
    return next((path for path in paths if os.access(path, os.X_OK)), program)


def _has(program: str) -> bool:
    return os.access(_path(program), os.X_OK)
