"""What fwtop finds by itself for the allow-list: sessions, gateways, resolvers, time servers, own addresses.

SSH sessions are those of who started our clients, and of everybody whom an SSH daemon has let in. All is read
from the kernel's own tables, /proc and configuration, in the namespace at hand. Names are not resolved: a
guardian under attack must not wait for DNS, and must not believe it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct

from fwtop.kernel.links import default_routes, list_addresses
from fwtop.kernel.procfs import read_text
from fwtop.kernel.sockets import command_name, processes, sockets_of
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import NTP_PORT, AllowedPeer, Role
from fwtop.model.files import read_regular
from fwtop.model.traffic.protocols import TCP
from fwtop.netfilter.ctnetlink import Entry, opened_by

_MAX_OPERATORS = 1024  # sessions whose client ended; the oldest is forgotten first
_MAX_ASKED = 256  # sessions whose entries are looked up
_ESTABLISHED, _LISTEN = "01", "0A"  # include/net/tcp_states.h
_OPENSSH = frozenset({"sshd", "sshd-session"})
_DROPBEAR = "dropbear"
_MOSH_SERVER = "mosh-server"
# sshd's process titles before somebody has proved who they are (OpenSSH sshd.c, sshd-session.c): their
# peers are unknown, and a flood of half-open logins must not fill the list.
_NOT_LOGGED_IN = re.compile(r"\[(accepted|net|priv|preauth|listener)\]|^sshd: unknown|(^|\s)-R(\s|$)")
_FILES = (
    "/etc/ntp.conf",
    "/etc/ntpsec/ntp.conf",
    "/etc/chrony.conf",
    "/etc/chrony/chrony.conf",
    "/etc/chrony/sources.d/*.sources",
    "/etc/systemd/timesyncd.conf",
    "/etc/systemd/timesyncd.conf.d/*.conf",
    "/run/systemd/timesyncd.conf.d/*.conf",
)
_WORDS = frozenset({"server", "pool", "peer"})  # ntp.conf(5), chrony.conf(5)
_KEYS = frozenset({"NTP", "FallbackNTP"})  # timesyncd.conf(5)
_FIRST_USER = 1000  # login.defs(5), UID_MIN: daemons' users are below
_MAX_PEERS = 16  # a local program must not be able to fill the list


class Session(Struct, frozen=True):
    """One SSH connection: its peer's address and port, and the port here."""

    peer: Prefix
    peer_port: int
    local_port: int

    def allowed(self, why: str) -> AllowedPeer:
        """Return it as an entry of the allow-list."""
        return AllowedPeer(self.peer, Role.SSH, self.peer_port, login_port=self.local_port, reason=why)


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
    peer, ports = address_of(words[0]), (int(words[1]), int(words[3]))
    if peer is None or not all(0 < port < 1 << 16 for port in ports):
        return None
    return Session(peer, *ports)


def ssh_sessions(daemons: Sequence[int]) -> list[tuple[Prefix, Session]]:
    """Return the connections of SSH daemons whose peer has logged in, however many, with our address."""
    sockets = {str(inode) for pid in filter(_is_logged_in, daemons) for inode in sockets_of(pid)}
    return list(_open(lambda fields: fields[9] in sockets)) if sockets else []


def ssh_daemons() -> list[int]:
    """Return the processes of SSH daemons, those that wait and those that serve somebody."""
    return [pid for pid in processes() if command_name(pid) in {*_OPENSSH, _DROPBEAR}]


def listening_ports(daemons: Sequence[int]) -> frozenset[int]:
    """Return the ports of this namespace on which SSH daemons wait for logins."""
    sockets = {str(inode) for pid in daemons for inode in sockets_of(pid)}
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


def redirected_ports(sessions: Sequence[tuple[Prefix, Session]]) -> frozenset[tuple[int, int]]:
    """Return the ports that sessions were opened to, and ours, where connection tracking translates them."""
    found: set[tuple[int, int]] = set()
    with contextlib.suppress(OSError):
        for own, session in sessions[:_MAX_ASKED]:
            peer, ports = session.peer, (session.local_port, session.peer_port)
            opened = opened_by(Entry(peer.family, TCP, own.packed, peer.packed, *ports))
            if opened is not None and opened.dport != session.local_port:
                found.add((opened.dport, session.local_port))
    return frozenset(found)


def connections(ports: Collection[int]) -> Iterator[tuple[Prefix, Session]]:
    """Yield the open connections to local ports, with our address."""
    wanted = {f"{port:04X}" for port in ports}
    return _open(lambda fields: fields[1].rpartition(":")[2] in wanted)


