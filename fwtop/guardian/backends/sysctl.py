"""Change kernel settings for a while: no sets and no chain lines, the settings themselves."""

from __future__ import annotations

from fwtop.guardian.objects.spec import KernelObjects
from fwtop.guardian.objects.sysctls import notes
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Rule


def build(rule: Rule, _exceptions: tuple[Prefix, ...]) -> KernelObjects:
    """Return the settings and what is to be known about them."""
    return KernelObjects((), (), notes(rule.settings), settings=rule.settings)
