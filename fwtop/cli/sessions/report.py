"""fwtop report: a session as HTML, Markdown, plain text or JSON, or its effective rules as a script."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from fwtop.cli.files import in_trusted_hands, locate
from fwtop.cli.options import option
from fwtop.cli.sessions.stored import StoredSession, add_session, run_unprivileged
from fwtop.dissect.client import Dissect, Dissector
from fwtop.dissect.supervisor import start_dissector
from fwtop.model.errors import FwtopError
from fwtop.model.files import replacing
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import SessionRecord, Trends
from fwtop.report import FORMATS, render
from fwtop.report.bundle import bundle_files
from fwtop.report.summary import digest
from fwtop.rules.costs import load_costs
from fwtop.store.reader import load_session
from fwtop.store.trends import session_trends

HELP = "Report on a stored session: the attacks, the rules and their effect, the sources."
EXAMPLE = "fwtop report --format md -o incident.md"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_session(parser)
    what = "default: by FILE's suffix, else html; sh: the effective rules as a script"
    parser.add_argument("--format", choices=FORMATS, help=what)
    output = "output file; - is standard output (the default unless it is a terminal)"
    option(parser, "-o --output", "FILE", output)
    bundle = (
        "write everything to hand over to a new folder or .zip file: report, sample packets, rules for "
        "nftables, iptables and FlowSpec, block lists, mails to the provider and to the sources' networks"
    )
    option(parser, "--bundle", "PATH", bundle)


def run(args: argparse.Namespace) -> int:
    """Render as the unprivileged user; write as the caller."""
    if args.bundle is not None:
        return _bundle(args)
    format_name = args.format or _format_of(args.output)

    def rendered(record: SessionRecord, trends: Trends | None, dissect: Dissect | None) -> str:
        return render(record, format_name, load_costs().costs, trends, dissect)

    name, text = _made(args, rendered, tuple[str, str])
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


def _bundle(args: argparse.Namespace) -> int:
    """Write all files: into a folder, or a zip archive by its suffix."""
    if args.format is not None or args.output is not None:
        raise FwtopError("--bundle writes all formats: leave out --format and -o; nothing was written", 2)
    path = Path(args.bundle)
    is_archive = path.suffix.lower() == ".zip"
    if path.exists() and not is_archive:  # before the work, not after it
        raise FwtopError(f"{safe_text(path)} is there already and was not changed; name a new folder")

    def bundled(record: SessionRecord, trends: Trends | None, dissect: Dissect | None) -> dict[str, bytes]:
        return bundle_files(record, digest(record, load_costs().costs, trends, dissect))

    _, files = _made(args, bundled, tuple[str, dict[str, bytes]])
    if is_archive:
        _write(path, zipped(files))
    else:
        write_folder(path, files)
    print(f"fwtop: wrote {len(files)} files to {safe_text(path)}; README.txt names them", file=sys.stderr)
    return 0


Made = TypeVar("Made", str, dict[str, bytes])


def _made(
    args: argparse.Namespace,
    make: Callable[[SessionRecord, Trends | None, Dissect | None], Made],
    kind: type[tuple[str, Made]],
) -> tuple[str, Made]:
    """Return the session's name, and what the unprivileged reader made of it."""
    session = StoredSession(args.session, args.directory)
    dissector = start_dissector()
    dissect = Dissector(dissector).dissect if dissector is not None else None

    def read() -> tuple[str, Made]:
        with session.located() as path:
            record = load_session(path)
            return safe_text(path.stem), make(record, session_trends(record.info, session.history), dissect)

    try:
        return run_unprivileged(read, kind, read=(args.directory,))
    finally:
        if dissector is not None:
            dissector.close()


def _for_terminal(text: str) -> str:
    """Sanitise what the unprivileged reader rendered: a hostile session may have taken it over."""
    lines = text.expandtabs().split("\n")
    return "\n".join(safe_text(line, limit=len(line)) for line in lines)


def _format_of(output: str | None) -> str:
    suffix = Path(output or "").suffix.lstrip(".").lower()
    return {"htm": "html", "markdown": "md"}.get(suffix, suffix if suffix in FORMATS else "html")


def _write(path: Path, content: str | bytes) -> None:
    """Write by replacing the file, so that a full disk keeps an earlier report."""
    data = content.encode() if isinstance(content, str) else content
    try:
        directory, name = locate(path)
        try:
            if path.exists() and not path.is_file():  # a device or pipe: never replace it
                if not in_trusted_hands(directory):
                    line = f"{safe_text(path)} is another user's and no regular file: nothing was written"
                    raise FwtopError(line)
                path.write_bytes(data)
            else:
                with replacing(Path(name), "wb", directory=directory) as file:
                    file.write(data)
        finally:
            os.close(directory)
    except OSError as error:
        raise FwtopError(f"{safe_text(path)} was not written: {error.strerror}") from None


# What the unprivileged reader may name: no other folders, nothing hidden.
_NAME = re.compile(r"(?:[a-z]+/)?[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")
_MOST_FILES = 1_000
_FIRST_YEAR = (1980, 1, 1, 0, 0, 0)  # of zip archives: the same session gives the same archive


def checked(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the files if all of their names are those of a bundle; raises FwtopError."""
    if len(files) > _MOST_FILES or not all(_NAME.fullmatch(name) for name in files):
        raise FwtopError("the unprivileged reader named files that no bundle has; nothing was written")
    return files


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return the files as a zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in checked(files).items():
            archive.writestr(zipfile.ZipInfo(name, _FIRST_YEAR), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make a new folder and write the files into it; raises FwtopError, also if it is there already."""
    checked(files)
    try:
        parent, name = locate(path)
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        finally:
            os.close(parent)
        try:
            for subfolder in sorted({name.partition("/")[0] for name in files if "/" in name}):
                os.mkdir(subfolder, 0o755, dir_fd=folder)
            for file_name, content in files.items():
                _write_into(folder, file_name, content)
        finally:
            os.close(folder)
    except FileExistsError:
        line = f"{safe_text(path)} is there already and was not changed; name a new folder, or a file.zip"
        raise FwtopError(line) from None
    except OSError as error:
        raise FwtopError(f"{safe_text(path)} was not written: {error.strerror}") from None


def _write_into(folder: int, name: str, content: bytes) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o644, dir_fd=folder), "wb") as file:
        file.write(content)
