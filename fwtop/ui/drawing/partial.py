"""Partial updates that send only the cells that changed.

Textual repaints a changed part of a line from the line's left edge; most of a row of figures never changes.
"""

from __future__ import annotations

from rich.console import Console
from rich.control import Control
from textual._compositor import ChopsUpdate


class ExactUpdate(ChopsUpdate):
    """Renders the spans that changed, cut at both ends."""

    @classmethod
    def of(cls, update: ChopsUpdate) -> ExactUpdate:
        """Take over an update of Textual's compositor."""
        return cls(update.chops, update.spans, update.chop_ends)

    def render_segments(self, console: Console) -> str:
        """Return the cursor movements and texts."""
        sequences: list[str] = []
        for y, left, right in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                first, last = max(x, left), min(end, right)
                if strip is None or first >= last:
                    continue
                sequences.append(Control.move_to(first, y).segment.text)
                sequences.append(strip.crop(first - x, last - x).render(console))
        return "".join(sequences)
