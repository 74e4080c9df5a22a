"""What rules would do, measured on this machine's traffic before they are installed."""

from __future__ import annotations

import json
import os

from fwtop.cli.launcher import launch
from fwtop.console.handoff import Options
from fwtop.console.text import si
from fwtop.model.percent import percent
from fwtop.model.preview import Preview
from fwtop.model.protocol import Watch
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text

MEASURE_SECONDS = 2.0
_MAX_SOURCES = 100_000  # a longer list takes longer to replay than a person waits


def measure(rules: list[Rule], netns: str | None) -> list[Preview] | None:
    """Watch for two seconds and replay the rules; None where that can't be done here.

    A child process does it, because watching gives root away, which installing still needs.
    """
    if sum(len(rule.match.sources) for rule in rules) > _MAX_SOURCES:
        return None
    given, result = os.memfd_create("fwtop-rules"), os.memfd_create("fwtop-previews")
    try:
        os.write(given, json.dumps([rule.to_dict() for rule in rules]).encode())
        os.lseek(given, 0, os.SEEK_SET)
        child = os.fork()
        if child == 0:
            _observe(netns, given, result)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            return None
        os.lseek(result, 0, os.SEEK_SET)
        with open(result, "rb", closefd=False) as file:
            return _read(file.read())
    finally:
        os.close(given)
        os.close(result)


def harm_line(preview: Preview) -> str:
    """Say in a line what a rule would stop and hit."""
    guess = " (a guess: no baseline from before the attack)" if preview.guess else ""
    what = "all attacks" if len(preview.attacks) > 1 else "the attack"
    return (
        f"would stop {percent(preview.attack_share, 1)} of {what} ({si(preview.attack_pps)}pps) and hit "
        f"{percent(preview.collateral_share, 2)} of normal traffic ({si(preview.collateral_pps)}pps){guess}"
    )


def _observe(netns: str | None, given: int, result: int) -> None:
    status = 1
    try:
        os.dup2(given, 0)
        os.dup2(result, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        status = launch(Options(mode="trial", seconds=MEASURE_SECONDS, netns=netns, store=False), Watch())
    finally:
        os._exit(status)


def _read(text: bytes) -> list[Preview] | None:
    # Printed by the unprivileged console: taken as numbers and as text that is made safe again.
    try:
        return [
            Preview(
                **{
                    **item,
                    "examples": tuple(map(safe_text, item["examples"])),
                    "warnings": tuple(map(safe_text, item["warnings"])),
                    "attacks": tuple((safe_text(title), float(share)) for title, share in item["attacks"]),
                }
            )
            for item in json.loads(text)
        ]
    except (ValueError, TypeError, KeyError):
        return None
