"""fwtop geoip: which data say where addresses belong, and newer ones in their place."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import json
import os
import re
import secrets
import shutil
import subprocess
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO
from urllib.parse import urljoin, urlsplit, urlunsplit

from msgspec.structs import asdict, replace

from fwtop import __version__
from fwtop.cli.files import open_file
from fwtop.cli.options import flag, option
from fwtop.cli.sessions.stored import run_unprivileged
from fwtop.model.errors import FwtopError
from fwtop.model.files import sync_directory
from fwtop.model.text import safe_text
from fwtop.sandbox.child import ask, unprivileged

HELP = "Show the GeoIP databases in use, or bring in newer ones: from a file, a URL, or by geoipupdate."
EXAMPLE = "sudo fwtop geoip update https://download.db-ip.com/free/dbip-country-lite-2026-11.mmdb.gz"
_DIRECTORY = Path("/var/lib/GeoIP")
_CONFIG = "/etc/GeoIP.conf"
_UPDATE_SECONDS = 900


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("action", nargs="?", choices=("show", "update"), default="show", help="default: show")
    source = (
        "update: .mmdb files, also gzipped or in a .tar.gz (default: what geoipupdate fetches by your "
        f"MaxMind key in {_CONFIG})"
    )
    parser.add_argument("source", nargs="*", metavar="FILE|URL", help=source)
    option(parser, "--directory", "DIR", "where databases are kept", Path, default=_DIRECTORY)
    flag(parser, "--force", "update: also to an older or much smaller database")
    flag(parser, "--json", "print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Show the databases, or replace some."""
    if args.action == "show":
        if args.source:
            raise FwtopError("'fwtop geoip show' takes no file; nothing was replaced", 2)
        return _show(args)
    try:
        args.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        placed = [_update(source, args) for source in args.source] or _update_by_key(args)
    except PermissionError as error:
        where = safe_text(error.filename or args.directory)
        raise FwtopError(f"{where} can't be written: that needs root; nothing was replaced", 3) from None
    if args.json:
        print(json.dumps({"updated": placed}))
    else:
        for item in placed:
            print(
                f"{item['file']}: {item['kind']} of {item['day']}, {item['networks']:,} networks; "
                "screens and recorders use it from their next start"
            )
    return 0


def _show(args: argparse.Namespace) -> int:
    given = str(args.directory) if args.directory != _DIRECTORY else None
    if given is not None and not any(args.directory.glob("*.mmdb")):
        raise FwtopError(f"there is no .mmdb file in {safe_text(given)}")
    found = run_unprivileged(lambda: _known(given), read=(args.directory,))
    if args.json:
        print(json.dumps({name: found[name] for name in ("databases", "warnings")}))
        return 0
    for line in found["lines"] + found["warnings"]:
        print(safe_text(line, limit=1000))
    if not found["lines"]:
        print("there is no GeoIP data: countries and networks stay unknown")
    return 0


def _known(directory: str | None) -> dict[str, list[Any]]:
    from fwtop.enrich.geoip import open_databases
    from fwtop.enrich.mmdb import STALE_DAYS

    now = time.time()
    databases, warnings = open_databases(directory)
    rows = [
        {
            "file": str(database.file.path),
            "kind": safe_text(database.file.metadata.database_type, limit=60),
            "day": database.day,
            "age_days": database.age_days(now),
            "stale": database.age_days(now) > STALE_DAYS,
        }
        for database in databases
    ]
    return {"databases": rows, "warnings": list(warnings), "lines": [one.describe(now) for one in databases]}


def _update(source: str, args: argparse.Namespace) -> dict[str, Any]:
    name = safe_text(source.partition("?")[0])  # what follows may be a key
    with _staged(args.directory) as path, opened(source) as file, open(path, "w+b") as target:
        return _place(path, name, args, lambda: unpack(file, target))


