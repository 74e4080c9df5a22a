"""One interface: its driver, queues, rings, offloads that matter, and who else is attached to it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fwtop.cli.probes.check import OK, UNKNOWN, WARNING, Check
from fwtop.cli.probes.spread import spread
from fwtop.mitigate.run import ENVIRONMENT
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

if TYPE_CHECKING:
    from fwtop.collect.xdp_targets import Target

_RING = 2048  # descriptors: a millisecond of 2 Mpps


def checks(names: list[str]) -> Iterator[Check]:
    """Look at the named interfaces, or at those with a default route.

    Raises FwtopError (code 2) for one that is not there.
    """
    from fwtop.cli.probes.xdp_features import native_xdp
    from fwtop.collect.links import choose_links, list_links
    from fwtop.collect.xdp_targets import targets

    links = list_links()
    try:
        chosen = choose_links(links, names)
    except FwtopError as error:
        if names:
            raise
        yield Check("interface", "default", WARNING, str(error), "fwtop doctor -i IF")
        return
    native = native_xdp()
    places = {link.index: targets(links, [link]) for link in chosen}
    for link in chosen:
        group = f"interface {safe_text(link.name)}"
        if not link.up:
            mend = f"ip link set {safe_text(link.name)} up"
            yield Check(group, "state", WARNING, "down", mend)
        yield _driver(group, link.name, None if native is None else native.get(link.index))
        yield from _place(group, link.name, places[link.index])
        yield from _queues(group, link.name)
        yield from spread(group, safe_text(link.name), partial(_ask, "ethtool"))
        yield from _offloads(group, link.name)
        yield _attached(group, link.name)


def _ask(*argv: str) -> str:
    """Return what a program prints, "" where it is missing, refuses or takes too long."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=5, env=ENVIRONMENT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _driver(group: str, name: str, native: bool | None) -> Check:
    match = re.search(r"^driver: (\S+)", _ask("ethtool", "-i", name), re.MULTILINE)
    driver = safe_text(match[1], limit=40) if match else "driver unknown"
    if native is None:
        return Check(
            group, "driver", UNKNOWN, f"{driver}; whether it runs XDP itself, Linux tells from 6.3 on"
        )
    if native:
        return Check(group, "driver", OK, f"{driver}: runs XDP itself (native)")
    return Check(group, "driver", WARNING, f"{driver}: XDP only in generic mode, which is slower")


def _place(group: str, name: str, places: Sequence[Target]) -> Iterator[Check]:
    """Say where XDP rules for a VLAN or bond go."""
    for place in places:
        below = [one.name for one in (place.link, *place.members) if one.name != name]
        if below:
            detail = f"on {safe_text(', '.join(below))}, which it stands on: it sees all that arrives there"
            yield Check(group, "XDP rules", OK, detail)


def _current(text: str) -> dict[str, int]:
    """Read the second half of what `ethtool -l` and `-g` print: the current settings."""
    current = text.partition("Current hardware settings:")[2]
    return {key: int(value) for key, value in re.findall(r"^(\w[\w ]*):\s+(\d+)$", current, re.MULTILINE)}


def _maximum(text: str) -> dict[str, int]:
    return _current("Current hardware settings:" + text.partition("Current hardware settings:")[0])


def _queues(group: str, name: str) -> Iterator[Check]:
    channels = _ask("ethtool", "-l", name)
    now, most = _current(channels), _maximum(channels)
    count, limit = (max(d.get("Combined", 0), d.get("RX", 0)) for d in (now, most))
    if count and count < limit:
        mend = f"ethtool -L {safe_text(name)} combined {limit}"
        yield Check(group, "queues", WARNING, f"{count} of {limit}: fewer cores share the load", mend)
    elif count:
        yield Check(group, "queues", OK, f"{count} of {limit}")
    rings = _ask("ethtool", "-g", name)
    size, largest = _current(rings).get("RX", 0), _maximum(rings).get("RX", 0)
    wanted = min(largest, _RING)
    if size and size < wanted:
        mend = f"ethtool -G {safe_text(name)} rx {wanted}"
        detail = f"{size} of at most {largest}: a burst overruns it; a change resets the interface"
        yield Check(group, "receive ring", WARNING, detail, mend)
    elif size:
        yield Check(group, "receive ring", OK, f"{size} of at most {largest}")


def _offloads(group: str, name: str) -> Iterator[Check]:
    features = dict(re.findall(r"^([\w-]+): (on|off)", _ask("ethtool", "-k", name), re.MULTILINE))
    if not features:
        return
    wanted = ("generic-receive-offload", "large-receive-offload", "ntuple-filters", "rx-vlan-offload")
    shown = ", ".join(f"{feature} {features[feature]}" for feature in wanted if feature in features)
    if features.get("large-receive-offload") == "on":
        mend = f"ethtool -K {safe_text(name)} lro off"
        yield Check(group, "offloads", WARNING, f"{shown}: XDP can't be attached with LRO on", mend)
    else:
        yield Check(group, "offloads", OK, shown)


def _attached(group: str, name: str) -> Check:
    try:
        links: list[dict[str, Any]] = json.loads(_ask("ip", "-d", "-j", "link", "show", "dev", name) or "[]")
    except ValueError:
        links = []
    if not links:
        return Check(group, "XDP program", UNKNOWN, "ip does not tell")
    program = (links[0].get("xdp") or {}).get("prog") or {}
    if program:
        who = safe_text(program.get("name", "without a name"), limit=40)
        detail = f"{who} (id {int(program.get('id', 0))}) is attached; fwtop never replaces another's"
        return Check(group, "XDP program", OK if "fwtop" in who else WARNING, detail)
    return Check(group, "XDP program", OK, "none attached")
