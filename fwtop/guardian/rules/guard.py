"""The checks before a rule is installed: its rehearsal, what others do already, and who may ask for it.

What a console may do depends on the active rules: whose they are, and what they add up to. Notes say what
else a rule does not do: on a machine that bridges br_netfilter decides what rules in netfilter meet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from fwtop.guardian.limits import Limits
from fwtop.guardian.records.journal import Entry
from fwtop.kernel import namespaces
from fwtop.kernel.bridges import Bridge, crossed
from fwtop.kernel.links import readable_links, receiving_links
from fwtop.model import console_scope
from fwtop.model.addresses.address import SPACE, covered, sizes
from fwtop.model.errors import FwtopError
from fwtop.model.harm import Loss, Weight, Who
from fwtop.model.rule import FLEET, POLICY, POLICY_TRIAL, Mode, Rule, State
from fwtop.rehearsal.host import Host
from fwtop.rehearsal.rehearse import Rehearsal, rehearse
from fwtop.render.numbers import percent
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import command_line, drops_nothing, heeds_limit, of, why_too_many
from fwtop.rules.overlap import is_double

MAX_RULES = 256  # active at once: every line costs each packet that passes the chain


def judge(rule: Rule, host: Host, active_rules: int) -> Rehearsal:
    """Check whether a rule may be installed now: whether there is room, and what its rehearsal says.

    An automatic one may not cost this host an answer to what it asks, whoever stands in resolv.conf.
    """
    found = rehearse(rule, host)
    full = f"{active_rules} rules are active already; undo some first" if active_rules >= MAX_RULES else None
    why = full or why_too_many(rule.kind, rule.match.sources)
    if (
        why is None and console_scope.maker(rule) == console_scope.AUTOMATIC
    ):  # nobody is there to weigh what is told
        why = next((one.words for one in found.losses if one.who is Who.ASKED), None)
    return found if why is None else Rehearsal((barred(why), *found.losses))


def barred(why: str) -> Loss:
    """Return what refuses a rule although nobody loses anything to it."""
    return Loss(Who.NOBODY, why, Weight.REFUSED)


def why_double(rule: Rule, others: Sequence[Rule]) -> str | None:
    """Return which active rule does the same already, None if there is none.

    A policy is independent of temporary rules, and tried beside the one before it.
    """
    if rule.created_by in (POLICY, POLICY_TRIAL):
        return None
    by_id = {other.id: other for other in others}
    found = next((other.id for other in others if is_double(rule, other)), None)
    if found is None:
        return None
    if by_id[found].counts_only is not rule.counts_only:
        does = "counts" if by_id[found].counts_only else "drops"
        return f"rule {found} {does} this already: 'fwtop mode {found} {rule.mode.value}' changes that"
    return (
        f"rule {found} does this already: 'fwtop keep {found}' renews it, 'fwtop repair {found}' restores it"
    )


def check_share(rule: Rule, active: Sequence[Rule], limits: Limits) -> None:
    """Raise FwtopError when this rule and the active ones together would block too many addresses."""
    if rule.parts:
        for part in rule.parts:
            check_share(part, active, limits)
        return
    if not _blocks(rule):
        return
    blocking = [rule, *(other for other in active if _blocks(other))]
    for family in rule.match.families:
        lists = [item.match.sources for item in blocking]
        most = limits.max_blocked_share * SPACE[family]
        if sum(sizes(item, family) for item in lists) <= most:
            continue
        blocked = covered(lists, family)
        if blocked > most:
            raise FwtopError(
                f"with this rule {percent(min(blocked / SPACE[family], 1.0))} of all IPv{family} addresses "
                f"would be blocked, at most {percent(limits.max_blocked_share)} may be "
                f"(max_blocked_share in {limits.file}); nothing was installed"
            )


def force_refused(broad: str, limits: Limits, command: str) -> str | None:
    """Return why a console may not install an overly broad rule, and what can; None if it may."""
    if limits.console_may_force:
        return None
    allowed = f"unless {limits.file} says console_may_force = true"
    return f"{broad}; a screen may not install such a rule {allowed}; {command}"


def _blocks(rule: Rule) -> bool:
    """Whether a rule drops what its sources send, further conditions or not; a limit leaves something."""
    drops = of(rule.kind).is_filter and not drops_nothing(rule)
    return drops and not heeds_limit(rule) and bool(rule.match.sources)


def deciding_before(rule: Rule, active: Iterable[Rule]) -> frozenset[str]:
    """Return the ids of the rules that decide about a port before this one: of one priority, newer ones."""
    if rule.protection is None:
        return frozenset()
    mine = (rule.protection.priority, _age(rule))
    return frozenset(
        other.id
        for other in active
        if other.protection is not None
        and other.id != rule.id
        and (other.protection.priority, _age(other)) > mine
    )


def _age(rule: Rule) -> float:
    """Return what grows with newer rules; a rule that has no number yet is the newest."""
    return float(rule.id) if rule.id not in ("", "0") else float("inf")


def only_level_differs(old: Rule, new: Rule) -> bool:
    """Return whether a rule becomes another one by filling its enable sets."""
    if old.protection is None or new.protection is None:
        return False
    same = old.match == new.match and old.mode is new.mode
    return same and replace(old.protection, level=new.protection.level) == new.protection


def command(words: str) -> str:
    """Return what to type in another terminal."""
    name = namespaces.own_name()
    return f"in another terminal: sudo {words}{f' --netns {name}' if name is not None else ''}"


def command_of(rule: Rule, *, force: bool = False) -> str:
    """Return the command that installs a rule; of one that no single line can, a hint."""
    line = command_line(rule)
    return command(f"{line or 'fwtop block @FILE'}{' --force' if force else ''}")


def why_not_for_console(rule: Rule, active: Mapping[str, Entry]) -> str | None:
    """Return why a console may not install a rule beside the active ones, with the command that can."""
    if why := console_scope.why_not(rule):
        return f"{why}; {command_of(rule)}"
    replaced = active.get(rule.replaces)
    if replaced is not None and (owner := console_scope.owner_elsewhere(replaced.rule)):
        return f"rule {rule.replaces} is part of {owner}, which a screen may not replace; {command_of(rule)}"
    if len(made_by_consoles(active)) >= console_scope.MAX_RULES:
        return f"screens have {console_scope.MAX_RULES} active rules already: undo some first"
    return None


def made_by_consoles(active: Mapping[str, Entry]) -> list[Rule]:
    """Return the active rules that consoles asked for."""
    return [entry.rule for entry in active.values() if console_scope.made_by_console(entry.rule)]


def check_keep(entry: Entry, ttl_seconds: int) -> None:
    """Raise FwtopError if a console may not keep a rule for so long: one on trial has its own time."""
    _check_owner(entry, f"keep {entry.rule.id}")
    if entry.rule.created_by.startswith(FLEET) and entry.state is State.PROVISIONAL:
        line = f"rule {entry.rule.id} is on trial for a fleet, whose operators keep it or not"
        raise FwtopError(f"{line}; {command(f'fwtop keep {entry.rule.id}')}; nothing was changed", 3)
    if ttl_seconds > console_scope.MAX_TTL_SECONDS and entry.state is not State.PROVISIONAL:
        words = f"fwtop keep {entry.rule.id} --ttl {ttl_seconds}s"
        raise FwtopError(f"ttl_seconds: a screen keeps rules for a day at most; {command(words)}", 3)


def check_mode(entries: Iterable[Entry], mode: Mode) -> None:
    """Raise FwtopError if a console may not have some rules drop, or only count."""
    for entry in entries:
        _check_owner(entry, f"mode {entry.rule.id} {mode.value}")


def check_undo(entries: Iterable[Entry]) -> None:
    """Raise FwtopError if a console may not end some rules."""
    for entry in entries:
        _check_owner(entry, f"undo {entry.rule.id}")


def _check_owner(entry: Entry, words: str) -> None:
    if owner := console_scope.owner_elsewhere(entry.rule):
        line = f"rule {entry.rule.id} is part of {owner}, which a screen may not change"
        raise FwtopError(f"{line}; {command(f'fwtop {words}')}; nothing was changed", 3)


def bridge_notes(rule: Rule, interfaces: Collection[str]) -> tuple[str, ...]:
    """Say which bridged packets a rule can't meet, on the bridges of the watched interfaces."""
    if rule.parts:
        found = (note for part in rule.parts for note in bridge_notes(part, interfaces))
        return tuple(dict.fromkeys(found))
    links = readable_links()
    chosen = receiving_links(links, interfaces)
    layer = of(rule.kind).layer
    if layer <= Layer.NETDEV:  # at the ports, before a bridge decides
        masters = {link.index for link in chosen}
        bridges = [bridge for bridge in crossed(links, chosen) if bridge.link.index in masters]
        return tuple(
            _beside(bridge) for bridge in bridges if not any(port.index in masters for port in bridge.ports)
        )
    if layer is Layer.NOWHERE:
        return ()
    return tuple(note for bridge in crossed(links, chosen) if (note := _unseen(bridge, rule)))


def _beside(bridge: Bridge) -> str:
    return (
        f"it meets what bridge {bridge.words} hands to this machine, not what it passes on: watch a port, "
        f"fwtop -i {bridge.ports[0].name}, and the rule goes there"
    )


def _unseen(bridge: Bridge, rule: Rule) -> str:
    """Say what netfilter does not see of a bridge; "" if nothing."""
    families = sorted(set(rule.match.families) - bridge.netfilter)
    if not families:
        return ""
    switch = " and ".join(f"bridge-nf-call-ip{'' if family == 4 else '6'}tables" for family in families)
    instead = of(rule.kind).on_bridges
    return (
        f"bridge {bridge.words} passes packets on without netfilter (net.bridge.{switch} is 0): this rule "
        f"meets only what comes to this machine itself" + (f"; {instead}" if instead else "")
    )
