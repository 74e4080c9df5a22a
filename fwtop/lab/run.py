"""A lab: victim and attacker in namespaces, the victim's firewall, legitimate clients, a flood on demand."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fwtop.kernel.namespaces import inside
from fwtop.kernel.procfs import parse_devices, read_text
from fwtop.lab import namespaces
from fwtop.lab import network as net
from fwtop.lab.namespaces import Link, Namespaces, run
from fwtop.lab.processes import Child
from fwtop.lab.scenario import DIRECTORY, Scenario, load
from fwtop.lab.traffic.crowds import addresses as crowd_addresses
from fwtop.lab.traffic.plan import TOP
from fwtop.lab.traffic.pools import OPERATOR_PORT, draw_clients
from fwtop.model.text import safe_text
from fwtop.model.wire import plain

_DRAIN_SECONDS = 10.0  # a busy machine lets its receiving threads wait
_TX_DROPPED = 11  # column of /proc/net/dev
_GATEWAYS = (net.GATEWAY_4, net.GATEWAY_6)


class Lab(Namespaces):
    """Namespaces, services and clients for one scenario, for the duration of the `with` block."""

    def __init__(
        self,
        scenario: Scenario | str,
        *,
        capture: Path | None = None,
        source: str = "",
        thinking: float = 0.15,
        elsewhere: Sequence[str] = (),
    ) -> None:
        """Take a scenario by name or path, or parsed, with its TOML text as `source`.

        With `capture`, its packets are sent instead of the scenario's; the clients remain the scenario's.
        Each makes an attempt every `thinking` seconds on average; they may `move_clients` to `elsewhere`.
        """
        super().__init__()
        self.scenario = load(scenario) if isinstance(scenario, str) else scenario
        self._text = source or _source(scenario if isinstance(scenario, str) else self.scenario.name)
        self._capture = capture
        self._thinking, self._elsewhere = thinking, [*elsewhere]
        self.interface = net.VICTIM_INTERFACE
        self.legitimate = draw_clients(self.scenario.seed)
        self._crowd = [
            address
            for number, crowd in enumerate(self.scenario.crowds)
            for address in crowd_addresses(number, crowd.clients, self.scenario.seed)
        ]
        self._receiving: set[int] = set()
        self._children: list[Child] = []
        self._pps = self.scenario.pps
        self._seconds = 0.0
        self._flood_started: float | None = None
        self._at_mark: dict[tuple[str, str], tuple[int, int]] = {}
        self._arrived_at_mark = (0, 0)

    def _set_up(self) -> None:
        everyone = [*self.legitimate.all, *self._crowd, *self._elsewhere]
        vlans = {vector.vlan[0] for vector in self.scenario.vectors if vector.vlan}
        namespaces.create(self.victim, self.attacker)
        install_counters(self.attacker, [*everyone, *_GATEWAYS])  # before the first packet
        self.wire, self._receiving = namespaces.connect_both(
            self.victim, self.attacker, everyone, sorted(vlans)
        )
        install_victim_rules(self.victim, self.scenario)
        servers = self._spawn(self.victim, "fwtop.lab.servers")
        if self.scenario.resolver:
            namespaces.set_resolver(self.victim, net.GATEWAY_4)
            self._spawn(self.attacker, "fwtop.lab.servers").wait_ready()
        setup: dict[str, Any] = {"victim": self.wire.victim.hex(), "attacker": self.wire.attacker.hex()}
        setup |= {"text": self._text, "name": self.scenario.name}
        setup |= {"capture": str(self._capture)} if self._capture else {}
        self._sender = self._spawn(self.attacker, "fwtop.lab.sender", setup)
        servers.wait_ready()
        self._clients = self._spawn(
            self.attacker,
            "fwtop.lab.clients",
            {
                "clients": self.legitimate.clients,
                "operator": self.legitimate.operator,
                "seed": self.scenario.seed,
                "thinking": self._thinking,
                "crowds": [plain(crowd) for crowd in self.scenario.crowds],
            },
        )
        self._pps = int(self._sender.wait_ready()["pps"])
        self._clients.wait_ready()

    def _spawn(self, netns: str, module: str, setup: dict[str, Any] | None = None) -> Child:
        child = Child(netns, module, setup)
        self._children.append(child)
        return child

    def close(self) -> None:
        """End the processes and remove the namespaces; idempotent."""
        for child in reversed(self._children):
            child.close()
        self._children.clear()
        super().close()

    @property
    def name(self) -> str:
        """Name of the scenario or capture that is sent."""
        return f"capture {safe_text(self._capture.name)}" if self._capture else self.scenario.name

    @property
    def ssh_connection(self) -> str:
        """The SSH_CONNECTION of the operator's session on the victim (sshd(8))."""
        return f"{self.legitimate.operator} {OPERATOR_PORT} {net.VICTIM_4} {net.PORT_SSH}"

    def start_flood(self, pps: int | None = None, *, seconds: float | None = None) -> None:
        """Start sending at `pps` packets per second in total (None: the scenario's rate, 0: unlimited).

        The sender stops by itself so many `seconds` after the call, also on a busy machine; `stop` must be
        called nevertheless.
        """
        until = None if seconds is None else time.monotonic() + seconds
        self._clients.ask(do="phase", name="during")
        if self.scenario.crowds:
            self._clients.ask(do="crowd", on=True)
        rate = self._pps if pps is None else pps
        namespaces.schedule_receiving(self._receiving, paced=0 < rate <= namespaces.PACED_PPS)
        self._flood_started = self._sender.ask(do="start", pps=rate, until=until)["time"]

    def stop(self) -> None:
        """Stop the flood; return once the last packet has reached the victim's interface."""
        stopped = self._sender.ask(do="stop")["time"]
        if self.scenario.crowds:
            self._clients.ask(do="crowd", on=False)
        if self._flood_started is not None:
            self._seconds += stopped - self._flood_started
            self._flood_started = None
        end = time.monotonic() + _DRAIN_SECONDS
        while self.under_way() > 0 and time.monotonic() < end:
            time.sleep(0.02)

    def phase(self, name: str) -> None:
        """Count the clients' attempts from now on under this name."""
        self._clients.ask(do="phase", name=name)

    def move_clients(self) -> None:
        """Let the clients go on from the addresses that they may move to; IPv6 ones stay where they are."""
        clients = self.legitimate.clients
        self._clients.ask(do="move", clients=[*self._elsewhere, *clients[len(self._elsewhere) :]])

    def pause_clients(self) -> None:
        """Let clients finish pending attempts and start no more until the next phase."""
        self._clients.ask(do="pause")

    def mark(self) -> None:
        """Start the interval that `truth` covers."""
        self._at_mark = read_counters(self.attacker)
        self._arrived_at_mark = self.arrived()

    def results(self) -> dict[str, Any]:
        """Return the legitimate clients' attempts, successes and latencies, by phase and kind of request."""
        return self._clients.ask(do="results")

    def results_by_client(self) -> dict[str, list[dict[str, Any]]]:
        """Return, by phase, rows of client, work (kind of request), tried, succeeded."""
        return self._clients.ask(do="results_by_client")

    def packets_by_client(self) -> dict[tuple[str, str], int]:
        """Return the packets that the clients have sent so far, by (address, protocol)."""
        return {key: packets for key, (packets, _) in read_counters(self.attacker).items()}

    def arrived(self) -> tuple[int, int]:
        """Return packets and bytes received by the victim's interface since its creation."""
        with inside(self.victim):
            size, packets = _statistics(net.VICTIM_INTERFACE)[:2]
        return packets, size

    def under_way(self) -> int:
        """Return packets that were sent and not lost, and hadn't reached the victim's interface yet.

        Nothing that clients send after the call began counts, so it comes to 0 (or below) while they work.
        """
        leaving = read_leaving(self.attacker)
        with inside(self.attacker), contextlib.closing(Link(net.ATTACKER_INTERFACE)) as link:
            dropped = _statistics(net.ATTACKER_INTERFACE)[_TX_DROPPED] - link.lost()
            sent = link.queued() + leaving - dropped
        return sent - self.arrived()[0]

    def receiving_seconds(self, *, waited: bool = False) -> float:
        """Return the CPU time of the victim's receiving threads.

        `waited`: and the time in which packets were queued and they runnable (scheduler/sched-stats.rst).
        """
        count = 2 if waited else 1
        texts = (Path(f"/proc/{thread}/schedstat").read_text(encoding="ascii") for thread in self._receiving)
        return sum(sum(map(int, text.split()[:count])) for text in texts) / 1e9

    def link_full(self) -> int:
        """Return frames lost because the victim's queue was full; its interface counts them as rx_dropped."""
        with inside(self.attacker), contextlib.closing(Link(net.ATTACKER_INTERFACE)) as link:
            return link.lost()

    def truth(self) -> dict[str, Any]:
        """Return what the clients sent since `mark` and the flood since its start, and the clients' results.

        `packets` and `bytes` leave out the `link_full` frames that the victim's full queue lost; the rows of
        vectors, sources, ports and payloads include them.
        """
        flood = self._sender.ask(do="truth")
        lost = self.link_full()
        legitimate, crowd, gateway = self._clients_sent()
        kept = 1 - lost / flood["packets"] if flood["packets"] else 1.0
        arrived = self.arrived()
        attack = {
            "packets": flood["packets"] - lost + crowd["packets"],
            "bytes": round(flood["bytes"] * kept) + crowd["bytes"],
        }
        total = {name: attack[name] + legitimate[name] + gateway[name] for name in attack}
        return {
            "title": f"replay of {self.name}" if self._capture else self.scenario.title,
            "kinds": self._kinds_sent(flood["vectors"]),
            "kinds_also": sorted(
                {name for row in flood["vectors"] if row["packets"] for name in row["also"]}
            ),
            **total,
            "arrived_packets": arrived[0] - self._arrived_at_mark[0],
            "link_full": lost,
            "seconds": round(self._seconds, 3),
            "pps": round((flood["packets"] - lost) / self._seconds, 1) if self._seconds else 0.0,
            "attack": attack,
            "vectors": flood["vectors"],
            "sources": _merged(*(part["sources"] for part in (flood, legitimate, crowd, gateway)))[:TOP],
            "source_prefixes": flood["source_prefixes"],
            "ports": flood["ports"],
            "payloads": flood["payloads"],
            "fragments": flood["fragments"],
            "crowd": {key: crowd[key] for key in ("packets", "bytes")},
            "gateway": {key: gateway[key] for key in ("packets", "bytes")},
            "legitimate": {**legitimate, "operator": self.legitimate.operator, "fared": self.results()},
        }

    def _kinds_sent(self, vectors: list[dict[str, Any]]) -> list[str]:
        """Return the attack kinds of which anything was sent: those that fwtop should name."""
        sent = [row["kind"] for row in vectors if row["packets"]]
        sent += [crowd.kind for crowd in self.scenario.crowds]
        return list(dict.fromkeys(kind for kind in sent if kind))

    def _clients_sent(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return what legitimate clients, crowds and gateway have sent since `mark`.

        The gateway is the victim's resolver, and answers what a flood in its name provokes (RST, ICMP).
        """
        crowd = set(self._crowd)
        totals: dict[str, list[int]] = {}
        for key, (packets, size) in read_counters(self.attacker).items():
            before = self._at_mark.get(key, (0, 0))
            total = totals.setdefault(key[0], [0, 0])
            total[0] += packets - before[0]
            total[1] += size - before[1]
        rows = _merged(
            [
                {"key": address, "packets": packets, "bytes": size}
                for address, (packets, size) in totals.items()
                if packets
            ]
        )
        return (
            _summed([row for row in rows if row["key"] not in crowd and row["key"] not in _GATEWAYS]),
            _summed([row for row in rows if row["key"] in crowd]),
            _summed([row for row in rows if row["key"] in _GATEWAYS]),
        )


def _source(name: str) -> str:
    path = Path(name) if name.endswith(".toml") else DIRECTORY / f"{name}.toml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _merged(*lists: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join rows of key, packets and bytes, adding up those of one key; the greatest first."""
    by_key: dict[str, dict[str, Any]] = {}
    for row in itertools.chain(*lists):
        known = by_key.setdefault(row["key"], {**row, "packets": 0, "bytes": 0})
        known["packets"] += row["packets"]
        known["bytes"] += row["bytes"]
    return sorted(by_key.values(), key=lambda row: -int(row["packets"]))


def _summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: sum(row[name] for row in rows) for name in ("packets", "bytes")} | {"sources": rows[:TOP]}


