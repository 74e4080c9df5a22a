"""The screen on live traffic: its feed, and what its keys ask of the guardian."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from fwtop.console.bootstrap import WINDOW_SECONDS, LiveConsole
from fwtop.console.controls import Looking, in_thread
from fwtop.console.frugal import keep_out_of_collections
from fwtop.console.guardian_link import GuardianLink
from fwtop.console.handoff import Handoff, Options
from fwtop.console.packet_ring import PacketRing, judged_packets
from fwtop.console.playback.replay import find_earlier
from fwtop.console.rules import read_ruleset
from fwtop.console.samples import SamplePackets, TrafficParts
from fwtop.dissect.client import Dissector
from fwtop.enrich.geoip import prefixes_of_origin
from fwtop.model.addresses.address import ASN, COUNTRY
from fwtop.model.errors import FwtopError
from fwtop.model.files import ConfigText
from fwtop.model.messages import Answer
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.protocol import Apply, Keep, Plan, Repair, RuleChange, RuleMode, Undo, Why
from fwtop.model.rule import Mode, PlanView, Rule, RuleStatus
from fwtop.model.ruleset import Ruleset
from fwtop.model.traffic.session import PastAttack, Trends
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.store.history import FILE_NAME
from fwtop.store.trends import read_trends
from fwtop.ui.app import FwtopApp
from fwtop.ui.lists.history import Past
from fwtop.ui.settings import read_settings

_STARTED_SNAPSHOTS = 4  # by then widgets, styles and the first window are there
OnSnapshot = Callable[[Snapshot], None]
OnError = Callable[[Exception], None]
_JOIN_SECONDS = 10.0  # for what is being observed; a tick takes seconds on an overloaded machine
_USED = STATE_DIRECTORY / "screen-used"


class LiveFeed:
    """Observes on a thread of its own."""

    def __init__(self, console: LiveConsole, ring: PacketRing, tick_seconds: float) -> None:
        self.controls = live_controls(console, ring)
        self._console = console
        self._tick_seconds = tick_seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def session(self) -> str:
        """The name of the session's file; "" while none is stored."""
        recorder = self._console.recorder
        return "" if recorder is None else recorder.name

    @property
    def player(self) -> None:
        """Live traffic isn't played."""
        return

    @property
    def is_new(self) -> bool:
        """Whether no screen has been used here yet."""
        return not _USED.exists()

    def welcomed(self) -> None:
        """Remember that one has been used; where that can't be written, the next session greets again."""
        with suppress(OSError):
            _USED.touch()

    def past(self) -> tuple[Past, ...]:
        """Return what a recorder saw before the screen was opened."""
        earlier = self._console.earlier
        return () if earlier is None else earlier.past

    def past_attacks(self) -> tuple[PastAttack, ...]:
        """Return what sessions before this one stored."""
        return () if self._console.earlier is None else self._console.earlier.over

    def start(self, on_snapshot: OnSnapshot, on_error: OnError) -> None:
        """Begin observing."""

        shown = itertools.count(1)

        def deliver(snapshot: Snapshot) -> None:
            if next(shown) == _STARTED_SNAPSHOTS:
                keep_out_of_collections()
            on_snapshot(replace(self._console.take(snapshot), wants=self._console.wants))

        def observe() -> None:
            while not self._stop.is_set():
                try:
                    self._console.session.run(self._stop, self._tick_seconds, deliver)
                except Exception as error:
                    if not self._stop.is_set():
                        on_error(error)
                    if isinstance(error, FwtopError | MemoryError):
                        return
                    self._stop.wait(self._tick_seconds)

        self._thread = threading.Thread(target=observe, name="observe", daemon=True)
        self._thread.start()

    @property
    def is_observing(self) -> bool:
        """Whether its thread works on what it observes and records."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """End observing; what hangs goes on."""
        self._stop.set()
        self.controls.close()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)


_TICK_SECONDS = 0.5
_SLOW_TICK_SECONDS = 2.0


def run_screen(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Show live traffic until the operator quits; returns the exit status."""
    ring = PacketRing()
    console = LiveConsole(
        options, handoff, descriptors, window_seconds=WINDOW_SECONDS, find_earlier=find_earlier, ring=ring
    )
    settings = read_settings(ConfigText(*file) for file in handoff.settings)
    slow = options.slow or settings.settings().slow is True
    feed = LiveFeed(console, ring, _SLOW_TICK_SECONDS if slow else _TICK_SECONDS)
    clean, status = False, 1
    try:
        status = FwtopApp(feed, slow=slow, settings=settings).run_to_exit()
        clean = True
        return status
    finally:
        if feed.is_observing:  # to close a database under a statement is a segmentation fault
            sys.stdout.flush()
            os._exit(status)
        console.close(clean=clean)


_EXPORT_FORMATS = ("html", "md", "json")


