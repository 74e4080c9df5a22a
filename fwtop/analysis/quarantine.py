"""What waits before it may become normal: traffic classes far above it, and the services that put them there.

A class is learned only once it has outlasted what attacks last. What the operator called an attack is barred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.memory import CLASSES, Baseline, classes
from fwtop.model.traffic.packets import F64, U32

_STEADY_SECONDS = 2.0
_SWOLLEN = 512  # services of a class and tick, as many as `Doors` has room for


class Waiting(Struct):
    """A traffic class in quarantine."""

    since: float
    last: float
    seconds: float = 0.0
    count: float = 0.0  # packets
    services: dict[int, float] = field(default_factory=dict)  # that put it there, and when they last did

    @property
    def pps(self) -> float:
        """Return its mean rate."""
        return self.count / max(self.seconds, 1e-9)

    @property
    def is_steady(self) -> bool:
        """Whether it is more than the spike of a tick now and then."""
        return self.seconds >= _STEADY_SECONDS and 2 * self.seconds >= self.last - self.since


class Quarantine(Struct):
    """The classes in quarantine, and those that the operator barred."""

    config: AdviseConfig
    waiting: dict[str, Waiting] = field(default_factory=dict)  # by class
    barred: dict[str, float] = field(default_factory=dict)  # until when a class teaches nothing above normal

    def copy(self) -> Quarantine:
        """Return one that goes on by itself."""
        waiting = {name: replace(one, services={**one.services}) for name, one in self.waiting.items()}
        return Quarantine(self.config, waiting, {**self.barred})

    def most(self, name: str, baseline: Baseline) -> float:
        """Return the highest rate of a class that is learned at once."""
        if name in self.barred:
            return baseline.rate(name) or 0.0
        return baseline.ceiling.get(name, math.inf)

    def services(self) -> set[int]:
        """Return the numbers of the services that have put a class here to stay."""
        return {number for one in self.waiting.values() if one.is_steady for number in one.services}

    def words(self) -> list[str]:
        """Say what is here to stay, and for how long."""
        whole, found = self.config.quarantine_seconds / 60, []
        for name, one in ((name, one) for name, one in self.waiting.items() if one.is_steady):
            time = f"for {(one.last - one.since) / 60:.0f} of {whole:.0f} min"
            found.append(f"{name} {one.pps:,.0f}/s {'is barred' if name in self.barred else time}")
        return found

    def bar(self, names: Iterable[str], now: float) -> None:
        """Let classes teach nothing above their normal rates while they go on."""
        self.barred |= dict.fromkeys(names, now + self.config.quarantine_seconds)

    def admit(self, name: str) -> float:
        """Let a class out; return its rate here, 0 if it wasn't."""
        self.barred.pop(name, None)
        waited = self.waiting.pop(name, None)
        return 0.0 if waited is None else waited.pps

    def release(self, named: Iterable[str], seconds: float) -> None:
        """Drop the classes that an attack is named on; for the rest time stands still."""
        for name in named:
            self.waiting.pop(name, None)
        for one in self.waiting.values():
            one.since += seconds
            one.last += seconds
            one.services = {service: last + seconds for service, last in one.services.items()}

    def keep(
        self,
        end: float,
        seconds: float,
        above: Mapping[str, float],
        swollen: Mapping[str, Iterable[int]],
        usual: Callable[[str], float],
    ) -> list[tuple[str, Waiting]]:
        """Hold the classes whose rates are `above` what is learned at once; return those that outlasted it.

        `swollen` are the services that made them so, `usual` returns a class's normal rate.
        """
        config, outlasted = self.config, []
        for name, pps in above.items():
            one = self.waiting.setdefault(name, Waiting(end - seconds, end))
            one.last = end
            one.seconds += seconds
            one.count += pps * seconds
            one.services |= dict.fromkeys(swollen[name], end)
            if name in self.barred:
                if pps > usual(name) * config.learn_factor:
                    self.barred[name] = end + config.quarantine_seconds
            elif end - one.since >= config.quarantine_seconds:
                outlasted.append((name, self.waiting.pop(name)))
        linger = config.linger_seconds
        self.waiting = {name: one for name, one in self.waiting.items() if end - one.last <= linger}
        for one in self.waiting.values():
            one.services = {number: last for number, last in one.services.items() if end - last <= linger}
        self.barred = {name: until for name, until in self.barred.items() if until > end}
        return outlasted


def swollen_services(baseline: Baseline, kind: int, service: U32, pps: F64, surplus: float) -> list[int]:
    """Return the services without whose excess a class would have no surplus, the largest first.

    `service` and `pps` are of its packets. The others together get no more than would be learned at once
    without them, so nobody gains by a decoy; what is spread over many services holds as many.
    """
    before = np.flatnonzero(classes(baseline.rows) == kind)
    part = baseline.rows.weight[before]
    numbers, at = np.unique(
        np.concatenate([service, baseline.doors.numbers(baseline.rows, before)]), return_inverse=True
    )
    usual = part * (baseline.mean.get(CLASSES[kind], 0.0) / max(float(part.sum()), 1e-9))
    excess = np.bincount(at, np.concatenate([pps, -usual]))
    order = np.argsort(-excess)[:_SWOLLEN]
    enough = int(np.searchsorted(np.cumsum(np.maximum(excess[order], 0.0)), surplus)) + 1
    return [int(one) for one in numbers[order[:enough]]]