def _statistics(interface: str) -> list[int]:
    """Read an interface's row of /proc/net/dev in this thread's namespace: bytes and packets received, ..."""
    return parse_devices(read_text("/proc/thread-self/net/dev")).get(interface, [0] * 16)


_ACCEPT = """
        ct state established,related accept
        ct state invalid drop
        iif "lo" accept
        meta l4proto { icmp, ipv6-icmp } accept
        tcp dport { 22, 80, 443 } ct state new accept
        udp dport 53 accept"""


def victim_rules(scenario: Scenario) -> str:
    """Return the ruleset: drop by default (stateful), track and accept everything (open), or nothing."""
    if scenario.firewall == "none":
        return ""
    policy = "drop" if scenario.firewall == "stateful" else "accept"
    lines = [_ACCEPT.lstrip("\n")]
    for port in scenario.open_ports:
        protocol, _, number = port.partition("/")
        lines.append(f"        {protocol} dport {number} accept")
    return (
        "table inet filter {\n    chain input {\n"
        f"        type filter hook input priority filter; policy {policy};\n"
        + "\n".join(lines)
        + "\n    }\n}\n"
    )


def install_victim_rules(victim: str, scenario: Scenario) -> None:
    """Load the victim's ruleset."""
    if rules := victim_rules(scenario):
        run("ip", "netns", "exec", victim, "nft", "-f", "-", text=rules)


