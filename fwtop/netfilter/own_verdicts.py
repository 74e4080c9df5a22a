"""What this host's own rules do with a packet that is tracked, and with the same one untracked.

Both iptables and nftables are walked as a packet walks them. A condition that can't be known (an address, a
set, a rate) is guessed to hold or not, alike for both packets: see `Guess`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.netfilter import nft_listed
from fwtop.netfilter.iptables import Variant, beside
from fwtop.netfilter.nft import Json
from fwtop.netfilter.nft_listed import FAMILIES, Listed, NftLine, Place, words_of
from fwtop.netfilter.nft_stateless import read_native
from fwtop.netfilter.saved import MatchOptions, Option, Packets, Saved, holds

UNTRACKED = "UNTRACKED"
_HOOKS = {True: ("PREROUTING", "INPUT"), False: ("OUTPUT", "POSTROUTING")}  # by: packets that come in
_TABLES = ("mangle", "filter", "security")
_NEEDS_ENTRY = frozenset({"conntrack", "state", "connmark", "connbytes", "connlabel", "helper"})
_SAY_NOTHING = frozenset({"comment", "tcp", "udp", "multiport"})  # without an option
_FLAGS = {"FIN": 1, "SYN": 2, "RST": 4, "PSH": 8, "ACK": 16, "URG": 32}
_DEPTH = 16  # jumps


class Probe(Struct, frozen=True):
    """A packet to or from this host, and the state of its connection."""

    family: int
    incoming: bool
    flags: int
    packets: Packets
    state: str


class Guess(Struct, frozen=True):
    """Whether conditions that aren't known hold: of rules that drop, and of all others."""

    dropping: bool
    passing: bool


GUESSES = tuple(Guess(*held) for held in product((False, True), repeat=2))


class Verdict(Struct, frozen=True):
    """Whether a packet passes, and by which rule; "" is a policy."""

    passes: bool
    by: str = ""


class HostRules(Struct, frozen=True):
    """All rules that packets to and from this host meet after connection tracking."""

    saved: tuple[Saved, ...] = ()
    native: Listed = field(default_factory=Listed)

    def lost(self, probe: Probe) -> Verdict | None:
        """Return what lets a packet pass while tracked that is dropped untracked, None if nothing does."""
        for guess in GUESSES:
            tracked = self.verdict(probe, guess)
            if tracked.passes and not self.verdict(replace(probe, state=UNTRACKED), guess).passes:
                return tracked
        return None

    def verdict(self, probe: Probe, guess: Guess) -> Verdict:
        """Return what becomes of a packet: it passes if all base chains let it pass."""
        passed = [*self._of_saved(probe, guess), *self._of_native(probe, guess)]
        dropped = next((item for item in passed if not item.passes), None)
        return dropped or next((item for item in reversed(passed) if item.by), Verdict(True))

    def _of_saved(self, probe: Probe, guess: Guess) -> Iterator[Verdict]:
        for saved in self.saved:
            for table, hook in product(_TABLES, _HOOKS[probe.incoming]):
                if saved.family == probe.family and (table, hook) in saved.chains:
                    found = _walk(saved, (table, hook), probe, guess)
                    yield found or Verdict(saved.chains[table, hook].policy != "DROP")

    def _of_native(self, probe: Probe, guess: Guess) -> Iterator[Verdict]:
        listed, hooks = self.native, tuple(hook.lower() for hook in _HOOKS[probe.incoming])
        for place, (kind, hook) in listed.hooks.items():
            if kind == "filter" and hook in hooks and probe.family in FAMILIES.get(place[0], ()):
                found = _walk_native(listed, place, probe, guess)
                yield found or Verdict(listed.policies.get(place) != "drop")


def read_host_rules(variant: Variant, families: Sequence[int]) -> HostRules:
    """Read them from the kernel; raises FwtopError."""
    saved = [read(family) for read in (variant.read, partial(beside, variant)) for family in families]
    return HostRules(tuple(saved), read_native(variant))


def _walk(saved: Saved, chain: tuple[str, str], probe: Probe, guess: Guess, depth: int = 0) -> Verdict | None:
    """Return the verdict of a chain, None where it ends without one."""
    for line in saved.chains[chain].lines:
        target, drops = line.target, line.target in ("DROP", "REJECT")
        if not _all_hold((_line_holds(one, probe) for one in line.arguments.matches), guess, drops=drops):
            continue
        if drops or target == "ACCEPT":
            return Verdict(not drops, f"-A {line.chain} {line.text}")
        if target == "RETURN":
            return None
        if (chain[0], target) in saved.chains and depth < _DEPTH:
            found = _walk(saved, (chain[0], target), probe, guess, depth + 1)
            if found is not None or line.arguments.target[0] == "-g":
                return found
    return None


def _all_hold(conditions: Iterator[bool | None], guess: Guess, *, drops: bool) -> bool:
    known = [*conditions]
    if False in known:
        return False
    return None not in known or (guess.dropping if drops else guess.passing)


