"""The UDP ports of mosh-server: its clients roam, so no address can be put on the allow-list for them."""

from __future__ import annotations

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.kernel.procfs import read_text
from fwtop.kernel.sockets import command_name, processes, sockets_of
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
    servers = [pid for pid in processes() if command_name(pid) == _SERVER]
    held = {str(inode) for pid in servers for inode in sockets_of(pid)}
    names = ("/proc/net/udp", "/proc/net/udp6") if held else ()
    rows = [line.split() for name in names for line in read_text(name).splitlines()[1:]]
    return {int(fields[1].partition(":")[2], 16) for fields in rows if fields[9] in held}
