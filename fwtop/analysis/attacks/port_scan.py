"""Port scans."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut, noted
from fwtop.analysis.measures.general import ENOUGH, pace, peak
from fwtop.analysis.parsers.services import BY_PORT
from fwtop.analysis.severity import CORE
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.counting import among, distinct_values
from fwtop.analysis.window.traffic import TCP, UDP, Rows, mix
from fwtop.model.addresses.address import format_address
from fwtop.model.rule import Match
from fwtop.model.traffic.severity import Harm
from fwtop.render.numbers import plural

_FLOOD = 10.0  # times the rate of the least flood, from which a scan is one first of all
_FLOOD_PPS = 3_000.0  # and this rate, as a capture has no least
_REAL = Spoof(0.05, ())  # a scanner needs the answers (except for idle scans)
_PORTS = 65_536  # of an address: more probes repeat some, although a thin sample doesn't show which
_TRIES = 4.0  # probes per port: scanners retry two or three times
_EPHEMERAL = 32_768
_DRAWN = 24  # packets of a source: fewer say nothing about its source ports
_ALL = 0.95  # share of a source's packets: nearly all
_COMMON = 8  # ports probed by half of all sources
_LONG = 8.0  # seconds: rates of a shorter window mean little
_OF_SERVICES = np.isin(np.arange(_PORTS), [*BY_PORT, 1812, 1813])  # by port; RADIUS
_CONNECTS = 4  # ports tried beside a real connection: an application's, not a scan
_NEW_SOURCES = 1_024  # a window with more new sources is a flood; don't remember them all


@cut(Proof.PROBES)
def scanners(context: AnalysisContext) -> Iterator[Group]:
    """Probes of sources that try many ports, or many addresses of this host, and connect to none."""
    rows = context.traffic.rows(_probes(context))
    if len(rows) == 0:
        return
    found = _without_floods(context, rows, _scanners(context, rows))
    if not found:
        return
    source = context.traffic.source_key[rows]
    mine = rows[among(source, [key for key, _ in found])]
    features = context.features(mine)
    probed = max(n for _, n in found)
    packets = context.traffic.packets
    at = int(mine[np.argmax(context.traffic.source_key[mine] == np.uint64(found[0][0]))])
    who = format_address(int(packets.family[at]), int(packets.src_hi[at]), int(packets.src_lo[at]))
    tcp = features.top("protocol").value == TCP
    notes = {
        "who": who,
        "probed": f"{probed:,}{'+' if probed >= 512 else ''}",
        "scanners": plural(len(found), "scanning source"),
        "scanned_ports": probed,
        "flood": "SYN flood" if tcp else "UDP flood",
        "flood_kind": "syn_flood" if tcp else "udp_flood",
    }
    flood = Least(normal="tcp.syn" if tcp else "udp", times=_FLOOD)
    yield Group(context, features, flood, notes, known_spoof=_REAL)


scanned_ports = noted("scanned_ports", "ports",
    "Pairs of address and port that the busiest scanner tried, now or in the last minutes.")  # fmt: skip


def match_probes(group: Group) -> Match:
    """Match the protocol of most probes."""
    return Match(protocol=TCP if group.packets.top("protocol").value == TCP else UDP)


def _probes(context: AnalysisContext) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark probes: SYN or invalid flags, and nearly empty UDP."""
    tcp = context.tcp
    packets = context.traffic.packets
    # Answers go from the port of a service to an ephemeral port (Linux: from 32,768)
    answers = (packets.dport >= _EPHEMERAL) | (_OF_SERVICES[packets.sport] & (packets.dport >= 1024))
    small = context.udp & (packets.payload_length <= 64) & ~answers & ~context.solicited
    asks = (tcp.syn & ~tcp.completed) | tcp.odd | (tcp.fin & ~tcp.real & ((packets.tcp_flags & 16) == 0))
    return np.asarray((asks | small) & context.unclaimed)


