"""What the corpus is drawn from: profiles of ordinary traffic, tools, and the lab's vectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from benches.corpus import datagrams, machines, tools, visits
from benches.corpus.arrivals import Arrivals
from fwtop.lab import scenario
from fwtop.lab.scenario import Pool, Ports, Vector
from fwtop.model.traffic.protocols import TCP, UDP

# Sources mean something there
_FORGING = ("amplification", "reflection", "dns_random_subdomain", "port_scan")
_SERVICES = (22, 53, 80, 443, 3074, 5060, 8080, 25_565, 27_015, 30_120)
_RATED = ("syn_flood", "ack_flood", "rst_flood", "fin_flood", "udp_flood", "icmp_flood")
_REFLECTORS = 20  # fewer sources are victims in whose name reflectors are asked
_ALSO = {"port_scan": ("syn_flood",)}  # at the rate of a flood
_STATE = {"conntrack_exhaustion"}  # kinds that packets alone don't show
_MANY = 6.0  # decimal logarithm of the largest number of real sources


class Profile(Struct, frozen=True):
    """Packets that one function makes; `kind` is the attack that they are, or "" for ordinary traffic."""

    send: Callable[[Arrivals, int], None]
    kind: str = ""
    also: tuple[str, ...] = ()  # names that are right as well
    most_pps: float = 6_000.0
    forged: bool = False  # whether its sources are invented

    @property
    def name(self) -> str:
        """The function's name."""
        return self.send.__name__


ORDINARY = tuple(
    Profile(send, most_pps=most)
    for send, most in (
        (visits.browsing, 6_000), (visits.flash_crowd, 6_000), (visits.crawling, 600),
        (visits.monitoring, 200),
        (visits.calls_of_programs, 3_000), (visits.proxied, 6_000), (visits.iperf3_tcp, 20_000),
        (visits.rsync, 8_000), (visits.uploads, 8_000), (visits.ssh_sessions, 60), (visits.downloads, 10_000),
        (visits.own_scan, 4_000), (visits.background, 10), (visits.polled_machines, 300),
        (datagrams.mail, 300),
        (datagrams.wireguard, 10_000), (datagrams.game_server, 4_000), (datagrams.calls, 4_000),
        (datagrams.video, 4_000), (datagrams.iperf3_udp, 30_000), (datagrams.dns_server, 4_000),
        (datagrams.resolving, 800), (datagrams.time_server, 1_000), (datagrams.quic_server, 4_000),
        (datagrams.quic_download, 8_000), (datagrams.torrent, 2_000), (datagrams.telemetry, 2_000),
        (datagrams.polling, 100), (datagrams.service_location, 60), (datagrams.dns_tunnel, 300),
        (datagrams.server_browsers, 60), (datagrams.network_storage, 4_000), (datagrams.pings, 100),
        (datagrams.neighbours, 40), (datagrams.gre_tunnel, 6_000), (datagrams.esp_tunnel, 6_000),
        (machines.collectors, 10_000), (machines.log_shippers, 8_000), (machines.polled_devices, 4_000),
        (machines.websockets, 6_000), (machines.things, 4_000), (machines.services, 6_000),
        (machines.tickers, 6_000),
    )
)  # fmt: skip
TOOLS = (
    Profile(tools.syn_with_resets, "syn_flood", most_pps=30_000),
    Profile(tools.ack_from_one, "ack_flood", most_pps=80_000),
    Profile(tools.full_scan, "port_scan", ("syn_flood",), most_pps=30_000),
    Profile(tools.random_pages, "http_flood"),
    Profile(tools.listed_pages, "http_flood"),
    Profile(tools.one_page, "http_flood"),
    Profile(tools.unique_queries, "http_flood"),
    Profile(tools.tls_handshakes, "tls_flood"),
    Profile(tools.tls_sessions, "tls_flood"),
    Profile(tools.empty_connections, "syn_flood"),
    Profile(tools.game_queries, "udp_flood", most_pps=30_000),
    Profile(tools.dns_questions, "dns_query_flood", ("udp_flood",), most_pps=30_000),
    Profile(tools.junk_to_dns, "udp_flood", most_pps=30_000),
    Profile(tools.replayed_datagrams, "udp_flood", most_pps=30_000),
    Profile(tools.router_advertisements, "icmp_flood", most_pps=30_000, forged=True),
    Profile(tools.junk_on_connections, "ack_flood", most_pps=30_000),
    Profile(tools.junk_to_collectors, "udp_flood", most_pps=30_000),
    Profile(tools.upgrades_again, "http_flood"),
    Profile(tools.http2_streams, "http_flood", most_pps=30_000),
)


class Method(Struct, frozen=True):
    """An attack of the lab: the vectors of a scenario that holds one attack."""

    name: str
    kind: str
    vectors: tuple[Vector, ...]
    most_pps: float = 2e6

    @property
    def also(self) -> tuple[str, ...]:
        """Names that are right as well."""
        return (*_ALSO.get(self.kind, ()), *(name for vector in self.vectors for name in vector.also))

    @property
    def forged(self) -> bool:
        """Whether none of its sources sent it: drawn from all addresses, or those of victims."""
        return all(vector.source.forged for vector in self.vectors)


@cache
def methods() -> dict[str, Method]:
    """Return the lab's attacks by the name of their scenario."""
    found: dict[str, Method] = {}
    for name in scenario.names():
        made = scenario.load(name)
        named = {vector.kind for vector in made.vectors} - _STATE
        if len(made.kinds) == 1 and len(named) == 1 and "" not in named and not made.crowds:
            found[name] = Method(name, named.pop(), made.vectors)
    return found


def varied(method: Method, rng: Random) -> Method:
    """Return a method with what its tool lets one choose drawn anew; its vectors share the sources."""
    first = _varied(method.vectors[0], rng)
    others = [
        replace(
            one,
            family=first.family,
            vlan=first.vlan,
            source=_same_source(one, method, first),
            active=(0.0, 1.0),
        )
        for one in method.vectors[1:]
    ]
    return replace(method, vectors=(first, *others))


def _same_source(vector: Vector, method: Method, first: Vector) -> Pool:
    return first.source if vector.source == method.vectors[0].source else vector.source


def _varied(vector: Vector, rng: Random) -> Vector:
    """Draw sources, port, IP version and tags anew."""
    vector = replace(vector, active=(0.0, 1.0))
    meaningful = any(word in vector.kind for word in _FORGING) or bool(vector.source.prefixes)
    if meaningful and vector.source.count >= _REFLECTORS:
        vector = replace(vector, source=_real(rng, least=1.5))
    if not meaningful and vector.kind in _RATED and rng.random() < 0.5:
        vector = replace(vector, source=_real(rng, least=0.0))
    fixed = vector.dport.ports and vector.dport.ports[0]
    movable = fixed and vector.kind in ("udp_flood", "syn_flood", "ack_flood")
    if movable and rng.random() < 0.5 and not vector.payload:
        vector = replace(vector, dport=Ports(ports=(rng.choice(_SERVICES),)))
    both = vector.protocol in (UDP, TCP) and not vector.source.prefixes and not vector.only_later
    if both and vector.family == 4 and vector.target == "address" and rng.random() < 0.2:
        vector = replace(vector, family=6)
    if not vector.vlan and rng.random() < 0.1:
        vector = replace(vector, vlan=(rng.randrange(1, 4000),))
    return vector


def _real(rng: Random, *, least: float) -> Pool:
    return Pool(forged=False, count=round(10 ** rng.uniform(least, _MANY)), skew=rng.choice((0.0, 0.3, 0.8)))
