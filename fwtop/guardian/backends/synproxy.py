"""Answer handshakes with cookies before connection tracking and the listener see them: nf_synproxy.

SYNs are kept out of connection tracking and answered by the proxy; an ACK with a valid cookie opens the
connection to the listener behind it, everything else ends there (iptables-extensions(8), SYNPROXY; nft(8),
SYNPROXY STATEMENT). What the proxy announces must be what the listener would.
"""

from __future__ import annotations

from pathlib import Path

from fwtop.guardian.allow.sessions import connections
from fwtop.guardian.objects.nft_words import PROXY, NftLine, NftRule, NftSet, address_set, set_of
from fwtop.guardian.objects.spec import KernelObjects
from fwtop.kernel.interfaces.links import readable_links, receiving_links
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match, Rule, Setting
from fwtop.model.traffic.protocols import TCP

_HEADERS = {4: 40, 6: 60}  # IP and TCP without options (RFC 9293, 3.7.1)
_MAX_KNOWN = 65_536
_LOOSE, _COOKIES = Setting("net.netfilter.nf_conntrack_tcp_loose", 0), Setting("net.ipv4.tcp_syncookies", 1)
_STAMPS = Setting("net.ipv4.tcp_timestamps", 1)
_MAX_SCALE = 14  # RFC 7323, 2.2
_OPEN_ONES = (
    "connections opened through the proxy stall when the rule is taken out while they are open: "
    "give it the time that the attack lasts"
)
_NO_STAMPS = (
    "this kernel refuses the time stamps that its own SYN proxy translates, so the proxy offers none: "
    "windows of new connections end at 64 KiB"
)


def build(rule: Rule, exceptions: tuple[Prefix, ...]) -> KernelObjects:  # noqa: ARG001 - the allow-list comes first
    """Return the proxy's sets, lines and settings; raises FwtopError (code 2) on other conditions."""
    match = rule.match
    plain = Match(family=match.family, protocol=TCP, dport=match.dport, destinations=match.destinations)
    if match.dport is None or match != plain:
        raise FwtopError("synproxy takes a TCP port and destinations only; nothing was installed", 2)
    stamps = _takes_stamps()
    sets: list[NftSet] = []
    lines: list[NftLine] = []
    for family in match.families:
        sets.append(_known(match.dport, family))
        targets = [prefix for prefix in match.destinations if prefix.family == family]
        where = "fib daddr type local"  # a router's own clients must not be proxied to the whole world
        if targets:
            sets.append(address_set("dst", family, targets))
            where = f"{'ip' if family == 4 else 'ip6'} daddr @{set_of(rule.id, f'dst{family}')}"
        lines += _lines(rule.id, family, match.dport, where, _options(family, stamps=stamps))
    notes = (_OPEN_ONES,) if stamps else (_OPEN_ONES, _NO_STAMPS)
    needs = (_LOOSE, _COOKIES, _STAMPS) if stamps else (_LOOSE, _COOKIES)
    return KernelObjects((), (), notes, nft=NftRule(PROXY, tuple(sets), tuple(lines)), needs=needs)


def _lines(rule_id: str, family: int, port: int, where: str, options: str) -> list[NftLine]:
    ip = "ip" if family == 4 else "ip6"
    to_port = f"tcp dport {port} {where}"
    # Connections that were there before tracking knew them would be INVALID: they go on as they are.
    unknown = f"{ip} saddr . tcp sport != @{set_of(rule_id, f'known{family}')}"
    lines = [NftLine("raw", family, f"{to_port} tcp flags & (fin | syn | rst | ack) == syn", "notrack")]
    for chain in ("in", "forward"):
        way_in = f"{to_port} {unknown}"
        fresh = f"{way_in} ct state invalid,untracked"
        lines.append(NftLine(chain, family, fresh, f"counter synproxy {options}"))
        lines.append(NftLine(chain, family, f"{way_in} ct state invalid", "counter drop"))
    return lines


def _known(port: int, family: int) -> NftSet:
    """Return the set of peers that have a connection to a local port now."""
    found = [f"{one.peer} . {one.peer_port}" for _, one in connections((port,)) if one.peer.family == family]
    kind = "ipv4_addr" if family == 4 else "ipv6_addr"
    return NftSet(f"known{family}", f"{kind} . inet_service", "size 65536", tuple(found[:_MAX_KNOWN]))


def _options(family: int, *, stamps: bool) -> str:
    mtu = min((link.mtu for link in receiving_links(readable_links())), default=1500)
    mss = f"mss {max(536, mtu - _HEADERS[family])}"
    return f"{mss} wscale {window_scale()} timestamp sack-perm" if stamps else mss


def window_scale() -> int:
    """Return the scale that a listener here announces (net/ipv4/tcp_output.c, tcp_select_initial_window)."""
    most = max(int((_text("/proc/sys/net/ipv4/tcp_rmem").split() or ["0"])[-1]),
               int(_text("/proc/sys/net/core/rmem_max") or 0))  # fmt: skip
    return min(_MAX_SCALE, max(0, most.bit_length() - 16))


def _takes_stamps() -> bool:
    """Return whether time stamps can be passed through.

    From the version on that counts TSEcrRejected, a listener checks the echoed time stamp of a handshake's
    last packet; nf_synproxy adds its offset to that one, so it would be refused and sent again after a second
    (measured on Linux 6.18).
    """
    return "TSEcrRejected" not in _text("/proc/net/netstat")


def counters() -> dict[str, int]:
    """Return what the proxies of this namespace counted: SYNs, valid and invalid cookies."""
    lines = _text("/proc/net/stat/synproxy").splitlines()
    if not lines:
        return {}
    rows = [[int(word, 16) for word in line.split()] for line in lines[1:]]
    return {name: sum(row[at] for row in rows) for at, name in enumerate(lines[0].split())}


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