def _scanners(context: AnalysisContext, rows: Rows) -> list[tuple[int, int]]:
    """Return scanning sources and the pairs that each has probed, busiest first."""
    traffic, config = context.traffic, context.config
    now = traffic.started + traffic.seconds
    context.memory.scans.forget(now - config.scan_memory_seconds)
    source = traffic.source_key[rows]
    pair = mix(traffic.dest_key[rows], traffic.packets.dport[rows].astype(np.uint64))
    in_order = np.lexsort((pair, source))
    by_source, tried = source[in_order], pair[in_order]
    new = np.concatenate(([True], (by_source[1:] != by_source[:-1]) | (tried[1:] != tried[:-1])))
    tried = tried[new]  # the distinct pairs of each source
    keys, starts, pairs_of = np.unique(by_source[new], return_index=True, return_counts=True)
    weights = np.bincount(np.searchsorted(keys, source), traffic.weight[rows], len(keys))
    connected = among(keys, traffic.source_key[context.tcp.real]) & (pairs_of < _CONNECTS)
    known = among(keys, context.memory.scans.sources)
    remember = known | (pairs_of >= 2) if len(keys) > _NEW_SOURCES else np.ones(len(keys), np.bool_)
    order = np.argsort(pairs_of)[::-1]
    hosts = len(distinct_values(traffic.dest_key[rows]))
    found = []
    for i in order[remember[order]][:_NEW_SOURCES].tolist():
        mine = tried[starts[i] : starts[i] + min(int(pairs_of[i]), 512)]
        probes = context.memory.scans.add(int(keys[i]), mine, now)
        tries = float(weights[i]) / float(pairs_of[i]) / max(1.0, traffic.one_in)
        tries = max(tries, float(weights[i]) / (_PORTS * hosts))
        if len(probes.pairs) >= config.scan_ports and tries <= _TRIES and not connected[i]:
            found.append((int(keys[i]), max(len(probes.pairs), int(pairs_of[i]))))
    scanning = {key for key, _ in found}
    # If many of all sources "scan", it is a flood to random ports, unless it is slow
    together = float(weights[among(keys, scanning)].sum()) / traffic.seconds
    slow = together < config.flood_pps and traffic.seconds >= _LONG
    common = len(keys) >= 8 and float(np.median(pairs_of)) >= _COMMON  # all do it, and these do more
    return [] if (common or len(scanning) > max(8, len(keys) // 4)) and not slow else found


def _without_floods(
    context: AnalysisContext, rows: Rows, found: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Exclude sources with random source ports, or as much data for each, if all that probe are a flood."""
    features, source = context.features(rows), context.traffic.source_key[rows]
    if min(features.peak_pps, features.packets) < context.config.flood_pps:
        return found
    mine = [rows[source == np.uint64(key)] for key, _ in found]
    return [
        pair
        for pair, of_it in zip(found, mine, strict=True)
        if not (_drawn(context, of_it) or _loaded(context, of_it))
    ]


def _drawn(context: AnalysisContext, rows: Rows) -> bool:
    """Check for a random source port per packet, as floods have.

    Scanners use a fixed port to recognise answers (nmap, ZMap) or ephemeral ports from 32,768 (connect).
    """
    if len(rows) < _DRAWN:
        return False
    ports = context.traffic.packets.sport[rows]
    expected = 65_536 * (1 - np.exp(-len(rows) / 65_536))
    low = float((ports < _EPHEMERAL).mean())
    return len(distinct_values(ports)) > 0.9 * expected and 0.3 < low < 0.8


def _loaded(context: AnalysisContext, rows: Rows) -> bool:
    """Check for UDP with as much data to each port: scanners send none, or what a port's service answers."""
    if len(rows) < _DRAWN:
        return False
    lengths = context.traffic.packets.payload_length[rows][context.udp[rows]]
    if len(lengths) < _ALL * len(rows):
        return False
    sizes = np.bincount(lengths)
    return int(sizes.argmax()) > 0 and int(sizes.max()) > _ALL * len(rows)


_scan = partial(
    Hypothesis,
    of=scanners,
    exhausts=(CORE,),
    traits=Trait.SCAN,
    lead=(
        "{who} probed {probed} ports or addresses and connected to none",
        "{scanners}, {rate:.1f} probes/s",
    ),
    match=match_probes,
    stopped_by="blocking the scanner",
)
ENTRIES = (
    _scan(
        "port scan", prior=2.6, kind="port_scan", otherwise=Harm.ABUSE,
        title="Port scan by {who}",
        needs=(scanned_ports.at_least(1),),  # the cut finds those that try as many as configured
    ),
    _scan(
        "flood over many ports", prior=4.6, kind="{flood_kind}",  # masscan, zmap, nmap --min-rate
        title="{flood} over many ports by {who}",
        needs=(ENOUGH, pace.at_least(_FLOOD_PPS)),
        evidence=(peak.above(0, 0.5, "at {peak:count} packets/s, whatever it looks for"),),
    ),
)  # fmt: skip
