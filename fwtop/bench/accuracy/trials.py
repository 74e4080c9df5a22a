"""Trials for measuring harm: an attack, and a rule against it whose effect on clients is known.

Some rules hit legitimate clients hard and some not at all, each for a different reason; a prediction has to
tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fwtop.lab.traffic.pools import PAGES, ZONE, LegitimateClients, draw_clients, request
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_SEED = 404
_PPS = 20_000  # low enough that nothing fails for lack of CPU time
_ANSWERED_PPS = 2_000  # queries that the victim's server can keep up with
_IP_TCP_BYTES = 20 + 32  # IPv4, and TCP with timestamps
_DNS = ["--proto", "udp", "--dport", "53"]
_NEAR = 4  # clients within the attackers' networks


class Trial(Struct, frozen=True):
    """An attack (scenario TOML) and a rule (arguments of fwtop's command line)."""

    name: str
    title: str
    scenario: str
    rule: tuple[str, ...]
    pps: int = _PPS
    before: tuple[tuple[str, ...], ...] = ()  # commands that configure the victim first


def trials() -> list[Trial]:
    """Return all trials, with the same clients every time."""
    clients = draw_clients(_SEED)
    near = _networks(clients, _NEAR)
    by_source = f"block the attackers' /16, where {_NEAR} of 12 IPv4 clients are"
    blocks = {
        via: Trial(f"{via}-block", f"{by_source} ({via})", _udp_flood(near), ("block", *near, "--via", via))
        for via in ("ipset", "xdp")
    }
    strangers = ["198.19.7.0/24"]
    title = "block the attackers' /24, where no client is"
    return [
        Trial("ipset-clean", title, _udp_flood(strangers), ("block", *strangers)),
        blocks["ipset"],
        *_limits(clients),
        *_strings(),
        blocks["xdp"],
        *_lengths(),
        *_states(),
    ]


def chosen(names: tuple[str, ...]) -> list[Trial]:
    """Return the named trials, or all; raises FwtopError (2) for an unknown name."""
    found = {trial.name: trial for trial in trials()}
    for name in names:
        if name not in found:
            raise FwtopError(
                f"there is no trial {safe_text(name, limit=40)!r} (there are {', '.join(found)})", 2
            )
    return [found[name] for name in names] or list(found.values())


def _scenario(vector: str, *, firewall: str = "open") -> str:
    return (
        f'title = "a trial of harm"\nseed = {_SEED}\nfirewall = "{firewall}"\n\n'
        f'[[vector]]\nname = "attack"\n{vector}\n'
    )


def _networks(clients: LegitimateClients, count: int) -> list[str]:
    """Return the /16 of `count` clients, none of which is the operator's."""
    operator = _network(clients.operator)
    found = dict.fromkeys(_network(client) for client in clients.clients if ":" not in client)
    return [network for network in found if network != operator][:count]


def _network(client: str) -> str:
    return f"{'.'.join(client.split('.')[:2])}.0.0/16"


def _udp_flood(sources: list[str]) -> str:
    listed = ", ".join(f'"{Prefix.parse(source)}"' for source in sources)
    return _scenario(
        f'kind = "udp_flood"\nprotocol = "udp"\nsource = {{ prefixes = [{listed}], forged = false }}\n'
        'dport = 27015\nsport = "random"\npayload = [{ text = "flood:" }, { random = 64 }]'
    )


def _dns_flood(source: str, *, firewall: str = "open") -> str:
    return _scenario(
        f'kind = "dns_query_flood"\nprotocol = "udp"\nsource = {source}\ndport = 53\n'
        f'payload = {{ make = "dns_query", name = "shop.{ZONE}", type = "ANY", edns = 4096 }}',
        firewall=firewall,
    )


def _http_data() -> str:
    """Return a flood of TCP segments to the web server that belong to no connection."""
    return _scenario(
        'kind = "ack_flood"\nprotocol = "tcp"\nflags = "PSH+ACK"\nsource = "random"\nsport = "random"\n'
        'dport = 80\npayload = [{ text = "GET /shop?page=" }, { random = 64 }]',
        firewall="none",
    )


def _syn_flood() -> str:
    return _scenario(
        'kind = "syn_flood"\nprotocol = "tcp"\nflags = "SYN"\nsource = "random"\nsport = "random"\n'
        'dport = 80\nwindow = 512\nttl = "random"',
        firewall="none",
    )


def _limits(clients: LegitimateClients) -> Iterator[Trial]:
    title = "limit each address to 3 queries a second, half of what clients ask"
    rule = ("limit", *_DNS, "--per", "32", "--rate", "3/s")
    yield Trial("hashlimit-each", title, _dns_flood("{ count = 200 }"), rule)
    near = _networks(clients, 2 * _NEAR)
    listed = ", ".join(f'"{network}"' for network in near)
    title = f"limit each /16, of which {len(near)} hold attackers and a client"
    rule = ("limit", *_DNS, "--per", "16", "--rate", "500/s")
    yield Trial("hashlimit-shared", title, _dns_flood(f"{{ prefixes = [{listed}] }}"), rule)


def _strings() -> Iterator[Trial]:
    rule = ("match", "--string", "GET /shop", "--proto", "tcp", "--dport", "80")
    title = f"match what the attack's data begins with, and 1 in {len(PAGES)} requests"
    yield Trial("string-http", title, _http_data(), rule)
    title = "match the name that the attack asks for, and 1 in 5 queries"
    yield Trial("string-dns", title, _dns_flood('"random"'), ("match", "--dns", f"shop.{ZONE}", *_DNS))


def _lengths() -> Iterator[Trial]:
    longest = sorted(_IP_TCP_BYTES + len(request(page)) for page in PAGES)[-2:]
    rule = ("drop", "--proto", "tcp", "--dport", "80", "--length", f"{longest[0]}:{longest[1]}", "--via")
    title = f"drop by a length that 2 of {len(PAGES)} requests of IPv4 clients have"
    for via in ("xdp", "tc", "nftables"):
        yield Trial(f"{via}-length", f"{title} ({via})", _http_data(), (*rule, via))


def _states() -> Iterator[Trial]:
    flood = _dns_flood('"random"', firewall="none")
    title = "keep DNS out of connection tracking"
    yield Trial("notrack", title, flood, ("notrack", *_DNS), pps=_ANSWERED_PPS)
    before = (("sysctl", "-q", "-w", "net.ipv4.tcp_syncookies=0"),)
    title = "switch SYN cookies on"
    yield Trial("sysctl", title, _syn_flood(), ("sysctl", "syncookies=on"), before=before)
    title = "answer SYNs to the web server with cookies (SYNPROXY)"
    yield Trial("synproxy", title, _syn_flood(), ("synproxy", "--dport", "80"), before=before)
