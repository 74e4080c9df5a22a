"""What programs print of rules, bounded in time and size, how much of it is listed, and whose it is."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import time

from msgspec import Struct

from fwtop.kernel.programs import ENVIRONMENT

MOST_BYTES = 48 << 20
_READ_BYTES = 1 << 18


class Output(Struct, frozen=True):
    """What a program printed."""

    text: str
    problem: str = ""  # why it is not whole


def output_of(argv: list[str], end: float) -> Output:
    """Run a program until `end` (CLOCK_MONOTONIC); what it prints beyond a limit is cut."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
    except FileNotFoundError:
        return Output("", f"{argv[0]} is not installed")
    except OSError as error:
        return Output("", f"{argv[0]} could not be started: {error.strerror}")
    with process:
        data, problem = _read(process.stdout.fileno() if process.stdout else -1, end)
        if problem:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    if not problem and process.returncode:
        problem = f"failed (exit status {process.returncode})"
    return Output(data.decode("utf-8", "replace"), f"{argv[0]} {problem}" if problem else "")


def _read(descriptor: int, end: float) -> tuple[bytes, str]:
    data = bytearray()
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return bytes(data), "took too long and was stopped"
        part = os.read(descriptor, _READ_BYTES)
        if not part:
            return bytes(data), ""
        data += part
        if len(data) > MOST_BYTES:
            return bytes(data), f"printed more than {MOST_BYTES >> 20} MiB and was stopped"


TEXT = 400  # characters of a rule
NAME = 64

_COMMENT = re.compile(r"\bcomment \"?fwtop-\d+\b")
_JUMP = re.compile(r"(?:^| )(?:-j|-g|jump|goto) FWTOP")


def is_own_name(name: str) -> bool:
    """Say whether a table, set or program is named as fwtop's are."""
    return name == "fwtop" or name.startswith(("fwtop-", "fwtop_"))


def is_own_rule(table: str, chain: str, text: str) -> bool:
    """Say whether a rule is fwtop's: its table, its chain, a jump to that, or its comment."""
    own_place = is_own_name(table) or chain == "FWTOP" or chain.startswith("FWTOP-")
    return own_place or bool(_JUMP.search(text) or _COMMENT.search(text))
