"""A lab's scenario played once: what was sent, recorded independently, and fwtop's observation of it."""

from __future__ import annotations

import contextlib
import shlex
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from fwtop.bench.cases import Case, Interval
from fwtop.bench.measured_harm import BASELINE, Harm, install, measured_harm, quiet, ruled
from fwtop.bench.recorder import Packet, parse
from fwtop.kernel.namespaces import inside
from fwtop.lab import network as net
from fwtop.lab.network import Wire
from fwtop.lab.run import Lab
from fwtop.lab.traffic.plan import TOP, build_plan
from fwtop.lab.watch import observe

_KINDS = ("ipset", "string", "hashlimit", "xdp", "tc", "nftables")
_PROPOSAL_PPS = 40_000  # low enough that nothing fails for lack of CPU time
_EXHAUSTION, _FULL = "conntrack_exhaustion", 0.75
_CLIENT_PORTS = (22, 53, 80, 443)  # the victim's: clients' packets to these are not in the flood's counts


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


class Played(Case, frozen=True):
    """A scenario, of which more is known than of a capture."""

    payloads: tuple[tuple[Signature, int], ...] = ()  # constant bytes as sent, and in how many packets
    legitimate: tuple[Packet, ...] = ()
    attack: tuple[Packet, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)  # kind → share of all packets
    also: tuple[str, ...] = ()  # names that are right as well, but not required
    conntrack_fill: float = 0.0  # share of the victim's connection table in use at the end

    @property
    def named_kinds(self) -> tuple[str, ...]:
        """`seen_kinds` without optional right names: those of `also`, and a table that is indeed full."""
        is_full = self.conntrack_fill >= _FULL and _EXHAUSTION not in (self.kinds or ())
        optional = {*self.also, _EXHAUSTION} if is_full else set(self.also)
        return tuple(kind for kind in self.seen_kinds if kind not in optional)

    @property
    def signatures(self) -> list[Signature]:
        """Payloads that fwtop shows as typical of the attack: common in the traffic, rare in the baseline."""
        return [
            Signature(bytes.fromhex(row["hex"]), row["offset"])
            for row in self.observation["payloads"]
            if row["baseline_share"] <= 0.005 and row["share"] >= 0.01
        ]

    def intervals(self) -> list[Interval]:
        """Return the interval of every shown share whose true value is known, those of payloads too."""
        counted = ((row, self._payload_count(row)) for row in self.observation["payloads"])
        payloads = [
            self.interval(f"payload {row['hex'][:24]}", row, count)
            for row, count in counted
            if count is not None
        ]
        return Case.intervals(self) + payloads

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


def run_scenario(lab: Lab, seconds: float) -> Played:
    """Run a lab's scenario once, watched by fwtop and recorded independently."""
    clients = {*lab.legitimate.all}
    with Recorder(lab.victim, clients) as recorder:
        result = observe(lab, seconds)
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
    return Played(
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


def try_proposals(lab: Lab, observation: dict[str, Any], seconds: float) -> Iterator[Harm]:
    """Install the first proposal of each kind in turn, in a lab that has already been observed."""
    proposals: dict[str, dict[str, Any]] = {}
    for proposal in observation["proposals"]:
        # `fwtop apply N` needs a stored session, and these observations are not stored.
        if proposal["kind"] in _KINDS and not proposal["fwtop"].startswith("fwtop apply"):
            proposals.setdefault(proposal["kind"], proposal)
    for kind, proposal in proposals.items():
        usual = quiet(lab, f"quiet {kind}", seconds)
        install(lab, shlex.split(proposal["fwtop"])[1:])
        lab.start_flood(_PROPOSAL_PPS)
        ruled(lab, f"ruled {kind}", seconds)
        each = lab.results_by_client()
        harm = measured_harm(usual, each[f"quiet {kind}"], each[f"ruled {kind}"])
        tried = sum(row["tried"] for row in each[f"ruled {kind}"])
        name = f"{lab.scenario.name}, {kind} proposed"
        yield Harm(name, proposal["summary"], {BASELINE: proposal["collateral_share"]}, harm, tried)


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


_ALL = 3  # ETH_P_ALL
_BUFFER_BYTES = 1 << 20
_WANTED = 3000  # packets of either side
_SOURCE_OUTGOING = 4  # PACKET_OUTGOING, packet(7)


class Recorder:
    """Keeps the first packets of the given clients and of all other senders, during the `with` block.

    The packet socket is closed once the second list is full, so that it doesn't slow the victim for long.
    """

    def __init__(self, netns: str, clients: set[str]) -> None:
        self._netns, self._clients = netns, clients
        self.legitimate: list[Packet] = []
        self.other: list[Packet] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._record, daemon=True)

    def __enter__(self) -> Recorder:
        """Start recording."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop recording; the lists are final afterwards."""
        self._ending.set()
        self._thread.join(timeout=5)

    def _record(self) -> None:
        with inside(self._netns), contextlib.closing(_packet_socket()) as end:
            # Once the others' are full the flood has started: clients have been recorded before it
            while not self._ending.is_set() and len(self.other) < _WANTED:
                self._take(end)

    def _take(self, end: socket.socket) -> None:
        try:
            data, address = end.recvfrom(65_535)
        except TimeoutError:
            return
        if address[2] == _SOURCE_OUTGOING or (packet := parse(data)) is None:
            return
        kept = self.legitimate if packet.source in self._clients else self.other
        if len(kept) < _WANTED:
            kept.append(packet)


def _packet_socket() -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    end.bind((net.VICTIM_INTERFACE, _ALL))
    end.settimeout(0.1)
    return end
