"""Change kernel settings for a while: no sets and no chain lines, the settings themselves."""

from __future__ import annotations

from fwtop.mitigate.artifacts import Artifacts
from fwtop.mitigate.sysctls import notes
from fwtop.model.address import Prefix
from fwtop.model.rule import Rule


def build(rule: Rule, _exceptions: tuple[Prefix, ...]) -> Artifacts:
    """Return the settings and what is to be known about them."""
    return Artifacts((), (), notes(rule.settings), settings=rule.settings)
