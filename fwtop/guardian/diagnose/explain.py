"""Explain what a rule matches, or why it matches nothing: sentences, the likeliest cause first.

Counters of devices, of the IP layer and of every rule are read twice: they show traffic that the rule can't
match, of another family, fragments, below IP, or in another namespace. Only text that the kernel prints is
read; nothing is attached and nothing is changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from fwtop.guardian.diagnose import obstacles
from fwtop.guardian.mechanisms.chains.chain import Chains
from fwtop.guardian.mechanisms.mechanism import Shortfall
from fwtop.guardian.records.journal import Entry
from fwtop.kernel.bridges import list_bridges
from fwtop.kernel.links import LOOPBACK, Link, readable_links
from fwtop.kernel.namespaces import name_of
from fwtop.kernel.procfs import parse_paired, parse_single, read_text
from fwtop.model.rule import Kind, Rule
from fwtop.model.text import safe_text
from fwtop.netfilter.iptables import Variant
from fwtop.netfilter.saved import Line
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import of
from fwtop.rules.limits import heeds_limit
from fwtop.rules.objects import KernelObjects

SAMPLE_SECONDS = 1.0
_NEARLY_FULL = 0.5  # of a rate limit's table
_TABLES = {4: Path("/proc/net/ipt_hashlimit"), 6: Path("/proc/net/ip6t_hashlimit")}
_CHUNK = 1 << 20
FEW = 5  # packets in the sample that say nothing yet
OTHERS = 3
_NAMESPACES = 8
_WITH_OWN_ADDRESS = frozenset({"macvlan", "ipvlan", "macvtap"})
_QUIET = 50  # packets in the sample: the attack is not here
_MAX_NAMESPACES = 64
_Key = TypeVar("_Key")


class Subject(Struct, frozen=True):
    """An active rule, what the kernel should have of it, and what it matched so far."""

    entry: Entry
    objects: KernelObjects
    chains: Chains
    busiest: dict[str, int]  # element of its sets → packets
    counts: Callable[[], dict[str, int]]  # packets of every active rule now, by id
    kinds: dict[str, Kind]  # of every active rule, by id
    parse_errors: Callable[[], int]  # packets that the compiled rules could not parse
    shortfall: Shortfall | None = None  # what the kernel lacks of it
    wait: Callable[[float], None] = time.sleep


def explain(subject: Subject, sample_seconds: float = SAMPLE_SECONDS) -> list[str]:
    """Watch the counters for a second and explain what the rule matches, or what prevents it.

    Takes `sample_seconds`; raises FwtopError where the rule set can't be read.
    """
    rule = subject.entry.rule
    counted, parse_errors = subject.counts(), subject.parse_errors()
    before = read_all(subject.chains.variant, rule.match.families)
    subject.wait(sample_seconds)
    after = read_all(subject.chains.variant, rule.match.families)
    gained, recounted = moved(before, after), subject.counts()
    took = {name: count - counted.get(name, count) for name, count in recounted.items()}
    in_raw, is_compiled = subject.objects.in_raw, of(rule.kind).is_compiled
    damage = [*_damage(subject), *_full_tables(rule)]
    odd = _parse_errors(subject, parse_errors, sample_seconds)
    if took.get(rule.id, 0) > 0:
        return [*damage, _works(subject, recounted[rule.id], took[rule.id], sample_seconds), *odd]
    first = _quiet(subject, recounted.get(rule.id, 0), sample_seconds)
    earlier = _earlier(subject, took, sample_seconds)
    if in_raw:
        causes = damage + earlier + _in_the_way(subject, after, gained)
        causes += elsewhere(
            rule,
            gained,
            sample_seconds,
            own_xdp=any(of(kind).layer is Layer.DRIVER for kind in subject.kinds.values()),
        )
    else:
        causes = damage + _not_attached(rule, gained, sample_seconds) + earlier
        if not is_compiled:
            causes += obstacles.nft_chains(subject.chains.variant, rule.match.families)
        causes += other_family(rule, gained, sample_seconds) + fragments(rule, gained, sample_seconds)
        causes += other_namespaces(gained, sample_seconds)
    if not causes:
        causes = [_nothing_fits(rule, gained, sample_seconds)]
    causes += odd
    return [first, *causes, *(_what_moves(after, gained) if in_raw else [])]


def _parse_errors(subject: Subject, before: int, seconds: float) -> list[str]:
    """Count the malformed packets, which compiled rules let pass."""
    total = subject.parse_errors()
    if not of(subject.entry.rule.kind).is_compiled or not total:
        return []
    return [
        f"{total:,} packets since the first compiled rule ({total - before:,} in the last {seconds:g} s) had "
        "headers that contradict themselves or the frame's length: what can't be read there matches nothing"
    ]


def _earlier(subject: Subject, took: dict[str, int], seconds: float) -> list[str]:
    """Name own rules of layers before this one, or of the same compiled program, that took packets."""
    layer = min(of(subject.entry.rule.kind).layer, Layer.RAW)
    found = []
    for rule_id, kind in subject.kinds.items():
        before = min(of(kind).layer, Layer.RAW)
        count = took.get(rule_id, 0) if rule_id != subject.entry.rule.id else 0
        if count > 0 and (before < layer or before == layer < Layer.RAW):
            found.append(f"rule {rule_id} ({kind.value}) took {count:,} packets in {seconds:g} s before it")
    return found


def _not_attached(rule: Rule, gained: Reading, seconds: float) -> list[str]:
    """Name busy interfaces that an XDP rule is not on; what a rule at tc or netdev is on, its note says."""
    if of(rule.kind).layer is not Layer.DRIVER:
        return []
    bare = {link.name for link in readable_links() if not link.xdp_programs and not link.loopback}
    return [
        f"{safe_text(name)} received {count:,} packets in {seconds:g} s and carries no XDP program: the rule "
        "is not on it; 'fwtop watch -i' names the interfaces"
        for name, count in gained.devices.items()
        if name in bare and count > FEW
    ]


def over_text(entry: Entry) -> str:
    """Describe how a finished rule ended."""
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


def _damage(subject: Subject) -> list[str]:
    """Say what the kernel lacks of the rule, and how to restore it.

    Rules of others above fwtop's are left to `obstacles`, which knows what they matched.
    """
    short = subject.shortfall
    if short is None or short.obstructed:
        return []
    return [f"{short.text}; 'fwtop repair {subject.entry.rule.id}' restores it"]


def _full_tables(rule: Rule) -> list[str]:
    """Say how full the tables of a rate limit are: a full one drops the packets of every new client."""
    found, most = [], of(rule.kind).table
    for family in rule.match.families if most else ():
        count = _remembered(rule.id, family)
        share = f"{count:,} of {most:,} source prefixes (IPv{family})"
        if count >= most:
            found.append(
                f"its table is full, {share}: packets of every new client are dropped, however few it sends; "
                "take a shorter prefix with --per, or --via xdp"
            )
        elif count > _NEARLY_FULL * most:
            found.append(f"its table fills up, {share}: a full one drops packets of every new client")
    return found


def _remembered(rule_id: str, family: int) -> int:
    """Return how many source prefixes the table of a rule holds now; 0 where it has none."""
    count = 0
    with suppress(OSError), (_TABLES[family] / f"fwtop-{rule_id}-{family}").open("rb") as file:
        while chunk := file.read(_CHUNK):
            count += chunk.count(b"\n")
    return count


def _in_the_way(subject: Subject, now: Reading, gained: Reading) -> list[str]:
    rule = subject.entry.rule
    found = obstacles.foreign_lines(now, gained)
    if not found and subject.shortfall is not None and subject.shortfall.obstructed:
        found = [subject.shortfall.text]  # native rules count nothing
    found += obstacles.own_lines(now, gained, rule.id)
    found += obstacles.native_rules(subject.chains, rule.match.families)
    return found + obstacles.other_tables(subject.chains.variant, rule.match.families)


def _nothing_fits(rule: Rule, gained: Reading, seconds: float) -> str:
    arrived = sum(gained.ip[family] for family in rule.match.families)
    if arrived <= FEW:
        return f"nothing stands in its way: hardly anything arrives ({arrived:,} packets in {seconds:g} s)"
    if heeds_limit(rule):
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


def elsewhere(rule: Rule, gained: Reading, seconds: float, *, own_xdp: bool) -> list[str]:
    """Name the traffic that this rule can't see: another family, fragments, layer 2, another namespace."""
    found = other_family(rule, gained, seconds) + fragments(rule, gained, seconds)
    return found + _below_ip(gained, seconds, own_xdp=own_xdp) + other_namespaces(gained, seconds)


