"""The allow-list in two tiers: what the operator lists, and what fwtop finds by itself.

What is found passes only in its role (roles.py): SSH sessions, gateways, resolvers, time servers, and the
conversations of hosts behind this machine (behind.py). It is read from the kernel's own tables in the
namespace at hand, so that the list follows them while rules are active.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from fwtop.guardian.allow.behind import MOST, MOST_OF_HOST, overruled
from fwtop.guardian.allow.found import (
    Session,
    configured_time_servers,
    gateways,
    listening_ports,
    own_addresses,
    redirected_ports,
    resolvers,
    ssh_daemons,
    ssh_sessions,
    time_servers_talked_to,
)
from fwtop.model.addresses.address import HostBitsError, Prefix
from fwtop.model.addresses.roles import (
    BGP_PORT,
    DHCP_PORTS,
    DNS_PORT,
    NTP_PORT,
    AllowedPeer,
    Passes,
    Role,
)
from fwtop.model.files import read_regular
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.rehearsal.host import KnownPeers
from fwtop.rehearsal.operators import in_full

ALLOW_FILE = "/etc/fwtop/allow"


class AllowList(KnownPeers, frozen=True):
    """All entries, each once, and what could not be read."""

    warnings: tuple[str, ...] = ()
    redirected: frozenset[tuple[int, int]] = frozenset()  # ports that clients log in at, and ours behind each

    def without_overruled(self, rules: Iterable[Rule]) -> AllowList:
        """Return the list without what these rules are about in particular."""
        gone = overruled(self.behind, rules) if self.behind else frozenset()
        return replace(self, behind=tuple(item for item in self.behind if item not in gone)) if gone else self

    @property
    def login_ports(self) -> frozenset[int]:
        """Ports where operators log in, those redirected to them too."""
        return super().login_ports | {port for port, _ in self.redirected}

    @property
    def listed(self) -> tuple[Prefix, ...]:
        """What passes in full."""
        return in_full(self)

    @property
    def known(self) -> tuple[Prefix, ...]:
        """The prefixes of both families that pass in whatever role."""
        return self.passes(4).known + self.passes(6).known

    def of_family(self, family: int) -> list[Prefix]:
        """Return the prefixes of a family that pass in full."""
        return sorted({prefix for prefix in self.listed if prefix.family == family})

    def passes(self, family: int) -> Passes:
        """Return what passes of a family, by role, for the kernel."""
        peers: set[tuple[Prefix, int, int]] = set()
        gateways: set[Prefix] = set()
        logins: set[tuple[Prefix, int]] = set()
        for entry in self.entries:
            if entry.prefix.family != family:
                continue
            if entry.role is Role.GATEWAY:
                gateways.add(entry.prefix)
            if local := entry.login_port:
                ports = {local, *(port for port, own in self.redirected if own == local)}
                logins |= {(entry.prefix, port) for port in ports}
            peers |= {(entry.prefix, *port) for port in _ports_of(entry, family)}
        talks = [item.conversation for item in self.behind if item.prefix.family == family]
        behind = sorted(talk for talk in talks if talk is not None)
        listed = tuple(self.of_family(family))
        return Passes(
            family,
            listed,
            tuple(sorted(peers)),
            tuple(sorted(gateways)),
            tuple(behind),
            tuple(sorted(logins)),
        )


def _ports_of(entry: AllowedPeer, family: int) -> tuple[tuple[int, int], ...]:
    """Return the protocols and ports that an entry's packets come from.

    Of a session that is the peer's port alone: ours may be another on the wire, where this host redirects it.
    """
    if entry.login_port:
        return ((TCP, entry.port),)
    if entry.role is Role.DNS:
        return (TCP, DNS_PORT), (UDP, DNS_PORT)
    if entry.role is Role.NTP:
        return ((UDP, NTP_PORT),)
    if entry.role is Role.GATEWAY:
        return (TCP, BGP_PORT), (UDP, DHCP_PORTS[family][0])
    return ()


def gather(
    operators: Iterable[Session],
    netns_name: str | None,
    allow_file: str = ALLOW_FILE,
    learn: Callable[[Collection[Prefix]], tuple[tuple[AllowedPeer, ...], int]] = lambda _: ((), 0),
) -> AllowList:
    """Read the whole list now; `operators` are the sessions that started our clients.

    `learn` is given the own addresses, and returns what is listed for hosts behind and how much had no room.
    """
    listed, warnings = read_allow_file(Path(allow_file))
    own, daemons = own_addresses(), ssh_daemons()
    sessions = ssh_sessions(daemons)
    found = listed + [AllowedPeer(prefix, Role.OWN, reason="own address") for prefix in own]
    found += [item.allowed("operator's session (SSH_CONNECTION)") for item in operators]
    found += [item.allowed(f"logged in by ssh on port {item.local_port}") for _, item in sessions]
    found += [AllowedPeer(prefix, Role.GATEWAY, reason="default gateway") for prefix in gateways()]
    found += [AllowedPeer(prefix, Role.DNS, reason="DNS resolver") for prefix in resolvers(netns_name)]
    servers = (*configured_time_servers(), *time_servers_talked_to())
    found += [AllowedPeer(prefix, Role.NTP, reason="NTP server") for prefix in servers]
    unique: dict[tuple[Prefix, Role, int], AllowedPeer] = {}
    for entry in found:
        if not entry.prefix.network.is_loopback and not entry.prefix.network.is_unspecified:
            unique.setdefault((entry.prefix, entry.role, entry.port), entry)
    behind, left_out = learn(frozenset(own))
    if left_out:
        limits = ", ".join(f"{most} {role.value}" for role, most in MOST.items())
        warnings.append(
            f"the allow-list for hosts behind this machine has no room for {left_out:,} conversations: "
            f"{len(behind):,} are on it, of at most {limits}, and {MOST_OF_HOST} of a host"
        )
    listening, redirected = listening_ports(daemons), redirected_ports(sessions)
    return AllowList(
        tuple(unique.values()), behind, listening, warnings=tuple(warnings), redirected=redirected
    )


def read_allow_file(path: Path) -> tuple[list[AllowedPeer], list[str]]:
    """Read one prefix a line (# starts a comment); bad lines are named and skipped.

    A file that did not change is not read again: 200,000 lines take seconds.
    """
    try:
        now = path.stat()
    except OSError:
        return _read_allow_file(path, None)
    return _read_allow_file(path, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns))


@lru_cache(maxsize=1)
def _read_allow_file(path: Path, _: tuple[int, ...] | None) -> tuple[list[AllowedPeer], list[str]]:
    found: list[AllowedPeer] = []
    warnings: list[str] = []
    try:
        lines = read_regular(path).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return found, warnings
    except OSError as error:
        return found, [safe_text(f"{path} is ignored ({error.strerror}): it lists nobody")]
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            found.append(AllowedPeer(Prefix.parse(text), reason=str(path)))
        except HostBitsError as error:  # the host passes whichever was meant: it may be the operator's own
            found.append(AllowedPeer(Prefix.parse(error.host), reason=str(path)))
            warnings.append(safe_text(f"{path} line {number}: {error}; only the host passes"))
        except ValueError as error:
            warnings.append(safe_text(f"{path} line {number} is ignored: {error}"))
    return found, warnings
