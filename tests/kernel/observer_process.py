"""An observation in a process of its own, as the console runs it: started in a namespace, then unprivileged.

Commands come as lines on standard input, answers go as lines of JSON to standard output: `poll` gives
everything since the last one, `wait N` polls until N packets have arrived (or 5 s are over) and adds up,
`watch S` polls for S seconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np

from fwtop.collect import shutter
from fwtop.collect.links import list_links
from fwtop.collect.live import LiveSource
from fwtop.model.packets import Hook, PacketBatch
from fwtop.model.protocol import MAX_MESSAGE, parse_answer

NOBODY = 65534
_PR_SET_NO_NEW_PRIVS = 38


def load(interfaces: list[str], slot: int = 0) -> tuple[dict[str, Any], dict[str, int]]:
    """Run the loader as the guardian does and return its data and descriptors by name."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = subprocess.Popen(
        [sys.executable, "-m", "fwtop.collect.loader", str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    with mine:
        mine.send(json.dumps({"interfaces": interfaces, "xdp": False, "slot": slot}).encode())
        message, descriptors, _, _ = socket.recv_fds(mine, MAX_MESSAGE, 64)
    child.wait(10)
    answer = parse_answer(message)
    if not answer.ok:
        print(json.dumps({"error": answer.error, "code": answer.code}), flush=True)
        sys.exit(answer.code)
    return answer.data, dict(zip(answer.data["fds"], descriptors, strict=True))


def become_nobody() -> None:
    """Give up every privilege, as the console does."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def describe(batch: PacketBatch, reasons: dict[str, str]) -> list[dict[str, Any]]:
    """Group the samples by what a test asks for."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for at in range(len(batch)):
        payload = bytes(batch.data[at, batch.payload_offset[at] : batch.captured[at]])
        reason = reasons.get(str(batch.reason[at]), "") if batch.hook[at] == Hook.DROP else ""
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


class Observer:
    """Adds polls up until a test has what it waits for."""

    def __init__(self, source: LiveSource, reasons: dict[str, str]) -> None:
        self._source = source
        self._reasons = reasons

    def until(self, arrived: int, seconds: float) -> dict[str, Any]:
        """Poll until so many packets have arrived and come to their end, or the time is over."""
        end = time.monotonic() + seconds
        batches: list[PacketBatch] = []
        total: dict[str, Any] = {"arrived": 0, "bytes": 0, "accepted": 0, "accepted_bytes": 0, "lost": 0}
        drops: dict[str, int] = {}
        new = 0.0
        protocols: dict[str, list[int]] = {}
        while True:
            batch, counters = self._source.poll()
            batches.append(batch)
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
            "one_in": counters.one_in,
            "watched": counters.watched,
            "link_packets": link_packets,
            "protocols": protocols,
            "notes": list(self._source.notes),
            "uid": os.getuid(),
        }


def main() -> None:
    """Load, give up privileges, obey."""
    data, descriptors = load(sys.argv[1:])
    become_nobody()
    if os.environ.get("FWTOP_TEST_WINDOWS"):  # as if the machine were at its limit already
        shutter.LIMIT = shutter.RELEASE = 1e-6
        shutter.SPARE = shutter.SPARE_AGAIN = 2.0
    shared = {name: number for name, number in descriptors.items() if not name.startswith("hold:")}
    observer = Observer(LiveSource(data, shared), data["reasons"])
    print(json.dumps({key: data[key] for key in ("interfaces", "own", "ingress", "accepted")}), flush=True)
    for line in sys.stdin:
        verb, _, number = line.strip().partition(" ")
        seconds = {"wait": 5.0, "watch": float(number or 0)}.get(verb, 0.0)
        answer = observer.until(int(number) if verb == "wait" else 0, seconds)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
