"""What this host asks others, and which of their answers a rule would drop.

The answers of resolvers, time servers and gateways on the allow-list pass in their role. Those of all others,
package mirrors, databases, what a resolver of its own asks, pass only where no rule is about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix, listed, says_more
from fwtop.model.addresses.roles import BGP_PORT, DNS_PORT, NTP_PORT, Role
from fwtop.model.harm import Loss, Weight, Who
from fwtop.model.rule import RANGES, Rule
from fwtop.model.service import Service
from fwtop.model.traffic.protocols import NUMBERS, TCP, UDP
from fwtop.rehearsal.breadth import is_all_of, is_from_anywhere
from fwtop.rehearsal.host import Asked, Host, KnownPeers
from fwtop.rehearsal.logins import ACK, PUSH, SYN_ACK, answers
from fwtop.rehearsal.operators import in_full
from fwtop.rehearsal.segments import matches
from fwtop.render.numbers import plural
from fwtop.rules.kinds import heeds_limit, of

if TYPE_CHECKING:
    from fwtop.netfilter.ctnetlink import Entry

_NAMED = 3
_MANY = 8  # peers, of which at least half lose their answers: then a rule from anywhere needs force


def asked_in(entries: Iterable[Entry], own: Collection[bytes]) -> tuple[Asked, ...]:
    """Return what these own addresses ask in a connection table, those of most connections first.

    The table is the window: it holds questions for 30 s after their last packet, the rest longer.
    """
    found = Counter(
        (entry.destination, entry.protocol, entry.dport, _fixed(entry.sport, entry.dport))
        for entry in entries
        if entry.source in own and entry.destination not in own and entry.protocol in (TCP, UDP)
    )
    return tuple(
        Asked(Prefix.of_packed(peer), protocol, port, count, own_port)
        for (peer, protocol, port, own_port), count in found.most_common()
    )


def asked_of(services: Iterable[Service]) -> tuple[Asked, ...]:
    """Return what a survey tells of the services that this host asks."""
    return tuple(
        Asked(Prefix.parse(address), NUMBERS[one.protocol], one.port)
        for one in services
        for address in one.addresses
    )


def _fixed(own_port: int, port: int) -> int:
    """Return an own port that is the service's, as time servers among peers use it, else 0."""
    return own_port if own_port == port else 0


def of_asked(rule: Rule, host: Host) -> Loss | None:
    """Say whose answers a rule would drop, None if it is about none."""
    allow = host.allow
    parts = [part for part in rule.parts or (rule,) if _drops_answers(part, allow)]
    asked = host.asked() if parts else ()
    met = dict.fromkeys(item for part in parts for item in _met(part, asked))
    cut = _outside([item for item in met if not _passes(item, allow)], in_full(allow)) if met else []
    if not cut:
        return None
    more = f" and {plural(len(cut) - _NAMED, 'other')}" if len(cut) > _NAMED else ""
    named = ", ".join(item.words for item in cut[:_NAMED])
    peers, all_peers = ({item.peer for item in items} for items in (cut, asked))
    from_anywhere = any(is_from_anywhere(part.match, allow) for part in parts)
    many = from_anywhere and len(peers) >= _MANY and 2 * len(peers) >= len(all_peers)
    words = f"answers to what this host asks would be dropped: {named}{more}"
    return Loss(Who.ASKED, words, Weight.NEEDS_FORCE if many else Weight.TOLD)


def _drops_answers(rule: Rule, allow: KnownPeers) -> bool:
    """Return whether a rule may drop answers to this host's own addresses, and all that it matches."""
    match = rule.match
    plain = of(rule.kind).is_filter and not heeds_limit(rule) and rule.connections is None
    if not plain or match.icmp_type is not None or match.fragment or says_more(match.sources):
        return False
    if match.dport is not None and (match.protocol == TCP or match.sport not in (None, match.dport)):
        return False  # they come to ports that the kernel chose, or from where they go to
    return not match.destinations or is_all_of(match, allow)


def _met(rule: Rule, asked: Sequence[Asked]) -> list[Asked]:
    """Return whose answers a rule matches; conditions on what can't be known of them don't hold."""
    sources = rule.match.sources
    from_it = _outside(asked, sources, inside=True) if sources else asked
    return [item for item in from_it if _meets(rule, item)]


def _meets(rule: Rule, item: Asked) -> bool:
    match = rule.match
    if item.peer.family not in match.families or match.protocol not in (None, item.protocol):
        return False
    if match.sport not in (None, item.port) or match.dport not in (None, item.own_port):
        return False
    narrow = bool(match.payload) or any(getattr(match, name) is not None for name in RANGES)
    if item.protocol == UDP:
        return not narrow and not match.reads_tcp
    if not narrow:
        mask, value = match.tcp_flags or (0, 0)
        return any(flags & mask == value for flags in (SYN_ACK, ACK, PUSH))
    tried = replace(match, sport=None, dport=None)
    return any(matches(rule.kind, tried, segment) for segment in answers(item.peer.family))


def _outside(asked: Sequence[Asked], prefixes: Sequence[Prefix], *, inside: bool = False) -> list[Asked]:
    index = listed(prefixes)
    return [item for item in asked if (index.overlapping(item.peer) is not None) == inside]


def _passes(item: Asked, allow: KnownPeers) -> bool:
    """Return whether an answer passes in the role that fwtop found, whatever rules there are."""
    ports = {Role.DNS: (DNS_PORT,), Role.NTP: (NTP_PORT,) * (item.protocol == UDP), Role.GATEWAY: (BGP_PORT,)}
    return any(
        item.port in ports.get(entry.role, ()) and entry.prefix.contains(item.peer) for entry in allow.entries
    )
