"""The interfaces by which packets come in, and what their links carry."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fwtop.mitigate.run import CommandError, run

LOOPBACK = "lo"


def links() -> list[dict[str, Any]]:
    """Return this namespace's interfaces as `ip -d link` knows them."""
    try:
        found = json.loads(run(["ip", "-j", "-d", "link", "show"], timeout=10) or "[]")
    except (CommandError, ValueError):
        return []
    return [link for link in found if isinstance(link, dict)]


def incoming(wanted: Iterable[str]) -> list[tuple[int, str]]:
    """Return index and name of the wanted interfaces, or those with a default route, or all that are up."""
    there = {str(link["ifname"]): link for link in links()}
    names = sorted(set(wanted) & set(there)) or sorted(_with_default_route() & set(there))
    if not names:
        names = [name for name, link in there.items() if name != LOOPBACK and "UP" in link.get("flags", ())]
    return [(int(there[name]["ifindex"]), name) for name in names]


def _with_default_route() -> set[str]:
    found: set[str] = set()
    for family in ("-4", "-6"):
        try:
            routes = json.loads(run(["ip", family, "-j", "route", "show", "default"], timeout=10) or "[]")
        except (CommandError, ValueError):
            continue
        hops = [hop for route in routes for hop in (route, *route.get("nexthops", ()))]
        found |= {str(hop["dev"]) for hop in hops if "dev" in hop}
    return found


def incoming_mtu() -> int:
    """Return the smallest MTU of the interfaces with a default route, or of all that are up; bytes."""
    there = {str(link["ifname"]): int(link.get("mtu", 1500)) for link in links()}
    return min((there[name] for _, name in incoming(())), default=1500)
