"""Compiled rules run on single frames by BPF_PROG_TEST_RUN, and a slow reference implementation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from reference_parser import reference

from fwtop.guardian.mechanisms.compiled.slots import Peers
from fwtop.kernel import bpf
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import Conversation, Passes
from fwtop.model.rule import Match, PayloadMatch, Range, RateLimit
from fwtop.xdp import lists as xdp_lists
from fwtop.xdp import maps as xdp_maps
from fwtop.xdp.build import build_xdp
from fwtop.xdp.maps import COMPILED_PREFIXES, SlotRule, disjoint

XDP_DROP, XDP_PASS = 1, 2
FOREVER = (1 << 64) - 1


class Compiled:
    """A loaded rule set that is not attached; rule number n (from 1) is in slot n - 1."""

    def __init__(
        self,
        matches: list[Match],
        allow: tuple[Prefix, ...] = (),
        limit: int = COMPILED_PREFIXES,
        rates: dict[int, RateLimit] | None = None,
        *,
        build: Callable[[list[SlotRule], tuple[Prefix, ...], dict[str, int]], int] = build_xdp,
        roles: Sequence[Passes] = (),
    ) -> None:
        self.shared = xdp_maps.create_shared()
        peers = Peers(self.shared["allow"])
        peers.replace(roles)
        peers.close()
        self._open = list(self.shared.values())
        self.hits: list[int] = []  # the counters of each slot's prefixes; 0: it has none
        rules = []
        for slot, match in enumerate(matches):
            lists, counted = xdp_lists.build_lists(match, limit)
            counted = counted if lists else len(disjoint(match.sources))
            hits = xdp_lists.create_hits(counted) if counted else 0
            self.hits.append(hits)
            self._open += [fd for maps in lists.values() for fd in maps.descriptors.values()]
            self._open += [hits] if counted else []
            rate = (rates or {}).get(slot)
            buckets = xdp_lists.create_buckets() if rate is not None else 0
            self._open += [buckets] if rate is not None else []
            rules.append(SlotRule(slot, match, lists, rate, buckets, counted=counted, hits=hits))
        self._slots_map = xdp_maps.map_array(self.shared["slots"], 4096, writable=True)
        self.slots = np.frombuffer(self._slots_map, xdp_maps.slot_dtype(), xdp_maps.MAX_RULES)
        for slot in range(len(matches)):
            self.slots[slot] = (FOREVER, slot + 1, 0)
        self.program = build(rules, allow, self.shared)
        self._open.append(self.program)

    def __enter__(self) -> Compiled:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def drops(self, frame: bytes) -> bool:
        """Run on one frame."""
        verdict, _ = self.run(frame)
        assert verdict in (XDP_DROP, XDP_PASS)
        return verdict == XDP_DROP

    def run(self, frame: bytes, repeat: int = 1) -> tuple[int, int]:
        """Return the verdict and the duration in ns a packet."""
        return bpf.run_program(self.program, frame, repeat)

    def counts(self) -> list[int]:
        """Return the packets of each slot."""
        size = xdp_maps.possible_cpus() * xdp_maps.COUNTERS_BYTES
        with xdp_maps.map_array(self.shared["counters"], size, writable=False) as counters:
            found = np.frombuffer(counters[:size], xdp_maps.counters_dtype())
        return [int(n) for n in found["rules"]["packets"].sum(axis=0)]

    @contextmanager
    def ring(self) -> Iterator[int]:
        """Sample dropped packets into a ring."""
        ring = bpf.create_map(bpf.MAP_RINGBUF, "fwtop_test", entries=1 << 20)
        try:
            xdp_maps.put_ring(self.shared, 0, ring)
            yield ring
        finally:
            xdp_maps.put_ring(self.shared, 0, None)
            os.close(ring)


def verdict(
    matches: list[Match], allow: tuple[Prefix, ...], frame: bytes, roles: Sequence[Passes] = ()
) -> int | None:
    """Return the index of the first rule that matches a frame, by the rule's fields alone."""
    fields = reference(frame, len(frame))
    if fields["family"] == 0 or _in(allow, fields, "src") or _is_neighbour(fields):
        return None
    if any(_in_role(passes, fields) for passes in roles if passes.family == fields["family"]):
        return None
    return next((at for at, match in enumerate(matches) if hits(match, fields, frame)), None)


