"""The list of tables: name, what it measures, and the module that measures it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from fwtop.bench.frame import Document, Options
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text


@dataclass(frozen=True, slots=True)
class Table:
    """One table; its module defines `run(options: Options) -> Document`."""

    name: str
    package: str  # of fwtop.bench.tables
    title: str
    needs_root: bool = True


TABLES = (
    Table(
        "accuracy",
        "judgement",
        "fwtop's observations against what the lab sent, or an independent count of captures",
    ),
    Table(
        "corpus",
        "judgement",
        "the labelled windows that the judgement is measured on, by origin",
        needs_root=False,
    ),
    Table(
        "fit",
        "judgement",
        "fit the confidence of findings on the corpus and write the weights",
        needs_root=False,
    ),
    Table(
        "pipeline",
        "watching",
        "packets per second and core: parse, aggregate, read a capture; CPU time of a judgement",
        needs_root=False,
    ),
    Table(
        "observe",
        "watching",
        "the cost of watching: drops and deliveries under fwtop, under tcpdump, and unwatched",
    ),
    Table("react", "watching", "latency: start to first numbers, attack to its name, key to the first drop"),
    Table(
        "walk",
        "watching",
        "an attack's first packet to PROTECTED: seconds, keys, and figures against the victim's",
    ),
    Table("ladder", "rules", "packets per second that one core drops, by hook (Cloudflare)"),
    Table(
        "rules",
        "rules",
        "packets per second through one core, by rule, and fwtop's against bare ones (Strongarm)",
    ),
    Table("bulk", "rules", "seconds to load a million entries, by tool (Akamai)"),
    Table("lists", "rules", "seconds to change a live list of a million entries, by tool"),
    Table("policy", "rules", "seconds to switch a port and to put in a policy, under a flood"),
    Table("scale", "rules", "seconds and memory to load 5 and 25 million addresses, by tool"),
    Table(
        "screen", "watching", "the open screen under a full flood: bytes to the terminal, CPU time, memory"
    ),
    Table(
        "conntrack",
        "networks",
        "the cost of tracked connections and long rule lists (University of Washington)",
    ),
    Table(
        "stateless",
        "networks",
        "a service behind stateful rules, and without connection tracking (Strongarm)",
    ),
    Table(
        "exhaustion",
        "networks",
        "new clients of a machine whose connection table is full, before and after 'fwtop harden conntrack'",
    ),
    Table(
        "bridge",
        "networks",
        "packets/s that a bridge and a router pass on, tracked, ruled and watched (Washington)",
    ),
    Table(
        "resolver",
        "networks",
        "attacks through a DNS server, and its clients, as it is and after 'fwtop harden resolver'",
    ),
    Table("calibrate", "rules", "cost of a packet by kind of rule; --calibrate stores it for the proposals"),
    Table("harm", "judgement", "a rule's predicted harm to legitimate clients against the measured harm"),
    Table(
        "proposals",
        "judgement",
        "the share of an attack that proposals promise to stop against what their rules stop",
    ),
    Table(
        "night", "judgement", "attacks while nobody is there: what automatic rules stop, and how clients fare"
    ),
    Table("hour", "judgement", "false alarms on a host that real programs use for an hour"),
    Table(
        "day",
        "judgement",
        "a day in ten minutes, recorded: the lab against store, report, replay, trends and bundle",
    ),
    Table("xdp", "rules", "drops in the driver: a bare XDP_DROP, xdp-filter, fwtop's compiled rules"),
)


def find(name: str) -> Table:
    """Return a table by name; raises FwtopError (2)."""
    for table in TABLES:
        if table.name == name:
            return table
    raise FwtopError(f"there is no table {safe_text(name, limit=40)!r}; 'fwtop bench list' names them", 2)


def run(table: Table, options: Options) -> Document:
    """Measure a table."""
    module = importlib.import_module(f"fwtop.bench.tables.{table.package}.{table.name}")
    document: Document = module.run(options)
    return document
