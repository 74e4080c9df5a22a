"""Explain what a rule matches, or why it matches nothing: sentences, the likeliest cause first.

Counters of devices, of the IP layer and of every rule are read twice: they show traffic that the rule can't
match, of another family, fragments, below IP, or in another namespace. Only text that the kernel prints is
read; nothing is attached and nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from fwtop.guardian.diagnose import obstacles
from fwtop.guardian.records.journal import Entry
from fwtop.kernel import namespaces
from fwtop.kernel.bridges import list_bridges
from fwtop.kernel.links import LOOPBACK, Link, readable_links
from fwtop.kernel.procfs import parse_devices, parse_paired, parse_single, read_text
from fwtop.model.addresses.address import of_pairs, says_more
from fwtop.model.rule import Kind, Rule
from fwtop.model.text import safe_text
from fwtop.netfilter.iptables import Variant
from fwtop.netfilter.saved import Line
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import heeds_limit, of

if TYPE_CHECKING:
    from fwtop.guardian.rules.state import GuardianState

SAMPLE_SECONDS = 1.0
_SAMPLE = f"{SAMPLE_SECONDS:g} s"
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


def explain(state: GuardianState, entry: Entry, wait: Callable[[float], None] = time.sleep) -> list[str]:
    """Watch the counters for a second and explain what an active rule matches, or what prevents it.

    Raises FwtopError where the rule set can't be read.
    """
    rule, kernel = entry.rule, state.kernel
    families, layer = rule.match.families, of(rule.kind).layer
    short = kernel.look(state.active, force=True).get(rule.id)
    objects, chains = state.objects_of(rule), kernel.chains.variants.of(rule.id)
    busiest = state.counters.busiest(rule)
    counted, errors = kernel.counts(), kernel.compiled.parse_errors()
    before = read_all(chains.variant, families)
    wait(SAMPLE_SECONDS)
    after = read_all(chains.variant, families)
    gained, recounted = moved(before, after), kernel.counts()
    took = {name: count.packets - counted.get(name, count).packets for name, count in recounted.items()}
    total = recounted[rule.id].packets if rule.id in recounted else 0
    odd = _parse_errors(errors, kernel.compiled.parse_errors()) if of(rule.kind).is_compiled else []
    causes = _full_tables(rule)
    if short is not None and not short.obstructed:  # rules of others above fwtop's are among the obstacles
        causes.insert(0, f"{short.text}; 'fwtop repair {rule.id}' restores it")
    if took.get(rule.id, 0) > 0:
        return [*causes, _works(rule, busiest, total, took[rule.id]), *odd]
    kinds = {name: item.rule.kind for name, item in list(state.active.items())}
    earlier = _earlier(rule, kinds, took)
    if objects.in_raw:
        obstructed = short.text if short is not None and short.obstructed else ""
        causes += earlier + obstacles.in_raw(chains, rule, after.lines, gained.lines, obstructed)
        own_xdp = any(of(kind).layer is Layer.DRIVER for kind in kinds.values())
        causes += other_family(rule, gained) + fragments(rule, gained)
        causes += _below_ip(gained, own_xdp=own_xdp)
    else:
        causes += (_not_attached(gained) if layer is Layer.DRIVER else []) + earlier
        if not of(rule.kind).is_compiled:
            causes += obstacles.nft_chains(chains.variant, families)
        causes += other_family(rule, gained) + fragments(rule, gained)
    causes += other_namespaces(gained) + _narrow(rule)
    first = f"rule {rule.id} has matched nothing yet ({safe_text(rule.summary)})"
    if total:
        first = f"rule {rule.id} matched {total:,} packets so far, none in the last {_SAMPLE}"
    moving = _what_moves(after, gained) if objects.in_raw else []
    return [first, *(causes or [_nothing_fits(rule, gained)]), *odd, *moving]


def _narrow(rule: Rule) -> list[str]:
    """Say that the sources of a rule are hit by some of their packets only, as its list says more."""
    sources = rule.match.sources
    if not says_more(sources):
        return []
    more = "to the second of a pair" if of_pairs(sources) else "to the port beside them"
    return [f"its list holds {sources.words}: what these send matches only if it goes {more}"]


def _parse_errors(before: int, total: int) -> list[str]:
    new = f"{total - before:,} in the last {_SAMPLE}"
    if not total:
        return []
    return [
        f"{total:,} packets since the first compiled rule ({new}) had headers that contradict themselves or "
        "the frame's length: what can't be read there matches nothing"
    ]


def _earlier(rule: Rule, kinds: dict[str, Kind], took: dict[str, int]) -> list[str]:
    """Name own rules of layers before this one, or of the same compiled program, that took packets."""
    layer = min(of(rule.kind).layer, Layer.RAW)
    found = []
    for rule_id, kind in kinds.items():
        before = min(of(kind).layer, Layer.RAW)
        count = took.get(rule_id, 0) if rule_id != rule.id else 0
        if count > 0 and (before < layer or before == layer < Layer.RAW):
            found.append(f"rule {rule_id} ({kind.value}) took {count:,} packets in {_SAMPLE} before it")
    return found


def _not_attached(gained: Reading) -> list[str]:
    """Name busy interfaces that an XDP rule is not on; what a rule at tc or netdev is on, its note says."""
    bare = {link.name for link in readable_links() if not link.xdp_programs and not link.loopback}
    return [
        f"{safe_text(name)} received {count:,} packets in {_SAMPLE} and carries no XDP program: the rule "
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


def _works(rule: Rule, busiest: dict[str, int], total: int, now_matched: int) -> str:
    most = ", ".join(f"{name} {packets:,}" for name, packets in list(busiest.items())[:OTHERS])
    from_whom = f"; most from {most}" if most else ""
    return (
        f"rule {rule.id} works: it matched {total:,} packets, {now_matched:,} of them in the last "
        f"{_SAMPLE} ({safe_text(rule.summary)}){from_whom}"
    )


def _full_tables(rule: Rule) -> list[str]:
    """Say how full the tables of a rate limit are: a full one drops the packets of every new client."""
    found, most = [], of(rule.kind).table
    for family in rule.match.families if most else ():
        count = _remembered(rule.id, family, most)
        share = f"{count:,} of {most:,} source prefixes (IPv{family})"
        if count >= most:
            found.append(
                f"its table is full, {share}: packets of every new client are dropped, however few it sends; "
                "take a shorter prefix with --per, or --via xdp"
            )
        elif count > _NEARLY_FULL * most:
            found.append(f"its table fills up, {share}: a full one drops packets of every new client")
    return found


def _remembered(rule_id: str, family: int, most: int) -> int:
    """Return how many source prefixes the table of a rule holds now; 0 where it has none.

    A read fails with EPERM at a bucket whose lines exceed a page (dl_seq_show in xt_hashlimit.c returns -1).
    That many, more than 50, are in one of 8,192 buckets only where the table is full, or nearly so.
    """
    count = 0
    for table in _TABLES[family].glob(f"fwtop-{rule_id}-*-{family}"):
        try:
            with table.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    count += chunk.count(b"\n")
        except PermissionError:
            return most
        except OSError:
            continue
    return count


def _nothing_fits(rule: Rule, gained: Reading) -> str:
    arrived = sum(gained.ip[family] for family in rule.match.families)
    if arrived <= FEW:
        return f"nothing stands in its way: hardly anything arrives ({arrived:,} packets in {_SAMPLE})"
    if heeds_limit(rule):
        return (
            f"nothing stands in its way: of {arrived:,} packets in {_SAMPLE} none was above the limit "
            "(or fits its conditions)"
        )
    return f"nothing stands in its way: of {arrived:,} packets in {_SAMPLE} none fits its conditions"


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


def other_family(rule: Rule, gained: Reading) -> list[str]:
    """Name a family that brings more packets and that the rule is not about."""
    found: list[str] = []
    mine = sum(gained.ip[family] for family in rule.match.families)
    others = {family: count for family, count in gained.ip.items() if family not in rule.match.families}
    for family, count in others.items():
        if count > max(FEW, 2 * mine):
            covered = " and ".join(f"IPv{item}" for item in rule.match.families)
            found.append(
                f"the rule is about {covered}, which brought {mine:,} packets in {_SAMPLE}; "
                f"IPv{family} brought {count:,}"
            )
    return found


def fragments(rule: Rule, gained: Reading) -> list[str]:
    """Name fragments, where the rule asks what later ones don't carry."""
    count = sum(gained.fragments[family] for family in rule.match.families)
    if count <= FEW or not _needs_header(rule):
        return []
    return [
        f"{count:,} fragments came in {_SAMPLE}: later fragments carry no ports, flags or "
        "payload start, so it can't match them; 'fwtop drop --fragment --via xdp' can"
    ]


