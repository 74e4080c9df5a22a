"""Labs with a scenario given inline."""

from __future__ import annotations

from fwtop.lab import scenario
from fwtop.lab.run import Lab

HEAD = 'title = "t"\nfirewall = "none"\n'


def inline(text: str, name: str = "inline") -> Lab:
    return Lab(scenario.parse(HEAD + text, name), source=HEAD + text)
