"""The services of a host: who listens, what reaches them through DNAT, and what the host asks of others.

Finding a socket's process means reading every process's descriptors: a reading spends a bounded time on that
and the next one goes on. Addresses before and after translation are read off the connection table, so it does
not matter whose rules translate. All tables are bounded, whatever others send.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from fwtop.kernel import cgroups, sockets
from fwtop.kernel.links import list_addresses
from fwtop.kernel.namespaces import everywhere, inside
from fwtop.kernel.procfs import read_text
from fwtop.kernel.sockets import HolderSearch, ListeningSocket
from fwtop.model.addresses.address import Prefix
from fwtop.model.service import NOBODY, Owner, Service
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import NAMES, NUMBERS, TCP, UDP
from fwtop.netfilter import ctnetlink
from fwtop.netfilter.ctnetlink import ASSURED, DST_NAT, SEEN_REPLY, TCP_STATES, Entry
from fwtop.rehearsal.asked import asked_in
from fwtop.rehearsal.host import Asked

_SCAN_SECONDS = 0.05  # for processes, in a reading
_MOST = 256  # services, doors
_FEW = 16  # addresses and doors of one service
_OWN = 8  # of this host's addresses: each takes a walk through the connection table
_PROCESS, _WORD = 15, 64  # characters: TASK_COMM_LEN; of a unit, a container, a user
_ENTRIES = 2_048  # of the connection table, in a reading
_PAUSE = 50.0  # between two walks through it, times what one took
_GONE_SECONDS = 600.0  # after which a door no longer leads where it did, if it leads elsewhere
_NAMESPACES, _LOOK_SECONDS = 256, 60.0  # that are looked into for what is behind doors, and how often
_ASKED, _TOLD = 512, 64  # services of others: remembered, told

Place = tuple[str, str, int]  # protocol, address, port
_HEARD = 1_024  # places that answered, the newest
_ANSWERED = ("SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT")  # not: refused


def _address(packed: bytes) -> str:
    return str(ipaddress.ip_address(packed))


class Published:
    """What is reached through DNAT: which places packets to a door get to, and the sockets there."""

    def __init__(self) -> None:
        self._behind: dict[Place, dict[Place, float]] = {}  # door → place → when it was last seen
        self._sockets: dict[Place, ListeningSocket] = {}
        self._tried: set[Place] = set()
        self._looked = 0.0

    def note(self, tracked: Iterable[tuple[Entry, Entry]], own: Collection[str], now: float) -> None:
        """Take note of tracked connections that others opened; they were answered.

        A handshake that is half done shows a door that nobody came through yet, as in a flood of forged SYNs,
        but only while there is room: it costs its sender nothing, and must not push others out.
        """
        for entry, reply in tracked:
            if entry.protocol not in (TCP, UDP) or _address(entry.source) in own:
                continue
            protocol = NAMES[entry.protocol]
            door = protocol, _address(entry.destination), entry.dport
            if entry.protocol == TCP and not entry.status & ASSURED:
                half = TCP_STATES[entry.tcp_state] == "SYN_RECV"
                if not half or (door not in self._behind and len(self._behind) >= _MOST):
                    continue
            places = self._behind.pop(door, {})
            places[protocol, _address(reply.source), reply.sport] = now
            kept = {place: at for place, at in places.items() if at >= now - _GONE_SECONDS}
            self._behind[door] = dict(list(kept.items())[-_FEW:])
        while len(self._behind) > _MOST:
            del self._behind[next(iter(self._behind))]

    def doors(self) -> dict[frozenset[Place], list[Place]]:
        """Return the doors by where they lead, the same place or one of several."""
        found: dict[Place, list[Place]] = {}
        members: dict[Place, set[Place]] = {}
        for door, places in self._behind.items():
            first = min(places)
            found.setdefault(first, []).append(door)
            members.setdefault(first, set()).update(places)
        return {frozenset(members[first]): doors for first, doors in found.items()}

    def sockets(self, places: Collection[Place], own: Collection[str]) -> Mapping[Place, ListeningSocket]:
        """Return the sockets at places of other namespaces, as they were when last looked for."""
        now = time.monotonic()
        wanted = {place for place in places if place[1] not in own}
        self._sockets = {place: found for place, found in self._sockets.items() if place in wanted}
        if wanted - self._tried or (wanted and now >= self._looked + _LOOK_SECONDS):
            self._sockets, self._tried, self._looked = _elsewhere(wanted), wanted, now
        return self._sockets


def _elsewhere(wanted: Collection[Place]) -> dict[Place, ListeningSocket]:
    """Look for listening sockets in the other network namespaces."""
    found: dict[Place, ListeningSocket] = {}
    for path in list(everywhere().values())[:_NAMESPACES]:
        with suppress(OSError), inside(path):  # it may be gone
            here = set(list_addresses())
            mine = {place for place in wanted if place[1] in here}
            for item in sockets.listening_sockets() if mine else ():
                for protocol, address, port in mine:
                    if (item.protocol, item.port) == (protocol, port) and item.address in ("", address):
                        found[protocol, address, port] = item
    return found


def asked_by(own: Iterable[Prefix]) -> tuple[Asked, ...]:
    """Return what these addresses ask others now: tracked connections that they began, and sockets.

    Of a connected socket nobody knows who began; but it was the peer where a socket of its port listens.
    """
    asking = _asking(own)
    packed = {one.packed for one in asking}
    found = list(ctnetlink.begun_by([(one.family, one.packed) for one in asking], _ENTRIES))
    known = {(item.protocol, item.source, item.sport, item.destination, item.dport) for item in found}
    with suppress(OSError):
        served = {(item.protocol, item.port) for item in sockets.listening_sockets()}
        for protocol, address, port, peer, peer_port in sockets.connected_sockets():
            ends = [ipaddress.ip_address(one).packed for one in (address, peer) if one]
            if (protocol, port) in served or len(ends) < 2:
                continue
            key = NUMBERS[protocol], ends[0], port, ends[1], peer_port
            if key not in known:
                found.append(Entry(4 if len(ends[0]) == 4 else 6, key[0], ends[0], ends[1], port, peer_port))
    return asked_in(found, packed)


def _asking(own: Iterable[Prefix]) -> list[Prefix]:
    return [one for one in own if not one.network.is_link_local and not one.network.is_loopback][:_OWN]


class Answering:
    """Who answers, by tracked connections and open sockets; an address that asks others is in use, too."""

    def __init__(self) -> None:
        self._places: dict[Place, None] = {}

    def note(self, tracked: Iterable[tuple[Entry, Entry]], own: Collection[str]) -> None:
        """Take note of answered entries, and of this host's open sockets."""
        for entry, _ in tracked:
            if _address(entry.source) in own:
                self._add(("", _address(entry.source), 0))
            elif entry.protocol == UDP or (
                entry.protocol == TCP and TCP_STATES[entry.tcp_state] in _ANSWERED
            ):
                self._add((NAMES[entry.protocol], _address(entry.destination), entry.dport))
        with suppress(OSError):
            served = {(item.protocol, item.port) for item in sockets.listening_sockets()}
            for protocol, address, port, *_ in sockets.connected_sockets():
                self._add((protocol, address, port) if (protocol, port) in served else ("", address, 0))

    def _add(self, place: Place) -> None:
        self._places.pop(place, None)
        self._places[place] = None
        if len(self._places) > _HEARD:
            del self._places[next(iter(self._places))]

    def places(self) -> list[Place]:
        """Return protocol ("": any), address and port, the newest last."""
        return list(self._places)


