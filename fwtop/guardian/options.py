"""The guardian's arguments. Only other parts of fwtop start it; argparse would cost 0.6 MB for good."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct, ValidationError, convert

from fwtop.guardian.allow.allowlist import ALLOW_FILE
from fwtop.guardian.failpoints import Failpoint
from fwtop.guardian.limits import LIMITS_FILE
from fwtop.model import paths
from fwtop.model.errors import FwtopError

HERE, EVERYWHERE = "here", "everywhere"


class Options(Struct, forbid_unknown_fields=True):
    """What `--name value` or `--name=value` sets, with `-` for `_`."""

    build: str  # hash of the program that starts it
    netns: str | None = None  # work in this named network namespace
    netns_fd: int = -1  # or in that of this inherited descriptor
    netns_path: str = ""  # or in that of this file in /proc, for a caller that can't pass descriptors
    run_directory: Path = paths.RUN_DIRECTORY
    state_directory: Path = paths.GUARDIAN_DIRECTORY
    allow_file: str = ALLOW_FILE
    limits_file: Path = Path(LIMITS_FILE)
    crash_at: Failpoint | None = None  # for tests: SIGKILL there
    overdue: Literal["", "here", "everywhere"] = (
        ""  # start nothing: give back the sysctls that are overdue, HERE or EVERYWHERE
    )

    @classmethod
    def parse(cls, arguments: list[str]) -> Options:
        """Parse the command line; raises FwtopError."""
        given = {"build": paths.build_id()}
        found = cls(paths.build_id())
        rest = iter(arguments)
        for word in rest:
            option, equals, value = word.partition("=")
            try:
                name = option.removeprefix("--").replace("-", "_")
                given[name] = value if equals else next(rest)
                found = convert(given, cls, strict=False, dec_hook=lambda kind, text: kind(text))
            except (ValidationError, StopIteration):
                raise FwtopError(f"the guardian has no option {word!r}; nothing was started", 2) from None
        return found

    def same_state(self) -> list[str]:
        """Return the arguments of a guardian that works with the same files."""
        names = ("build", "run_directory", "state_directory", "allow_file", "limits_file")
        return [f"--{name.replace('_', '-')}={getattr(self, name)}" for name in names]
