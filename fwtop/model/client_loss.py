"""What clients have surely lost since a rule is in: measured, where `client_harm` is predicted."""

from __future__ import annotations

from msgspec import Struct

_HARM = 1 / 3  # of what clients got: fewer than two of three get through


class ClientLoss(Struct, frozen=True):
    """What clients of the services that a rule touches began a second, before the rule and since it is in.

    Over TCP these are handshakes, over UDP datagrams. `sure` is the least share that is lost, of which chance
    explains more in one test of 30,000 only.
    """

    rule: str  # id
    service: str  # "80/tcp"; "": several
    before: float  # a second
    now: float
    sure: float  # 0 to 1

    @property
    def is_harm(self) -> bool:
        """Whether so much is lost that the rule does harm."""
        return self.sure >= _HARM

    @property
    def words(self) -> str:
        """The loss in a few words."""
        whose = f"clients of {self.service}" if self.service else "clients"
        return f"{whose} {_rate(self.before)} → {_rate(self.now)}"


def _rate(per_second: float) -> str:
    digits = 1 if 0 < per_second < 10 else 0
    return f"{per_second:,.{digits}f}/s"
