"""The kept files: compare with them, or with FWTOP_GOLDEN=update replace them."""

from __future__ import annotations

import difflib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

FILES = Path(__file__).parent / "files"
_DIGITS = 4  # the last ones may depend on the processor
_LONG = 200  # characters of a string


def check(group: str, outputs: Mapping[str, str], *, whole: bool = True) -> None:
    """Compare a group's outputs, by file name, with the files kept of it; fail with the differences.

    `whole`: a kept file without an output is a difference, too.
    """
    folder = FILES / group
    if os.environ.get("FWTOP_GOLDEN") == "update":
        _replace(folder, outputs, whole=whole)
        return
    names = {*outputs, *(_names(folder) if whole else ())}
    lines: list[str] = []
    for name in sorted(names):
        path = folder / name
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        now = outputs.get(name, "")
        lines += difflib.unified_diff(
            before.splitlines(),
            now.splitlines(),
            f"kept {group}/{name}",
            f"now {group}/{name}",
            "",
            "",
            1,
            "",
        )
    if lines:
        how = "if every difference is intended: make golden UPDATE=1, and name it in the commit"
        pytest.fail("\n".join([*lines, how]), pytrace=False)


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _replace(folder: Path, outputs: Mapping[str, str], *, whole: bool) -> None:
    for name in _names(folder) - {*outputs} if whole else ():
        (folder / name).unlink()
    owner = FILES.parent.stat()  # not root, which the kernel tests need
    for name, text in outputs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        os.chown(path, owner.st_uid, owner.st_gid)


def compact(document: Mapping[str, Any]) -> str:
    """Return JSON with a line for each entry of the document and of its lists: differences are short."""
    lines = ["{"]
    for key, value in document.items():
        rows = _rows(value)
        if rows:
            lines += [f" {json.dumps(key)}: ", *(f"  {row}" for row in rows)]
        else:
            lines.append(f" {json.dumps(key)}: {_line(value)}")
    return "\n".join([*lines, "}", ""])


def _rows(value: object) -> list[str]:
    """Return the lines of a list, or of lists by name."""
    if isinstance(value, list):
        return [_line(entry) for entry in value]
    if isinstance(value, dict) and any(isinstance(entry, list | dict) for entry in value.values()):
        return [f"{name}: {_line(entry)}" for name, entry in value.items()]
    return []


def _line(value: object) -> str:
    return json.dumps(rounded(value), ensure_ascii=False)


def rounded(value: object) -> object:
    """Round all numbers with a fraction to four digits, and cut long strings."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, str) and len(value) > _LONG:
        return f"{value[:_LONG]}… {len(value)} characters, crc32 {zlib.crc32(value.encode()):08x}"
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return value
