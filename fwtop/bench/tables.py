"""The list of tables: a name, what it measures, and the module that measures it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from fwtop.bench.frame import Document, Options
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text


@dataclass(frozen=True, slots=True)
class Table:
    """One entry; the module has `run(options: Options) -> Document`."""

    name: str
    title: str
    needs_root: bool = True


TABLES = (
    Table("accuracy", "what fwtop says against what the lab really sent, and against captures given"),
    Table("pipeline", "packets a second and core: parse, aggregate, read a capture", needs_root=False),
    Table("observe", "what watching costs: drops and deliveries, with fwtop and with tcpdump beside"),
    Table("react", "how soon: numbers after the start, an attack's name, drops after the key"),
    Table("ladder", "packets a second that one core gets rid of, by the place (Cloudflare)"),
    Table("rules", "packets a second that one core gets through, by the rules (Strongarm)"),
    Table("bulk", "seconds for a million entries, by the way into the kernel (Akamai)"),
    Table("screen", "the open screen under a full flood: bytes to the terminal, processor time, memory"),
    Table("conntrack", "what tracked connections and long rule lists cost (University of Washington)"),
    Table("calibrate", "what a packet costs by the kind of rule; --calibrate keeps it for the proposals"),
    Table("harm", "what rules were said to do to legitimate clients, and what these then suffered"),
    Table("xdp", "drops in the driver: nothing but a drop, xdp-filter, fwtop's compiled rules"),
)


def find(name: str) -> Table:
    """Return the table of that name; raises FwtopError (2)."""
    for table in TABLES:
        if table.name == name:
            return table
    raise FwtopError(f"there is no table {safe_text(name, limit=40)!r}; 'fwtop bench list' names them", 2)


def run(table: Table, options: Options) -> Document:
    """Measure a table."""
    module = importlib.import_module(f"fwtop.bench.{table.name}")
    document: Document = module.run(options)
    return document
