"""`fwtop report`: a session as html, md, json, or as a script of the rules that helped."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from fwtop.cli.stored import StoredSession, add_session
from fwtop.cli.unprivileged import run_unprivileged
from fwtop.model.costs import load_costs
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.report import FORMATS, render
from fwtop.store.reader import load_session

NAME = "report"
HELP = "Tell what a session was about: the attack, what was done, what it did, who sent what."
EXAMPLE = "fwtop report --format md -o incident.md"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_session(parser)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="default: as FILE ends, else html; sh: the rules that helped, as a script",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to; - is standard output (the default, unless that is a terminal)",
    )


def run(args: argparse.Namespace) -> int:
    """Render as the unprivileged user, write as whoever asked."""
    session = StoredSession(args.session, args.directory)
    format_name = args.format or _format_of(args.output)

    def rendered() -> tuple[str, str]:
        with session.located() as path:
            return path.stem, render(load_session(path), format_name, load_costs().costs)

    name, text = run_unprivileged(rendered)
    output = args.output
    if output is None:
        output = f"fwtop-{safe_text(name)}.{format_name}" if sys.stdout.isatty() else "-"
    if output == "-":
        sys.stdout.write(text)
        return 0
    _write(Path(output), text)
    print(f"fwtop: wrote {safe_text(output)}", file=sys.stderr)
    return 0


def _format_of(output: str | None) -> str:
    suffix = Path(output or "").suffix.lstrip(".").lower()
    return {"htm": "html", "markdown": "md"}.get(suffix, suffix if suffix in FORMATS else "html")


def _write(path: Path, text: str) -> None:
    """Put a whole new file in its place, so that a full disk costs no earlier report."""
    try:
        if path.exists() and not path.is_file():  # a device or a pipe: write to it, never replace it
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()
        handle, temporary = tempfile.mkstemp(prefix=".fwtop-", dir=target.parent)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FwtopError(f"{safe_text(path)} was not written: {error.strerror}") from None
