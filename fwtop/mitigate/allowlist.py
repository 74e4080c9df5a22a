"""Who must never be cut off: the operator, gateways, resolvers, this host itself, and a file's entries.

Everything is read from the kernel's own tables in the namespace at hand, so that the list follows them
while rules are active.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fwtop.mitigate import timeservers
from fwtop.mitigate.run import CommandError, run
from fwtop.model.address import Prefix
from fwtop.model.text import safe_text

ALLOW_FILE = "/etc/fwtop/allow"
OWN_ADDRESS = "own address"
_MAX_SESSIONS = 64  # sessions taken over from sshd: an attacker must not be able to fill the list
_ESTABLISHED = "01"  # include/net/tcp_states.h
_DAEMONS = frozenset({"sshd", "sshd-session", "dropbear"})
# sshd's process titles before somebody has proved who they are (OpenSSH sshd.c, sshd-session.c): their
# peers are strangers, and a flood of half-open logins must not enter the list.
_NOT_LOGGED_IN = re.compile(r"\[(accepted|net|priv|preauth|listener)\]|^sshd: unknown|(^|\s)-R(\s|$)")


@dataclass(frozen=True, slots=True)
class Allowed:
    """An entry of the allow-list and why it is on it."""

    prefix: Prefix
    why: str


@dataclass(frozen=True, slots=True)
class AllowList:
    """All entries, unique by prefix, and what could not be read."""

    entries: tuple[Allowed, ...]
    warnings: tuple[str, ...] = ()
    session_ports: frozenset[int] = frozenset()  # local ports that the operators' sessions use

    def overlapping(self, prefix: Prefix) -> Allowed | None:
        """Return the first entry that shares addresses with a prefix."""
        return next((entry for entry in self.entries if entry.prefix.overlaps(prefix)), None)

    def of_family(self, family: int) -> list[Prefix]:
        """Return the prefixes of a family, /0 left out (hash:net can't hold it)."""
        return sorted({e.prefix for e in self.entries if e.prefix.family == family and e.prefix.length})


@dataclass(frozen=True, slots=True)
class _Connection:
    peer: Prefix
    local_port: int
    inode: int


def gather(operators: Iterable[Prefix], netns_name: str | None, allow_file: str = ALLOW_FILE) -> AllowList:
    """Read the whole list now; `operators` are peers of the sessions that started our clients."""
    sessions = ssh_sessions()
    listed, warnings = read_allow_file(Path(allow_file))
    found = [Allowed(prefix, OWN_ADDRESS) for prefix in own_addresses()]
    found += [Allowed(prefix, "operator's session (SSH_CONNECTION)") for prefix in operators]
    found += [Allowed(item.peer, f"logged in by ssh on port {item.local_port}") for item in sessions]
    found += [Allowed(prefix, "default gateway") for prefix in gateways()]
    found += [Allowed(prefix, "DNS resolver") for prefix in resolvers(netns_name)]
    found += [
        Allowed(prefix, "NTP server") for prefix in (*timeservers.configured(), *timeservers.talked_to())
    ]
    found += listed
    unique: dict[Prefix, Allowed] = {}
    for entry in found:
        if not entry.prefix.network.is_loopback and not entry.prefix.network.is_unspecified:
            unique.setdefault(entry.prefix, entry)
    ports = frozenset(item.local_port for item in sessions)
    return AllowList(tuple(unique.values()), tuple(warnings), ports)


def operator_of(pid: int) -> Prefix | None:
    """Return the peer of the SSH session that a process was started from.

    sudo takes SSH_CONNECTION out of the environment, so its ancestors' are read too.
    """
    for ancestor in _ancestors(pid):
        try:
            environment = Path(f"/proc/{ancestor}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for item in environment:
            if item.startswith(b"SSH_CONNECTION="):
                return _address(item.partition(b"=")[2].split(b" ")[0].decode("ascii", "replace"))
    return None


def ssh_sessions() -> list[_Connection]:
    """Return established connections of sshd processes whose peer has logged in."""
    sockets = _daemon_sockets()
    return [item for item in _established() if item.inode in sockets][:_MAX_SESSIONS] if sockets else []


def gateways() -> list[Prefix]:
    """Return the gateways of default routes, both families."""
    found = [
        Prefix(4, int.from_bytes(bytes.fromhex(fields[2])[::-1], "big"), 32)
        for fields in _table("/proc/net/route")
        if fields[1] == fields[7] == "0" * 8 != fields[2]
    ]
    found += [
        Prefix(6, int(fields[4], 16), 128)
        for fields in _table("/proc/net/ipv6_route", header=False)
        if fields[0] == "0" * 32 != fields[4] and fields[1] == "00"
    ]
    return found


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
        links = json.loads(run(["ip", "-j", "address", "show"], timeout=10) or "[]")
    except (CommandError, ValueError):
        return []
    texts = [item.get("local", "") for link in links for item in link.get("addr_info", ())]
    return [address for text in texts if (address := _address(text)) is not None]


def read_allow_file(path: Path) -> tuple[list[Allowed], list[str]]:
    """Read one prefix a line (# starts a comment); bad lines are named and skipped."""
    found, warnings = [], []
    for number, line in enumerate(_lines(str(path)), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            found.append(Allowed(Prefix.parse(text), str(path)))
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


def _daemon_sockets() -> set[int]:
    """Return the socket inodes that logged-in sshd processes hold."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "comm").read_text().strip() not in _DAEMONS:
                continue
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            if _NOT_LOGGED_IN.search(title):
                continue
            for descriptor in (entry / "fd").iterdir():
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
        except OSError:
            continue  # it ended meanwhile
    return found


def _established() -> Iterator[_Connection]:
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for fields in _table(name):
            if fields[3] != _ESTABLISHED:
                continue
            peer = timeservers.hex_address(fields[2].split(":")[0])
            yield _Connection(peer, int(fields[1].split(":")[1], 16), int(fields[9]))


def _address(text: str) -> Prefix | None:
    try:
        prefix = Prefix.parse(text.partition("%")[0])
    except ValueError:
        return None
    return prefix if prefix.is_address else None


def _table(name: str, *, header: bool = True) -> Iterator[list[str]]:
    for line in _lines(name)[1 if header else 0 :]:
        yield line.split()


def _lines(name: str) -> list[str]:
    try:
        return Path(name).read_text(errors="replace").splitlines()
    except OSError:
        return []
