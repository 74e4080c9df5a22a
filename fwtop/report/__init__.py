"""Reports of stored sessions, and exports of single snapshots."""

from fwtop.report.export import export_snapshot
from fwtop.report.formats import FORMATS, render

__all__ = ["FORMATS", "export_snapshot", "render"]