def _open(chosen: Callable[[list[str]], bool]) -> Iterator[tuple[Prefix, Session]]:
    """Yield the open connections of chosen lines; the others, however many, are only split into words."""
    for fields in _rows("/proc/net/tcp", "/proc/net/tcp6"):
        if fields[3] == _ESTABLISHED and chosen(fields):
            (own, _, local_port), (peer, _, port) = (text.partition(":") for text in fields[1:3])
            yield hex_address(own), Session(hex_address(peer), int(port, 16), int(local_port, 16))


def _rows(*names: str) -> Iterator[list[str]]:
    """Yield the fields of each socket that files like /proc/net/tcp list."""
    for name in names:
        for line in read_text(name).splitlines()[1:]:
            yield line.split(maxsplit=10)


def _ancestors(pid: int) -> Iterator[int]:
    for _ in range(64):
        if pid < 1:
            return
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return


def _is_logged_in(pid: int) -> bool:
    """Return whether a process serves somebody who has proved who they are.

    sshd tells by its title. dropbear tells nothing, and only what it runs for a user has another name.
    """
    name = command_name(pid)
    if name in _OPENSSH:
        title = read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        return bool(title) and not _NOT_LOGGED_IN.search(title)
    if name != _DROPBEAR:
        return False
    children = read_text(f"/proc/{pid}/task/{pid}/children").split()
    return any(command_name(int(child)) not in ("", _DROPBEAR) for child in children)


def address_of(text: str) -> Prefix | None:
    """Read an address, perhaps with a zone; None for anything else."""
    try:
        prefix = Prefix.parse(text.partition("%")[0])
    except ValueError:
        return None
    return prefix if prefix.is_address else None


def configured_time_servers(root: Path = Path("/")) -> list[Prefix]:
    """Return the servers that ntpd's, chronyd's and timesyncd's files name by address."""
    found: list[Prefix] = []
    for pattern in _FILES:
        for file in sorted(root.glob(pattern.removeprefix("/"))):
            names = [name for line in _lines(file) for name in _servers(line)]
            found += [address for address in map(address_of, names) if address is not None]
    return found


def time_servers_talked_to(
    udp: Path = Path("/proc/net/udp"), udp6: Path = Path("/proc/net/udp6")
) -> list[Prefix]:
    """Return the peers of connected UDP sockets on the NTP port that system users hold."""
    rows = (fields for fields in _rows(str(udp), str(udp6)) if int(fields[7]) < _FIRST_USER)
    found = (fields[2].partition(":") for fields in rows)
    peers = (hex_address(address) for address, _, port in found if int(port, 16) == NTP_PORT)
    return list(islice(peers, _MAX_PEERS))


def hex_address(text: str) -> Prefix:
    """Read an address of /proc/net/{tcp,udp}*: 32-bit words in host (little-endian) order."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    value = int.from_bytes(b"".join(words), "big")
    if len(words) == 1:
        return Prefix(4, value, 32)
    if value >> 32 == 0xFFFF:  # IPv4-mapped
        return Prefix(4, value & 0xFFFFFFFF, 32)
    return Prefix(6, value, 128)


def _servers(line: str) -> list[str]:
    """Return the addresses and names of servers in a line of any of these files."""
    key, equals, value = line.partition("=")
    if equals and key.strip() in _KEYS:
        return value.split()
    words = line.split()
    return words[1:2] if words and words[0].lower() in _WORDS else []


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
        for line in _lines(Path(name)):
            words = line.split()
            address = address_of(words[1]) if len(words) > 1 and words[0] == "nameserver" else None
            if address is not None:
                found.append(address)
    return found


def own_addresses() -> list[Prefix]:
    """Return the addresses of all interfaces of this namespace."""
    try:
        return [Prefix.parse(text) for text in list_addresses(every_scope=True)]
    except OSError:
        return []


def mosh_ports() -> set[int]:
    """Return the UDP ports of this namespace that mosh servers have open."""
    servers = [pid for pid in processes() if command_name(pid) == _MOSH_SERVER]
    held = {str(inode) for pid in servers for inode in sockets_of(pid)}
    rows = _rows("/proc/net/udp", "/proc/net/udp6") if held else ()
    return {int(fields[1].partition(":")[2], 16) for fields in rows if fields[9] in held}


def _lines(path: Path) -> list[str]:
    try:
        return read_regular(path).decode(errors="replace").splitlines()
    except OSError:
        return []
