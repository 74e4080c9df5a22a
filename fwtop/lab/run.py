"""A lab: victim and attacker in namespaces of their own, clients at work, and a flood on demand."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from fwtop.lab import firewall, namespaces
from fwtop.lab import network as net
from fwtop.lab.child import Child
from fwtop.lab.crowd import addresses as crowd_addresses
from fwtop.lab.entering import inside
from fwtop.lab.legit import OPERATOR_PORT, people
from fwtop.lab.link import Link
from fwtop.lab.plan import TOP
from fwtop.lab.scenario import DIRECTORY, load
from fwtop.lab.vectors import Scenario
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_DRAIN_SECONDS = 2.0


class Lab:
    """Namespaces, services and clients for one scenario, while the `with` block lasts.

    `victim` and `attacker` are the namespaces' names. Leaving the block removes everything, whatever
    happened in it; what a killed lab left behind is removed when the next one starts.
    """

    def __init__(self, scenario: Scenario | str, *, capture: Path | None = None, source: str = "") -> None:
        """Take a scenario by name or path, or parsed with its TOML text as `source`.

        With `capture` its packets are sent instead of the scenario's; the clients are the scenario's.
        """
        self.scenario = load(scenario) if isinstance(scenario, str) else scenario
        self._text = source or _source(scenario if isinstance(scenario, str) else self.scenario.name)
        self._capture = capture
        pid = os.getpid()
        self.victim, self.attacker = (namespaces.name(role, pid) for role in namespaces.ROLES)
        self.interface = net.VICTIM_INTERFACE
        self.people = people(self.scenario.seed)
        self._crowd = [
            address
            for number, crowd in enumerate(self.scenario.crowds)
            for address in crowd_addresses(number, crowd.clients, self.scenario.seed)
        ]
        self._receiving: set[int] = set()
        self._lock = -1
        self._children: list[Child] = []
        self._sender: Child | None = None
        self._clients: Child | None = None
        self._pps = self.scenario.pps
        self._seconds = 0.0
        self._flood_started: float | None = None
        self._at_mark: dict[tuple[str, str], tuple[int, int]] = {}
        self._arrived_at_mark = (0, 0)

    def __enter__(self) -> Lab:
        """Set everything up; on failure nothing is left."""
        if os.geteuid() != 0:
            raise FwtopError("the lab needs root to make namespaces; nothing was started; use sudo", 3)
        namespaces.remove_stale()
        self._lock = namespaces.hold_lock(os.getpid())
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def _set_up(self) -> None:
        everyone = [*self.people.all, *self._crowd]
        vlans = {vector.vlan[0] for vector in self.scenario.vectors if vector.vlan}
        wire, self._receiving = namespaces.create(os.getpid(), everyone, sorted(vlans))
        firewall.install_victim_rules(self.victim, self.scenario)
        firewall.install_counters(self.attacker, everyone)
        servers = self._spawn(self.victim, "fwtop.lab.servers")
        setup: dict[str, Any] = {"victim": wire.victim.hex(), "attacker": wire.attacker.hex()}
        setup |= {"text": self._text, "name": self.scenario.name}
        setup |= {"capture": str(self._capture)} if self._capture else {}
        self._sender = self._spawn(self.attacker, "fwtop.lab.sender", setup)
        servers.wait_ready()
        self._clients = self._spawn(
            self.attacker,
            "fwtop.lab.clients",
            {
                "clients": self.people.clients,
                "operator": self.people.operator,
                "seed": self.scenario.seed,
                "crowds": [asdict(crowd) for crowd in self.scenario.crowds],
            },
        )
        self._pps = int(self._sender.wait_ready()["pps"])
        self._clients.wait_ready()

    def _spawn(self, netns: str, module: str, setup: dict[str, Any] | None = None) -> Child:
        child = Child(netns, module, setup)
        self._children.append(child)
        return child

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take everything down."""
        self.close()

    def close(self) -> None:
        """End the processes and remove the namespaces; harmless when done already."""
        for child in reversed(self._children):
            child.close()
        self._children.clear()
        if self._lock >= 0:
            namespaces.remove([self.victim, self.attacker])
            namespaces.release_lock(os.getpid(), self._lock)
            self._lock = -1

    @property
    def name(self) -> str:
        """Return what is sent: the scenario's name, or the capture's."""
        return f"capture {safe_text(self._capture.name)}" if self._capture else self.scenario.name

    @property
    def ssh_connection(self) -> str:
        """Return what sshd would put into the operator's environment on the victim (sshd(8))."""
        return f"{self.people.operator} {OPERATOR_PORT} {net.VICTIM_4} {net.PORT_SSH}"

    def start_flood(self, pps: int | None = None, *, seconds: float | None = None) -> None:
        """Start sending, `pps` packets a second in all (None: the scenario's, 0: as fast as possible).

        After so many `seconds` the sender stops by itself, which holds on a busy machine as well; `stop`
        must be called all the same.
        """
        self._ask_clients(do="phase", name="during")
        if self.scenario.crowds:
            self._ask_clients(do="crowd", on=True)
        rate = self._pps if pps is None else pps
        namespaces.schedule_receiving(self._receiving, paced=0 < rate <= namespaces.PACED_PPS)
        self._flood_started = self._ask_sender(do="start", pps=rate, seconds=seconds)["time"]

    def stop(self) -> None:
        """Stop the flood; returns when the last packet has reached the victim's interface."""
        stopped = self._ask_sender(do="stop")["time"]
        if self.scenario.crowds:
            self._ask_clients(do="crowd", on=False)
        if self._flood_started is not None:
            self._seconds += stopped - self._flood_started
            self._flood_started = None
        end = time.monotonic() + _DRAIN_SECONDS
        before = self.arrived()
        while time.monotonic() < end:
            time.sleep(0.02)
            now = self.arrived()
            if now[0] - before[0] < 100:  # clients alone
                break
            before = now

    def phase(self, name: str) -> None:
        """Count what clients try from now on under this name."""
        self._ask_clients(do="phase", name=name)

    def pause_clients(self) -> None:
        """Let clients finish what they have begun, and begin nothing more until the next phase."""
        self._ask_clients(do="pause")

    def mark(self) -> None:
        """Begin the interval that `truth` is about."""
        self._at_mark = firewall.read_counters(self.attacker)
        self._arrived_at_mark = self.arrived()

    def fare(self) -> dict[str, Any]:
        """Return how legitimate clients fared: per phase and kind of work tried, succeeded, latency."""
        return self._ask_clients(do="fare")

    def each(self) -> dict[str, list[dict[str, Any]]]:
        """Return per phase what each client tried and got: rows of client, work, tried, succeeded."""
        return self._ask_clients(do="each")

    def clients_sent(self) -> dict[tuple[str, str], int]:
        """Return the packets that each client has sent so far, by address and protocol."""
        return {key: packets for key, (packets, _) in firewall.read_counters(self.attacker).items()}

    def arrived(self) -> tuple[int, int]:
        """Return packets and bytes that reached the victim's interface since it was made."""
        with inside(self.victim):
            return _statistics(net.VICTIM_INTERFACE, "rx")

    def receiving_seconds(self) -> float:
        """Return the processor time that the victim's receiving has taken since its interface was made."""
        return self._receiving_times(1)

    def receiving_wanted(self) -> float:
        """Return the time in which it ran, or waited for its processor: there were packets."""
        return self._receiving_times(2)

    def _receiving_times(self, count: int) -> float:
        """Add up the first of: seconds run, seconds waited (scheduler/sched-stats.rst)."""
        texts = (Path(f"/proc/{thread}/schedstat").read_text(encoding="ascii") for thread in self._receiving)
        return sum(sum(map(int, text.split()[:count])) for text in texts) / 1e9

    def link_full(self) -> int:
        """Return packets lost before the victim's interface, because its queue was full."""
        with inside(self.attacker):
            link = Link(net.ATTACKER_INTERFACE)
        try:
            return link.lost()
        finally:
            link.close()

    def truth(self) -> dict[str, Any]:
        """Return what was sent since `mark` (clients) and since the start (flood), and how clients fared."""
        flood = self._ask_sender(do="truth")
        lost = self.link_full()
        legitimate, crowd = self._clients_sent()
        kept = 1 - lost / flood["packets"] if flood["packets"] else 1.0
        arrived = self.arrived()
        packets = flood["packets"] - lost + legitimate["packets"] + crowd["packets"]
        size = round(flood["bytes"] * kept) + legitimate["bytes"] + crowd["bytes"]
        return {
            "title": f"replay of {self.name}" if self._capture else self.scenario.title,
            "kinds": self._kinds_sent(flood["vectors"]),
            "kinds_also": sorted(
                {name for row in flood["vectors"] if row["packets"] for name in row["also"]}
            ),
            "packets": packets,
            "bytes": size,
            "arrived_packets": arrived[0] - self._arrived_at_mark[0],
            "link_full": lost,
            "seconds": round(self._seconds, 3),
            "pps": round((flood["packets"] - lost) / self._seconds, 1) if self._seconds else 0.0,
            "attack": {"packets": packets - legitimate["packets"], "bytes": size - legitimate["bytes"]},
            "vectors": flood["vectors"],
            "sources": _merged(flood["sources"], legitimate["sources"], crowd["sources"])[:TOP],
            "source_prefixes": flood["source_prefixes"],
            "ports": flood["ports"],
            "payloads": flood["payloads"],
            "fragments": flood["fragments"],
            "crowd": {key: crowd[key] for key in ("packets", "bytes")},
            "legitimate": {**legitimate, "operator": self.people.operator, "fared": self.fare()},
        }

    def _kinds_sent(self, vectors: list[dict[str, Any]]) -> list[str]:
        """Return the attacks that an observer should name: those of which anything was sent."""
        sent = [row["kind"] for row in vectors if row["packets"]]
        sent += [crowd.kind for crowd in self.scenario.crowds]
        return list(dict.fromkeys(kind for kind in sent if kind))

    def _clients_sent(self) -> tuple[dict[str, Any], dict[str, Any]]:
        crowd = set(self._crowd)
        totals: dict[str, list[int]] = {}
        for key, (packets, size) in firewall.read_counters(self.attacker).items():
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
            _summed([row for row in rows if row["key"] not in crowd]),
            _summed([row for row in rows if row["key"] in crowd]),
        )

    def _ask_sender(self, **command: object) -> dict[str, Any]:
        if self._sender is None:
            raise FwtopError("the lab is not set up")
        return self._sender.ask(**command)

    def _ask_clients(self, **command: object) -> dict[str, Any]:
        if self._clients is None:
            raise FwtopError("the lab is not set up")
        return self._clients.ask(**command)


def _source(name: str) -> str:
    path = Path(name) if name.endswith(".toml") else DIRECTORY / f"{name}.toml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _merged(*lists: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [row for part in lists for row in part]
    return sorted(rows, key=lambda row: -int(row["packets"]))


def _summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: sum(row[name] for row in rows) for name in ("packets", "bytes")} | {"sources": rows[:TOP]}


def _statistics(interface: str, direction: str) -> tuple[int, int]:
    """Read an interface's counters by name, from the namespace that this thread is in."""
    for line in Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, values = line.strip().partition(":")
        if name == interface:
            numbers = [int(value) for value in values.split()]
            return (numbers[1], numbers[0]) if direction == "rx" else (numbers[9], numbers[8])
    return 0, 0
