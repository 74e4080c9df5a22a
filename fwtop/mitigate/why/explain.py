"""Put together why a rule does what it does, as sentences for people, the likeliest cause first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fwtop.mitigate import sets
from fwtop.mitigate.artifacts import Artifacts, comment_of
from fwtop.mitigate.chain import Chains
from fwtop.mitigate.journal import Entry
from fwtop.mitigate.links import LOOPBACK, links
from fwtop.mitigate.run import CommandError, run
from fwtop.mitigate.why import obstacles
from fwtop.mitigate.why.readings import Reading, moved, read_all
from fwtop.model.bulk import prefix_text
from fwtop.model.rule import Kind, Rule
from fwtop.model.text import safe_text

SAMPLE_SECONDS = 1.0
_FEW = 5  # packets in the sample that say nothing yet
_OTHERS = 3
_NAMESPACES = 8
_QUIET = 50  # packets in the sample: the attack is not here


@dataclass(frozen=True, slots=True)
class Subject:
    """An active rule, what the kernel should have of it, and what it matched so far."""

    entry: Entry
    artifacts: Artifacts
    chains: Chains
    packets: int
    busiest: dict[str, int]  # element of its sets → packets
    recount: Callable[[], int]  # packets now: for rules that no chain line counts


def explain(subject: Subject, sample_seconds: float = SAMPLE_SECONDS) -> list[str]:
    """Watch the counters for a second and say what the rule matches, or what keeps it from matching.

    Takes `sample_seconds`; raises FwtopError where the rule set can't be read.
    """
    families = subject.entry.rule.match.families
    before = read_all(subject.chains.variant, families)
    time.sleep(sample_seconds)
    after = read_all(subject.chains.variant, families)
    gained = moved(before, after)
    if subject.artifacts.compiled is not None:
        return _explain_compiled(subject, gained, sample_seconds)
    mine = [line for line in after.lines if comment_of(subject.entry.rule.id) in line.words]
    now_matched = sum(gained.lines.get(line, 0) for line in mine)
    damage = _damage(subject, len(mine), after)
    if now_matched:
        return [*damage, _works(subject, now_matched, sample_seconds)]
    first = _quiet(subject, sample_seconds)
    causes = damage + _in_the_way(subject, after, gained)
    causes += _elsewhere(subject.entry.rule, gained, sample_seconds)
    if not causes:
        causes = [_nothing_fits(subject.entry.rule, gained, sample_seconds)]
    return [first, *causes, *_what_moves(after, gained)]


def _explain_compiled(subject: Subject, gained: Reading, seconds: float) -> list[str]:
    """Say it of an XDP rule: only interfaces that carry the program are watched by it."""
    rule = subject.entry.rule
    now_matched = subject.recount() - subject.packets
    if now_matched > 0:
        return [_works(subject, now_matched, seconds)]
    bare = {str(link.get("ifname")) for link in links() if not link.get("xdp")} - {LOOPBACK}
    causes = [
        f"{safe_text(name)} received {count:,} packets in {seconds:g} s and carries no XDP program: the rule "
        "is not on it; 'fwtop watch -i' names the interfaces"
        for name, count in gained.devices.items()
        if name in bare and count > _FEW
    ]
    causes += _other_family(rule, gained, seconds) + _fragments(rule, gained, seconds)
    causes += _other_namespaces(gained, seconds)
    return [_quiet(subject, seconds), *(causes or [_nothing_fits(rule, gained, seconds)])]


def over_text(entry: Entry) -> str:
    """Say how a rule that is not active any more ended."""
    note = f": {safe_text(entry.note)}" if entry.note else ""
    return (
        f"rule {entry.rule.id} ({safe_text(entry.rule.summary)}) is over, "
        f"{entry.state.value}{note}; it matched {entry.packets:,} packets"
    )


def _works(subject: Subject, now_matched: int, seconds: float) -> str:
    rule = subject.entry.rule
    most = ", ".join(f"{name} {packets:,}" for name, packets in list(subject.busiest.items())[:_OTHERS])
    from_whom = f"; most from {most}" if most else ""
    total = max(subject.packets, now_matched)
    return (
        f"rule {rule.id} works: it matched {total:,} packets, {now_matched:,} of them in the last "
        f"{seconds:g} s ({safe_text(rule.summary)}){from_whom}"
    )


def _quiet(subject: Subject, seconds: float) -> str:
    rule = subject.entry.rule
    if subject.packets:
        return f"rule {rule.id} matched {subject.packets:,} packets so far, none in the last {seconds:g} s"
    return f"rule {rule.id} has matched nothing yet ({safe_text(rule.summary)})"


def _damage(subject: Subject, lines_there: int, now: Reading) -> list[str]:
    """Name what is gone from the kernel: lines, the jump to them, elements of the sets."""
    rule, found = subject.entry.rule, []
    wanted = len(subject.artifacts.lines)
    if lines_there < wanted:
        found.append(
            f"{wanted - lines_there} of its {wanted} lines are gone from fwtop's chains: something flushed "
            f"table raw; 'fwtop undo {rule.id}' and the rule again put them back"
        )
    for family in rule.match.families:
        jumps = [line for line in now.lines if line.family == family and line.target == "FWTOP"]
        if lines_there and not jumps and any(line.family == family for line in subject.artifacts.lines):
            found.append(f"nothing jumps to chain FWTOP (IPv{family}): something removed the jump from raw")
    found += [
        f"set {spec.name} doesn't hold {prefix_text(spec.elements[0])} any more: it expired or somebody "
        f"deleted it; 'fwtop keep {rule.id}' fills the set again"
        for spec in subject.artifacts.sets
        if spec.elements and not _holds(spec.name, prefix_text(spec.elements[0]))
    ]
    return found


def _holds(set_name: str, element: str) -> bool:
    try:
        run(["ipset", "test", set_name, element], timeout=10)
    except CommandError:
        return False
    return set_name in sets.names()


def _in_the_way(subject: Subject, now: Reading, gained: Reading) -> list[str]:
    rule = subject.entry.rule
    found = obstacles.foreign_lines(now, gained)
    found += obstacles.own_lines(now, gained, comment_of(rule.id))
    return found + obstacles.other_tables(subject.chains.variant, rule.match.families)


def _elsewhere(rule: Rule, gained: Reading, seconds: float) -> list[str]:
    """Name the traffic that this rule can't see: another family, fragments, layer 2, another namespace."""
    found = _other_family(rule, gained, seconds) + _fragments(rule, gained, seconds)
    return found + _below_ip(gained, seconds) + _other_namespaces(gained, seconds)


