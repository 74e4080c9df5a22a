"""How a NIC spreads packets over its queues (RSS), from what ethtool prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fwtop.cli.probes.check import OK, WARNING, Check

_PORTS = "L4 bytes"  # as ethtool names the ports among the hashed fields


def spread(group: str, name: str, ethtool: Callable[..., str]) -> Iterator[Check]:
    """Look at the indirection table and at what of UDP is hashed.

    Nothing where there is one queue, or the driver tells nothing.
    """
    table = ethtool("-x", name)
    rings = re.search(r"with (\d+) RX ring", table)
    if rings and int(rings[1]) == 1:
        return
    used = {
        int(ring)
        for row in re.findall(r"^\s*\d+:((?:\s+\d+)+)$", table, re.MULTILINE)
        for ring in row.split()
    }
    if rings and used:
        count = int(rings[1])
        if len(used) < count:
            detail = f"packets go to {len(used)} of {count} queues"
            yield Check(group, "RSS", WARNING, detail, f"ethtool -X {name} equal {count}")
        else:
            yield Check(group, "RSS", OK, f"packets go to all {count} queues")
    for kind, family in (("udp4", "IPv4"), ("udp6", "IPv6")):
        hashed = _udp_fields(ethtool, name, kind)
        if hashed and _PORTS not in hashed:
            detail = f"UDP over {family} is spread by address only: few sources fill few queues"
            yield Check(
                group, f"RSS of {kind}", WARNING, detail, f"ethtool -N {name} rx-flow-hash {kind} sdfn"
            )


def _udp_fields(ethtool: Callable[..., str], name: str, kind: str) -> str:
    return ethtool("-n", name, "rx-flow-hash", kind).partition("Hash flow key:")[2].strip()
