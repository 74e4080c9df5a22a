"""Reports of stored sessions, and exports of single snapshots."""

from __future__ import annotations

from fwtop.model.errors import FwtopError
from fwtop.model.session import SessionRecord
from fwtop.model.text import safe_text
from fwtop.report.export import export_snapshot

FORMATS = ("html", "md", "json", "sh")

__all__ = ["FORMATS", "export_snapshot", "render"]


def render(session: SessionRecord, format: str = "html") -> str:
    """Write a session as html, md, json, or as a shell script of the rules that helped (sh).

    Reads the snapshots through `session.snapshots`; raises FwtopError for an unknown format.
    """
    if format not in FORMATS:
        shown = safe_text(format, limit=20)
        raise FwtopError(f"a report can be {', '.join(FORMATS)}, not {shown!r}; nothing was written", 2)
    from fwtop.report.data import render_json
    from fwtop.report.digest import digest
    from fwtop.report.html import render_html
    from fwtop.report.markdown import render_markdown
    from fwtop.report.script import rules_script

    writers = {"html": render_html, "md": render_markdown, "json": render_json, "sh": rules_script}
    return writers[format](digest(session))
