"""What is wrong with the machine's rules and sets, each with the command that mends or explains it.

A rule that counts far more or less than usual, a set that is nearly full, and a rule of fwtop that is not in
effect because somebody flushed or unhooked something. Each is told when it begins and when it ends.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from msgspec import Struct

from fwtop.analysis.rule_rates import RatedRule
from fwtop.model.rule import ACTIVE_STATES, RuleStatus
from fwtop.model.ruleset import IPSET, IPTABLES_LEGACY, IPTABLES_NFT, NFT, TC, XDP, ListedRule, ListedSet
from fwtop.model.text import PLACEHOLDER
from fwtop.render.ruleset import quantity, where

RATE_HIGH, RATE_LOW, SET_FULL, NOT_ACTING = "rate_high", "rate_low", "set_nearly_full", "not_in_effect"
_STILL_FULL = 0.85  # of its size: a set that was nearly full is so until it holds less
_TEXT = 80  # characters of a rule
_LEADING = re.compile(r"(?:^| )(?:-[jg] FWTOP|jump |goto )|^-i lo ")


class RuleAlarm(Struct, frozen=True):
    """Something that is wrong."""

    kind: str
    key: str  # what it is about
    text: str
    mend: str  # a command; "" where none can be told


class Change(Struct, frozen=True):
    """An alarm that began or ended."""

    began: bool
    alarm: RuleAlarm


class RuleAlarms:
    """Compares each reading with the alarms that are on."""

    def __init__(self) -> None:
        self.active: dict[tuple[str, str], RuleAlarm] = {}

    def take(
        self,
        rated: Iterable[RatedRule],
        sets: Sequence[ListedSet],
        statuses: Iterable[RuleStatus] = (),
    ) -> list[Change]:
        """Return what began and what ended; what is still on keeps its first words."""
        found = {(alarm.kind, alarm.key): alarm for alarm in self._found(rated, sets, statuses)}
        began = [Change(True, alarm) for name, alarm in found.items() if name not in self.active]
        ended = [Change(False, alarm) for name, alarm in self.active.items() if name not in found]
        self.active = {name: self.active.get(name, alarm) for name, alarm in found.items()}
        return [*began, *ended]

    def _found(
        self, rated: Iterable[RatedRule], sets: Iterable[ListedSet], statuses: Iterable[RuleStatus]
    ) -> Iterable[RuleAlarm]:
        for item in rated:
            if item.abnormal and not _counts_everything(item.rule):
                yield rate_alarm(item)
        for listed in sets:
            was_on = (SET_FULL, listed.key) in self.active
            if listed.nearly_full or (was_on and (listed.fill or 0.0) >= _STILL_FULL):
                yield set_alarm(listed)
        for status in statuses:
            if status.state in ACTIVE_STATES and not status.acting:
                rule_id = status.rule.id
                text = f"rule {rule_id} is not in effect: {status.not_acting}"
                yield RuleAlarm(NOT_ACTING, rule_id, text, f"fwtop repair {rule_id}")


def _counts_everything(rule: ListedRule) -> bool:
    """Say whether it is fwtop's and leads packets on: with the traffic, all such lines count more at once."""
    return rule.ours and (rule.source in (XDP, TC) or _LEADING.search(rule.text) is not None)


def rate_alarm(item: RatedRule) -> RuleAlarm:
    """Describe a rule whose rate is not what it usually is."""
    rule = item.rule
    kind = RATE_HIGH if item.abnormal == "high" else RATE_LOW
    now, usual = quantity(item.pps), quantity(item.usual)
    text = f"{where(rule)}: {rule.text[:_TEXT]} counts {now} packets a second, usually {usual}"
    return RuleAlarm(kind, rule.key, text, _look(rule))


def set_alarm(item: ListedSet) -> RuleAlarm:
    """Describe a set that will soon refuse entries."""
    fill = 100 * (item.fill or 0.0)
    text = f"{item.source} set {item.name} is {fill:.0f} % full: {item.entries:,} of {item.size:,} entries"
    return RuleAlarm(SET_FULL, item.key, text, _enlarge(item))


def _look(rule: ListedRule) -> str:
    """Return the command that lists what stands before a rule in its chain."""
    words = rule.place.split(" ")
    if len(words) != 2 or not _is_whole(rule.place):
        return ""
    table, chain = words
    if rule.source in (IPTABLES_LEGACY, IPTABLES_NFT):
        program = "iptables" if rule.family == "ip" else "ip6tables"
        variant = "legacy" if rule.source == IPTABLES_LEGACY else "nft"
        return f"{program}-{variant} -t {shlex.quote(table)} -nvL {shlex.quote(chain)}"
    if rule.source == NFT:
        return f"nft list chain {rule.family} {shlex.quote(table)} {shlex.quote(chain)}"
    return ""


def _enlarge(item: ListedSet) -> str:
    """Return the command that makes room: the kernel can't enlarge a set, but swaps in a larger one."""
    if item.source != IPSET or not item.size or not _is_whole(item.name):
        return ""
    name, larger = shlex.quote(item.name), shlex.quote(f"{item.name[:26]}-more")
    size = 2 * item.size
    return (
        f"ipset save {name} | sed -e 's/maxelem {item.size}/maxelem {size}/' -e {_renaming(item.name)} "
        f"| ipset restore && ipset swap {larger} {name} && ipset destroy {larger}"
    )


def _renaming(name: str) -> str:
    """Return the sed expression that gives the copy of a set another name."""
    pattern = "".join(f"\\{char}" if char in r"\.*[]^$/&" else char for char in name)
    target = "".join(f"\\{char}" if char in r"\/&" else char for char in f"{name[:26]}-more")
    return shlex.quote(f"s/^\\(create\\|add\\) {pattern} /\\1 {target} /")


def _is_whole(name: str) -> bool:
    """Say whether a name is as the kernel has it: nothing in it was replaced or cut."""
    return PLACEHOLDER not in name and "…" not in name and " -" not in name and not name.startswith("-")
