"""All that the judgement remembers beside the baseline."""

from __future__ import annotations

from msgspec import Struct, field

from fwtop.analysis.history.connections import ConnectionMemory
from fwtop.analysis.history.sources import Acquaintances, ScanMemory


class Memory(Struct, frozen=True):
    """One per observation."""

    scans: ScanMemory = field(default_factory=ScanMemory)
    acquaintances: Acquaintances = field(default_factory=Acquaintances)
    connections: ConnectionMemory = field(default_factory=ConnectionMemory)
