"""Weights that the corpus gave the entries: what authors declared, shifted by what was measured.

An entry's author says in which direction a feature speaks and about how strongly. `python -m benches fit`
multiplies each strength by a factor, and shifts its prior, as far as the corpus asks.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.engine.hypothesis import Hypothesis

WEIGHTS_FILE = Path(__file__).parents[1] / "weights.toml"


class FittedWeights(Struct, frozen=True):
    """Shifts and factors by entry; what isn't listed is as declared."""

    shifts: Mapping[str, float]  # of log-odds, by entry
    factors: Mapping[str, Mapping[str, float]]  # by entry and feature

    @staticmethod
    def read(path: Path) -> FittedWeights:
        """Read the tables of a weights file."""
        return FittedWeights.parsed(path.read_text(encoding="utf-8"))

    @staticmethod
    def parsed(text: str) -> FittedWeights:
        """Read the tables of the file's text."""
        table = tomllib.loads(text).get("hypotheses", {})
        shifts = {name: float(entry["shift"]) for name, entry in table.items()}
        return FittedWeights(shifts, {name: entry["factors"] for name, entry in table.items()})

    def applied(self, entries: Iterable[Hypothesis]) -> tuple[Hypothesis, ...]:
        """Return the entries with fitted weights."""
        return tuple(self._fitted(one) for one in entries)

    def _fitted(self, one: Hypothesis) -> Hypothesis:
        factors = self.factors.get(one.key, {})
        evidence = tuple(
            replace(
                says,
                at_low=round(says.at_low * factors.get(says.feature.name, 1.0), 2),
                at_high=round(says.at_high * factors.get(says.feature.name, 1.0), 2),
            )
            for says in one.evidence
        )
        return replace(one, prior=round(one.prior + self.shifts.get(one.key, 0.0), 2), evidence=evidence)
