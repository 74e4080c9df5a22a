"""The NTP servers of this host: those that its configuration names by address, and those it talks to.

Names are not resolved: a guardian under attack must not wait for DNS, and must not believe it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fwtop.model.addresses.address import Prefix
from fwtop.model.config_file import read_regular

NTP_PORT = 123
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


def configured_time_servers(root: Path = Path("/")) -> list[Prefix]:
    """Return the servers that ntpd's, chronyd's and timesyncd's files name by address."""
    found: list[Prefix] = []
    for pattern in _FILES:
        for file in sorted(root.glob(pattern.removeprefix("/"))):
            try:
                text = read_regular(file).decode(errors="replace")
            except OSError:
                continue
            found += [address for line in text.splitlines() for address in _addresses(line)]
    return found


def time_servers_talked_to(
    udp: Path = Path("/proc/net/udp"), udp6: Path = Path("/proc/net/udp6")
) -> list[Prefix]:
    """Return the peers of connected UDP sockets on the NTP port that system users hold."""
    found: list[Prefix] = []
    for file in (udp, udp6):
        try:
            lines = file.read_text(errors="replace").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, port = fields[2].partition(":")
            if int(port, 16) == NTP_PORT and int(fields[7]) < _FIRST_USER:
                found.append(hex_address(address))
    return found[:_MAX_PEERS]


def hex_address(text: str) -> Prefix:
    """Read an address of /proc/net/{tcp,udp}*: 32-bit words in host (little-endian) order."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    value = int.from_bytes(b"".join(words), "big")
    if len(words) == 1:
        return Prefix(4, value, 32)
    if value >> 32 == 0xFFFF:  # IPv4-mapped
        return Prefix(4, value & 0xFFFFFFFF, 32)
    return Prefix(6, value, 128)


def _addresses(line: str) -> Iterator[Prefix]:
    words = line.split()
    key, equals, value = line.partition("=")
    names = words[1:2] if words and words[0].lower() in _WORDS else []
    if equals and key.strip() in _KEYS:
        names = value.split()
    for name in names:
        try:
            prefix = Prefix.parse(name)
        except ValueError:
            continue  # a name
        if prefix.is_address:
            yield prefix
