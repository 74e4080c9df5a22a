"""Observe in a separate process, as the console does: started in a namespace, then without privileges.

Commands come as lines on standard input, answers go as lines of JSON to standard output: `poll` gives
everything since the last one, `wait N` polls until N packets have arrived (or a minute is over) and adds up,
`watch S` polls for S seconds.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np

from fwtop.analysis.packets.recent import verdicts
from fwtop.console.packet_ring import PacketRing
from fwtop.guardian.survey import KALLSYMS, names_in
from fwtop.kernel import drop_reasons
from fwtop.kernel.links import list_links
from fwtop.live.source import LiveSource
from fwtop.model.messages import MAX_MESSAGE, parse_answer
from fwtop.model.traffic.packets import Hook, PacketBatch
from fwtop.observe import duty_cycle, scope
from fwtop.observe.messages import (
    HELD,
    LOCATIONS,
    SCOPE,
    AttachRequest,
    Observation,
    decode_reply,
    encode_request,
    read_locations,
)

NOBODY = 65534
_PR_SET_NO_NEW_PRIVS = 38


def load(interfaces: list[str], slot: int = 0) -> tuple[Observation, dict[str, int]]:
    """Run the loader as the guardian does and return its observation and descriptors by name."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = subprocess.Popen(
        [sys.executable, "-m", "fwtop.observe.loader", str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    with mine:
        mine.send(encode_request(AttachRequest(tuple(interfaces), slot))[0])
        message, descriptors, _, _ = socket.recv_fds(mine, MAX_MESSAGE, 64)
    child.wait(60)
    answer = parse_answer(message)
    if not answer.ok:
        print(json.dumps({"error": answer.error, "code": answer.code}), flush=True)
        sys.exit(answer.code)
    return decode_reply(answer, descriptors)


def become_nobody() -> None:
    """Drop all privileges, as the console does."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def describe(batch: PacketBatch, reasons: dict[int, str]) -> list[dict[str, Any]]:
    """Group samples by the fields that tests need."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for at in range(len(batch)):
        payload = bytes(batch.data[at, batch.payload_offset[at] : batch.captured[at]])
        reason = reasons.get(int(batch.reason[at]), "") if batch.hook[at] == Hook.DROP else ""
        key = (
            Hook(batch.hook[at]).name,
            reason,
            int(batch.protocol[at]),
            int(batch.dport[at]),
            payload.hex(),
        )
        row = rows.setdefault(key, {"records": 0, "weight": 0.0, "vlan": int(batch.vlan[at])})
        row["records"] += 1
        row["weight"] += float(batch.weight[at])
    names = ("hook", "reason", "protocol", "dport", "payload")
    return [{**dict(zip(names, key, strict=True)), **row} for key, row in rows.items()]


def verdict_counts(ring: PacketRing) -> dict[str, int]:
    """Count the packets in the ring by destination port, fate and words."""
    recent = ring.latest
    places, kinds = verdicts(recent, (), ())
    found: dict[str, int] = {}
    for place, port in zip(places.tolist(), recent.arrived.dport.tolist(), strict=True):
        kind = kinds[place]
        key = f"{port} {kind.fate.value} {kind.text}{' ~' if kind.inferred else ''}".strip()
        found[key] = found.get(key, 0) + 1
    return found


class Observer:
    """Sums up polls until a condition is met."""

    def __init__(self, source: LiveSource, reasons: dict[int, str]) -> None:
        self._source = source
        self._reasons = reasons
        self._ring = PacketRing()

    def until(self, arrived: int, seconds: float) -> dict[str, Any]:
        """Poll until so many packets have arrived and been accounted for, or time is up."""
        end = time.monotonic() + seconds
        batches: list[PacketBatch] = []
        total: dict[str, Any] = {"arrived": 0, "bytes": 0, "accepted": 0, "accepted_bytes": 0, "lost": 0}
        drops: dict[str, int] = {}
        new, filtered = 0.0, 0
        protocols: dict[str, list[int]] = {}
        while True:
            batch, counters = self._source.poll()
            batches.append(batch)
            self._ring.add(batch, counters)
            total["arrived"] += counters.arrived_packets
            total["bytes"] += counters.arrived_bytes
            total["accepted"] += counters.accepted_packets or 0
            total["accepted_bytes"] += counters.accepted_bytes or 0
            total["lost"] += counters.records_lost
            for name, (packets, size) in counters.protocols.items():
                seen = protocols.setdefault(name, [0, 0])
                seen[0] += packets
                seen[1] += size
            for drop in counters.drops:
                key = f"{drop.layer}/{drop.reason}/{'before' if drop.before_delivery else 'after'}"
                drops[key] = drops.get(key, 0) + drop.packets
                filtered += drop.filtered
            if counters.conntrack is not None:
                new += counters.conntrack.new_per_s * counters.seconds
            if 0 < arrived <= total["arrived"] or time.monotonic() > end:
                break
            time.sleep(0.02 if arrived else 0.2)
        link_packets = sum(link.stats.packets for link in list_links() if not link.loopback)
        joined = PacketBatch.concat(batches)
        ingress = joined.hook == Hook.INGRESS
        return {
            **total,
            "drops": drops,
            "samples": describe(joined, self._reasons),
            "ingress_weight": float(np.sum(joined.weight[ingress])),
            "new_connections": round(new),
            "filtered": filtered,
            "one_in": counters.one_in,
            "watched": counters.watched,
            "link_packets": link_packets,
            "protocols": protocols,
            "notes": list(self._source.notes),
            "verdicts": verdict_counts(self._ring),
            "uid": os.getuid(),
        }


def main() -> None:
    """Load, drop privileges, execute commands."""
    observation, descriptors = load(sys.argv[1:])
    kernel_symbols = open(KALLSYMS, "rb")  # noqa: SIM115 - as root: what a guardian would answer
    become_nobody()
    if os.environ.get("FWTOP_TEST_WINDOWS"):  # as if the machine were at its limit already
        duty_cycle.LIMIT = duty_cycle.RELEASE = 1e-6
        duty_cycle.SPARE = duty_cycle.SPARE_AGAIN = 2.0
    else:  # every packet is observed, also beside tests that bring the machine to its limit
        duty_cycle.LIMIT = math.inf
    drop_reasons._LOOKUP_INTERVAL_SECONDS = 0.0  # names also a place where it drops just after another one
    shared = {name: number for name, number in descriptors.items() if not name.startswith(HELD)}

    def ask() -> list[str]:
        kernel_symbols.seek(0)
        return names_in(kernel_symbols, read_locations(descriptors[LOCATIONS]))

    def renew() -> None:
        chosen = [(item.index, item.name) for item in observation.interfaces]
        scope.renew(descriptors[SCOPE], chosen, observation.max_watched)

    source = LiveSource(observation, shared, ask_symbols=ask, renew_scope=renew)
    observer = Observer(source, observation.reasons)
    ready = {
        "interfaces": [item.name for item in observation.interfaces],
        "own": observation.own_addresses,
        "beside_netfilter": observation.beside_netfilter,
        "ingress": observation.ingress,
        "accepted": observation.accepted,
    }
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        verb, _, number = line.strip().partition(" ")
        seconds = {"wait": 60.0, "watch": float(number or 0)}.get(verb, 0.0)
        answer = observer.until(int(number) if verb == "wait" else 0, seconds)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
