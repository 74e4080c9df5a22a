"""The list of developers' tables."""

from __future__ import annotations

from fwtop.bench.catalogue import Table


def _table(name: str, package: str, title: str, *, needs_root: bool = True, takes: str = "") -> Table:
    return Table(name, package, title, needs_root, takes, "benches.tables")


TABLES = (
    _table(
        "naming",
        "judgement",
        "how well attacks are named on the corpus, and what the stated confidence is worth",
        needs_root=False,
    ),
    _table(
        "corpus",
        "judgement",
        "the labelled windows that the judgement is measured on, by origin",
        needs_root=False,
    ),
    _table(
        "fit",
        "judgement",
        "fit the confidence of findings on the corpus and write the weights",
        needs_root=False,
        takes="the file to write, not fwtop's own",
    ),
    _table(
        "pipeline",
        "watching",
        "packets per second and core: parse, aggregate, read a capture; CPU time of a judgement",
        needs_root=False,
    ),
    _table(
        "observe",
        "watching",
        "the cost of watching: drops and deliveries under fwtop, under tcpdump, and unwatched",
    ),
    _table(
        "walk",
        "watching",
        "an attack's first packet to PROTECTED: seconds, keys, and figures against the victim's",
        takes="scenarios",
    ),
    _table("bulk", "rules", "seconds to load a million entries, by tool (Akamai)"),
    _table("lists", "rules", "seconds to change a live list of a million entries, by tool"),
    _table("policy", "rules", "seconds to switch a port and to put in a policy, under a flood"),
    _table("scale", "rules", "seconds and memory to load 5 and 25 million addresses, by tool"),
    _table(
        "screen", "watching", "the open screen under a full flood: bytes to the terminal, CPU time, memory"
    ),
    _table(
        "conntrack",
        "networks",
        "the cost of tracked connections and long rule lists (University of Washington)",
    ),
    _table(
        "stateless",
        "networks",
        "a service behind stateful rules, and without connection tracking (Strongarm)",
    ),
    _table(
        "exhaustion",
        "networks",
        "new clients of a machine whose connection table is full, before and after 'fwtop harden conntrack'",
    ),
    _table(
        "bridge",
        "networks",
        "packets/s that a bridge and a router pass on, tracked, ruled and watched (Washington)",
    ),
    _table(
        "resolver",
        "networks",
        "attacks through a DNS server, and its clients, as it is and after 'fwtop harden resolver'",
    ),
    _table(
        "proposals",
        "judgement",
        "the share of an attack that proposals promise to stop against what their rules stop",
        takes="scenarios",
    ),
    _table(
        "night",
        "judgement",
        "attacks while nobody is there: what automatic rules stop, and how clients fare",
        takes="scenarios",
    ),
    _table("hour", "judgement", "false alarms on a host that real programs use for an hour"),
    _table(
        "day",
        "judgement",
        "a day in ten minutes, recorded: the lab against store, report, replay, trends and bundle",
        takes="a folder that keeps the sessions",
    ),
    _table("xdp", "rules", "drops in the driver: a bare XDP_DROP, xdp-filter, fwtop's compiled rules"),
)
