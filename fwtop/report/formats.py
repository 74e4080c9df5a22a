"""A session as a report, in the format asked for."""

from __future__ import annotations

from collections.abc import Callable

from fwtop.dissect.wire import Dissect
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.history import Trends
from fwtop.model.traffic.session import SessionRecord
from fwtop.report.data import render_json
from fwtop.report.export import rules_script
from fwtop.report.html import write_html
from fwtop.report.markdown import write_markdown
from fwtop.report.sections.whole import document
from fwtop.report.summary import Digest, digest
from fwtop.report.terminal import write_text
from fwtop.rules.costs import Costs

_WRITERS: dict[str, Callable[[Digest], str]] = {
    "html": lambda digest: write_html(document(digest)),
    "md": lambda digest: write_markdown(document(digest)),
    "txt": lambda digest: write_text(document(digest)),
    "json": render_json,
    "sh": rules_script,
}
FORMATS = tuple(_WRITERS)


def render(
    session: SessionRecord,
    format_name: str = "html",
    costs: Costs | None = None,
    trends: Trends | None = None,
    dissect: Dissect | None = None,
) -> str:
    """Write a session as html, md, txt, json, or as a shell script of the rules that helped (sh).

    With `costs`, as measured on this machine, html shows them as a ladder; with `trends`, there is a section
    on the days before; `dissect` decodes sample packets.
    Reads the snapshots through `session.snapshots`; raises FwtopError for an unknown format.
    """
    return written(digest(session, costs, trends, dissect), format_name)


def written(found: Digest, format_name: str) -> str:
    """Write what a session was condensed to; raises FwtopError for an unknown format."""
    if format_name not in _WRITERS:
        shown = safe_text(format_name, limit=20)
        raise FwtopError(f"a report can be {', '.join(FORMATS)}, not {shown!r}; nothing was written", 2)
    return _WRITERS[format_name](found)
