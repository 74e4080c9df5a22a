"""What each service usually gets: packets, connections, requests and failures, in sum and from one address.

Learned from calm windows; rates are a second's. Of connections and requests also what comes without a pause:
people read in between, programs go on. Within the time that attacks last at most, or in which a young service
was known at all, rates double at most; what is more waits until it has lasted that long. Bounded: of more
services those that rest longest are forgotten.

Failures are what arriving packets show: handshakes that the client doesn't complete, connections that it
resets, and sessions at logins that end within the window, as refused ones do. A server's error answers leave
this host and are never seen live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from fwtop.analysis.parsers import http, tls
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.tcp_view import TcpView
from fwtop.analysis.window.traffic import UDP, Rows, Traffic, mix
from fwtop.model.traffic.packets import F64, KINDS, U32, Mask, PacketBatch
from fwtop.model.traffic.snapshot import USES as COLUMNS
from fwtop.stats.services import Doors

LOGINS = (21, 22, 23, 110, 143, 587, 993, 995, 3389, 5900)  # ports where users log in
_ROOM, _TOLD = 256, 64  # services; in one reading, the busiest
_FADES = 0.998  # a second of calm: half in six minutes
_READY_SECONDS = 5.0  # of calm, from which there is a usual rate
_KNOWN_SECONDS = 10.0  # and from which it grows with a limit
LEAST = 5.0  # a second: what is slower is learned at once, and so are ten packets for each of them
_LEASTS = np.array([LEAST * (10 if name.endswith("packets") else 1) for name in COLUMNS])
_ONE_SEGMENT = 1_440  # bytes: a request with its cookies, no upload
_OFTEN = 5  # of a source: with fewer, chance may spread them
_REST = 0.5  # of the window, that a source which pauses rests at least
_SHORT = 2.0  # seconds: a page loads that long
_DENSE = 1.5  # packets a sample
_YOUNG_NS = 500_000_000  # a handshake that began later may still be completed


class Reading(Struct, frozen=True):
    """What services got in one window, or how many of their connections do what."""

    number: U32  # of each service, ascending
    rates: F64  # a row of columns for each


class Habits(Struct, frozen=True):
    """A row for each service, by ascending number; replaced, never modified."""

    number: U32
    rates: F64  # the highest that were learned; they fade as other ones come
    ceiling: F64  # the highest that are learned until they are set anew
    seconds: F64  # of calm in which the service was asked
    raised: F64  # of which had passed when the ceiling was set
    since: F64  # and when what it gets went above that; infinity: it doesn't
    last: F64  # Unix seconds when it was asked

    def __len__(self) -> int:
        return len(self.number)

    @staticmethod
    def of(columns: list[np.ndarray] | None = None, width: int = len(COLUMNS)) -> Habits:
        """Return the table of these columns, or an empty one; raises ValueError if they don't fit."""
        kinds = Habits.__annotations__
        wide = {name: (width,) * (name in ("rates", "ceiling")) for name in kinds}
        if columns is None:
            columns = [np.zeros((0, *wide[name]), KINDS[kind]) for name, kind in kinds.items()]
        types, shapes = (
            [KINDS[kind] for kind in kinds.values()],
            [(len(columns[0]), *one) for one in wide.values()],
        )
        if [one.dtype for one in columns] != types or [one.shape for one in columns] != shapes:
            raise ValueError("not a stored table of habits")
        if len(columns[0]) > _ROOM:
            raise ValueError("not a stored table of habits")
        return Habits(*columns)._select(np.argsort(columns[0]))

    def usual(self, column: str, services: U32, columns: Sequence[str] = COLUMNS) -> float | None:
        """Return what is usual of services together, 0 if nobody asked; None in the first seconds."""
        if self.seconds.max(initial=0.0) < _READY_SECONDS:
            return None
        known = among(self.number, services)
        return float(self.rates[known, columns.index(column)].sum())

    def above(self, seen: Reading) -> tuple[U32, F64]:
        """Return the services that get more than is learned, and which part of their packets is usual."""
        at = np.searchsorted(self.number, seen.number)
        known = among(seen.number, self.number)
        at = at[known]
        over = (seen.rates[known] > self.ceiling[at]).any(axis=1)
        packets = COLUMNS.index("packets")
        usual, now = self.rates[at[over], packets], seen.rates[known][over, packets]
        return seen.number[known][over], np.minimum(usual / np.maximum(now, 1e-9), 1.0)

    @property
    def waiting(self) -> U32:
        """The services that get far more than usual, for less time than attacks last."""
        return self.number[np.isfinite(self.since)]

    def moved(self, moves: Mapping[int, int]) -> Habits:
        """Return the table after services were found to have other numbers."""
        if not moves or not among(self.number, [*moves]).any():
            return self
        number = np.array([moves.get(one, one) for one in self.number.tolist()], np.uint32)
        order = np.lexsort((-self.seconds, number))  # of one known twice the elder stays
        return replace(self, number=number)._select(order[np.unique(number[order], return_index=True)[1]])

    def learned(  # noqa: PLR0917
        self, seen: Reading, seconds: float, now: float, patience: float, factor: float,
        least: F64 | float = _LEASTS,
    ) -> Habits:  # fmt: skip
        """Return the table after a calm window, of which `seconds` are new.

        More than `factor` times the usual, or the `least`, has to last for `patience` seconds.
        """
        new = self._joined(seen.number[~among(seen.number, self.number)], now)
        at = np.searchsorted(new.number, seen.number)
        rates, ceiling, age, raised, since, last = (
            column.copy() for column in list(asdict(new).values())[1:]
        )
        age[at] += seconds
        last[at] = now
        over = (seen.rates > ceiling[at]).any(axis=1)
        rates[at[~over]] *= _FADES**seconds  # what waits and who is silent keep their habit
        since[at] = np.where(over, np.minimum(since[at], age[at]), np.inf)
        wait = np.minimum(patience, raised[at])
        lasted = over & (age[at] - since[at] >= wait)
        taught = np.where((over & ~lasted)[:, None], 0.0, np.minimum(seen.rates, ceiling[at]))
        rates[at] = np.maximum(rates[at], taught)
        due = lasted | ~over & (age[at] >= _KNOWN_SECONDS) & (age[at] - raised[at] >= wait)
        ceiling[at[due]] = factor * np.maximum(rates[at[due]], least)
        raised[at[due]], since[at[due]] = age[at[due]], np.inf
        return Habits(new.number, rates, ceiling, age, raised, since, last)

    def accepted(self, seen: Reading, now: float, factor: float, least: F64 | float = _LEASTS) -> Habits:
        """Return the table with what services get now as usual: the operator says that it is."""
        new = self._joined(seen.number[~among(seen.number, self.number)], now)
        rates, ceiling, at = new.rates.copy(), new.ceiling.copy(), np.searchsorted(new.number, seen.number)
        rates[at] = np.maximum(rates[at], seen.rates)
        ceiling[at] = factor * np.maximum(rates[at], least)
        return replace(new, rates=rates, ceiling=ceiling)

    def _joined(self, new: U32, now: float) -> Habits:
        if not len(new):
            return self
        kept = self._select(np.sort(np.argsort(-self.last, kind="stable")[: _ROOM - len(new)]))
        zeros, wide, never = np.zeros(len(new)), (len(new), self.rates.shape[1]), np.full(len(new), np.inf)
        fresh = Habits(
            new, np.zeros(wide), np.full(wide, np.inf), zeros, zeros, never, np.full(len(new), now)
        )
        pairs = zip(asdict(kept).values(), asdict(fresh).values(), strict=True)
        return Habits.of([np.concatenate(pair) for pair in pairs], wide[1])

    def _select(self, rows: np.ndarray) -> Habits:
        return Habits(*(column[rows] for column in asdict(self).values()))


