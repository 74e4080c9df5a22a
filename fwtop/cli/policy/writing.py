"""Write exports of a policy, however long its lists are, piece by piece."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TextIO

from fwtop.cli.policy.document import Policy
from fwtop.cli.policy.exports import FAMILIES, exported
from fwtop.cli.policy.nft_export import nft_lines
from fwtop.cli.policy.xtables_export import SUFFIXES, ipset_lines, script_lines, xtables_lines
from fwtop.guardian.allow.allowlist import ALLOW_FILE
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_AT_ONCE = 10_000  # lines


def write(
    policy: Policy, name: str, format: str, output: Path | None, allow_file: Path = Path(ALLOW_FILE)
) -> None:
    """Write a policy in one of the formats; raises FwtopError, and old files are as they were."""
    found = exported(policy, allow_file)
    if format == "iptables":
        if output is None:
            raise FwtopError("iptables takes three files: name a directory with -o; nothing was written", 2)
        _write_file(output / "policy.ipset", ipset_lines(found, name))
        for family in FAMILIES:
            _write_file(output / f"policy.{SUFFIXES[family]}", xtables_lines(found, family, name))
        return
    lines = nft_lines(found, name) if format == "nft" else script_lines(found, name)
    if output is None:
        _write_lines(sys.stdout, lines)
    else:
        _write_file(output, lines, mode=0o755 if format == "sh" else 0o644)


def _write_file(path: Path, lines: Iterator[str], mode: int = 0o644) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new.open("w", encoding="utf-8") as file:
            _write_lines(file, lines)
        new.chmod(mode)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        line = f"cannot write {safe_text(path)}: {error.strerror}; the file is as it was"
        raise FwtopError(line) from None
    except FwtopError:
        new.unlink(missing_ok=True)
        raise


def _write_lines(file: TextIO, lines: Iterable[str]) -> None:
    left = iter(lines)
    while part := [*islice(left, _AT_ONCE)]:
        file.write("\n".join([*part, ""]))