def other_family(rule: Rule, gained: Reading, seconds: float) -> list[str]:
    """Name a family that brings more packets and that the rule is not about."""
    found: list[str] = []
    mine = sum(gained.ip[family] for family in rule.match.families)
    others = {family: count for family, count in gained.ip.items() if family not in rule.match.families}
    for family, count in others.items():
        if count > max(FEW, 2 * mine):
            covered = " and ".join(f"IPv{item}" for item in rule.match.families)
            found.append(
                f"the rule is about {covered}, which brought {mine:,} packets in {seconds:g} s; "
                f"IPv{family} brought {count:,}"
            )
    return found


def fragments(rule: Rule, gained: Reading, seconds: float) -> list[str]:
    """Name fragments, where the rule asks what later ones don't carry."""
    count = sum(gained.fragments[family] for family in rule.match.families)
    if count <= FEW or not _needs_header(rule):
        return []
    return [
        f"{count:,} fragments came in {seconds:g} s: later fragments carry no ports, flags or "
        "payload start, so it can't match them; 'fwtop drop --fragment --via xdp' can"
    ]


def _needs_header(rule: Rule) -> bool:
    match = rule.match
    ports = match.sport is not None or match.dport is not None
    return ports or match.reads_tcp or match.icmp_type is not None or bool(match.payload)


