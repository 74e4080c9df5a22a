"""The list of developers' tables."""

from __future__ import annotations

from fwtop.bench.frame import Table

_TITLES = {
    "scenarios": "fwtop's observations of the lab's scenarios against what was sent",
    "naming": "how well attacks are named on the corpus, and what the stated confidence is worth",
    "corpus": "the labelled windows that the judgement is measured on, by origin",
    "fit": "fit the confidence of findings on the corpus and write the weights",
    "proposals": "the share of an attack that proposals promise to stop against what their rules stop",
    "night": "attacks while nobody is there: what automatic rules stop, and how clients fare",
    "anger": "a night of other people's tools: what was named, stopped, harmed and predicted",
    "forgers": "floods in the names of innocents: how those fare under automatic rules, and what is stopped",
    "peers": "automatic rules beside FastNetMon, fail2ban and nobody, against the same tools",
    "hour": "false alarms on a host that real programs use for an hour",
    "day": "a day in ten minutes, recorded: the lab against store, report, replay, trends and bundle",
    "pipeline": "packets per second and core: parse, aggregate, read a capture; CPU time of a judgement",
    "observe": "the cost of watching: drops and deliveries under fwtop, under tcpdump, and unwatched",
    "walk": "an attack's first packet to PROTECTED: seconds, keys, and figures against the victim's",
    "screen": "the open screen under a full flood: bytes to the terminal, CPU time, memory",
    "bulk": "seconds to load a million entries, by tool (Akamai)",
    "lists": "seconds to change a live list of a million entries, by tool",
    "policy": "seconds to switch a port and to put in a policy, under a flood",
    "scale": "seconds and memory to load 5 and 25 million addresses, by tool",
    "xdp": "drops in the driver: a bare XDP_DROP, xdp-filter, fwtop's compiled rules",
    "stateless": "a service behind stateful rules, and without connection tracking (Strongarm)",
    "exhaustion": "new clients of a machine whose connection table is full, before and after "
    "'fwtop harden conntrack'",
    "bridge": "packets/s that a bridge and a router pass on, tracked, ruled and watched (Washington)",
    "fleet": "seconds from Enter to the first packet that each of 20 machines drops, in one wave",
    "resolver": "attacks through a DNS server, and its clients, as it is and after 'fwtop harden resolver'",
}
_WITHOUT_ROOT = ("naming", "corpus", "fit", "pipeline")
_TAKES = {
    "scenarios": "names of scenarios",
    "fit": "the file to write, not fwtop's own",
    "anger": "how names of tools begin",
    "walk": "scenarios",
    "peers": "how names of attacks begin",
    "proposals": "scenarios",
    "night": "scenarios",
    "forgers": "kinds of attacks and innocents, by name",
    "fleet": "how many machines",
    "day": "a folder that keeps the sessions",
}
TABLES = tuple(
    Table(name, title, _TAKES.get(name, ""), name not in _WITHOUT_ROOT, home="benches.tables")
    for name, title in _TITLES.items()
)
