"""Protection of a DNS server: rules for the observed traffic, and why the rest needs none."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from msgspec import Struct

from fwtop.kernel.links import broadcast_addresses
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, PayloadMatch, RateLimit, Rule
from fwtop.model.traffic.protocols import UDP, type_number
from fwtop.render.numbers import percent
from fwtop.resolver.servers import PORT, Server, find_servers, snippets
from fwtop.resolver.view import NameRow, View, ZoneRow, is_random
from fwtop.rules.xtables import HASHLIMIT_EXPIRE_MS, HASHLIMIT_MAX

_LEAST_RATE = 10  # questions a second that every prefix may ask
_UNKNOWN_RATE = 40  # for the server's own limit, where too few questions came to tell
_ROOM = 3  # times what 95 % of all prefixes ask
_SEEN = 0.01  # share of the questions from which something is worth a rule
_ABUSED_SHARE, _ABUSED_FACTOR, _ABUSED_PREFIXES = 0.1, 5.0, 8
_RANDOM_SHARE = 0.2
_FEWEST = 100  # questions from which their rates say something
_HEADER = 12
_ANY_IN = b"\0" + type_number("ANY").to_bytes(2, "big") + b"\0\1"  # the root that ends a name, type, class
_ONE_QUESTION = PayloadMatch(b"\0\1", 4)  # QDCOUNT (RFC 1035, 4.1.1): no server answers any other number
_SWITCHES = Path("/proc/sys/net/ipv4/conf")

_Step = tuple[str, Kind, Match, RateLimit | None]


class Step(Struct, frozen=True):
    """One rule, and its purpose."""

    text: str
    rule: Rule


class Advice(Struct, frozen=True):
    """The recommended steps."""

    steps: tuple[Step, ...]
    kept: tuple[str, ...]
    snippets: tuple[str, ...]


class Machine(Struct, frozen=True):
    """What the advice depends on besides the packets."""

    servers: tuple[Server, ...]
    broadcasts: tuple[Prefix, ...] = ()  # of the networks on its links
    lenient: tuple[str, ...] = ()  # settings that let packets in that claim to come from it

    @staticmethod
    def read() -> Machine:
        """Read this network namespace; raises OSError."""
        broadcasts = tuple(Prefix.parse(address) for address in broadcast_addresses())
        return Machine(tuple(find_servers()), broadcasts, _lenient())


def advise(view: View, machine: Machine, ttl_seconds: int, created_by: str) -> Advice:
    """Return the steps for what was seen, most precise first: what they drop, the limit does not count."""
    steps: list[_Step] = []
    kept: list[str] = []
    _from_service_ports(view, steps, kept)
    _abused(view, steps, kept)
    rate = max(_LEAST_RATE, math.ceil(_ROOM * view.usual))
    if view.totals.questions < _FEWEST:
        rate = _UNKNOWN_RATE
        kept.append("the rate of each prefix: too few questions came to choose one")
    elif view.rate(view.asking) * HASHLIMIT_EXPIRE_MS / 1000 > HASHLIMIT_MAX / 2:
        kept.append(
            f"the rate of each prefix: no limit, as {view.asking:,} asked in {view.seconds:g} s; a limit "
            f"remembers {HASHLIMIT_MAX:,}, and drops all others once it is full"
        )
    else:
        asked = f"real clients ask up to {view.usual:.0f}" if view.usual else "nobody asks as real clients do"
        text = f"limit questions by UDP to {rate} a second from each /24 (IPv6 /56): {asked}"
        limit = RateLimit(rate, rate, prefix_v4=24, prefix_v6=56)
        steps.append((text, Kind.HASHLIMIT, Match(protocol=UDP, dport=PORT), limit))
    _forged(machine, steps, kept)
    kept += _tcp(machine.servers)
    return Advice(
        tuple(
            Step(text, Rule("", kind, match, text, ttl_seconds, created_by=created_by, limit=limit))
            for text, kind, match, limit in steps
        ),
        tuple(kept),
        snippets(machine.servers, max(_LEAST_RATE // 2, rate // 2)),
    )


def _from_service_ports(view: View, steps: list[_Step], kept: list[str]) -> None:
    for port, name in ((PORT, "from_dns_port"), (0, "from_port_0")):
        count = getattr(view.totals, name)
        if view.share(count) < _SEEN:
            kept.append(f"questions from port {port}: {view.rate(count):,.0f} a second, no rule needed")
            continue
        whom = "a DNS server or to nobody" if port else "nobody"
        share = percent(view.share(count))
        text = f"drop questions from port {port} ({share} of them): answers to them go to {whom}"
        match = Match(protocol=UDP, sport=port, dport=PORT, payload=(_ONE_QUESTION,))
        steps.append((text, Kind.STRING, match, None))


def _abused(view: View, steps: list[_Step], kept: list[str]) -> None:
    asked_any = view.types.get("ANY", 0)
    if view.share(asked_any) >= _SEEN:
        share = percent(view.share(asked_any))
        text = f"drop questions of type ANY by UDP ({share} of them; TCP still answers)"
        steps.append(_by_payload(text, PayloadMatch(_ANY_IN)))
    else:
        kept.append("questions of type ANY: hardly any, no rule needed")
    for name in view.names:
        if _is_abused(view, name):
            text = (
                f"drop questions about {name.name} by UDP ({percent(view.share(name.questions))} of them, "
                f"answered with {name.factor:.0f} times the bytes; evaded by another name)"
            )
            steps.append(_by_payload(text, PayloadMatch(name.wire, dns_name=name.name)))
    steps += [_random_step(view, zone) for zone in view.zones if _is_random(view, zone)]


def _by_payload(text: str, *payload: PayloadMatch) -> _Step:
    return text, Kind.STRING, Match(protocol=UDP, dport=PORT, payload=payload), None


def _is_abused(view: View, name: NameRow) -> bool:
    """Whether a name brings large answers to few who ask much: those whose address is forged."""
    many = view.share(name.questions) >= _ABUSED_SHARE
    return many and name.factor >= _ABUSED_FACTOR and name.prefixes <= _ABUSED_PREFIXES and len(name.wire) > 1


def _is_random(view: View, zone: ZoneRow) -> bool:
    large = view.share(zone.questions) >= _RANDOM_SHARE and len(zone.wire) > 1
    return large and is_random(zone.names, zone.questions)


def _random_step(view: View, zone: ZoneRow) -> _Step:
    length = zone.first_label
    rest = f"({percent(view.share(zone.questions))} of them ask {zone.names:,} different ones)"
    if length is None:
        text = f"drop questions about any name in {zone.name}, real ones too {rest}"
        return _by_payload(text, PayloadMatch(zone.wire, dns_name=zone.name))
    text = f"drop questions about names of {length} letters directly below {zone.name} {rest}"
    first = PayloadMatch(bytes([length]), _HEADER)
    return _by_payload(text, first, PayloadMatch(zone.wire, _HEADER + 1 + length, dns_name=zone.name))


def _forged(machine: Machine, steps: list[_Step], kept: list[str]) -> None:
    """Drop what comes in the name of a broadcast address; say who drops what comes in this machine's own."""
    if machine.broadcasts:
        which = ", ".join(map(str, machine.broadcasts))
        names = f"drop questions in the name of broadcast addresses ({which})"
        text = f"{names}: without rp_filter the kernel passes them"
        match = Match(sources=machine.broadcasts, protocol=UDP, dport=PORT)
        steps.append((text, Kind.IPSET, match, None))
    which = ", ".join(machine.lenient)
    text = "questions in this machine's own name or a multicast one (IPv4): the kernel drops them (martians)"
    if which:
        text = f"forged sources: {which} lets packets in that claim to come from this machine: set it to 0"
    kept.append(text)


def _lenient() -> tuple[str, ...]:
    found = []
    for name in ("accept_local", "route_localnet"):
        for file in sorted(_SWITCHES.glob(f"*/{name}")):
            with contextlib.suppress(OSError):
                if file.read_text(encoding="ascii").strip() != "0":
                    found.append(f"net.ipv4.conf.{file.parent.name}.{name}")
    return tuple(found)


def _tcp(servers: tuple[Server, ...]) -> list[str]:
    """TCP stays open: that is where clients go that are told to, and no address there is forged."""
    deaf = [server.words for server in servers if server.udp and not server.tcp]
    if deaf:
        return [f"{', '.join(deaf)} does not listen on TCP {PORT}: clients told to come by TCP find nobody"]
    return [f"TCP {PORT}: stays open, no rule above is about it"]