class LiveControls(Looking):
    """Actions on a running guardian."""

    def __init__(
        self,
        link: GuardianLink,
        quick: GuardianLink,
        changed: Callable[[], None],
        readonly: str,
        **looking: Any,  # noqa: ANN401 - those of `Looking`
    ) -> None:
        """Keep and undo use the `quick` link, so that they need not wait for slow requests."""
        super().__init__(readonly, **looking)
        self._link = link
        self._quick = quick
        self._on_change = changed

    async def expand(self, rule: Rule) -> Rule:
        """Expand an AS or a country to its prefixes."""
        return await in_thread(_expand_origin, rule)

    async def plan(self, rule: Rule, *, follows: bool = False) -> PlanView:
        """Ask the guardian which commands it would run."""
        answer = await in_thread(self._link.demand_for_rule, Plan({}, follows=follows), rule)
        data = answer.data
        return PlanView(
            commands=tuple(data["commands"]),
            warnings=tuple(data["warnings"]),
            refused=data["refused"] or "",
            needs_force=data["needs_force"] or "",
        )

    async def apply(self, rule: Rule, *, force: bool = False) -> RuleStatus:
        """Install a rule provisionally."""
        request = Apply({}, confirm_seconds=self.confirm_seconds, force=force)
        return await self._change(self._link.demand_for_rule, request, rule)

    async def change(self, rule: Rule, stamp: int, *, force: bool = False) -> RuleStatus:
        """Have an active rule be this one, in place and on trial, if it still has this stamp."""
        request = RuleChange(rule.id, {}, self.confirm_seconds, force=force, if_stamp=stamp)
        return await self._change(self._link.demand_for_rule, request, rule)

    async def keep(self, rule_id: str, *, ttl_seconds: int | None = None) -> RuleStatus:
        """Confirm or renew a rule."""
        return await self._change(self._quick.demand, Keep(rule_id, ttl_seconds))

    async def repair(self, rule_id: str) -> RuleStatus:
        """Reinstall the parts of a rule that are missing from the kernel."""
        return await self._change(self._link.demand, Repair(rule_id))

    async def mode(self, rule_id: str, mode: Mode) -> RuleStatus:
        """Have a rule drop, on trial, or only count."""
        request = RuleMode((rule_id,), mode, self.confirm_seconds)
        return await self._change(self._link.demand, request)

    async def undo(self, rule_id: str) -> RuleStatus:
        """Remove a rule."""
        return await self._change(self._quick.demand, Undo((rule_id,)))

    async def _change(self, ask: Callable[..., Answer], *words: object) -> RuleStatus:
        """Ask for a change of a rule, after which the rules are polled at once."""
        if self.readonly:
            raise FwtopError(f"nothing was changed: {self.readonly}")
        data = (await in_thread(ask, *words)).data
        self._on_change()
        return RuleStatus.from_dict(data["status"] if "status" in data else data["rules"][0])

    async def whole(self, status: RuleStatus) -> Rule:
        """Ask the guardian for the sources that the screen does not know."""
        if not status.sources_left or status.rule.list_name is not None:
            return status.rule
        return await in_thread(self._link.whole_rule, status.rule.id)

    async def why(self, rule_id: str) -> tuple[str, ...]:
        """Ask the guardian what the rule matches, or what prevents it from matching."""
        return tuple((await in_thread(self._link.demand, Why(rule_id))).data["sentences"])

    async def ruleset(self) -> Ruleset | None:
        """Return every rule and set on the machine, as the guardian last read them."""
        return await in_thread(read_ruleset, self._link)


def live_controls(console: LiveConsole, ring: PacketRing) -> LiveControls:
    """Return the controls of a console whose newest packets `ring` keeps."""
    options, session, advisor = console.options, console.session, console.advisor
    rules = session.rules
    link, quick, _ = console.links
    dissector = None
    if options.dissector_fd is not None:
        dissector = Dissector(socket.socket(fileno=options.dissector_fd))

    def export(format_name: str) -> str:
        if console.recorder is None:
            raise FwtopError("this session is not stored, so there is nothing to report on")
        return console.recorder.export(format_name, dissector.dissect if dissector is not None else None)

    def trends(at: float) -> Trends:
        origin = console.origin
        return read_trends(STATE_DIRECTORY / FILE_NAME, at, interfaces=origin.interfaces, netns=origin.netns)

    def teach(said: str, attack: object) -> str:
        session.rules_changed()  # judge soon
        return advisor.learner.hear(said, attack)

    return LiveControls(
        link,
        quick,
        session.rules_changed,
        "started with --readonly" if options.readonly else "",
        preview=console.preview,
        samples=SamplePackets(console.latest_window, console.lookup, dissector),
        packets=lambda: judged_packets(ring.latest, rules.statuses, rules.allowed, advisor.standing),
        parts=TrafficParts(lambda: advisor.judged, session.mark, console.lookup, options.top),
        trends=trends,
        teach=teach,
        export=export,
        export_formats=_EXPORT_FORMATS,
    )


def _expand_origin(rule: Rule) -> Rule:
    """Expand a rule's origin `asn:N` or `country:CC` to prefixes; return other rules unchanged."""
    if rule.match.sources or not rule.origin or not rule.origin.startswith((ASN, COUNTRY)):
        return rule
    return replace(rule, match=replace(rule.match, sources=tuple(prefixes_of_origin(rule.origin))))
