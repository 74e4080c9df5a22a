"""Reports of stored sessions, and exports of single snapshots."""

from fwtop.report.formats import FORMATS, export_snapshot, render

__all__ = ["FORMATS", "export_snapshot", "render"]