def _other_family(rule: Rule, gained: Reading, seconds: float) -> list[str]:
    found: list[str] = []
    mine = sum(gained.ip[family] for family in rule.match.families)
    others = {family: count for family, count in gained.ip.items() if family not in rule.match.families}
    for family, count in others.items():
        if count > max(_FEW, 2 * mine):
            covered = " and ".join(f"IPv{item}" for item in rule.match.families)
            found.append(
                f"the rule is about {covered}, which brought {mine:,} packets in {seconds:g} s; "
                f"IPv{family} brought {count:,}"
            )
    return found


def _fragments(rule: Rule, gained: Reading, seconds: float) -> list[str]:
    fragments = sum(gained.fragments[family] for family in rule.match.families)
    if fragments <= _FEW or not _needs_header(rule):
        return []
    return [
        f"{fragments:,} fragments came in {seconds:g} s: later fragments carry no ports, flags or "
        "payload start, so it can't match them; 'fwtop drop --fragment --via xdp' can"
    ]


def _needs_header(rule: Rule) -> bool:
    match = rule.match
    ports = match.sport is not None or match.dport is not None
    return ports or match.tcp_flags is not None or match.icmp_type is not None or bool(match.payload)


def _below_ip(gained: Reading, seconds: float) -> list[str]:
    """Name interfaces that receive what this namespace's IP layer never sees."""
    received = {name: count for name, count in gained.devices.items() if name != LOOPBACK}
    arrived = sum(received.values())
    entered = sum(gained.ip.values()) - gained.devices.get(LOOPBACK, 0)
    if arrived - entered <= max(_FEW, arrived // 2):
        return []
    name, count = max(received.items(), key=lambda item: item[1])
    found = links()
    reasons = _link_reasons(name, found)
    why = "; ".join(reasons) if reasons else "VLAN-tagged without an interface here, bridged, or not IP"
    return [
        f"{safe_text(name)} received {count:,} packets in {seconds:g} s, this namespace's IP layer "
        f"only {max(0, entered):,}: {why}"
    ]


def _link_reasons(name: str, found: list[dict[str, object]]) -> list[str]:
    reasons: list[str] = []
    link = next((item for item in found if item.get("ifname") == name), {})
    xdp = link.get("xdp")
    if isinstance(xdp, dict):
        program = xdp.get("prog", {})
        number = program.get("id") if isinstance(program, dict) else None
        reasons.append(f"an XDP program (id {number}) sees them first and may drop them")
    master = next((item for item in found if item.get("ifname") == link.get("master")), None)
    if master is not None:
        kind = _kind(master)
        reasons.append(
            f"it is a port of {kind or 'master'} {safe_text(link.get('master'))}, which forwards them"
        )
    above = [
        item for item in found if item.get("link") == name and _kind(item) in ("macvlan", "ipvlan", "macvtap")
    ]
    reasons += [f"{_kind(item)} {safe_text(item.get('ifname'))} sits on it" for item in above[:_OTHERS]]
    return reasons


def _kind(link: dict[str, object]) -> str:
    info = link.get("linkinfo")
    return safe_text(info.get("info_kind", "")) if isinstance(info, dict) else ""


def _other_namespaces(gained: Reading, seconds: float) -> list[str]:
    """Name busy namespaces where this one is quiet."""
    here = sum(count for name, count in gained.devices.items() if name != LOOPBACK)
    busy = sorted(gained.namespaces.items(), key=lambda item: -item[1])[:_NAMESPACES]
    shown = [f"{safe_text(name)} {count:,}" for name, count in busy if count > max(_FEW, 2 * here)]
    if here > _QUIET or not shown:
        return []
    return [
        f"this namespace received {here:,} packets in {seconds:g} s, other network namespaces more: "
        f"{', '.join(shown)}; rules there need --netns NAME"
    ]


def _nothing_fits(rule: Rule, gained: Reading, seconds: float) -> str:
    arrived = sum(gained.ip[family] for family in rule.match.families)
    if arrived <= _FEW:
        return f"nothing stands in its way: hardly anything arrives ({arrived:,} packets in {seconds:g} s)"
    if rule.kind is Kind.HASHLIMIT:
        return (
            f"nothing stands in its way: of {arrived:,} packets in {seconds:g} s none was above the limit "
            "(or fits its conditions)"
        )
    return f"nothing stands in its way: of {arrived:,} packets in {seconds:g} s none fits its conditions"


def _what_moves(now: Reading, gained: Reading) -> list[str]:
    """Name the foreign lines that dropped something meanwhile: their packets passed this rule."""
    droppers = [
        (gained.lines.get(line, 0), line)
        for line in now.lines
        if line.target in ("DROP", "REJECT") and line.table != "raw" and gained.lines.get(line, 0) > _FEW
    ]
    droppers.sort(key=lambda item: -item[0])
    return [
        f"meanwhile {line.table} {line.chain} dropped {count:,} packets that this rule let pass: "
        f"'{safe_text(line.text, limit=120)}' (IPv{line.family})"
        for count, line in droppers[:_OTHERS]
    ]