def _update_by_key(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Let MaxMind's own program fetch what the operator's key allows, and check each file."""
    if shutil.which("geoipupdate") is None or not Path(_CONFIG).is_file():
        raise FwtopError(
            f"no FILE or URL was given, and geoipupdate is not set up (the program, and a key in {_CONFIG}); "
            "nothing was replaced",
            2,
        )
    with _staged(args.directory) as folder:
        folder.unlink()
        folder.mkdir(mode=0o755)
        command = ["geoipupdate", "-f", _CONFIG, "-d", str(folder)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_UPDATE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise FwtopError("geoipupdate did not end; nothing was replaced") from None
        if done.returncode:
            said = safe_text(done.stderr.strip().rpartition("\n")[2], limit=200)
            raise FwtopError(f"geoipupdate failed: {said}; nothing was replaced")
        found = sorted(folder.glob("*.mmdb"))
        if not found:
            raise FwtopError("geoipupdate fetched no database; nothing was replaced")
        return [_place(path, path.name, args, None, path.name) for path in found]


@contextlib.contextmanager
def _staged(directory: Path) -> Iterator[Path]:
    """Make a file beside those in use, which nobody takes for one of them; it is gone in the end."""
    path = directory / f".fwtop-{secrets.token_hex(8)}"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
    try:
        yield path
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)


def _place(
    path: Path, name: str, args: argparse.Namespace, unpacked: Callable[[], None] | None, file_name: str = ""
) -> dict[str, Any]:
    from fwtop.enrich.geoip import Contents, examine, objections

    def examined() -> Contents:
        if unpacked is not None:
            unpacked()
        return examine(path)

    try:
        found = run_unprivileged(examined, Contents, read=(args.directory,))
        found = replace(found, kind=safe_text(found.kind))
    except FwtopError as error:
        line = f"{name} is not used: {str(error).partition(';')[0]}; nothing was replaced"
        raise FwtopError(line, error.code) from None
    target = args.directory / (file_name or _file_name(found.kind, found.countries, found.systems))
    replaced = None
    if target.exists():
        with contextlib.suppress(FwtopError):  # a damaged one is replaced by anything better
            replaced = run_unprivileged(lambda: examine(target), Contents, read=(args.directory,))
    wrong, doubtful = objections(found, time.time(), replaced)
    if wrong or (doubtful and not args.force):
        hint = "" if wrong else "; --force uses it all the same"
        raise FwtopError(f"{name} is not used: {', '.join([*wrong, *doubtful])}; nothing was replaced{hint}")
    with path.open("rb") as file:
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
    path.replace(target)
    sync_directory(args.directory)
    day = time.strftime("%Y-%m-%d", time.gmtime(found.build_epoch))
    return {"file": str(target), "day": day, **asdict(found)}


def _file_name(kind: str, countries: int, systems: int) -> str:
    """Return a name for a kind of database, which the next update of it replaces; it says what it holds."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", kind.partition("(")[0]).strip("-")[:40] or "database"
    holds = "country" if countries else "asn" if systems else ""
    return f"{plain}.mmdb" if holds and holds in plain.lower() else f"{plain}-{holds}.mmdb"


MOST_BYTES = 1 << 30
_AT_ONCE = 1 << 20
_REDIRECTIONS = 5
_SECONDS = 60.0  # without a byte


@contextlib.contextmanager
def opened(source: str) -> Iterator[BinaryIO]:
    """Open a file of the caller's, or download one without privileges; raises FwtopError.

    A URL may hold a key, so errors name its host only.
    """
    if "://" not in source:
        try:
            with open_file(Path(source)) as file:
                yield file
        except OSError as error:
            raise FwtopError(f"{safe_text(source)}: {error.strerror}; nothing was replaced") from None
        return
    if urlsplit(source).scheme != "https":
        raise FwtopError("only https URLs are downloaded; nothing was replaced", 2)
    handle = os.memfd_create("fwtop-download")
    with open(handle, "r+b") as file:
        _download_apart(source, file)
        file.seek(0)
        yield file


def _download_apart(url: str, file: BinaryIO) -> None:
    """Download in a child without privileges; raises FwtopError with its line."""
    host = safe_text(urlsplit(url).hostname or "", limit=100)

    def work() -> str:
        line = _download(url, file)
        file.flush()
        return line

    who, after = f"the download from {host}", "nothing was replaced"
    if line := ask(work, str, who=who, after=after, enter=lambda: unprivileged(None), keep=(file.fileno(),)):
        raise FwtopError(f"{who} failed: {safe_text(line, limit=200)}; {after}")


def _download(url: str, file: BinaryIO) -> str:
    """Write what a URL has into a file; return what failed, "" if nothing."""
    for _ in range(_REDIRECTIONS):
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            return "it redirects to something other than https"
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_SECONDS)
        try:
            path = urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection.request("GET", path, headers={"User-Agent": f"fwtop/{__version__}"})
            answer = connection.getresponse()
            if answer.status in (301, 302, 303, 307, 308):
                url = urljoin(url, answer.headers.get("Location", ""))
                continue
            if answer.status != 200:
                return f"status {answer.status} {answer.reason}"
            return "" if copied(answer, file) else f"it is larger than {MOST_BYTES >> 20} MiB"
        except (OSError, http.client.HTTPException) as error:
            return getattr(error, "strerror", None) or str(error) or type(error).__name__
        finally:
            connection.close()
    return "too many redirections"


def copied(source: IO[bytes] | gzip.GzipFile | http.client.HTTPResponse, target: BinaryIO) -> bool:
    """Copy at most MOST_BYTES; return whether that was all."""
    left = MOST_BYTES
    while left > 0:
        part = source.read(min(_AT_ONCE, left))
        if not part:
            return True
        target.write(part)
        left -= len(part)
    return not source.read(1)


def unpack(source: BinaryIO, target: BinaryIO) -> None:
    """Write a database that is plain, gzipped, or in a gzipped tar archive; raises FwtopError."""
    try:
        head = source.read(2)
        source.seek(0)
        whole = _unpack_gzip(source, target) if head == b"\x1f\x8b" else copied(source, target)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise FwtopError(f"it can't be unpacked: {safe_text(error)}") from None
    if not whole:
        raise FwtopError(f"it is larger than {MOST_BYTES >> 20} MiB")
    target.flush()


def _unpack_gzip(source: BinaryIO, target: BinaryIO) -> bool:
    with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=source, mode="r|gz") as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(".mmdb"):
                content = archive.extractfile(member)
                return content is not None and copied(content, target)
        raise FwtopError("the archive holds no .mmdb file")
    source.seek(0)
    with gzip.open(source) as file:
        return copied(file, target)