def _line_holds(match: MatchOptions, probe: Probe) -> bool | None:
    if match.name in _NEEDS_ENTRY and probe.state == UNTRACKED:
        asked = [option for option in match.options if option.name not in ("--state", "--ctstate")]
        if asked:  # matches on an entry fail without one, negated or not
            return False
    if not match.options:
        return True if match.name in ("", *_SAY_NOTHING) else None
    each = [_option_holds(match.name, option, probe) for option in match.options]
    return False if False in each else None if None in each else True


def _option_holds(match: str, option: Option, probe: Probe) -> bool | None:
    held: bool | None = None
    values = option.values
    if option.name == "--comment":
        return True
    if option.name in ("--state", "--ctstate") and values:
        held = probe.state in values[0].split(",")
    elif option.name == "--tcp-flags" and len(values) == 2:
        mask, wanted = (sum(_FLAGS.get(name, 0) for name in text.split(",")) for text in values)
        held = probe.flags & mask == wanted
    elif option.name in ("-i", "-o") and values == ("lo",):
        held = False
    else:
        return holds(match, option, probe.packets)
    return held != option.negated


def _walk_native(listed: Listed, place: Place, probe: Probe, guess: Guess, depth: int = 0) -> Verdict | None:
    for line in listed.lines:
        if line.place != place:
            continue
        verdict = _verdict_of(listed, line, probe, guess)
        kind: str
        target: Any
        kind, target = next(iter(verdict.items())) if verdict else ("", None)
        if kind in ("accept", "drop", "reject"):
            return Verdict(kind == "accept", line.text)
        if kind == "return":
            return None
        if kind in ("jump", "goto") and depth < _DEPTH:
            inner = (line.family, line.table, target["target"])
            found = _walk_native(listed, inner, probe, guess, depth + 1)
            if found is not None or kind == "goto":
                return found
    return None


def _verdict_of(listed: Listed, line: NftLine, probe: Probe, guess: Guess) -> dict[str, Any] | None:
    """Return the verdict that a rule gives a packet, None if it doesn't match or gives none."""
    conditions: list[bool | None] = []
    verdict: dict[str, Any] | None = None
    for part in line.expressions:
        if "match" in part:
            conditions.append(_holds_native(listed, line, part, probe))
        elif "vmap" in part:
            verdict = _looked_up(listed, line, part["vmap"], probe)
            conditions.append(verdict is not None)
        elif {*part} & {"accept", "drop", "reject", "return", "jump", "goto"}:
            verdict = part
        elif "xt" in part:
            conditions.append(None)
    drops = verdict is not None and bool({*verdict} & {"drop", "reject"})
    return verdict if _all_hold(iter(conditions), guess, drops=drops) else None


def _holds_native(listed: Listed, line: NftLine, part: Json, probe: Probe) -> bool | None:
    match = part["match"]
    left, right, negated = match["left"], match["right"], bool(match.get("op") == "!=")
    about = left.get("ct") if isinstance(left, dict) else None
    if isinstance(about, dict):
        if about.get("key") == "state":
            return negated != (probe.state.lower() in words_of(right))
        return False if probe.state == UNTRACKED else None
    if isinstance(left, dict) and left.get("meta", {}).get("key") in ("iif", "iifname", "oif", "oifname"):
        return negated if right == "lo" else None
    flags = _flags_hold(left, right, probe.flags)
    if flags is not None:
        return flags != negated
    return nft_listed.holds(listed, line, part, replace(probe.packets, families=(probe.family,)))


def _flags_hold(left: Json, right: Json, flags: int) -> bool | None:
    """Say whether `tcp flags & (fin | syn) == syn` holds, None if it is something else."""
    masked = left.get("&") if isinstance(left, dict) else None
    if not isinstance(masked, list) or masked[0] != {"payload": {"protocol": "tcp", "field": "flags"}}:
        return None
    mask, wanted = _number(masked[1]), _number(right)
    return flags & mask == wanted if mask is not None and wanted is not None else None


def _number(value: Json) -> int | None:
    """Return the bits of "syn", a list of names, or names joined by |."""
    if isinstance(value, dict) and "|" in value:
        value = value["|"]
    items = value if isinstance(value, list) else [value]
    bits = [_number(item) if isinstance(item, dict) else _FLAGS.get(str(item).upper()) for item in items]
    return None if None in bits else sum(bit for bit in bits if bit is not None)


def _looked_up(listed: Listed, line: NftLine, vmap: Json, probe: Probe) -> dict[str, Any] | None:
    """Return what a map of verdicts has for a packet, None for nothing or where that isn't known."""
    for wanted, verdict in listed.mapped(line, vmap.get("data")):
        part = {"match": {"op": "==", "left": vmap.get("key"), "right": wanted}}
        if _holds_native(listed, line, part, probe):
            return dict(verdict)
    return None