def _needs_header(rule: Rule) -> bool:
    match = rule.match
    ports = match.sport is not None or match.dport is not None
    return ports or match.reads_tcp or match.icmp_type is not None or bool(match.payload)


def _below_ip(gained: Reading, *, own_xdp: bool) -> list[str]:
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
        f"{safe_text(name)} received {count:,} packets in {_SAMPLE}, this namespace's IP layer "
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


def other_namespaces(gained: Reading) -> list[str]:
    """Name busy namespaces where this one is quiet."""
    here = sum(count for name, count in gained.devices.items() if name != LOOPBACK)
    busy = sorted(gained.namespaces.items(), key=lambda item: -item[1])[:_NAMESPACES]
    shown = [f"{safe_text(name)} {count:,}" for name, count in busy if count > max(FEW, 2 * here)]
    if here > _QUIET or not shown:
        return []
    return [
        f"this namespace received {here:,} packets in {_SAMPLE}, other network namespaces more: "
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
    names = Reading.__struct_fields__
    return Reading(*(_gains(getattr(before, name), getattr(after, name)) for name in names))


def _gains(before: dict[_Key, int], after: dict[_Key, int]) -> dict[_Key, int]:
    return {key: max(0, count - before[key]) for key, count in after.items() if key in before}


def _devices(path: str = "/proc/net/dev") -> dict[str, int]:
    return {name: numbers[1] for name, numbers in parse_devices(read_text(path)).items()}


def _ip_counters(name: str) -> dict[int, int]:
    ipv4 = parse_paired(read_text("/proc/net/snmp")).get("Ip", {})
    ipv6 = parse_single(read_text("/proc/net/snmp6"))
    return {4: ipv4.get(name, 0), 6: ipv6.get(f"Ip6{name}", 0)}


def _other_namespaces() -> dict[str, int]:
    """Return what other namespaces received, read through any process that lives in one."""
    mine = namespaces.own()
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
        name = namespaces.name_of(number) or f"that of process {pid}"
        found[name] = sum(count for device, count in counts.items() if device != LOOPBACK)
    return found
