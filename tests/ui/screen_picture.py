"""The screen as a self-contained SVG."""

from __future__ import annotations

import io
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

from fwtop.ui.app import FwtopApp

PICTURE_THEME = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "animation.py"))["PICTURE_THEME"]

SVG_FORMAT = """\
<svg class="rich-terminal" xml:space="preserve" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
        font-variant-east-asian: full-width;
    }}
    .{unique_id}-title {{
        font-size: 18px;
        font-weight: bold;
        font-family: "DejaVu Sans", Arial, sans-serif;
    }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="100%" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix" transform="translate(0, 1.5)">
    {matrix}
    </g>
    </g>
</svg>
"""


def _coloured(style: Style) -> bool:
    return style.color is not None and not style.color.is_default


def _filled(segment: Segment) -> Iterator[Segment]:
    """Draw full blocks as background: as glyphs they are lower than a line, and the gaps look like cuts."""
    text, style, control = segment
    if control or style is None or style.reverse or not _coloured(style) or "█" not in text:
        yield segment
        return
    for run in re.split("(█+)", text):
        filled = run.startswith("█")
        yield Segment(" " * len(run), Style(bgcolor=style.color)) if filled else Segment(run, style)


def picture(app: FwtopApp, title: str = "fwtop") -> str:
    width, height = app.size
    console = Console(
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        record=True,
        legacy_windows=False,
        safe_box=False,
    )
    update = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    segments = Segments(part for segment in console.render(update) for part in _filled(segment))
    console.print(segments, end="")
    return console.export_svg(
        title=title,
        theme=PICTURE_THEME,
        code_format=SVG_FORMAT,
        unique_id="fwtop",
        font_aspect_ratio=0.602,
    )
