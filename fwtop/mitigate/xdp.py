"""XDP rules of one namespace: all of them are one compiled program, swapped for another when they change.

A rule is compiled in while inert, and armed by a deadline in a map (the dead man's switch); it ends by the
clock in the program itself, whoever lives. What is pinned in bpffs outlives the guardian; the next one finds
it there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from fwtop.mitigate import links, xdp_child
from fwtop.mitigate.allowlist import AllowList
from fwtop.mitigate.steps import Step, Steps
from fwtop.mitigate.xdp_hits import PrefixHits
from fwtop.mitigate.xdp_places import carries, described, holds
from fwtop.mitigate.xdp_slots import Slots, free_slot
from fwtop.mitigate.xdp_warm import Warmer
from fwtop.model.bulk import pack_prefixes
from fwtop.model.errors import FwtopError
from fwtop.model.paths import PIN_DIRECTORY
from fwtop.model.rule import Kind, Rule, families_of
from fwtop.model.xdp import BUCKETS, COMPILED_PREFIXES

MAX_ALLOWED = 4096
_SHOWN = 50  # prefixes of a rule, those that were hit most
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class FastPath:
    """The compiled rules. `interfaces` are those that consoles watch; none: those with a default route."""

    def __init__(self, steps: Steps, netns: int) -> None:
        self.interfaces: set[str] = set()
        self._steps = steps
        self._netns = netns
        self._slots: Slots | None = None
        self._rules: dict[str, Rule] = {}  # whose compilation is known; all but those not adopted yet
        self._listed: set[str] = set()  # whose long lists the kernel has as this version makes them
        self._allow: list[str] = []
        self._attachments: tuple[dict[str, Any], ...] = ()
        self._places: set[str] = set()  # interfaces that have or had the rules
        self._tried: set[int] = set()  # numbers of such that were made anew
        self._warmer = Warmer()
        self._hits = PrefixHits()

    @property
    def descriptors(self) -> dict[str, int]:
        """The shared maps for an observers' loader, which lets dropped packets be sampled; still ours."""
        return dict(self._slots.maps) if self._slots is not None else {}

    def take_maps(self, loaded: xdp_child.Loaded) -> None:
        """Use the maps that a loader made, unless there are some already."""
        self._hits.take(loaded.hits)
        if self._slots is None and loaded.maps:
            self._slots = Slots(loaded)
            return
        for descriptor in loaded.maps.values():
            os.close(descriptor)

    def find(self) -> None:
        """Look for what a former guardian left; raises FwtopError."""
        if _is_there(self._pins):
            found = xdp_child.ask({"verb": "open"}, {})
            self.take_maps(found)
            self._attachments = found.attachments
            self._places = _asked_for(found.attachments)

    def sweep(self) -> None:
        """Remove what rules left behind in namespaces that are gone; raises FwtopError."""
        if _is_there(self._pins.parent):
            xdp_child.ask({"verb": "sweep"}, {})

    @property
    def _pins(self) -> Path:
        return PIN_DIRECTORY / str(self._netns)

    def plan(self, rule: Rule, allow: AllowList) -> list[str]:
        """Say what `install` would do; nothing is done but to compile for it, as it may come in a moment."""
        self._prepare(rule, allow)
        where = ", ".join(sorted(self.interfaces)) or "the interfaces with a default route"
        lines = [] if self._pins.parent.parent.is_dir() and _is_bpffs() else ["mount -t bpf bpf /sys/fs/bpf"]
        count = 1 + sum(other.kind is rule.kind for other in self._rules.values())
        program = "fwtop_tc" if rule.kind is Kind.TC else "fwtop_xdp"
        rules = f"{count} rule{'s' if count > 1 else ''}"
        lines.append(f"bcc: compile {rules} and the allow-list into program {program}")
        if len(rule.match.sources) > COMPILED_PREFIXES:
            lines.append(f"bpf map: {len(rule.match.sources):,} prefixes, pinned as {self._pins}/list-N-*")
        if rule.limit is not None:
            lines.append(f"bpf map: {BUCKETS:,} source prefixes at most, pinned as {self._pins}/limit-N")
        there = [item["name"] for item in self._attachments if carries(item, rule)]
        if there:
            lines.append(f"bpf link update: swap program {program} on {', '.join(there)}")
        else:
            at_tc = f"tcx ingress on {where}, before Linux 6.6 a clsact filter"
            at_xdp = f"XDP on {where}, in the driver or else generic"
            lines.append(f"bpf link create: {at_tc if rule.kind is Kind.TC else at_xdp}")
            lines.append(f"bpf link pin {self._pins}/link-*")
        lines.append(
            f"bpf map update {self._pins}/slots: rule N ends in {rule.ttl_seconds} s by the kernel's clock"
        )
        return lines

    def install(self, rule: Rule, allow: AllowList, timeout_seconds: int) -> str:
        """Compile a rule in, swap, arm it; returns where it runs. Raises FwtopError, nothing changed."""
        used = self._slots.numbers() if self._slots is not None else {}
        slot = free_slot(used)
        if any(str(number) not in self._rules for number in used.values()):
            raise FwtopError("XDP rules of a former guardian are still being looked at; try again")
        self._rules[rule.id] = rule
        try:
            self._compile(used | {slot: int(rule.id)}, _allow_texts(allow))
        except FwtopError:
            del self._rules[rule.id]
            if self._slots is not None:
                self._slots.free(slot)
            raise
        self._steps.reached(Step.COMPILED)
        if self._slots is not None:
            self._slots.arm(slot, timeout_seconds)
        self._steps.reached(Step.ARMED)
        return described(self._attachments, rule)

    def place(self, rule: Rule, note: str) -> str:
        """Return where a compiled rule runs now, `note` being what was said when it was put in.

        That says more, as long as it holds; of other rules it is all there is to say.
        """
        mine = rule.id in self._rules and not holds(note, self._attachments, rule)
        return described(self._attachments, rule) if mine else note

    def _prepare(self, rule: Rule, allow: AllowList) -> None:
        """Have a child compile what `install` will load, which then finds it in the cache or waits for it."""
        used = self._slots.numbers() if self._slots is not None else {}
        if not all(str(number) in self._rules for number in used.values()):
            return
        with contextlib.suppress(FwtopError, OSError):
            rules = {slot: self._rules[str(number)] for slot, number in used.items()}
            items = [_item(slot, other) for slot, other in {**rules, free_slot(used): rule}.items()]
            order = {"verb": "compile", "rules": items, "allow": _allow_texts(allow)}
            self._warmer.start({**order, "at_tc": rule.kind is Kind.TC})

    def renew(self, rule_id: str, timeout_seconds: int) -> None:
        """Give a rule another time to live: one store into its deadline."""
        slot = self._slots.slot_of(rule_id) if self._slots is not None else None
        if self._slots is None or slot is None:
            raise FwtopError(f"rule {rule_id} is gone from the kernel; nothing was changed")
        self._slots.arm(slot, timeout_seconds)

    def remove(self, rule_ids: set[str]) -> None:
        """Make rules inert at once, then take them out of the program, and all of it with the last one."""
        if self._slots is None:
            return
        used = self._slots.numbers()
        gone = {slot for slot, number in used.items() if str(number) in rule_ids}
        for slot in gone:
            self._slots.disarm(slot)
            self._rules.pop(str(used[slot]), None)
        if gone:
            self._steps.reached(Step.DISARMED)
        left = {slot: number for slot, number in used.items() if slot not in gone}
        if not left and (gone or self._attachments):
            xdp_child.ask({"verb": "clear"}, {})
            self._attachments = ()
            self._places, self._tried = set(), set()
            self._listed.clear()
            self._hits.keep(set())
        elif gone and all(str(number) in self._rules for number in left.values()):
            self._compile(left, self._allow)
        else:
            return  # nothing of ours went, or rules that are not adopted yet: they stay compiled, inert
        for slot in gone:
            self._slots.free(slot)
        self._steps.reached(Step.UNLOADED)

    def present(self, rule: Rule) -> bool:
        """Say whether the kernel has a rule; from then on it is compiled in again with the others."""
        if self._slots is None or self._slots.slot_of(rule.id) is None or not self._attachments:
            return False
        self._rules[rule.id] = rule
        return True

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules that have a slot."""
        return (
            {str(number) for number in self._slots.numbers().values()} if self._slots is not None else set()
        )

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the packets and bytes that each rule dropped since it was installed."""
        if self._slots is None:
            return {}
        return {str(number): self._slots.count(slot) for slot, number in self._slots.numbers().items()}

    def unparsed(self) -> int:
        """Return how many packets could not be taken apart: no rule can match what is in them."""
        return self._slots.unparsed if self._slots is not None else 0

    def entries(self, rule: Rule) -> dict[str, int]:
        """Return the source prefixes of a rule that it hit most: packets, exactly."""
        return self._hits.most(rule, self._slots.cpus, _SHOWN) if self._slots is not None else {}

    def refresh(self, allow: AllowList) -> None:
        """Follow the allow-list, which is part of the program, and interfaces that were made anew.

        Raises FwtopError; what was there stays.
        """
        wanted = _allow_texts(allow)
        if not self._rules or self._slots is None:
            return
        if wanted != self._allow or self._has_come_back():
            self._compile(self._slots.numbers(), wanted)

    def _has_come_back(self) -> bool:
        """Say whether an interface that had the rules is there anew, or a bond has a member without: once."""
        there = {name: index for index, name in socket.if_nameindex()}
        held = [item for item in self._attachments if item["ifindex"] in there.values()]
        attached = {item["ifindex"] for item in held} | {there.get(item["above"]) for item in held}
        wanted = {index for name, index in there.items() if name in self._places} | self._members()
        new = wanted - attached - self._tried
        self._tried |= new
        return bool(new)

    def _members(self) -> set[int]:
        """Return the members of bonds that have the rules below them, in their members."""
        above = {item["above"] for item in self._attachments} - {""}
        found = links.links() if above else []
        masters = above | {str(link.get("link")) for link in found if link["ifname"] in above}  # of VLANs
        return {int(link["ifindex"]) for link in found if link.get("master") in masters}

    def _compile(self, used: dict[int, int], allow: list[str]) -> None:
        """Make the rules in these slots, and only them, the compiled ones."""
        items, sent = [], {}
        try:
            for slot, number in used.items():
                rule = self._rules[str(number)]
                if len(rule.match.sources) > COMPILED_PREFIXES and rule.id not in self._listed:
                    sent[f"sources:{number}"] = _sealed(pack_prefixes(rule.match.sources))
                items.append(_item(slot, rule) | {"tell_hits": not self._hits.knows(rule.id)})
            there = {name for _, name in socket.if_nameindex()}
            order: dict[str, Any] = {"verb": "apply", "rules": items, "allow": allow}
            self._warmer.spare(order)
            wanted = (self.interfaces | self._places) & there
            order["interfaces"] = sorted(wanted or {item["name"] for item in self._attachments} & there)
            loaded = xdp_child.ask(order, self.descriptors | sent)
        finally:
            for descriptor in sent.values():
                os.close(descriptor)
        self.take_maps(loaded)
        self._attachments, self._allow = loaded.attachments, allow
        self._places |= _asked_for(loaded.attachments)
        self._listed |= {name.partition(":")[2] for name in sent}
        self._hits.keep({str(number) for number in used.values()})


