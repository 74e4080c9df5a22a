"""The result of one look."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from typing import Any

from fwtop.mitigate.run import ENVIRONMENT

OK, WARNING, MISSING, UNKNOWN = "ok", "warning", "missing", "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that this machine can do, lacks, or would not tell.

    `essential`: without it fwtop can't watch or block here. `mend` is the command that mends it.
    """

    group: str
    name: str
    state: str
    detail: str
    mend: str = ""
    essential: bool = False

    @property
    def fatal(self) -> bool:
        """Whether fwtop can't do its work because of it."""
        return self.essential and self.state == MISSING

    def to_json(self) -> dict[str, Any]:
        """Return the entry of `doctor --json`."""
        return asdict(self)


def program(group: str, name: str, package: str, *, essential: bool = False) -> Check:
    """Look for a program where fwtop runs programs from."""
    path = shutil.which(name, path=ENVIRONMENT["PATH"])
    if path:
        return Check(group, name, OK, path, essential=essential)
    return Check(group, name, MISSING, "not installed", f"apt-get install {package}", essential)