def _below_ip(gained: Reading, seconds: float, *, own_xdp: bool) -> list[str]:
    """Name interfaces that receive what this namespace's IP layer never sees."""
    received = {name: count for name, count in gained.devices.items() if name != LOOPBACK}
    arrived = sum(received.values())
    entered = sum(gained.ip.values()) - gained.devices.get(LOOPBACK, 0)
    if arrived - entered <= max(FEW, arrived // 2):
        return []
    name, count = max(received.items(), key=lambda item: item[1])
    reasons = _link_reasons(name, readable_links(), own_xdp=own_xdp)
    why = "; ".join(reasons) if reasons else "VLAN-tagged without an interface here, bridged, or not IP"
    return [
        f"{safe_text(name)} received {count:,} packets in {seconds:g} s, this namespace's IP layer "
        f"only {max(0, entered):,}: {why}"
    ]


def _link_reasons(name: str, links: list[Link], *, own_xdp: bool) -> list[str]:
    link = next((item for item in links if item.name == name), None)
    if link is None:
        return []
    reasons: list[str] = []
    if own_xdp and link.xdp_programs:
        reasons.append("fwtop's own XDP rules see them first")
    elif link.xdp_programs:
        reasons.append(f"an XDP program (id {link.xdp_programs[0]}) sees them first and may drop them")
    master = next((item for item in links if item.index == link.master), None)
    if master is not None:
        kind = safe_text(master.kind) or "master"
        past = any(one.link is master and len(one.netfilter) < 2 for one in list_bridges(links))
        hidden = " without netfilter: rules --via xdp, tc or nftables meet them at the port" if past else ""
        reasons.append(f"it is a port of {kind} {safe_text(master.name)}, which forwards them{hidden}")
    above = [item for item in links if item.lower == link.index and item.kind in _WITH_OWN_ADDRESS]
    reasons += [f"{item.kind} {safe_text(item.name)} is stacked on it" for item in above[:OTHERS]]
    return reasons


def other_namespaces(gained: Reading, seconds: float) -> list[str]:
    """Name busy namespaces where this one is quiet."""
    here = sum(count for name, count in gained.devices.items() if name != LOOPBACK)
    busy = sorted(gained.namespaces.items(), key=lambda item: -item[1])[:_NAMESPACES]
    shown = [f"{safe_text(name)} {count:,}" for name, count in busy if count > max(FEW, 2 * here)]
    if here > _QUIET or not shown:
        return []
    return [
        f"this namespace received {here:,} packets in {seconds:g} s, other network namespaces more: "
        f"{', '.join(shown)}; rules there need --netns NAME"
    ]


class Reading(Struct, frozen=True):
    """All counters at one moment."""

    devices: dict[str, int] = field(default_factory=dict)  # interface → packets received
    ip: dict[int, int] = field(default_factory=dict)  # family → packets that entered the IP layer
    fragments: dict[int, int] = field(default_factory=dict)  # family → fragments to be reassembled
    lines: dict[Line, int] = field(default_factory=dict)  # → packets
    namespaces: dict[str, int] = field(default_factory=dict)  # others on this machine → packets received


def read_all(variant: Variant, families: tuple[int, ...]) -> Reading:
    """Read everything now."""
    saved = (variant.read(family).lines for family in families)
    lines = {line: counted.packets for found in saved for line, counted in found.items()}
    arrived, fragments = _ip_counters("InReceives"), _ip_counters("ReasmReqds")
    return Reading(_devices(), arrived, fragments, lines, _other_namespaces())


def moved(before: Reading, after: Reading) -> Reading:
    """Return what each counter gained; what is new or was replaced counts as nothing."""
    return Reading(
        _gains(before.devices, after.devices),
        _gains(before.ip, after.ip),
        _gains(before.fragments, after.fragments),
        _gains(before.lines, after.lines),
        _gains(before.namespaces, after.namespaces),
    )


def _gains(before: dict[_Key, int], after: dict[_Key, int]) -> dict[_Key, int]:
    return {key: max(0, count - before[key]) for key, count in after.items() if key in before}


def _devices(path: str = "/proc/net/dev") -> dict[str, int]:
    found: dict[str, int] = {}
    for line in read_text(path).splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        if len(fields) > 1:
            found[name.strip()] = int(fields[1])
    return found


def _ip_counters(name: str) -> dict[int, int]:
    ipv4 = parse_paired(read_text("/proc/net/snmp")).get("Ip", {})
    ipv6 = parse_single(read_text("/proc/net/snmp6"))
    return {4: ipv4.get(name, 0), 6: ipv6.get(f"Ip6{name}", 0)}


def _other_namespaces() -> dict[str, int]:
    """Return what other namespaces received, read through any process that lives in one."""
    mine = os.stat("/proc/self/ns/net").st_ino
    witnesses: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or len(witnesses) >= _MAX_NAMESPACES:
            continue
        try:
            number = (entry / "ns/net").stat().st_ino
        except OSError:
            continue  # it ended meanwhile
        if number != mine:
            witnesses.setdefault(number, entry.name)
    found: dict[str, int] = {}
    for number, pid in witnesses.items():
        counts = _devices(f"/proc/{pid}/net/dev")
        name = name_of(number) or f"that of process {pid}"
        found[name] = sum(count for device, count in counts.items() if device != LOOPBACK)
    return found
