"""The UDP ports of mosh-server: its clients roam, so no address can be put on the allow-list for them."""

from __future__ import annotations

import os
from pathlib import Path

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.model.addresses.coverage import listed
from fwtop.model.addresses.roles import Role
from fwtop.model.rule import Rule
from fwtop.model.traffic.protocols import UDP
from fwtop.rules.kinds import drops_nothing

_SERVER = "mosh-server"


def warning(rule: Rule, allow: AllowList) -> tuple[str, ...]:
    """Say that a rule cuts open mosh sessions; empty where it can't, or where there are none."""
    if rule.parts:
        return tuple(dict.fromkeys(line for part in rule.parts for line in warning(part, allow)))
    match = rule.match
    no_udp = match.protocol not in (None, UDP) or match.icmp_type is not None or match.reads_tcp
    # An open session of a protected port
    goes_on = rule.protection is not None and not rule.protection.strict
    if drops_nothing(rule) or goes_on or no_udp or match.sport is not None or match.payload:
        return ()
    if match.sources:
        index = listed(match.sources)
        peers = (entry.prefix for entry in allow.entries if entry.role is Role.SSH)
        if all(index.overlapping(peer) is None for peer in peers):
            return ()
    ports = sorted(port for port in mosh_ports() if match.dport in (None, port))
    if not ports:
        return ()
    shown = ", ".join(map(str, ports[:3]))
    return (f"mosh sessions on UDP port {shown} may be cut: /etc/fwtop/allow can list your address",)


def mosh_ports() -> set[int]:
    """Return the UDP ports of this namespace that mosh servers have open."""
    sockets = _sockets()
    found: set[int] = set()
    for name in ("/proc/net/udp", "/proc/net/udp6") if sockets else ():
        try:
            lines = Path(name).read_text(errors="replace").splitlines()[1:]
        except OSError:
            continue
        rows = (line.split() for line in lines)
        found |= {int(fields[1].partition(":")[2], 16) for fields in rows if fields[9] in sockets}
    return found


def _sockets() -> set[str]:
    """Return the inodes of the sockets that mosh servers hold."""
    found: set[str] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "comm").read_text().strip() != _SERVER:
                continue
            links = [os.readlink(descriptor) for descriptor in (entry / "fd").iterdir()]
        except OSError:
            continue  # it ended meanwhile
        found |= {link[8:-1] for link in links if link.startswith("socket:[")}
    return found
