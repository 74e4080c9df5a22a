"""Which names of tables, chains, sets and comments are fwtop's, and how much of them is listed."""

from __future__ import annotations

import re

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
