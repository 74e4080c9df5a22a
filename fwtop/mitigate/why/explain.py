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
from fwtop.mitigate.why.elsewhere import FEW, OTHERS, elsewhere, fragments, other_family, other_namespaces
from fwtop.mitigate.why.readings import Reading, moved, read_all
from fwtop.model.bulk import prefix_text
from fwtop.model.rule import Kind, Rule
from fwtop.model.text import safe_text

SAMPLE_SECONDS = 1.0
# Where a packet meets rules of each kind, from the wire on; the others are in raw PREROUTING or below.
_LAYERS = {Kind.XDP: 0, Kind.TC: 1, Kind.NFTABLES: 2}
_NETFILTER = 3


@dataclass(frozen=True, slots=True)
class Subject:
    """An active rule, what the kernel should have of it, and what it matched so far."""

    entry: Entry
    artifacts: Artifacts
    chains: Chains
    busiest: dict[str, int]  # element of its sets → packets
    counts: Callable[[], dict[str, int]]  # packets of every active rule now, by id
    kinds: dict[str, Kind]  # of every active rule, by id
    unparsed: Callable[[], int]  # packets that the compiled rules could not take apart


def explain(subject: Subject, sample_seconds: float = SAMPLE_SECONDS) -> list[str]:
    """Watch the counters for a second and say what the rule matches, or what keeps it from matching.

    Takes `sample_seconds`; raises FwtopError where the rule set can't be read.
    """
    rule = subject.entry.rule
    counted, unparsed = subject.counts(), subject.unparsed()
    before = read_all(subject.chains.variant, rule.match.families)
    time.sleep(sample_seconds)
    after = read_all(subject.chains.variant, rule.match.families)
    gained, recounted = moved(before, after), subject.counts()
    took = {name: count - counted.get(name, count) for name, count in recounted.items()}
    mine = [line for line in after.lines if comment_of(rule.id) in line.words]
    in_raw = subject.artifacts.compiled is None and subject.artifacts.nft is None
    damage = _damage(subject, len(mine), after) if in_raw else []
    odd = _unparsed(subject, unparsed, sample_seconds)
    if took.get(rule.id, 0) > 0:
        return [*damage, _works(subject, recounted[rule.id], took[rule.id], sample_seconds), *odd]
    first = _quiet(subject, recounted.get(rule.id, 0), sample_seconds)
    earlier = _earlier(subject, took, sample_seconds)
    if in_raw:
        causes = damage + earlier + _in_the_way(subject, after, gained)
        causes += elsewhere(rule, gained, sample_seconds, own_xdp=Kind.XDP in subject.kinds.values())
    else:
        causes = _not_attached(rule, gained, sample_seconds) + earlier
        if subject.artifacts.nft is not None:
            causes += obstacles.nft_chains(subject.chains.variant, rule.match.families)
        causes += other_family(rule, gained, sample_seconds) + fragments(rule, gained, sample_seconds)
        causes += other_namespaces(gained, sample_seconds)
    if not causes:
        causes = [_nothing_fits(rule, gained, sample_seconds)]
    causes += odd
    return [first, *causes, *(_what_moves(after, gained) if in_raw else [])]


def _unparsed(subject: Subject, before: int, seconds: float) -> list[str]:
    """Tell of packets that a compiled rule let pass because they make no sense."""
    total = subject.unparsed()
    if subject.artifacts.compiled is None or not total:
        return []
    return [
        f"{total:,} packets since the first compiled rule ({total - before:,} in the last {seconds:g} s) had "
        "headers that contradict themselves or the frame's length: what can't be read there matches nothing"
    ]


def _earlier(subject: Subject, took: dict[str, int], seconds: float) -> list[str]:
    """Name own rules of layers before this one, or of the same compiled program, that took packets."""
    layer = _LAYERS.get(subject.entry.rule.kind, _NETFILTER)
    found = []
    for rule_id, kind in subject.kinds.items():
        before = _LAYERS.get(kind, _NETFILTER)
        count = took.get(rule_id, 0) if rule_id != subject.entry.rule.id else 0
        if count > 0 and (before < layer or before == layer < _NETFILTER):
            found.append(f"rule {rule_id} ({kind.value}) took {count:,} packets in {seconds:g} s before it")
    return found


def _not_attached(rule: Rule, gained: Reading, seconds: float) -> list[str]:
    """Name busy interfaces that an XDP rule is not on; what a rule at tc or netdev is on, its note says."""
    if rule.kind is not Kind.XDP:
        return []
    bare = {str(link.get("ifname")) for link in links() if not link.get("xdp")} - {LOOPBACK}
    return [
        f"{safe_text(name)} received {count:,} packets in {seconds:g} s and carries no XDP program: the rule "
        "is not on it; 'fwtop watch -i' names the interfaces"
        for name, count in gained.devices.items()
        if name in bare and count > FEW
    ]


def over_text(entry: Entry) -> str:
    """Say how a rule that is not active any more ended."""
    note = f": {safe_text(entry.note)}" if entry.note else ""
    return (
        f"rule {entry.rule.id} ({safe_text(entry.rule.summary)}) is over, "
        f"{entry.state.value}{note}; it matched {entry.packets:,} packets"
    )


def _works(subject: Subject, total: int, now_matched: int, seconds: float) -> str:
    rule = subject.entry.rule
    most = ", ".join(f"{name} {packets:,}" for name, packets in list(subject.busiest.items())[:OTHERS])
    from_whom = f"; most from {most}" if most else ""
    return (
        f"rule {rule.id} works: it matched {total:,} packets, {now_matched:,} of them in the last "
        f"{seconds:g} s ({safe_text(rule.summary)}){from_whom}"
    )


def _quiet(subject: Subject, total: int, seconds: float) -> str:
    rule = subject.entry.rule
    if total:
        return f"rule {rule.id} matched {total:,} packets so far, none in the last {seconds:g} s"
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


def _nothing_fits(rule: Rule, gained: Reading, seconds: float) -> str:
    arrived = sum(gained.ip[family] for family in rule.match.families)
    if arrived <= FEW:
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
        if line.target in ("DROP", "REJECT") and line.table != "raw" and gained.lines.get(line, 0) > FEW
    ]
    droppers.sort(key=lambda item: -item[0])
    return [
        f"meanwhile {line.table} {line.chain} dropped {count:,} packets that this rule let pass: "
        f"'{safe_text(line.text, limit=120)}' (IPv{line.family})"
        for count, line in droppers[:OTHERS]
    ]
