"""All crowds of a scenario, of either sort."""

from __future__ import annotations

from typing import Any

from fwtop.lab.traffic.crowd import Crowd
from fwtop.lab.traffic.held import HeldCrowd
from fwtop.lab.traffic.vectors import HELD


class Crowds:
    """All crowds of a scenario."""

    def __init__(self, tables: list[dict[str, Any]], seed: int) -> None:
        self._crowds: list[Crowd | HeldCrowd] = [
            (HeldCrowd if table["protocol"] in HELD else Crowd)(number, table, seed)
            for number, table in enumerate(tables)
        ]

    async def start(self) -> None:
        """Start all crowds."""
        for crowd in self._crowds:
            crowd.start()

    async def stop(self) -> None:
        """Stop all crowds."""
        for crowd in self._crowds:
            await crowd.stop()

    def results(self) -> list[dict[str, int]]:
        """Return attempts and successes of each crowd."""
        return [{"tried": crowd.tried, "succeeded": crowd.succeeded} for crowd in self._crowds]
