"""Fifteen days of synthetic history, for tests and pictures: nothing was sent, and what it writes says so.

`python -m benches.history DIR` adds them to DIR/history.db, for `fwtop trends --directory DIR`.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.traffic.session import PARTED, TREND_DAYS, TREND_HOURS, HistoryPart, HistorySample
from fwtop.store.history import HOUR, KEPT, MINUTE, Bucket, HistoryWriter

NOTE = "synthetic data, made by 'python -m benches.history': nothing of this was measured"
INTERFACE = "synthetic0"
_CALM_PPS = 900.0
_BITS = 8 * 420
# Shares of the calm traffic; addresses, AS numbers and names are those of documentation (RFC 5737, RFC 5398).
_COUNTRIES = {"NL": 0.42, "DE": 0.21, "US": 0.14, "BR": 0.05, "JP": 0.04}
_NETWORKS = {
    "AS64496": (0.38, "Example Access BV"),
    "AS64497": (0.2, "Example Kabel GmbH"),
    "AS64498": (0.12, "Example Cloud Inc"),
    "AS64499": (0.05, "Exemplo Telecom"),
}
_CITIES = {"Amsterdam, NL": 0.22, "Berlin, DE": 0.11, "Utrecht, NL": 0.08, "Ashburn, US": 0.07}
_PORTS = {
    "tcp/443": (0.66, "https"),
    "tcp/80": (0.17, "http"),
    "udp/53": (0.08, "domain"),
    "tcp/22": (0.01, "ssh"),
}
_SERVICES = {"192.0.2.10": 0.68, "192.0.2.11": 0.24}
_DARK = {f"192.0.2.{number}": 0.004 for number in (20, 77, 130, 201, 254)}
# Attacks: hours before now, hours long, packets a second, share that rules block, what it looks like
_ATTACKS = (
    (11 * 24 + 5, 2, 42_000.0, 0.97, "NL", "AS64500", "udp/53"),
    (4 * 24 + 9, 5, 18_000.0, 0.9, "BR", "AS64501", "tcp/80"),
    (7, 1, 65_000.0, 0.992, "US", "AS64502", "udp/123"),
)


def write_history(directory: Path, now: float) -> Path:
    """Add 15 days that end now to the history in a directory; raises FwtopError."""
    chance = random.Random(15)  # noqa: S311 - not for secrets
    writer = HistoryWriter(directory, interfaces=(INTERFACE,), note=NOTE)
    try:
        first = int(now) // HOUR * HOUR - (TREND_DAYS * TREND_HOURS - 1) * HOUR
        minutes = (int(now) - KEPT[MINUTE]) // HOUR * HOUR + HOUR  # from which on they are kept
        for hour in range(first, minutes, HOUR):
            bucket = Bucket(hour)
            bucket.add(_sample(hour + HOUR, HOUR, now, chance))
            writer.add_span(HOUR, bucket)
        for minute in range(minutes, int(now) // MINUTE * MINUTE, MINUTE):
            writer.add(_sample(minute + MINUTE - 0.001, MINUTE, now, chance))
            if writer.problem:
                raise FwtopError(writer.problem)
    except OSError as error:
        raise FwtopError(f"no history was written to {directory}: {error.strerror}") from None
    finally:
        writer.close()
    return writer.path


def _sample(at: float, seconds: float, now: float, chance: random.Random) -> HistorySample:
    """Make some seconds: a day's curve with noise, and the attacks of that time."""
    daylight = 1 + 0.6 * math.sin((at / 3_600 - 8) / 24 * math.tau)
    calm = _CALM_PPS * daylight * chance.uniform(0.9, 1.1) * seconds
    parts = list(_calm_parts(calm, chance))
    arrived, mine = calm, 0.0
    dark = calm * sum(_DARK.values())
    for before, length, pps, blocked, country, network, port in _ATTACKS:
        began = now - before * HOUR
        share = max(min(at, began + length * HOUR) - max(at - seconds, began), 0.0) / seconds
        packets = pps * chance.uniform(0.85, 1.0) * share * seconds
        if packets <= 0:
            continue
        arrived, mine = arrived + packets, mine + packets * blocked
        dropped = packets * blocked
        parts += [
            HistoryPart("country", country, packets, dropped),
            HistoryPart("network", network, packets, dropped, "Example Botnet Hosting"),
            HistoryPart("port", port, packets, None),
            HistoryPart("target", "192.0.2.10", packets, dropped),
        ]
    parts += [HistoryPart("place", "service", arrived - dark), HistoryPart("place", "dark", dark)]
    parts += list(_by_place(parts, dark / arrived))
    traffic = (arrived, mine, calm * 0.01, dark, arrived - mine - calm * 0.01 - dark)
    answered = (*_SERVICES, *_PORTS)
    return HistorySample(at, seconds, traffic, arrived * _BITS, tuple(parts), answered)


def _by_place(parts: list[HistoryPart], dark: float) -> Iterator[HistoryPart]:
    """Divide the parts: what goes to dark addresses comes from all alike, to other ports."""
    for part in parts:
        if part.kind in PARTED:
            yield replace(part, kind=f"service {part.kind}", packets=part.packets * (1 - dark), dropped=None)
        if part.kind in PARTED and part.kind != "port":
            yield replace(part, kind=f"dark {part.kind}", packets=part.packets * dark, dropped=None)
    packets = sum(part.packets for part in parts if part.kind == "port") * dark
    for port, label, share in (("tcp/23", "telnet", 0.7), ("tcp/5555", "", 0.3)):
        yield HistoryPart("dark port", port, packets * share, None, label)


def _calm_parts(calm: float, chance: random.Random) -> Iterator[HistoryPart]:
    def packets(share: float) -> float:
        return calm * share * chance.uniform(0.8, 1.2)

    for key, share in _COUNTRIES.items():
        yield HistoryPart("country", key, packets(share), calm * share * 0.01)
    for key, (share, label) in _NETWORKS.items():
        yield HistoryPart("network", key, packets(share), calm * share * 0.01, label)
    for key, share in _CITIES.items():
        yield HistoryPart("city", key, packets(share))
    for key, (share, label) in _PORTS.items():
        yield HistoryPart("port", key, packets(share), None, label)
    for key, share in _SERVICES.items():
        yield HistoryPart("target", key, packets(share), calm * share * 0.01)
    for key, share in _DARK.items():
        count = packets(share)
        yield HistoryPart("target", key, count, count)


if __name__ == "__main__":
    print(write_history(Path(sys.argv[1]), time.time()))
