"""The allow-list in two tiers: what the operator lists, and what fwtop finds by itself.

What is found passes only in its role (roles.py): SSH sessions, gateways, resolvers, time servers, and the
conversations of hosts behind this machine (behind.py). It is read from the kernel's own tables in the
namespace at hand, so that the list follows them while rules are active.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from fwtop.guardian.allow import time_servers
from fwtop.guardian.allow.behind import MOST, MOST_OF_HOST, Learned, overruled
from fwtop.kernel.interfaces.links import list_addresses
from fwtop.kernel.interfaces.routes import default_routes
from fwtop.kernel.procfs import read_text
from fwtop.model.addresses.address import HostBitsError, Prefix
from fwtop.model.addresses.roles import BGP_PORT, DHCP_PORTS, DNS_PORT, NTP_PORT, PASSES, Passes, Role
from fwtop.model.config_file import read_regular
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP, UDP

ALLOW_FILE = "/etc/fwtop/allow"
_MAX_OPERATORS = 1024  # sessions whose client ended; the oldest is forgotten first
_ESTABLISHED, _LISTEN = "01", "0A"  # include/net/tcp_states.h
_SSH_PORT = 22
_OPENSSH = frozenset({"sshd", "sshd-session"})
_DROPBEAR = "dropbear"
# sshd's process titles before somebody has proved who they are (OpenSSH sshd.c, sshd-session.c): their
# peers are unknown, and a flood of half-open logins must not fill the list.
_NOT_LOGGED_IN = re.compile(r"\[(accepted|net|priv|preauth|listener)\]|^sshd: unknown|(^|\s)-R(\s|$)")


@dataclass(frozen=True, slots=True)
class Session:
    """One SSH connection: its peer's address and port, and the port here."""

    peer: Prefix
    peer_port: int
    local_port: int


@dataclass(frozen=True, slots=True)
class Allowed:
    """An entry of the allow-list: who, why, and in which role. Only sessions have ports."""

    prefix: Prefix
    why: str
    role: Role = Role.OPERATOR
    session: Session | None = None

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


@dataclass(frozen=True, slots=True)
class AllowList:
    """All entries, each once, and what could not be read."""

    entries: tuple[Allowed, ...]
    warnings: tuple[str, ...] = ()
    behind: tuple[Learned, ...] = ()  # of hosts behind this machine
    listening: frozenset[int] = frozenset()  # the ports of SSH daemons

    def without_overruled(self, rules: Iterable[Rule]) -> AllowList:
        """Return the list without what these rules are about in particular."""
        gone = overruled(self.behind, rules) if self.behind else frozenset()
        return replace(self, behind=tuple(item for item in self.behind if item not in gone)) if gone else self

    @property
    def session_ports(self) -> frozenset[int]:
        """Local ports that the operators' sessions use."""
        return frozenset(entry.session.local_port for entry in self.entries if entry.session is not None)

    @property
    def login_ports(self) -> frozenset[int]:
        """Local ports where operators log in: those of sessions, of SSH daemons that listen, and 22."""
        return self.session_ports | self.listening | {_SSH_PORT}

    @property
    def listed(self) -> tuple[Prefix, ...]:
        """What passes in full: the operator's own entries; 0/0 is left out (hash:net can't hold it)."""
        return tuple(e.prefix for e in self.entries if e.role is Role.OPERATOR and e.prefix.length)

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
                logins.add((entry.prefix, entry.session.local_port))
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
    found = listed + [Allowed(prefix, "own address", Role.OWN) for prefix in own]
    found += [Allowed(item.peer, "operator's session (SSH_CONNECTION)", Role.SSH, item) for item in operators]
    found += [
        Allowed(item.peer, f"logged in by ssh on port {item.local_port}", Role.SSH, item)
        for item in ssh_sessions(daemons)
    ]
    found += [Allowed(prefix, "default gateway", Role.GATEWAY) for prefix in gateways()]
    found += [Allowed(prefix, "DNS resolver", Role.DNS) for prefix in resolvers(netns_name)]
    servers = (*time_servers.configured_time_servers(), *time_servers.time_servers_talked_to())
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
    return AllowList(tuple(unique.values()), tuple(warnings), behind, listening_ports(daemons))


def note_operator(operators: dict[Session, float], session: Session | None) -> None:
    """Remember the session of a client that came; of very many, the one not seen for longest is forgotten."""
    if session is None:
        return
    operators.pop(session, None)
    while len(operators) >= _MAX_OPERATORS:
        del operators[next(iter(operators))]
    operators[session] = time.monotonic()


