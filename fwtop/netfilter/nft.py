"""nft(8): what it lists, as JSON, and the changes that it is asked to make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from fwtop.kernel.programs import RUN_SECONDS, run
from fwtop.model.errors import FwtopError

Json = Any  # what a parsed document holds
Object = tuple[str, Json]  # kind ("rule", "set", …) and value
NO_PROGRAM = 3  # the status of an error about a program that is not installed
_NOT_THERE = ("No such file or directory", "not supported", "syntax error")  # the latter two: no nf_tables


def listed(*what: str, seconds: float = RUN_SECONDS) -> list[Object]:
    """Return what `nft list …` knows, without elements of named sets; raises FwtopError."""
    return parse(run(["nft", "-j", "-t", "list", *what], timeout=seconds))


def printed(*what: str, seconds: float = RUN_SECONDS) -> str:
    """Return what `nft list …` prints, as `execute` reads it; raises FwtopError."""
    return run(["nft", "list", *what], timeout=seconds)


def elements(table: str, name: str, kind: str = "set") -> list[Json]:
    """Return the elements of a set (or "map") in a table like "netdev fwtop"; raises FwtopError."""
    found = parse(run(["nft", "-j", "list", kind, *table.split(), name]))
    return [element for of, value in found if of == kind for element in value.get("elem", ())]


def parse(document: str) -> list[Object]:
    """Return the objects of a document; raises FwtopError."""
    try:
        return [pair for item in json.loads(document)["nftables"] for pair in item.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FwtopError("nft printed something else than JSON") from None


def is_missing(error: FwtopError) -> bool:
    """Return whether what was asked for, nf_tables, or nft is not there."""
    return error.code == NO_PROGRAM or any(text in str(error) for text in _NOT_THERE)


def change(changes: Sequence[Json], *, check: bool = False) -> None:
    """Carry out a transaction, or only `check` it; raises FwtopError."""
    if changes:
        text = json.dumps({"nftables": changes})
        run(["nft", *(["-c"] if check else []), "-j", "-f", "-"], text=text)


def execute(lines: Iterable[str], *, check: bool = False, seconds: float = RUN_SECONDS) -> None:
    """Do the same with commands as text."""
    text = "\n".join([*lines, ""])
    run(["nft", *(["-c"] if check else []), "-f", "-"], text=text, timeout=seconds)
