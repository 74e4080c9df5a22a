"""fwtop report: a session as HTML, Markdown or JSON, or its effective rules as a script."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
from pathlib import Path

from fwtop.cli.files.trusted import in_trusted_hands, locate
from fwtop.cli.recordings.stored import StoredSession, add_session, run_unprivileged
from fwtop.dissect.client import Dissector
from fwtop.dissect.supervisor import start_dissector
from fwtop.model.costs import load_costs
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.report import FORMATS, render
from fwtop.store.reader import load_session
from fwtop.store.trends import session_trends

HELP = "Report on a stored session: the attacks, the rules and their effect, the sources."
EXAMPLE = "fwtop report --format md -o incident.md"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_session(parser)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="default: by FILE's suffix, else html; sh: the effective rules as a script",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="output file; - is standard output (the default unless it is a terminal)",
    )


def run(args: argparse.Namespace) -> int:
    """Render as the unprivileged user; write as the caller."""
    session = StoredSession(args.session, args.directory)
    dissector = start_dissector()
    dissect = Dissector(dissector).dissect if dissector is not None else None
    format_name = args.format or _format_of(args.output)

    def rendered() -> tuple[str, str]:
        with session.located() as path:
            record = load_session(path)
            trends = session_trends(record.info)
            return path.stem, render(record, format_name, load_costs().costs, trends, dissect)

    try:
        name, text = map(str, run_unprivileged(rendered, read=(args.directory,)))
    finally:
        if dissector is not None:
            dissector.close()
    output = args.output
    if output is None:
        plain = safe_text(name).replace(os.sep, "_")
        output = f"fwtop-{plain}.{format_name}" if sys.stdout.isatty() else "-"
    if output == "-":
        sys.stdout.write(_for_terminal(text) if sys.stdout.isatty() else text)
        return 0
    _write(Path(output), text)
    print(f"fwtop: wrote {safe_text(output)}", file=sys.stderr)
    return 0


def _for_terminal(text: str) -> str:
    """Sanitise what the unprivileged reader rendered: a hostile session may have taken it over."""
    lines = text.expandtabs().split("\n")
    return "\n".join(safe_text(line, limit=len(line)) for line in lines)


def _format_of(output: str | None) -> str:
    suffix = Path(output or "").suffix.lstrip(".").lower()
    return {"htm": "html", "markdown": "md"}.get(suffix, suffix if suffix in FORMATS else "html")


def _write(path: Path, text: str) -> None:
    """Write by replacing the file atomically, so that a full disk keeps an earlier report."""
    try:
        directory, name = locate(path)
        try:
            if path.exists() and not path.is_file():  # a device or pipe: never replace it
                if not in_trusted_hands(directory):
                    raise FwtopError(
                        f"{safe_text(path)} is another user's and no regular file: nothing was written"
                    )
                path.write_text(text, encoding="utf-8")
            else:
                _replace(directory, name, text)
        finally:
            os.close(directory)
    except OSError as error:
        raise FwtopError(f"{safe_text(path)} was not written: {error.strerror}") from None


def _replace(directory: int, name: str, text: str) -> None:
    """Replace a file in a directory given by its descriptor; raises OSError."""
    temporary = f".fwtop-{secrets.token_hex(8)}"
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise
