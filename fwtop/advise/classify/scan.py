"""Port scans, quick or slow. Sources: Jung et al., "Fast Portscan Detection" (2004); nmap's manual."""

from __future__ import annotations

import numpy as np

from fwtop.advise.scene import Finding, Scene, sure
from fwtop.advise.services import BY_PORT
from fwtop.advise.spoof import Spoof
from fwtop.advise.traffic import TCP, UDP, Rows, mix
from fwtop.model.address import format_address
from fwtop.model.packets import U64
from fwtop.model.rule import Match

_FLOOD_PPS = 20_000.0  # of one source: then it is a flood, whatever it looks for
_TRIES = 4.0  # probes of one port: scanners retry twice or thrice
_EPHEMERAL = 32_768
_DRAWN = 100  # packets of a source before the spread of its own ports says something
_COMMON = 8  # ports tried by half of all sources
_LONG = 8.0  # seconds after which a rate means something
_SERVICES = np.array([*BY_PORT, 1812, 1813], np.uint16)
_NEW_SOURCES = 1_024  # a window with more unknown sources is a flood; don't remember them all


def port_scan(scene: Scene) -> list[Finding]:
    """One source that tries many ports (or many of our addresses) and talks to none."""
    rows = scene.traffic.rows(_probes(scene))
    if len(rows) == 0:
        return []
    found = _without_floods(scene, rows, _scanners(scene, rows))
    if not found:
        return []
    source = scene.traffic.source_key[rows]
    mine = rows[np.isin(source, np.array([key for key, _ in found], np.uint64))]
    facts = scene.facts(mine)
    ports = max(n for _, n in found)
    packets = scene.traffic.packets
    at = int(mine[np.argmax(scene.traffic.source_key[mine] == np.uint64(found[0][0]))])
    who = format_address(int(packets.family[at]), int(packets.src_hi[at]), int(packets.src_lo[at]))
    evidence = (
        f"{who} tried {ports:,}{'+' if ports >= 512 else ''} different ports or addresses and talked to none",
        f"{len(found)} scanning source{'s' if len(found) > 1 else ''}, {facts.pps:.1f} probes a second",
    )
    tcp = facts.top("protocol").value == TCP
    match = Match(protocol=TCP if tcp else UDP)
    # To scan, one must get the answers: the source is real (idle scans aside).
    return [
        Finding("port_scan", f"Port scan by {who}", mine, sure(0.93, 200), evidence, Spoof(0.05, ()), match)
    ]


def _probes(scene: Scene) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Packets that ask whether somebody listens: SYN or odd flags, and nearly empty UDP."""
    tcp = scene.tcp
    packets = scene.traffic.packets
    # Answers go from a service's port to those that clients choose (Linux: 32,768 on)
    answers = (packets.dport >= _EPHEMERAL) | (np.isin(packets.sport, _SERVICES) & (packets.dport >= 1024))
    small = scene.udp & (packets.payload_length <= 64) & ~answers & ~scene.solicited
    asks = (tcp.syn & ~tcp.completed) | tcp.odd | (tcp.fin & ~tcp.real & ((packets.tcp_flags & 16) == 0))
    return np.asarray((asks | small) & scene.free)


def _scanners(scene: Scene, rows: Rows) -> list[tuple[int, int]]:
    """Return scanning sources and how many pairs each has tried, the busiest first."""
    traffic, config = scene.traffic, scene.config
    now = traffic.started + traffic.seconds
    scene.scans.forget(now - config.scan_memory_seconds)
    source = traffic.source_key[rows]
    pair = mix(traffic.dest_key[rows], traffic.packets.dport[rows].astype(np.uint64))
    one = _unique_pairs(source, pair)
    keys, starts, pairs_of = np.unique(one[:, 0], return_index=True, return_counts=True)
    weights = np.bincount(np.searchsorted(keys, source), traffic.weight[rows], len(keys))
    known = np.isin(keys, np.fromiter(scene.scans.sources, np.uint64, len(scene.scans.sources)))
    remember = known | (pairs_of >= 2) if len(keys) > _NEW_SOURCES else np.ones(len(keys), np.bool_)
    order = np.argsort(pairs_of)[::-1]
    found = []
    for i in order[remember[order]][:_NEW_SOURCES].tolist():
        tried = one[starts[i] : starts[i] + min(int(pairs_of[i]), 512), 1].tolist()
        probes = scene.scans.add(int(keys[i]), tried, now)
        tries = float(weights[i]) / float(pairs_of[i]) / max(1.0, traffic.one_in)
        quiet = float(weights[i]) / traffic.seconds < _FLOOD_PPS
        if len(probes.pairs) >= config.scan_ports and tries <= _TRIES and quiet:
            found.append((int(keys[i]), max(len(probes.pairs), int(pairs_of[i]))))
    scanning = {key for key, _ in found}
    # When a large part of all sources "scans", ports are drawn at random by a flood; but not slowly
    together = float(weights[np.isin(keys, np.array(sorted(scanning), np.uint64))].sum()) / traffic.seconds
    slow = together < config.flood_pps and traffic.seconds >= _LONG
    common = len(keys) >= 8 and float(np.median(pairs_of)) >= _COMMON  # these only do more of what all do
    return [] if (common or len(scanning) > max(8, len(keys) // 4)) and not slow else found


def _without_floods(scene: Scene, rows: Rows, found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Leave out sources that draw the port they send from, where they do so at a flood's rate together."""
    source = scene.traffic.source_key[rows]
    drawn = [key for key, _ in found if _drawn(scene, rows[source == np.uint64(key)])]
    facts = scene.facts(rows[np.isin(source, np.array(drawn, np.uint64))])
    if min(facts.peak_pps, facts.packets) < scene.config.flood_pps:
        return found
    return [pair for pair in found if pair[0] not in drawn]


def _drawn(scene: Scene, rows: Rows) -> bool:
    """Tell own ports that are drawn anew for each packet, as floods do.

    Scanners keep one to know their answers by (nmap, ZMap) or take the system's, from 32,768 on (connect).
    """
    if len(rows) < _DRAWN:
        return False
    ports = scene.traffic.packets.sport[rows]
    expected = 65_536 * (1 - np.exp(-len(rows) / 65_536))
    low = float((ports < _EPHEMERAL).mean())
    return len(np.unique(ports)) > 0.9 * expected and 0.3 < low < 0.8


def _unique_pairs(source: U64, pair: U64) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    order = np.lexsort((pair, source))
    source, pair = source[order], pair[order]
    new = np.concatenate(([True], (source[1:] != source[:-1]) | (pair[1:] != pair[:-1])))
    return np.stack([source[new], pair[new]], 1)
