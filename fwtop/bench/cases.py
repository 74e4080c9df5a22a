"""One case of the accuracy table: the truth, fwtop's observation of it, and scores."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from fwtop.bench.programs import fwtop_argv
from fwtop.bench.recorder import Packet, Recorder, capture_records, parse
from fwtop.kernel.namespaces import inside
from fwtop.lab.network import Wire
from fwtop.lab.run import Lab
from fwtop.lab.traffic.plan import TOP, build_plan
from fwtop.lab.watch import observe
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_READ_SECONDS = 120
_EXHAUSTION, _FULL = "conntrack_exhaustion", 0.75
_CLIENT_PORTS = (22, 53, 80, 443)  # the victim's: clients' packets to these are not in the flood's counts
_NAMES = {6: "tcp", 17: "udp"}


class Case(Struct, frozen=True):
    """A scenario or a capture. `kinds` is None for a capture of unknown contents."""

    name: str
    kinds: tuple[str, ...] | None
    packets: int
    bytes: int
    sources: Mapping[str, int]
    ports: Mapping[tuple[str, str, int], int]
    observation: dict[str, Any]
    payloads: tuple[tuple[Signature, int], ...] = ()  # constant bytes as sent, and in how many packets
    legitimate: tuple[Packet, ...] = ()
    attack: tuple[Packet, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)  # kind → share of all packets
    also: tuple[str, ...] = ()  # names that are right as well, but not required
    conntrack_fill: float = 0.0  # share of the victim's connection table in use at the end

    @property
    def one_in(self) -> float:
        """Packets per sample of the observation."""
        return float(self.observation["sampling"]["one_in"])

    @property
    def seen_kinds(self) -> tuple[str, ...]:
        """The attacks that fwtop named."""
        return tuple(attack["kind"] for attack in self.observation["attacks"])

    @property
    def named_kinds(self) -> tuple[str, ...]:
        """`seen_kinds` without optional right names: those of `also`, and a table that is indeed full."""
        is_full = self.conntrack_fill >= _FULL and _EXHAUSTION not in (self.kinds or ())
        optional = {*self.also, _EXHAUSTION} if is_full else set(self.also)
        return tuple(kind for kind in self.seen_kinds if kind not in optional)

    @property
    def unexplained(self) -> float:
        """The ledger's unexplained packets, as a share of the total."""
        rows = self.observation["ledger"]
        count = sum(abs(row["packets"]) for row in rows if row["layer"] == "unexplained")
        return count / self.packets if self.packets else 0.0

    @property
    def ledger(self) -> int:
        """Packets that the ledger accounts for."""
        return sum(row["packets"] for row in self.observation["ledger"] if row["layer"] != "unexplained")

    @property
    def signatures(self) -> list[Signature]:
        """Payloads that fwtop shows as typical of the attack: common in the traffic, rare in the baseline."""
        return [
            Signature(bytes.fromhex(row["hex"]), row["offset"])
            for row in self.observation["payloads"]
            if row["baseline_share"] <= 0.005 and row["share"] >= 0.01
        ]

    def intervals(self) -> list[Interval]:
        """Return the interval of every shown share whose true value is known."""
        found = [
            self._interval(row["key"], row, self.sources[row["key"]])
            for row in self.observation["sources"]["address"]
            if row["key"] in self.sources
        ]
        for row in self.observation["ports"]:
            key = (row["protocol"], row["side"], row["port"])
            if key in self.ports:
                found.append(self._interval("/".join(map(str, key)), row, self.ports[key]))
        for row in self.observation["payloads"]:
            count = self._payload_count(row)
            if count is not None:
                found.append(self._interval(f"payload {row['hex'][:24]}", row, count))
        return found

    def _interval(self, name: str, row: dict[str, Any], count: int) -> Interval:
        return Interval(f"{self.name}: {name}", row["share_low"], row["share_high"], count / self.packets)

    def _payload_count(self, row: dict[str, Any]) -> int | None:
        """Return how many packets were sent with a shown payload, or None if that is unknown."""
        if row["offset"] is None or not 0 < len(self.payloads) < TOP:  # a full list was cut
            return None
        first, shown = row["offset"], bytes.fromhex(row["hex"])
        count = 0
        for sent, packets in self.payloads:
            start = first - (sent.offset or 0)
            if start < 0 or start + len(shown) > len(sent.data):
                return None
            count += packets if sent.data[start : start + len(shown)] == shown else 0
        return count or None


