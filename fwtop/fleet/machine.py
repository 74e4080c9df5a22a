"""A machine's files in the fleet: who it is (root's), its keys and its way to the servers (the node's)."""

from __future__ import annotations

import grp
import os
import re
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from fwtop.fleet.broker import Access
from fwtop.model.errors import FwtopError
from fwtop.model.paths import FLEET_USER
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, to_json

T = TypeVar("T")
NODE_FILE = "node.json"
MACHINE_FILE = "machine.toml"  # the guardian reads it, and SIGNERS_FILE
SIGNERS_FILE = "signers"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class NodeFile(Struct, frozen=True, forbid_unknown_fields=True):
    """What the node needs; its group may read it, and nobody else."""

    fleet: str
    name: str
    urls: tuple[str, ...]
    authority: str  # PEM
    labels: tuple[str, ...]
    seed: str  # of the key that it connects with
    key: str  # secret half of that with which it signs
    jwt: str = ""  # "": not admitted yet

    @property
    def access(self) -> Access:
        """How the node connects; raises FwtopError before it is admitted."""
        if not self.jwt:
            line = (
                f"{self.name} is not admitted yet: 'fwtop fleet nodes --approve {self.name}' does, then join"
            )
            raise FwtopError(f"{line} again")
        return Access(self.urls, self.authority, self.jwt, self.seed, self.name)


def check_machine(name: str) -> str:
    """Return a machine's name or a label; raises FwtopError."""
    if not _NAME.fullmatch(name):
        line = f"{safe_text(name, limit=70)!r}: a machine or label has up to 63 letters, digits, '-' and '_'"
        raise FwtopError(f"{line}; nothing was changed", 2)
    return name


def read_node(directory: Path) -> NodeFile:
    """Read the node's file; raises FwtopError, which says what to do."""
    missing = "this machine has joined no fleet; 'fwtop fleet join' does"
    return read(NodeFile, directory / NODE_FILE, missing)


def read(cls: type[T], path: Path, missing: str) -> T:
    """Read a file of keys; raises FwtopError, which says what to do if it is `missing`."""
    try:
        file: T = of_json(cls, path.read_bytes())
    except FileNotFoundError:
        raise FwtopError(f"{path}: not found: {missing}", 3) from None
    except (OSError, ValueError) as error:
        raise FwtopError(f"{path}: {safe_text(error, limit=200)}", 3) from None
    return file


def write_node(directory: Path, file: NodeFile, group: int) -> None:
    """Write the node's file for root and its group."""
    write(directory / NODE_FILE, to_json(file).decode(), mode=0o640, group=group)


def node_group() -> int:
    """Return the group of the node, which may read its file; raises FwtopError."""
    try:
        return grp.getgrnam(FLEET_USER).gr_gid
    except KeyError:
        raise FwtopError(
            f"there is no group {FLEET_USER}: run 'make setup'; nothing was changed", 3
        ) from None


def write_identity(directory: Path, file: NodeFile, signers: str) -> None:
    """Write what the guardian reads; signers that are there are root's, and stay."""
    labels = ", ".join(f'"{label}"' for label in file.labels)
    lines = [
        "# Which machine of which fleet this is; root's word alone. See docs/FLEET.md.",
        f'fleet = "{file.fleet}"',
        f'name = "{file.name}"',
        f"labels = [{labels}]",
    ]
    write(directory / MACHINE_FILE, "\n".join(lines) + "\n")
    if not (directory / SIGNERS_FILE).exists():
        write(directory / SIGNERS_FILE, signers)


def write(path: Path, text: str, *, mode: int = 0o644, group: int = 0) -> None:
    """Replace a file of root's in one step."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        os.fchown(descriptor, -1, group)
        os.fchmod(descriptor, mode)
    new.rename(path)
