"""A template packet, and the bits that say what the kernel rewrites in each copy.

Beside the frame stand the one's complement sums of all that stays the same, so that bpf/flood.c completes the
checksums of a copy by adding the words that it wrote (RFC 1624 turned round).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from fwtop.model.address import Prefix

# The bits of `rewrite` in bpf/flood.h
SPORT, DPORT, ID, WORD_4, WORD_8, TARGET, LETTERS, IPV6 = (1 << bit for bit in range(8))
CONTINUES, WINDOW, HALF_8, NO_PSEUDO = 256, 512, 1024, 2048
MIN_FRAME, FRAME_BYTES = 60, 1536  # without FCS; VLAN tags included
MTU = 1500
TCP, UDP, ICMP, ICMPV6, GRE, ESP = 6, 17, 1, 58, 47, 50
FRAGMENT_HEADER = 44
SHOWN = 64  # payload bytes in the truth
# MSS 1460, SACK permitted, timestamps, window scale 7: a Linux client's SYN
SYN_OPTIONS = bytes.fromhex("020405b40402080a") + bytes(8) + bytes.fromhex("01030307")


@dataclass(frozen=True, slots=True)
class Template:
    """One frame and its rewriting rules; offsets are from the frame's first byte."""

    data: bytes
    l3: int
    l4: int
    checksum: int  # of the transport checksum; 0: none
    rewrite: int
    ip_sum: int
    l4_sum: int
    id_at: int
    sport: tuple[int, int]  # first and count; a fixed port has count 1
    dport: tuple[int, int]
    random_at: int
    random_size: int
    target: Prefix
    shown: bytes  # the constant bytes that an observer should find in the payload, and their offset in it
    shown_at: int
    fragment: bool = False
    later: bool = False

    @property
    def continues(self) -> bool:
        """Whether it belongs to the packet before it."""
        return bool(self.rewrite & CONTINUES)


@dataclass(frozen=True, slots=True)
class Segment:
    """A transport header with its payload, before it is put into IP."""

    data: bytes
    header: int
    checksum: int  # offset within data; -1: none
    rewrite: int
    payload: bytes
    drawn: list[slice]  # bytes that each copy has anew
    sport: tuple[int, int] = (0, 1)
    dport: tuple[int, int] = (0, 1)
    random_at: int = 0
    random_size: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of a segment, and where its fragment header says that it lies; id None: not fragmented."""

    start: int
    size: int
    at: int = 0
    more: bool = False
    id: int | None = None


def word_sum(data: bytes) -> int:
    """Sum the 16-bit words in the machine's byte order (RFC 1071, 2 (B)): any order folds to the same."""
    padded = data + b"\0" if len(data) % 2 else data
    return int(np.frombuffer(padded, np.uint16).sum(dtype=np.uint64))


def checksum(total: int) -> bytes:
    """Fold a sum of words into the two bytes of a checksum."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(~total & 0xFFFF).to_bytes(2, sys.byteorder)
