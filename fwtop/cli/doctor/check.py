"""The result of one check."""

from __future__ import annotations

import shutil

from msgspec import Struct

from fwtop.kernel.programs import ENVIRONMENT

OK, WARNING, MISSING, UNKNOWN = "ok", "warning", "missing", "unknown"


class Check(Struct, frozen=True):
    """The state of one feature or program.

    `essential`: fwtop can't watch or block without it. `mend`: the command that fixes it.
    """

    group: str
    name: str
    state: str
    detail: str
    mend: str = ""
    essential: bool = False

    @property
    def fatal(self) -> bool:
        """Whether fwtop can't work because of it."""
        return self.essential and self.state == MISSING


def program(group: str, name: str, package: str, *, essential: bool = False) -> Check:
    """Look for a program where fwtop runs programs from."""
    path = shutil.which(name, path=ENVIRONMENT["PATH"])
    if path:
        return Check(group, name, OK, path, essential=essential)
    return Check(group, name, MISSING, "not installed", f"apt-get install {package}", essential)