def run_scenario(lab: Lab, seconds: float) -> Case:
    """Run a lab's scenario once, watched by fwtop and recorded independently."""
    clients = {*lab.legitimate.all}
    watching = ["snapshot", "--netns", lab.victim, "--seconds", f"{seconds:g}", "--json", "--no-store"]
    with Recorder(lab.victim, clients) as recorder:
        result = observe(lab, seconds, watcher=fwtop_argv(*watching))
    fill = _conntrack_fill(lab)
    truth = result["truth"]
    # Frames lost to the victim's full queue count as drops of its interface, and thus in fwtop's total.
    total = truth["packets"] + truth["link_full"]
    kinds = Counter[str]()
    for vector in truth["vectors"]:
        kinds[vector["kind"]] += vector["packets"]
    crowds = {crowd.kind for crowd in lab.scenario.crowds}
    if len(crowds) == 1:  # the crowds' packets are counted together
        kinds[crowds.pop()] += truth["crowd"]["packets"]
    return Case(
        name=lab.scenario.name,
        kinds=lab.scenario.kinds,
        packets=total,
        bytes=truth["bytes"],
        sources=_sent_sources(lab, truth, result["observation"]),
        ports=_sent_ports(truth),
        observation=result["observation"],
        payloads=tuple(
            (Signature(bytes.fromhex(row["hex"]), row["offset"]), row["packets"])
            for row in truth["payloads"]
            if not row["later_fragment"]
        ),
        legitimate=tuple(recorder.legitimate),
        attack=tuple(recorder.other),
        # A full connection table has no packets of its own: those that fill it count for their own vector.
        shares={
            kind: packets / total for kind, packets in kinds.items() if kind and total and kind != _EXHAUSTION
        },
        also=tuple(truth["kinds_also"]),
        conntrack_fill=fill,
    )


def _conntrack_fill(lab: Lab) -> float:
    with inside(lab.victim):
        count, most = (
            int(Path(f"/proc/sys/net/netfilter/nf_conntrack_{name}").read_text()) for name in ("count", "max")
        )
    return count / most


def _sent_sources(lab: Lab, truth: dict[str, Any], observation: dict[str, Any]) -> dict[str, int]:
    """Return the packets that each source sent.

    The truth lists only the top sources. A shown source that is not listed counts as much as the last listed
    one (its upper bound) if it belongs to the flood; otherwise it sent next to nothing and is left out.
    """
    counts = {row["key"]: int(row["packets"]) for row in truth["sources"]}
    if len(counts) < TOP:
        return counts
    plan = build_plan(lab.scenario, Wire(bytes(6), bytes(6)))
    pool = {str(slot.prefix) for slot in plan.slots if slot.prefix.is_address}
    shown = {row["key"] for row in observation["sources"]["address"]} & pool
    return {key: min(counts.values()) for key in shown} | counts


def _sent_ports(truth: dict[str, Any]) -> dict[tuple[str, str, int], int]:
    """Return the flood's packets by (protocol, side, port), except ports that clients use as well."""
    return {
        (row["protocol"], row["side"], row["port"]): row["packets"]
        for row in truth["ports"]
        if isinstance(row["port"], int) and not (row["side"] == "dst" and row["port"] in _CLIENT_PORTS)
    }


def read_capture(argument: str) -> Case:
    """Count a capture independently and by `fwtop read`; `argument` is FILE or FILE=kind,kind."""
    name, _, expected = argument.partition("=")
    path = Path(name)
    sources, ports = Counter[str](), Counter[tuple[str, str, int]]()
    packets = size = 0
    try:
        for data, length, link in capture_records(path):
            packets, size = packets + 1, size + length
            if (packet := parse(data, link)) is None:
                continue
            sources[packet.source] += 1
            if packet.sport is not None and packet.dport is not None:
                ports[_NAMES[packet.protocol], "src", packet.sport] += 1
                ports[_NAMES[packet.protocol], "dst", packet.dport] += 1
    except OSError as error:
        raise FwtopError(f"{safe_text(name)}: {error.strerror}; nothing was measured") from None
    kinds = tuple(kind for kind in expected.split(",") if kind and kind != "none") if expected else None
    return Case(path.name, kinds, packets, size, sources, ports, _read(path))