def _in_role(passes: Passes, fields: dict[str, int]) -> bool:
    source = Prefix(passes.family, fields["src"], 32 if passes.family == 4 else 128)
    protocol, sport, dport = fields["protocol"], fields["sport"], fields["dport"]
    if protocol in (6, 17) and fields["fragment"] == 2:
        return False
    if _in_conversation(passes, fields, source):
        return True
    peer, gateway = (source, protocol, sport) in passes.peers, source in passes.gateways
    if protocol == 6:
        opens = fields["tcp_flags"] & 0x17 == 2
        return gateway if dport == 179 else peer and not opens
    if protocol == 17:
        server, client = (67, 68) if passes.family == 4 else (547, 546)
        answers = {53: dport >= 1024, 123: True, server: dport == client}
        return peer if answers.get(sport) else gateway and dport in (3784, 3785, 4784)
    return gateway and protocol in (1 if passes.family == 4 else 58, 89, 112)


def _in_conversation(passes: Passes, fields: dict[str, int], source: Prefix) -> bool:
    target = Prefix(passes.family, fields["dst"], source.length)
    protocol, sport, dport = fields["protocol"], fields["sport"], fields["dport"]
    from_peer = Conversation(source, protocol, sport, target) in passes.behind
    to_peer = Conversation(target, protocol, dport, source) in passes.behind
    if protocol == 6:
        return fields["tcp_flags"] & 0x17 != 2 and (from_peer or (to_peer and dport != 53))
    if protocol == 17 and (sport == 123 or (sport == 53 and dport >= 1024)):
        return from_peer
    if protocol == 17:
        return to_peer and dport in (3784, 3785, 4784)
    return protocol in (89, 112) and Conversation(source, protocol, 0, target) in passes.behind


def _is_neighbour(fields: dict[str, int]) -> bool:
    link_only = fields["family"] == 6 and fields["ttl"] == 255 and fields["fragment"] == 0
    return link_only and fields["protocol"] == 58 and fields["icmp_type"] in (134, 135, 136)


def hits(match: Match, fields: dict[str, int], frame: bytes) -> bool:
    """Return whether a parsed frame meets all conditions of a match."""
    protocol, later = fields["protocol"], fields["fragment"] == 2
    ported = protocol in (6, 17, 132, 136) and not later
    segment = protocol == 6 and not later and fields["tcp_header"] > 0
    tests = [
        match.family in (None, fields["family"]),
        match.protocol in (None, protocol),
        match.sport is None or (ported and fields["sport"] == match.sport),
        match.dport is None or (ported and fields["dport"] == match.dport),
        match.ip_length is None or _within(match.ip_length, fields["ip_length"]),
        match.ttl is None or _within(match.ttl, fields["ttl"]),
        match.ip_id is None or (fields["family"] == 4 and _within(match.ip_id, fields["ip_id"])),
        match.tcp_seq is None or (segment and _within(match.tcp_seq, fields["tcp_seq"])),
        match.tcp_window is None or (segment and _within(match.tcp_window, fields["tcp_window"])),
        match.tcp_header is None or (segment and _within(match.tcp_header, fields["tcp_header"])),
        match.fragment is None or (fields["fragment"] != 0) == match.fragment,
        match.icmp_type is None
        or (protocol in (1, 58) and not later and fields["icmp_type"] == match.icmp_type),
        match.tcp_flags is None
        or (protocol == 6 and not later and fields["tcp_flags"] & match.tcp_flags[0] == match.tcp_flags[1]),
        not match.sources or _in(match.sources, fields, "src"),
        not match.destinations or _in(match.destinations, fields, "dst"),
    ]
    start = fields["payload_offset"]
    payload = frame[start : start + fields["payload_length"]]
    return all(tests) and all(_has(item, payload, later) for item in match.payload)


def _within(span: Range, value: int) -> bool:
    return span.low <= value <= span.high


def _has(item: PayloadMatch, payload: bytes, later: bool) -> bool:
    size = len(item.data)
    if item.offset is not None:
        return not later and _same(item, payload[item.offset : item.offset + size])
    head = payload[:128]
    return any(_same(item, head[at : at + size]) for at in range(len(head) - size + 1))


def _same(item: PayloadMatch, data: bytes) -> bool:
    if len(data) != len(item.data):
        return False
    mask = item.mask or b"\xff" * len(data)
    if item.dns_name is not None:
        return data.lower() == item.data.lower()
    return all(a & m == b & m for a, b, m in zip(data, item.data, mask, strict=True))


def _in(prefixes: tuple[Prefix, ...], fields: dict[str, int], side: str) -> bool:
    bits = 32 if fields["family"] == 4 else 128
    return any(
        prefix.family == fields["family"]
        and fields[side] >> (bits - prefix.length) == prefix.value >> (bits - prefix.length)
        for prefix in prefixes
    )