def operator_of(pid: int) -> Session | None:
    """Return the SSH session that a process was started from.

    sudo takes SSH_CONNECTION out of the environment, so its ancestors' are read too.
    """
    for ancestor in _ancestors(pid):
        try:
            environment = Path(f"/proc/{ancestor}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for item in environment:
            if item.startswith(b"SSH_CONNECTION="):
                return _session(item.partition(b"=")[2].decode("ascii", "replace"))
    return None


def _session(text: str) -> Session | None:
    """Read SSH_CONNECTION: the peer's address and port, ours (ssh(1)); None where it makes no sense."""
    words = text.split()
    if len(words) != 4 or not all(word.isascii() and word.isdigit() for word in words[1::2]):
        return None
    peer, ports = _address(words[0]), (int(words[1]), int(words[3]))
    if peer is None or not all(0 < port < 1 << 16 for port in ports):
        return None
    return Session(peer, *ports)


def ssh_sessions(daemons: Sequence[str] | None = None) -> list[Session]:
    """Return the connections of SSH daemons whose peer has logged in: however many there are."""
    running = ssh_daemons() if daemons is None else daemons
    sockets = {inode for pid in filter(_is_logged_in, running) for inode in _sockets_of(pid)}
    return list(_established(sockets)) if sockets else []


def ssh_daemons() -> list[str]:
    """Return the processes of SSH daemons, those that wait and those that serve somebody."""
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and _name_of(pid) in {*_OPENSSH, _DROPBEAR}]


def listening_ports(daemons: Sequence[str]) -> frozenset[int]:
    """Return the ports of this namespace on which SSH daemons wait for logins."""
    sockets = {inode for pid in daemons for inode in _sockets_of(pid)}
    found: set[int] = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6") if sockets else ():
        with contextlib.suppress(OSError), Path(name).open(encoding="ascii") as lines:
            next(lines, None)
            for line in lines:
                fields = line.split(maxsplit=10)
                if fields[3] != _LISTEN:
                    break  # the kernel lists those that listen first, however many connections there are
                if fields[9] in sockets:
                    found.add(int(fields[1].partition(":")[2], 16))
    return frozenset(found)


def gateways() -> list[Prefix]:
    """Return the gateways of default routes, both families."""
    return [route.gateway for route in default_routes() if route.gateway is not None]


def resolvers(netns_name: str | None) -> list[Prefix]:
    """Return the name servers in use, behind systemd-resolved too."""
    files = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"]
    if netns_name is not None and Path(f"/etc/netns/{netns_name}/resolv.conf").exists():
        files = [f"/etc/netns/{netns_name}/resolv.conf"]  # what `ip netns exec` would show
    found: list[Prefix] = []
    for name in files:
        for line in _lines(name):
            words = line.split()
            address = _address(words[1]) if len(words) > 1 and words[0] == "nameserver" else None
            if address is not None:
                found.append(address)
    return found


def own_addresses() -> list[Prefix]:
    """Return the addresses of all interfaces of this namespace."""
    try:
        return [Prefix.parse(text) for text in list_addresses(every_scope=True)]
    except OSError:
        return []


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


def _ancestors(pid: int) -> Iterator[int]:
    for _ in range(64):
        if pid < 1:
            return
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return


def _sockets_of(pid: str) -> Iterator[str]:
    """Yield the inodes of a process's sockets; none if it has ended."""
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if target.startswith("socket:["):
                    yield target[8:-1]


def _is_logged_in(pid: str) -> bool:
    """Return whether a process serves somebody who has proved who they are.

    sshd tells by its title. dropbear tells nothing, and only what it runs for a user has another name.
    """
    name = _name_of(pid)
    if name in _OPENSSH:
        title = read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        return bool(title) and not _NOT_LOGGED_IN.search(title)
    if name != _DROPBEAR:
        return False
    children = read_text(f"/proc/{pid}/task/{pid}/children").split()
    return any(_name_of(child) not in ("", _DROPBEAR) for child in children)


def _name_of(pid: str) -> str:
    """Return a process's name, "" if it has ended."""
    return read_text(f"/proc/{pid}/comm").strip()


def _established(sockets: set[str]) -> Iterator[Session]:
    """Yield the open connections of these sockets."""
    return (session for _, session in _open(lambda fields: fields[9] in sockets))


def connections(ports: Collection[int]) -> Iterator[tuple[Prefix, Session]]:
    """Yield the open connections to local ports, with our address."""
    wanted = {f"{port:04X}" for port in ports}
    return _open(lambda fields: fields[1].rpartition(":")[2] in wanted)


def _open(chosen: Callable[[list[str]], bool]) -> Iterator[tuple[Prefix, Session]]:
    """Yield the open connections of chosen lines; the others, however many, are only split into words."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_text(name).splitlines()[1:]:
            fields = line.split(maxsplit=10)
            if fields[3] == _ESTABLISHED and chosen(fields):
                (own, _, local_port), (peer, _, port) = (text.partition(":") for text in fields[1:3])
                session = Session(time_servers.hex_address(peer), int(port, 16), int(local_port, 16))
                yield time_servers.hex_address(own), session


def _address(text: str) -> Prefix | None:
    try:
        prefix = Prefix.parse(text.partition("%")[0])
    except ValueError:
        return None
    return prefix if prefix.is_address else None


def _lines(name: str) -> list[str]:
    try:
        return _text(Path(name)).splitlines()
    except OSError:
        return []


def _text(path: Path) -> str:
    return read_regular(path).decode(errors="replace")
