"""A file from a path or an https URL, unpacked; root parses none of it."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO
from urllib.parse import urljoin, urlsplit, urlunsplit

from fwtop import __version__
from fwtop.cli.files.trusted import open_file
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.sandbox.child import ask, unprivileged

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