def _read(path: Path) -> dict[str, Any]:
    done = subprocess.run(
        fwtop_argv("read", str(path), "--json"), capture_output=True, timeout=_READ_SECONDS, check=False
    )
    if done.returncode:
        raise FwtopError(f"fwtop read {safe_text(path)}: {safe_text(done.stderr.decode('utf-8', 'replace'))}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


TOP_SOURCES = 20
_SAMPLES = 10
_STEP = 2e-6  # shares are printed with six decimals


class Recall(Struct, frozen=True):
    """How many of the true top entries were shown first."""

    found: int
    wanted: int
    missed: tuple[str, ...] = ()


def top_recall(
    true: Mapping[str, int], shown: Sequence[str], one_in: float, top: int = TOP_SOURCES
) -> Recall:
    """Compare the first `top` shown with the true `top`, within the resolution of 1-in-`one_in` sampling.

    Only sources with at least ten expected samples are required. A source as large as the smallest required
    one counts in its place (ties), and so does one within two standard errors of it.
    """
    resolved = _SAMPLES * one_in if one_in > 1 else 0.0
    ranked = sorted(
        ((key, count) for key, count in true.items() if count >= resolved), key=lambda item: -item[1]
    )
    wanted = min(top, len(ranked))
    if not wanted:
        return Recall(0, 0)
    least = ranked[wanted - 1][1]
    blur = 2 * sqrt(2 * least * max(0.0, one_in - 1))
    first = set(shown[:top])
    good = sum(1 for key in first if true.get(key, 0) >= max(1.0, least - blur))
    missed = tuple(key for key, _ in ranked[:wanted] if key not in first)
    return Recall(min(good, wanted), wanted, missed[: wanted - min(good, wanted)])


def strict_recall(true: Mapping[str, int], shown: Sequence[str], top: int = TOP_SOURCES) -> Recall:
    """Compare the first `top` shown with the true `top`; ties are interchangeable."""
    return top_recall(true, shown, 1.0, top)


class Interval(Struct, frozen=True):
    """The 95 % interval of a shown share, and the true share."""

    name: str
    low: float
    high: float
    true: float

    @property
    def is_exact(self) -> bool:
        """Whether the share is presented as exact: the interval is no wider than rounding."""
        return self.high - self.low <= 2 * _STEP

    def covers(self, slack: float = 0.0) -> bool:
        """Whether the true share is within the interval, plus or minus `slack`."""
        return self.low - _STEP - slack <= self.true <= self.high + _STEP + slack


def coverage(intervals: Sequence[Interval], slack: float = 0.0) -> float | None:
    """Return the share of intervals that cover the true value; None for an empty list."""
    if not intervals:
        return None
    return sum(interval.covers(slack) for interval in intervals) / len(intervals)


def relative_difference(seen: float, true: float) -> float:
    """Return |seen - true| / true; for a true 0, 1 if anything was seen."""
    return abs(seen - true) / true if true else float(seen != 0)


def named_rightly(expected: Sequence[str], seen: Sequence[str]) -> float:
    """Return the Jaccard index of expected and named kinds."""
    either = set(expected) | set(seen)
    return len(set(expected) & set(seen)) / len(either) if either else 1.0


class Signature(Struct, frozen=True):
    """Bytes at an offset of the transport payload (None: anywhere)."""

    data: bytes
    offset: int | None

    def is_in(self, payload: bytes) -> bool:
        """Whether a payload contains the bytes, at the offset if there is one."""
        if self.offset is None:
            return self.data in payload
        return payload[self.offset : self.offset + len(self.data)] == self.data


def matched(signatures: Sequence[Signature], payloads: Sequence[bytes]) -> float:
    """Return the share of payloads that contain any of the signatures."""
    if not payloads:
        return 0.0
    return sum(any(one.is_in(payload) for one in signatures) for payload in payloads) / len(payloads)