def _item(slot: int, rule: Rule) -> dict[str, Any]:
    is_long = len(rule.match.sources) > COMPILED_PREFIXES
    short = replace(rule, match=replace(rule.match, sources=())) if is_long else rule
    families = sorted(families_of(rule.match.sources)) if is_long else []
    told = {"rule": short.to_dict(), "listed": is_long, "families": families}
    return {"slot": slot, "number": int(rule.id), **told}


def _asked_for(attachments: tuple[dict[str, Any], ...]) -> set[str]:
    """Return the interfaces that rules are for: of VLANs and bonds these, not what is below."""
    return {item["above"] or item["name"] for item in attachments}


def _allow_texts(allow: AllowList) -> list[str]:
    found = [str(prefix) for family in (4, 6) for prefix in allow.of_family(family)]
    if len(found) > MAX_ALLOWED:
        raise FwtopError(
            f"XDP rules take an allow-list of up to {MAX_ALLOWED} prefixes; nothing was installed"
        )
    return found


def _sealed(data: bytes) -> int:
    descriptor = os.memfd_create("fwtop-sources", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def _is_there(pins: Path) -> bool:
    """Look where process 1 sees it, too: inside `ip netns exec` our own /sys is another one."""
    for path in (pins, Path(f"/proc/1/root{pins}")):
        with contextlib.suppress(OSError):
            if path.is_dir():
                return True
    return False


def _is_bpffs() -> bool:
    with contextlib.suppress(OSError):
        return " /sys/fs/bpf " in Path("/proc/1/mountinfo").read_text()
    return False
