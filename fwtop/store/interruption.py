"""What a new session tells of the one before it, if that was killed: since when nothing was recorded."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.traffic.session import Event, EventKind, SessionInfo
from fwtop.render.numbers import duration
from fwtop.store.directory import session_paths
from fwtop.store.reader import session_info

_LOOKED_AT = 8  # newest sessions: others may be of other interfaces or namespaces
_LONGEST_SECONDS = 7 * 86_400.0  # a longer gap says nothing of this recording


def interruption(
    directory: Path, began: float, interfaces: tuple[str, ...], netns: str | None
) -> Event | None:
    """Return the event that ends a gap in what was recorded of these interfaces, None if there is none.

    A gap follows a session that did not end cleanly: its process was killed, or the machine stopped. `began`
    is when this recording began, Unix seconds. To be called before old sessions are put in order, which
    locks them as if they were running.
    """
    with suppress(FwtopError):
        for path in reversed(session_paths(directory)[-_LOOKED_AT:]):
            with suppress(FwtopError):
                info = session_info(path)
                if (info.interfaces, info.netns) == (interfaces, netns) and info.started < began:
                    return _told(info, began)
    return None


def _told(info: SessionInfo, began: float) -> Event | None:
    gap = began - info.ended
    if info.state != "crashed" or not 0 < gap < _LONGEST_SECONDS:
        return None
    text = (
        f"nothing was recorded in the {duration(gap)} before this session: "
        f"what recorded {info.id} was killed, or the machine stopped"
    )
    return Event(began, EventKind.STORING_RESUMED, "recording", text)
