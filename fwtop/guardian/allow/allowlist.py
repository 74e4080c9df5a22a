"""The allow-list in two tiers: what the operator lists, and what fwtop finds by itself.

What is found passes only in its role (roles.py): SSH sessions, gateways, resolvers, time servers, and the
conversations of hosts behind this machine (behind.py). It is read from the kernel's own tables in the
namespace at hand, so that the list follows them while rules are active.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.guardian.allow.behind import MOST, MOST_OF_HOST, Learned, overruled
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
from fwtop.model.addresses.roles import BGP_PORT, DHCP_PORTS, DNS_PORT, NTP_PORT, PASSES, Passes, Role
from fwtop.model.files import read_regular
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.rehearsal.host import SSH_PORT
from fwtop.rehearsal.operators import in_full

ALLOW_FILE = "/etc/fwtop/allow"


class Allowed(Struct, frozen=True):
    """An entry of the allow-list: who, why, and in which role. Only sessions have ports."""

    prefix: Prefix
    why: str
    role: Role = Role.OPERATOR
    session: Session | None = None

    @property
    def port(self) -> int:
        """The peer's port of a session, else 0."""
        return self.session.peer_port if self.session is not None else 0

    @property
    def login_port(self) -> int:
        """The port here of a session, else 0."""
        return self.session.local_port if self.session is not None else 0

    @property
    def tier(self) -> str:
        """Whether the operator listed it, or fwtop found it."""
        return "operator" if self.role is Role.OPERATOR else "found"

    @property
    def passes(self) -> str:
        """What of it no rule can drop, in words."""
        if self.session is not None:
            own = f"TCP from port {self.session.peer_port}, except new connections"
            return f"{own}; all TCP to port {self.session.local_port}"
        return PASSES[self.role]

    def to_dict(self) -> dict[str, str]:
        """Return it as `fwtop status --json` shows it (docs/JSON.md)."""
        shown = {"prefix": str(self.prefix), "why": self.why}
        return {**shown, "tier": self.tier, "role": self.role.value, "passes": self.passes}


class AllowList(Struct, frozen=True):
    """All entries, each once, and what could not be read."""

    entries: tuple[Allowed, ...]
    warnings: tuple[str, ...] = ()
    behind: tuple[Learned, ...] = ()  # of hosts behind this machine
    listening: frozenset[int] = frozenset()  # the ports of SSH daemons
    redirected: frozenset[tuple[int, int]] = frozenset()  # ports that clients log in at, and ours behind each

    def without_overruled(self, rules: Iterable[Rule]) -> AllowList:
        """Return the list without what these rules are about in particular."""
        gone = overruled(self.behind, rules) if self.behind else frozenset()
        return replace(self, behind=tuple(item for item in self.behind if item not in gone)) if gone else self

    @property
    def session_ports(self) -> frozenset[int]:
        """Local ports that the operators' sessions use."""
        return frozenset(entry.login_port for entry in self.entries if entry.login_port)

    @property
    def login_ports(self) -> frozenset[int]:
        """Ports where operators log in: those of sessions, of SSH daemons that listen, and 22."""
        return self.session_ports | self.listening | {SSH_PORT, *(port for port, _ in self.redirected)}

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
            if entry.session is not None:
                local = entry.session.local_port
                ports = {local, *(port for port, own in self.redirected if own == local)}
                logins |= {(entry.prefix, port) for port in ports}
            peers |= {(entry.prefix, *port) for port in _ports_of(entry, family)}
        behind = sorted(item.conversation for item in self.behind if item.conversation.peer.family == family)
        listed = tuple(self.of_family(family))
        return Passes(
            family,
            listed,
            tuple(sorted(peers)),
            tuple(sorted(gateways)),
            tuple(behind),
            tuple(sorted(logins)),
        )


def _ports_of(entry: Allowed, family: int) -> tuple[tuple[int, int], ...]:
    """Return the protocols and ports that an entry's packets come from.

    Of a session that is the peer's port alone: ours may be another on the wire, where this host redirects it.
    """
    if entry.session is not None:
        return ((TCP, entry.session.peer_port),)
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
    learn: Callable[[Collection[Prefix]], tuple[tuple[Learned, ...], int]] = lambda _: ((), 0),
) -> AllowList:
    """Read the whole list now; `operators` are the sessions that started our clients.

    `learn` is given the own addresses, and returns what is listed for hosts behind and how much had no room.
    """
    listed, warnings = read_allow_file(Path(allow_file))
    own, daemons = own_addresses(), ssh_daemons()
    sessions = ssh_sessions(daemons)
    found = listed + [Allowed(prefix, "own address", Role.OWN) for prefix in own]
    found += [Allowed(item.peer, "operator's session (SSH_CONNECTION)", Role.SSH, item) for item in operators]
    found += [
        Allowed(item.peer, f"logged in by ssh on port {item.local_port}", Role.SSH, item)
        for _, item in sessions
    ]
    found += [Allowed(prefix, "default gateway", Role.GATEWAY) for prefix in gateways()]
    found += [Allowed(prefix, "DNS resolver", Role.DNS) for prefix in resolvers(netns_name)]
    servers = (*configured_time_servers(), *time_servers_talked_to())
    found += [Allowed(prefix, "NTP server", Role.NTP) for prefix in servers]
    unique: dict[tuple[Prefix, Role, int], Allowed] = {}
    for entry in found:
        if not entry.prefix.network.is_loopback and not entry.prefix.network.is_unspecified:
            port = entry.session.peer_port if entry.session is not None else 0
            unique.setdefault((entry.prefix, entry.role, port), entry)
    behind, left_out = learn(frozenset(own))
    if left_out:
        limits = ", ".join(f"{most} {role.value}" for role, most in MOST.items())
        warnings.append(
            f"the allow-list for hosts behind this machine has no room for {left_out:,} conversations: "
            f"{len(behind):,} are on it, of at most {limits}, and {MOST_OF_HOST} of a host"
        )
    ports = listening_ports(daemons), redirected_ports(sessions)
    return AllowList(tuple(unique.values()), tuple(warnings), behind, *ports)


def read_allow_file(path: Path) -> tuple[list[Allowed], list[str]]:
    """Read one prefix a line (# starts a comment); bad lines are named and skipped.

    A file that did not change is not read again: 200,000 lines take seconds.
    """
    try:
        now = path.stat()
    except OSError:
        return _read_allow_file(path, None)
    return _read_allow_file(path, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns))


@lru_cache(maxsize=1)
def _read_allow_file(path: Path, _: tuple[int, ...] | None) -> tuple[list[Allowed], list[str]]:
    found: list[Allowed] = []
    warnings: list[str] = []
    try:
        lines = _text(path).splitlines()
    except FileNotFoundError:
        return found, warnings
    except OSError as error:
        return found, [safe_text(f"{path} is ignored ({error.strerror}): it lists nobody")]
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            found.append(Allowed(Prefix.parse(text), str(path)))
        except HostBitsError as error:  # the host passes whichever was meant: it may be the operator's own
            found.append(Allowed(Prefix.parse(error.host), str(path)))
            warnings.append(safe_text(f"{path} line {number}: {error}; only the host passes"))
        except ValueError as error:
            warnings.append(safe_text(f"{path} line {number} is ignored: {error}"))
    return found, warnings


def _text(path: Path) -> str:
    return read_regular(path).decode(errors="replace")
