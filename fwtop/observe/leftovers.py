"""What stays attached when a guardian is killed, on kernels where no descriptor holds it.

Those are filters under clsact (before Linux 6.6) and a table that logs accepted packets (without an owner,
before 5.12).
"""

from __future__ import annotations

from fwtop.kernel import clsact
from fwtop.observe import nflog_table


def found() -> bool:
    """Whether there is anything to remove; also if the kernel can't be asked."""
    try:
        return clsact.is_left() or bool(nflog_table.left(None))
    except OSError:
        return True


def remove(slot: int | None) -> None:
    """Remove what the observers of one slot (None: of all) left; raises OSError, FwtopError."""
    clsact.detach(slot)
    nflog_table.detach(slot)
