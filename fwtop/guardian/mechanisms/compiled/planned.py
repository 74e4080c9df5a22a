"""Compiled rules before they are installed: what that would do, and which are compiled as one set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from fwtop.model.addresses.prefix_list import ATTACH_ABOVE
from fwtop.model.rule import Rule
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import of
from fwtop.xdp.maps import MAX_RULES
from fwtop.xdp.slot_rule import BUCKETS, COMPILED_PREFIXES

_MOST = 16  # rules of a set


class Planned:
    """The rules that were planned last, in their order."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def add(self, rule: Rule, *, follows: bool) -> None:
        """Add a rule to the set, or begin a new one."""
        self._rules = [*(self._rules if follows else ()), rule][-_MOST:]

    def forget_long(self) -> None:
        """Let go of the set if a rule in it has a long list, up to 119 MiB, which may never be installed."""
        if any(len(rule.match.sources) > ATTACH_ABOVE for rule in self._rules):
            self._rules = []

    @property
    def first(self) -> Rule:
        """The first rule of the set."""
        return self._rules[0]

    def others(self, rule: Rule, used: Iterable[int]) -> dict[int, Rule]:
        """Return the rules of a rule's set that can be compiled with it, in free slots.

        Those with maps of their own can't: the maps bear the number that a rule gets when it is installed.
        """
        if not any(same_code(rule, planned) for planned in self._rules):
            return {}
        found = [planned for planned in self._rules if _is_short(planned) and not same_code(rule, planned)]
        taken = set(used)
        free = [slot for slot in range(MAX_RULES) if slot not in taken]
        return dict(zip(free, found, strict=False))


def plan_lines(
    rule: Rule, alike: int, pins: Path, interfaces: Iterable[str], attached: Iterable[str]
) -> list[str]:
    """Return what installing a rule would do, a line each.

    `alike` counts the rules of its kind in the program, itself included. `attached` are the interfaces where
    that runs already; where it doesn't, it is attached to `interfaces`, else to those with a default route.
    """
    lines = [] if pins.parent.parent.is_dir() and _is_bpffs() else ["mount -t bpf bpf /sys/fs/bpf"]
    program = "fwtop_tc" if of(rule.kind).layer is Layer.TC else "fwtop_xdp"
    rules = f"{alike} rule{'s' if alike > 1 else ''}"
    lines.append(f"bcc: compile {rules} and the allow-list into program {program}")
    if len(rule.match.sources) > COMPILED_PREFIXES or rule.list_name is not None:
        lines.append(f"bpf map: {len(rule.match.sources):,} prefixes, pinned as {pins}/list-N-*")
    if rule.limit is not None:
        lines.append(f"bpf map: {BUCKETS:,} source prefixes at most, pinned as {pins}/limit-N")
    if there := ", ".join(attached):
        lines.append(f"bpf link update: swap program {program} on {there}")
    else:
        where = ", ".join(sorted(interfaces)) or "the interfaces with a default route"
        at_tc = f"tcx ingress on {where}, before Linux 6.6 a clsact filter"
        at_xdp = f"XDP on {where}, in the driver or else generic"
        lines.append(f"bpf link create: {at_tc if of(rule.kind).layer is Layer.TC else at_xdp}")
        lines.append(f"bpf link pin {pins}/link-*")
    lines.append(f"bpf map update {pins}/slots: rule N ends in {rule.ttl_seconds} s by the kernel's clock")
    return lines


def _is_bpffs() -> bool:
    with contextlib.suppress(OSError):
        return " /sys/fs/bpf " in Path("/proc/1/mountinfo").read_text()
    return False


def same_code(one: Rule, other: Rule) -> bool:
    """Return whether two rules compile to the same code."""
    wanted = (other.kind, other.list_name, other.match, other.limit)
    return (one.kind, one.list_name, one.match, one.limit) == wanted


def _is_short(rule: Rule) -> bool:
    return (
        of(rule.kind).layer is Layer.DRIVER
        and rule.limit is None
        and rule.list_name is None
        and not rule.match.sources
    )
