"""Answer handshakes with cookies before connection tracking and the listener see them: nf_synproxy.

SYNs are kept out of connection tracking and answered by the proxy; an ACK with a valid cookie opens the
connection to the listener behind it, everything else ends there (iptables-extensions(8), SYNPROXY; nft(8),
SYNPROXY STATEMENT). What the proxy announces must be what the listener would.
"""

from __future__ import annotations

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule, Setting
from fwtop.model.traffic.protocols import TCP
from fwtop.rules.fields import family_words
from fwtop.rules.kind import KernelObjects, Layer, Machine, RuleKind, Surroundings
from fwtop.rules.nft_objects import PROXY, NftLine, NftRule, NftSet, address_set, set_of

_HEADERS = {4: 40, 6: 60}  # IP and TCP without options (RFC 9293, 3.7.1)
_MAX_KNOWN = 65_536
_LOOSE, _COOKIES = Setting("net.netfilter.nf_conntrack_tcp_loose", 0), Setting("net.ipv4.tcp_syncookies", 1)
_STAMPS = Setting("net.ipv4.tcp_timestamps", 1)
_OPEN_ONES = (
    "connections opened through the proxy stall when the rule is taken out while they are open: "
    "give it the time that the attack lasts"
)
_NO_STAMPS = (
    "this kernel refuses the time stamps that its own SYN proxy translates, so the proxy offers none: "
    "windows of new connections end at 64 KiB"
)
# net/netfilter/nft_synproxy.c checks both families with nf_ip_checksum, which knows IPv4 headers only
_UNVERIFIED = (
    "GRO is off on {}: over IPv6 the kernel's SYN proxy drops every handshake whose checksum the NIC has not "
    "verified, clients' too; first: ethtool -K {} gro on"
)


def build(rule: Rule, around: Surroundings) -> KernelObjects:
    """Return the proxy's sets, lines and settings; raises FwtopError (code 2) on other conditions."""
    match = rule.match
    plain = Match(family=match.family, protocol=TCP, dport=match.dport, destinations=match.destinations)
    if match.dport is None or match != plain:
        raise FwtopError("synproxy takes a TCP port and destinations only; nothing was installed", 2)
    stamps = around.machine.takes_stamps()
    sets: list[NftSet] = []
    lines: list[NftLine] = []
    for family in match.families:
        sets.append(_known(around.machine, match.dport, family))
        targets = [prefix for prefix in match.destinations if prefix.family == family]
        where = "fib daddr type local"  # a router's own clients must not be proxied to the whole world
        if targets:
            sets.append(address_set("dst", family, targets))
            where = f"{'ip' if family == 4 else 'ip6'} daddr @{set_of(rule.id, f'dst{family}')}"
        lines += _lines(rule.id, family, match.dport, where, _options(around.machine, family, stamps=stamps))
    notes: tuple[str, ...] = (_OPEN_ONES,) if stamps else (_OPEN_ONES, _NO_STAMPS)
    unverified = around.machine.without_gro() if 6 in match.families else ()
    notes += (_UNVERIFIED.format(", ".join(unverified), unverified[0]),) if unverified else ()
    needs = (_LOOSE, _COOKIES, _STAMPS) if stamps else (_LOOSE, _COOKIES)
    return KernelObjects((), (), notes, instead=NftRule(PROXY, tuple(sets), tuple(lines)), needs=needs)


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
        lines.append(NftLine(chain, family, f"{way_in} ct state invalid", "drop"))  # counted above
    return lines


def _known(machine: Machine, port: int, family: int) -> NftSet:
    """Return the set of peers that have a connection to a local port now."""
    found = [f"{peer} . {number}" for peer, number in machine.tcp_peers(port) if peer.family == family]
    kind = "ipv4_addr" if family == 4 else "ipv6_addr"
    return NftSet(f"known{family}", f"{kind} . inet_service", "size 65536", tuple(found[:_MAX_KNOWN]))


def _options(machine: Machine, family: int, *, stamps: bool) -> str:
    mss = f"mss {max(536, machine.mtu() - _HEADERS[family])}"
    return f"{mss} wscale {machine.window_scale()} timestamp sack-perm" if stamps else mss


def _words(rule: Rule) -> list[str] | None:
    match = rule.match
    plain = Match(destinations=match.destinations, family=match.family, protocol=6, dport=match.dport)
    if match != plain or match.dport is None:
        return None
    to = [word for prefix in match.destinations for word in ("--to", str(prefix))]
    return ["synproxy", *family_words(match), "--dport", str(match.dport), *to]


KIND = RuleKind(
    Kind.SYNPROXY, Layer.INPUT, build, _words,
    phrase=lambda _, what: f"answer handshakes of {what} with SYN cookies",
    brief=lambda _, what: f"answer SYNs {what.removeprefix('TCP ')}/tcp with cookies",
    answers=True, is_part=True, fixed="handshakes are under way with its cookies",
    uncounted=lambda _: "a SYN proxy can't tell what it would drop without answering the handshakes",
    has_no_clock=True, not_measured="it discards incomplete handshakes and passes completed ones",
    evaded="evaded by: bots that finish handshakes; each SYN still costs an answer",
    ladder="half-open connections (SYNPROXY)",
    verbs=("synproxy",), cost_ns=1500.0, bench="synproxy --dport 80",
)  # fmt: skip
