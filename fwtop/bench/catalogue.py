"""The list of tables: name, what it measures, and the module that measures it.

Those that describe a machine of the operator's; developers' tables are outside the program, in `benches`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from msgspec import Struct

from fwtop.bench.frame import Document, Options
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text


class Table(Struct, frozen=True):
    """One table; its module defines `run(options: Options) -> Document`."""

    name: str
    package: str  # of `home`
    title: str
    needs_root: bool = True
    takes: str = ""  # what words after its name are, "" for none
    home: str = "fwtop.bench.tables"


TABLES = (
    Table(
        "accuracy",
        "judgement",
        "fwtop's observations against what the lab sent, or an independent count of captures",
        takes="scenarios and captures (FILE=kind,kind labels one)",
    ),
    Table("react", "watching", "latency: start to first numbers, attack to its name, key to the first drop"),
    Table("ladder", "rules", "packets per second that one core drops, by hook (Cloudflare)"),
    Table(
        "rules",
        "rules",
        "packets per second through one core, by rule, and fwtop's against bare ones (Strongarm)",
    ),
    Table("calibrate", "rules", "cost of a packet by kind of rule; --calibrate stores it for the proposals"),
    Table(
        "harm",
        "judgement",
        "a rule's predicted harm to legitimate clients against the measured harm",
        takes="trials",
    ),
)


def find(name: str, tables: Sequence[Table] = TABLES, command: str = "fwtop bench") -> Table:
    """Return a table by name; raises FwtopError (2)."""
    for table in tables:
        if table.name == name:
            return table
    raise FwtopError(f"there is no table {safe_text(name, limit=40)!r}; '{command} list' names them", 2)


def run(table: Table, options: Options) -> Document:
    """Measure a table."""
    module = importlib.import_module(f"{table.home}.{table.package}.{table.name}")
    document: Document = module.run(options)
    return document
