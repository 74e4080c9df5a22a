"""Advice that is kept for a moment: while an attack stays as it is, its proposals do too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fwtop.advise.effect import Normal
from fwtop.advise.propose import Offer
from fwtop.advise.scene import Scene
from fwtop.advise.signature import Signature

_KEEP_SECONDS = 2.5  # of a clock that ticks once a second: two judgements of three are cheap
_SHARE = 0.05  # of all packets: an attack that grew by more is looked at again
_FACTOR = 1.25  # times its rate


@dataclass(frozen=True)
class Picture:
    """What proposals depend on, coarsely: the attacks, how large they are, and what harm is counted on."""

    attacks: Mapping[str, tuple[float, float, bool]]  # key → share, packets a second, forged
    guess: bool
    pressed: bool  # packets are lost before any rule, or the link is full

    @staticmethod
    def of(scene: Scene, normal: Normal, *, pressed: bool) -> Picture:
        """Take the picture of a scene whose attacks were found."""
        forged = scene.config.spoof_threshold
        attacks = {
            finding.key: (
                scene.traffic.share(finding.rows),
                scene.traffic.pps(finding.rows),
                finding.spoof.probability > forged,
            )
            for finding in scene.findings
        }
        return Picture(attacks, normal.guess, pressed)

    def resembles(self, other: Picture) -> bool:
        """Tell whether the same proposals fit."""
        if (self.guess, self.pressed) != (other.guess, other.pressed):
            return False
        if self.attacks.keys() != other.attacks.keys():
            return False
        return all(_alike(one, other.attacks[key]) for key, one in self.attacks.items())


def _alike(one: tuple[float, float, bool], other: tuple[float, float, bool]) -> bool:
    low, high = sorted((one[1], other[1]))
    return one[2] == other[2] and abs(one[0] - other[0]) <= _SHARE and high <= _FACTOR * low + 1.0


@dataclass(frozen=True)
class Advice:
    """What was made of a picture at a time (Unix seconds)."""

    picture: Picture
    made: float
    normal: Normal
    found: Mapping[str, Sequence[Signature]]
    offered: Sequence[Offer]

    def holds(self, picture: Picture, now: float) -> bool:
        """Tell whether it can still be given."""
        return 0 <= now - self.made < _KEEP_SECONDS and self.picture.resembles(picture)