def install_counters(attacker: str, clients: list[str]) -> None:
    """Count each client's packets in postrouting: unlike the flood's, they come from real sockets.

    And all that leaves, which includes what the kernel says by itself (multicast listener reports).
    """
    families = {"4": [a for a in clients if ":" not in a], "6": [a for a in clients if ":" in a]}
    sets, rules = [], []
    for family, addresses in families.items():
        kind, keyword, icmp = (
            ("ipv4_addr", "ip", "icmp") if family == "4" else ("ipv6_addr", "ip6", "ipv6-icmp")
        )
        if addresses:
            elements = ", ".join(f"{one} . {name}" for one in addresses for name in ("tcp", "udp", icmp))
            typed = f"type {kind} . inet_proto; counter; elements = {{ {elements} }}"
            sets.append(f"    set clients{family} {{ {typed} }}")
            rules.append(f"        {keyword} saddr . meta l4proto @clients{family}")
    text = (
        "table inet lab {\n    counter sockets { }\n" + "\n".join(sets) + "\n    chain leaving {\n"
        "        type filter hook postrouting priority 300; policy accept;\n"
        f'        oifname != "{net.ATTACKER_INTERFACE}" accept\n        counter name sockets\n'
        + "\n".join(rules)
        + "\n    }\n}\n"
    )
    run("ip", "netns", "exec", attacker, "nft", "-f", "-", text=text)


def read_counters(attacker: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Return packets and bytes (including link headers) that each client has sent.

    Keys are address and protocol in nft's spelling: tcp, udp, icmp, ipv6-icmp.
    """
    listing = _listed(attacker, "table", "inet", "lab")
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for item in listing:
        for entry in item.get("set", {}).get("elem", []):
            element = entry["elem"]
            counter = element["counter"]
            address, protocol = element["val"]["concat"]
            counts[address, str(protocol)] = (
                counter["packets"],
                counter["bytes"] + 14 * counter["packets"],
            )
    return counts


def read_leaving(attacker: str) -> int:
    """Return the packets that sockets and kernel have sent to the victim."""
    listing = _listed(attacker, "counter", "inet", "lab", "sockets")
    return sum(item["counter"]["packets"] for item in listing if "counter" in item)


def _listed(netns: str, *what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("ip", "netns", "exec", netns, "nft", "-j", "list", *what))[
        "nftables"
    ]
    return found