def read(traffic: Traffic, tcp: TcpView, doors: Doors) -> Reading:
    """Measure what services get in a window: where these are known, only they."""
    packets = traffic.packets
    served = doors.places(packets) < len(doors) if len(doors) else packets.dport < packets.sport
    rows = traffic.rows(served & (tcp.tcp | (packets.protocol == UDP)) & ~traffic.later)
    number, place, count = np.unique(doors.numbers(packets, rows), return_inverse=True, return_counts=True)
    busiest = np.sort(np.argsort(-count, kind="stable")[:_TOLD])
    who = np.unique(mix(traffic.source_key[rows], number[place].astype(np.uint64)), return_inverse=True)[1]
    here = _Window(traffic, rows, place, who)
    opened, asked = tcp.syn[rows] & tcp.real[rows], _asks(packets, rows, tcp, place)
    talking = tcp.real[rows] | (packets.protocol[rows] == UDP)
    parts = [here.sums(part) for part in (talking, opened, asked, _failed(traffic, rows, tcp))]
    steady = [here.sums(here.steady(part))[0] for part in (opened, asked)]
    columns = [*(part[0] for part in parts), *(part[1] for part in parts), *steady]
    return Reading(number[busiest], np.stack(columns, axis=1)[busiest] / max(traffic.seconds, 1.0))


