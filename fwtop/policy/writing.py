"""Write exports of a policy piece by piece, so that long lists take little memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

from fwtop.guardian.allow.allowlist import ALLOW_FILE
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.whole_file import replacing
from fwtop.policy.document import Policy
from fwtop.policy.exports import FAMILIES, exported
from fwtop.policy.nft_export import nft_lines
from fwtop.policy.xtables_export import ipset_lines, script_lines, xtables_lines
from fwtop.rules.exports.xtables import PROGRAMS

_AT_ONCE = 10_000  # lines


def write(
    policy: Policy, name: str, format: str, output: Path | None, allow_file: Path = Path(ALLOW_FILE)
) -> None:
    """Write a policy in one of the formats; raises FwtopError, and old files are as they were."""
    files = documents(policy, name, format, allow_file)
    if len(files) > 1 and output is None:
        raise FwtopError("iptables takes three files: name a directory with -o; nothing was written", 2)
    if len(files) > 1 and output is not None:
        _make_directory(output)
    for own, lines in files.items():
        if output is None:
            write_lines(sys.stdout, lines)
        else:
            path = output / own if len(files) > 1 else output
            _write_file(path, lines, mode=0o755 if format == "sh" else 0o644)


def documents(policy: Policy, name: str, format: str, allow_file: Path) -> dict[str, Iterator[str]]:
    """Return the lines of the files that a format has, by their names; raises FwtopError."""
    found = exported(policy, allow_file)
    if format == "nft":
        return {"policy.nft": nft_lines(found, name)}
    if format == "sh":
        return {"policy.sh": script_lines(found, name)}
    tables = {f"policy.{PROGRAMS[family]}": xtables_lines(found, family, name) for family in FAMILIES}
    return {"policy.ipset": ipset_lines(found, name), **tables}


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        line = f"cannot make directory {safe_text(path)}: {error.strerror}; nothing was written"
        raise FwtopError(line) from None


def _write_file(path: Path, lines: Iterator[str], mode: int = 0o644) -> None:
    try:
        with replacing(path, permissions=mode) as file:
            write_lines(file, lines)
    except OSError as error:
        line = f"cannot write {safe_text(path)}: {error.strerror}; the file is as it was"
        raise FwtopError(line) from None


def write_lines(file: IO[str], lines: Iterable[str]) -> None:
    """Write lines in batches; raises OSError, and FwtopError for what a format can't express."""
    left = iter(lines)
    while part := [*islice(left, _AT_ONCE)]:
        file.write("\n".join([*part, ""]))
