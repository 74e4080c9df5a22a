"""Compiled rules run on single frames by BPF_PROG_TEST_RUN, and the slow judgement that they must equal."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from reference_parser import reference

from fwtop.collect import bpf, xdp_lists, xdp_maps
from fwtop.collect.xdp_build import build_xdp
from fwtop.collect.xdp_rule import SlotRule
from fwtop.model.address import Prefix
from fwtop.model.numbered import apart
from fwtop.model.rule import Match, PayloadMatch, Range, RateLimit
from fwtop.model.xdp import COMPILED_PREFIXES

_TEST_RUN = 10
XDP_DROP, XDP_PASS = 1, 2
FOREVER = (1 << 64) - 1


class Compiled:
    """A rule set in the kernel, attached nowhere: rule number n (from 1) in slot n - 1."""

    def __init__(
        self,
        matches: list[Match],
        allow: tuple[Prefix, ...] = (),
        limit: int = COMPILED_PREFIXES,
        rates: dict[int, RateLimit] | None = None,
        build: Callable[[list[SlotRule], tuple[Prefix, ...], dict[str, int]], int] = build_xdp,
    ) -> None:
        self.shared = xdp_maps.create_shared()
        self._open = list(self.shared.values())
        self.hits: list[int] = []  # the counters of each slot's prefixes; 0: it has none
        rules = []
        for slot, match in enumerate(matches):
            lists, counted = xdp_lists.build_lists(match, limit)
            counted = counted if lists else len(apart(match.sources))
            hits = xdp_lists.create_hits(counted) if counted else 0
            self.hits.append(hits)
            self._open += [fd for maps in lists.values() for fd in xdp_lists.descriptors(maps).values()]
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
        xdp_maps.close_all(self._open)

    def drops(self, frame: bytes) -> bool:
        """Run on one frame."""
        verdict, _ = self.run(frame)
        assert verdict in (XDP_DROP, XDP_PASS)
        return verdict == XDP_DROP

    def run(self, frame: bytes, repeat: int = 1) -> tuple[int, int]:
        """Return the verdict and the nanoseconds a packet."""
        held = ctypes.create_string_buffer(frame, len(frame))
        # prog_fd, retval, data_size_in, data_size_out, data_in, data_out, repeat, duration
        attributes = ctypes.create_string_buffer(
            struct.pack("<IIIIQQII", self.program, 0, len(frame), 0, ctypes.addressof(held), 0, repeat, 0), 80
        )
        result = bpf._libc.syscall(321, _TEST_RUN, attributes, 80)
        assert result == 0, os.strerror(ctypes.get_errno())
        return struct.unpack_from("<I", attributes, 4)[0], struct.unpack_from("<I", attributes, 36)[0]

    def counts(self) -> list[int]:
        """Return the packets of each slot."""
        size = xdp_maps.possible_cpus() * xdp_maps.CELL_BYTES
        with xdp_maps.map_array(self.shared["cells"], size, writable=False) as cells:
            found = np.frombuffer(cells[:size], xdp_maps.cell_dtype())
        return [int(n) for n in found["rules"]["packets"].sum(axis=0)]

    @contextmanager
    def ring(self) -> Iterator[int]:
        """Have dropped packets sampled into a ring of its own."""
        ring = bpf.create_map(bpf.MAP_RINGBUF, "fwtop_test", entries=1 << 20)
        try:
            xdp_maps.put_ring(self.shared, 0, ring)
            yield ring
        finally:
            xdp_maps.put_ring(self.shared, 0, None)
            os.close(ring)


def verdict(matches: list[Match], allow: tuple[Prefix, ...], frame: bytes) -> int | None:
    """Return the index of the first rule that hits a frame, from the rule's words alone."""
    fields = reference(frame, len(frame))
    if fields["family"] == 0 or _in(allow, fields, "src") or _is_neighbour(fields):
        return None
    return next((at for at, match in enumerate(matches) if hits(match, fields, frame)), None)


def _is_neighbour(fields: dict[str, int]) -> bool:
    link_only = fields["family"] == 6 and fields["ttl"] == 255 and fields["fragment"] == 0
    return link_only and fields["protocol"] == 58 and fields["icmp_type"] in (134, 135, 136)


def hits(match: Match, fields: dict[str, int], frame: bytes) -> bool:
    """Tell whether all conditions of a match hold for a parsed frame."""
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