class _Window(Struct, frozen=True):
    traffic: Traffic
    rows: Rows
    service: Rows  # of each row its place among the services
    who: Rows  # and among the pairs of source and service

    def sums(self, part: Mask) -> tuple[F64, F64]:
        """Return the packets of a part for each service, and the most that one source sent to it."""
        services = int(self.service.max(initial=-1)) + 1
        weight = self.traffic.weight[self.rows] * part
        every = np.bincount(self.service, weight, services)
        most, of_service = np.zeros(services), np.zeros(int(self.who.max(initial=-1)) + 1, np.intp)
        of_service[self.who] = self.service
        np.maximum.at(most, of_service, np.bincount(self.who, weight, len(of_service)))
        return np.asarray(every, np.float64), most

    def steady(self, part: Mask) -> Mask:
        """Mark what of a part comes without a pause."""
        marked = part.copy()
        marked[part] = without_pause(self.traffic, self.rows[part], self.who[part])
        return marked


def without_pause(traffic: Traffic, rows: Rows, who: Rows) -> Mask:
    """Mark the rows of those that rest for less than half of the window, at its beginning and end, too."""
    if traffic.seconds < _SHORT or not len(rows):
        return np.zeros(len(rows), np.bool_)
    every = traffic.packets.time_ns
    time, size = every[rows], int(who.max()) + 1
    first, last = np.full(size, every.max()), np.full(size, every.min())
    np.minimum.at(first, who, time)
    np.maximum.at(last, who, time)
    longest = np.maximum(first - every.min(), every.max() - last)
    order = np.lexsort((time, who))
    same = who[order][1:] == who[order][:-1]
    np.maximum.at(longest, who[order][1:][same], np.diff(time[order])[same])
    often = np.bincount(who, minlength=size) >= _OFTEN
    return np.asarray((often & (longest < _REST * traffic.seconds * 1e9))[who])


def request_records(packets: PacketBatch, rows: Rows) -> Mask:
    """Mark the rows that hold one request inside TLS: application data that fits into their segment."""
    size, is_data = tls.application_data(packets, rows)
    whole = (size + 5 <= packets.payload_length[rows]) & (packets.payload_length[rows] <= _ONE_SEGMENT)
    return np.asarray(is_data & whole & among(packets.dport[rows], tls.HTTPS))


def _asks(packets: PacketBatch, rows: Rows, tcp: TcpView, service: Rows) -> Mask:
    """Mark requests: of HTTP and TLS by their beginning, of other services each segment with data."""
    data = (packets.payload_length[rows] > 0) & (tcp.ack[rows] & tcp.real[rows] | ~tcp.tcp[rows])
    begins = data & (http.starts_request(packets, rows) | request_records(packets, rows))
    return np.asarray(begins | data & ~among(service, np.unique(service[begins])))


def _failed(traffic: Traffic, rows: Rows, tcp: TcpView) -> Mask:
    time = traffic.packets.time_ns
    if traffic.one_in > _DENSE:  # what follows may be missed
        return np.zeros(len(rows), np.bool_)
    young = time[rows] > time.max(initial=0) - _YOUNG_NS
    failed = tcp.syn[rows] & ~tcp.completed[rows] & ~young | tcp.rst[rows] & tcp.real[rows]
    ended = tcp.fin[rows] & traffic.of_flows(tcp.syn)[rows] & among(traffic.packets.dport[rows], LOGINS)
    return np.asarray(failed | ended)
