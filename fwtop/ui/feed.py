"""The screen's interface to the program: snapshots in, typed requests out.

The console implements `Feed` for live traffic, captures and stored sessions; the screen knows nothing
else, so a test can drive it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from fwtop.analysis.packets.recent import PacketList
from fwtop.dissect.client import Dissection
from fwtop.model.rule import Mode, PlanView, Preview, Rule, RuleStatus
from fwtop.model.ruleset import Ruleset
from fwtop.model.traffic.session import Mark, PastAttack, Trends
from fwtop.model.traffic.snapshot import PartTraffic, Payload, Snapshot, Source, TrafficPart
from fwtop.ui.lists.history import Past


class Controls(Protocol):
    """The requests behind the keys; each raises FwtopError with one line to show.

    They run on the screen's event loop and must not block it: slow work belongs in a thread
    (`asyncio.to_thread`) or on a non-blocking socket.
    """

    @property
    def readonly(self) -> str:
        """Return why nothing can be changed ("started with --readonly", "a capture"), else ""."""

    @property
    def confirm_seconds(self) -> int:
        """Return how long a rule stays without confirmation."""

    @property
    def export_formats(self) -> tuple[str, ...]:
        """Return the formats of `export`, the default first ("html", "md", "json")."""

    async def expand(self, rule: Rule) -> Rule:
        """Fill in the sources that `rule.origin` names (asn:N, country:CC); return others unchanged."""

    async def preview(self, rule: Rule) -> Preview:
        """Replay the rule on the current window."""

    async def plan(self, rule: Rule, *, follows: bool = False) -> PlanView:
        """Ask the guardian for its commands, warnings and refusal.

        A rule that `follows` is to be installed together with the rules planned just before.
        """

    async def apply(self, rule: Rule, *, force: bool = False) -> RuleStatus:
        """Install a rule, provisional for `confirm_seconds`; return it with its id."""

    async def change(self, rule: Rule, stamp: int, *, force: bool = False) -> RuleStatus:
        """Have an active rule be this one, in place and on trial, if it still has this stamp."""

    async def keep(self, rule_id: str, *, ttl_seconds: int | None = None) -> RuleStatus:
        """Confirm a provisional rule or renew a confirmed one, for `ttl_seconds` or its own time to live."""

    async def repair(self, rule_id: str) -> RuleStatus:
        """Restore the parts of a rule that the kernel lost."""

    async def mode(self, rule_id: str, mode: Mode) -> RuleStatus:
        """Have a rule drop, on trial, or only count."""

    async def undo(self, rule_id: str) -> RuleStatus:
        """Remove a rule."""

    async def whole(self, status: RuleStatus) -> Rule:
        """Return a rule with all of its sources, of which the screen may know the first."""

    async def why(self, rule_id: str) -> tuple[str, ...]:
        """Explain in sentences what a rule matches, or what keeps it from matching."""

    async def dissect(self, row: Source | Payload) -> Dissection | None:
        """Decode one packet of this row; None where there are no packets."""

    async def packets(self) -> PacketList | None:
        """Return the newest sampled packets, or those of a capture's window; None: there never are any."""

    async def dissect_packet(self, shown: PacketList, row: int) -> Dissection | None:
        """Decode a packet of a list; None where nothing can be decoded."""

    async def write_packets(self, shown: PacketList) -> str:
        """Write packets as a pcap file and return its path."""

    async def traffic(self, part: TrafficPart) -> PartTraffic | None:
        """Return a part of the traffic by itself; None where it can't be told from the rest."""

    async def ruleset(self) -> Ruleset | None:
        """Return every rule and set on the machine, as last read; None where there is none, or not yet."""

    async def trends(self, at: float) -> Trends:
        """Return the averages of the hour, the day and the 15 days before a time."""

    async def teach(self, said: str, attack: object) -> str:
        """Tell what learns what is normal that this was an attack, or is normal; return what it did.

        `attack` is the key of the one that is meant, None if none is.
        """

    async def export(self, format_name: str) -> str:
        """Write a report of the session so far and return its path."""


SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class PlayerState(Struct, frozen=True):
    """Where a player stands; times are Unix seconds of the recording."""

    begins: float
    ends: float
    position: float
    playing: bool = False
    speed: float = 1.0
    marks: tuple[Mark, ...] = ()  # the recording's events, by time
    whole: bool = False  # what is shown is not a moment but all of the recording (a capture's first view)
    note: str = ""  # what limits this recording, in a few words

    @property
    def span(self) -> float:
        """The recording's length in seconds."""
        return max(self.ends - self.begins, 0.0)


class Player(Protocol):
    """Plays a recording. All methods return at once; what they lead to comes as a snapshot."""

    @property
    def state(self) -> PlayerState | None:
        """Return where the player stands now; None until the recording is open."""

    def past(self) -> tuple[Past, ...]:
        """Return what the recording says of the minutes before the cursor."""

    def play(self, playing: bool) -> None:
        """Play or pause; at the end of the recording playing ends by itself."""

    def set_speed(self, speed: float) -> None:
        """Play at so many times real time."""

    def seek(self, at: float) -> None:
        """Go to a time and stay in the same state, playing or paused."""

    def step(self, count: int) -> None:
        """Pause, and go so many snapshots forward, or back if negative."""

    def skip(self, count: int) -> None:
        """Go to an event after (before, if negative) the cursor."""


class Feed(Protocol):
    """A source of snapshots, and the requests."""

    @property
    def controls(self) -> Controls:
        """Return the requests."""

    @property
    def session(self) -> str:
        """Return the name under which the session is stored; "" if it is not."""

    @property
    def player(self) -> Player | None:
        """Return what plays the recording; None for live traffic."""

    @property
    def is_new(self) -> bool:
        """Whether no screen has been used on this machine yet."""

    def welcomed(self) -> None:
        """Remember that one has been used now."""

    def past(self) -> tuple[Past, ...]:
        """Return what is known of the minutes before the snapshot shown.

        Of live traffic: before the first one, if a recorder was running.
        """

    def past_attacks(self) -> tuple[PastAttack, ...]:
        """Return the last attacks of earlier sessions of the same interfaces, the latest first."""

    def start(self, on_snapshot: Callable[[Snapshot], None], on_error: Callable[[Exception], None]) -> None:
        """Begin to deliver snapshots; both callbacks are thread-safe and return at once.

        `on_error` with a FwtopError, or before the first snapshot, is the last call: the screen closes with
        that error. Any other error is told, and the feed goes on.
        """

    def stop(self) -> None:
        """Stop, and wait at most a second for threads; called once, also after an error."""
