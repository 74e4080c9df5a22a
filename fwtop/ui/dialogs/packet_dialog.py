"""Details of a source or payload, with one of its packets decoded as soon as the dissector answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fwtop.dissect.wire import Dissection
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.ui.dialogs.dialog import DetailsDialog
from fwtop.ui.drawing.style import DIM, STRONG, WARN, Line
from fwtop.ui.drawing.text import wrapped

_WAITING: Line = [("decoding a sample packet …", DIM)]


class PacketDialog(DetailsDialog):
    """Details at once; the decoded packet appears below them later."""

    def __init__(
        self,
        title: str,
        lines: Callable[[], Sequence[Line]],
        dissect: Callable[[], Awaitable[Dissection | None]],
    ) -> None:
        """`lines` is called for each snapshot; `dissect` returns None where there is no packet to decode."""
        super().__init__(title, lines)
        self._dissect = dissect
        self._packet: list[Line] = [[], _WAITING]

    def on_mount(self) -> None:
        """Ask for the packet; Textual calls the base class's handler as well."""
        self.begin(self._fetch, group="fetch", exclusive=True)

    async def _fetch(self) -> None:
        try:
            found = await self._dissect()
            self._packet = [[], *packet_lines(found)] if found is not None else []
        except FwtopError as error:
            self._packet = [[], [(safe_text(error), WARN)]]
        except Exception as error:
            self._packet = [[], [(self.survive(error), WARN)]]
        self.draw()

    def body(self, width: int) -> list[Line]:
        """Return the details and the packet."""
        return [*super().body(width), *self._packet]


def packet_lines(dissection: Dissection) -> list[Line]:
    """Return the layers of a packet, one field per line."""
    lines: list[Line] = [[("a sample packet", DIM)]]
    for layer in dissection.layers:
        lines.append([(layer.name, STRONG)])
        for name, value in layer.fields:
            lines += (
                wrapped(f"  {name}"[:12], value) if len(name) <= 10 else [*wrapped("", f"{name}: {value}")]
            )
    if dissection.problem:
        lines.append([(dissection.problem, WARN)])
    return lines