class OftenAsked:
    """The services of others that this host uses: those seen in most readings are told."""

    def __init__(self) -> None:
        self._seen: Counter[Place] = Counter()

    def note(self, found: Iterable[Asked]) -> None:
        """Take note of what one reading found."""
        places = ((NAMES[item.protocol], str(item.peer), item.port) for item in found)
        self._seen.update(dict.fromkeys(places, 1))
        if len(self._seen) > _ASKED:
            self._seen = Counter(dict(self._seen.most_common(_ASKED // 2)))

    def services(self) -> list[Service]:
        """Return them, the steadiest first."""
        return [
            Service(protocol, port, "", addresses=(address,))
            for (protocol, address, port), _ in self._seen.most_common(_TOLD)
        ]


class Services:
    """All of one network namespace. Owned by the worker's thread."""

    def __init__(self) -> None:
        self._owners = SocketOwners()
        self._published = Published()
        self._asked = OftenAsked()
        self.answering = Answering()
        self._questions: list[int | Prefix] = []  # to the connection table: a status, an own address
        self._due = 0.0

    def read(self) -> tuple[list[Service], list[Service]]:
        """Return this host's services, and those of others that it asks; what can't be read is absent."""
        local: list[ListeningSocket] = []
        own: set[str] = set()
        with suppress(OSError):  # a kernel without inet_diag
            local, own = sockets.listening_sockets(), set(list_addresses(every_scope=True))
        began = time.monotonic()
        if began >= self._due:
            self._track(own, began)
            ended = time.monotonic()
            self._due = ended + _PAUSE * (ended - began)
        doors = self._published.doors()
        behind = self._published.sockets([place for places in doors for place in places], own)
        return self._owners.services(local, doors, behind, own), self._asked.services()

    def _track(self, own: Collection[str], now: float) -> None:
        """Walk through the connection table once, for one of the questions to it in turn.

        A walk takes half a microsecond for each entry, and nobody else is served meanwhile.
        """
        if not self._questions:
            self._questions = [
                DST_NAT | ASSURED,
                DST_NAT | SEEN_REPLY,
                SEEN_REPLY,
                *_asking(map(Prefix.parse, sorted(own))),
            ]
        question = self._questions.pop(0)
        if isinstance(question, Prefix):
            self._asked.note(asked_by([question]))
            return
        tracked: list[tuple[Entry, Entry]] = []
        with suppress(OSError):  # nothing is tracked here
            tracked = list(ctnetlink.with_status(question, _ENTRIES))
        if question == SEEN_REPLY:
            self.answering.note(tracked, own)
        else:
            self._published.note(tracked, own, now)


class SocketOwners:
    """Who holds listening sockets, by inode."""

    def __init__(self) -> None:
        self._owners: dict[int, Owner] = {}  # NOBODY: as with the kernel's own sockets
        self._seen: frozenset[int] = frozenset()
        self._search = HolderSearch()

    def services(
        self,
        local: Iterable[ListeningSocket],
        doors: Mapping[frozenset[Place], list[Place]] | None = None,
        behind: Mapping[Place, ListeningSocket] | None = None,
        own: Collection[str] = (),
    ) -> list[Service]:
        """Return the services, a bounded number: what is published first.

        UDP sockets on ports that the kernel chose are mostly clients (of DNS), soon gone: they are looked up
        once they have been there in two readings.
        """
        doors, behind = doors or {}, behind or {}
        listed = sorted(local, key=lambda item: (item.port, item.protocol, item.inode))
        inodes = frozenset(item.inode for item in (*listed, *behind.values()))
        self._owners = {inode: owner for inode, owner in self._owners.items() if inode in inodes}
        chosen = _first_chosen_port()
        lasting = {item.inode for item in listed if not item.port >= chosen > 0 or item.inode in self._seen}
        self._seen = inodes
        missing = (lasting | {item.inode for item in behind.values()}) - self._owners.keys()
        found = self._search.holders(missing, _SCAN_SECONDS)
        owners = {pid: NOBODY if pid is None else owner_of(pid) for pid in {*found.values()}}
        self._owners |= {inode: owners[pid] for inode, pid in found.items()}
        published: list[Service] = []
        redirected: dict[tuple[str, int], list[Place]] = {}
        for places, ways in doors.items():
            if all(address in own for _, address, _ in places):
                redirected |= {(protocol, port): ways for protocol, _, port in places}
            else:
                published.append(self._behind(places, ways, behind))
        waiting = [item for item in listed if item.inode in lasting]
        return [*published, *self._listening(waiting, redirected)][:_MOST]

    def _behind(
        self, places: Collection[Place], doors: Iterable[Place], behind: Mapping[Place, ListeningSocket]
    ) -> Service:
        holders = (
            self._owners.get(behind[place].inode, NOBODY) for place in sorted(places) if place in behind
        )
        owner = next((holder for holder in holders if holder is not NOBODY), NOBODY)
        protocol, _, port = min(places)
        addresses = sorted({address for _, address, _ in places})
        return _service((protocol, port, owner), addresses, doors)

    def _listening(
        self, listed: Iterable[ListeningSocket], redirected: Mapping[tuple[str, int], list[Place]]
    ) -> Iterator[Service]:
        """Yield a service for each port and owner; sockets without a known owner are one's who is known."""
        found: dict[tuple[str, int, Owner], set[str]] = {}
        known: dict[tuple[str, int], Owner] = {}
        items = [(item, self._owners.get(item.inode, NOBODY)) for item in listed]
        for item, holder in sorted(items, key=lambda pair: pair[1] is NOBODY):
            place = item.protocol, item.port
            first = known.setdefault(place, holder)
            owner = first if holder is NOBODY else holder
            found.setdefault((*place, owner), set()).add(item.address)
        for key in sorted(found, key=lambda key: key[:2][::-1]):
            addresses = [] if "" in found[key] else sorted(found[key])
            yield _service(key, addresses, redirected.get(key[:2], ()))


def owner_of(pid: int) -> Owner:
    """Describe a process."""
    unit, container = (safe_text(word, limit=_WORD) for word in cgroups.of_process(pid))
    return Owner(
        safe_text(sockets.command_name(pid), limit=_PROCESS),
        safe_text(sockets.user_of(pid, named=not container), limit=_WORD),
        unit,
        container,
    )


def _service(key: tuple[str, int, Owner], addresses: Iterable[str], doors: Iterable[Place]) -> Service:
    protocol, port, owner = key
    return Service(
        protocol, port, owner.process,
        addresses=tuple(addresses)[:_FEW],
        published=tuple((address, number) for _, address, number in sorted(doors))[:_FEW],
        user=owner.user, unit=owner.unit, container=owner.container,
    )  # fmt: skip


def _first_chosen_port() -> int:
    """Return the lowest port that the kernel gives to sockets without one, 0 if not known."""
    words = read_text("/proc/sys/net/ipv4/ip_local_port_range").split()
    return int(words[0]) if words and words[0].isdigit() else 0
