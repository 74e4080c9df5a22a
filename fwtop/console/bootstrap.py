"""Build a live console from the launcher's handoff."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fwtop.analysis.memory import Baseline
from fwtop.console.frugal import RefreshRate
from fwtop.console.guardian_link import GuardianLink
from fwtop.console.handoff import Handoff, Options
from fwtop.console.judging import failure_line, load_config
from fwtop.console.live import LiveSession, RulePreviews
from fwtop.console.recorder import Recorder
from fwtop.console.samples import EvidenceSampler, TrafficParts
from fwtop.console.wants import wants
from fwtop.enrich.geoip import GeoLookup, open_cities, open_lookup
from fwtop.incidents.advisor import Advisor
from fwtop.live.connections import ConnectionMeter, TcpServiceMeter
from fwtop.live.source import FEWER_SAMPLES, SAMPLES_PER_SECOND, LiveSource
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import Role
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Rescan, Symbols, Undo
from fwtop.model.text import safe_text
from fwtop.model.traffic.packets import Window
from fwtop.model.traffic.snapshot import Origin, Snapshot, Want
from fwtop.observe.messages import decode_observation
from fwtop.stats.engine import Engine
from fwtop.store.baselines import BaselineStore

if TYPE_CHECKING:  # a recorder does without them
    from fwtop.console.packet_ring import PacketRing
    from fwtop.console.playback.replay import Earlier

WINDOW_SECONDS = 3.0  # 60,000 samples; short enough to follow a pulse wave
_STORED_ROWS = 30  # of each of an attack's tables
_ASIDE_SECONDS = 0.5  # limit for the observing thread's other requests, so that no tick is late


class LiveConsole:
    """The parts of a live console that its modes share."""

    def __init__(
        self,
        options: Options,
        handoff: Handoff,
        descriptors: list[int],
        *,
        window_seconds: float | None,
        find_earlier: Callable[[Origin], Earlier] | None = None,
        ring: PacketRing | None = None,
    ) -> None:
        """Connect, and read what is stored; raises FwtopError.

        `find_earlier` looks for what another process saw of these interfaces; `ring` keeps newest packets.
        """
        self.options = options
        link = GuardianLink(socket.socket(fileno=descriptors[0]))
        # Three connections, so that slow requests delay neither keep and undo nor the observation.
        quick, watching = link.another(), link.another()
        self.links = (link, quick, watching)
        observation = decode_observation(handoff.watch)
        watched = options.mode != "record" or options.jsonl_fd is not None
        self.source = LiveSource(
            observation,
            dict(zip(handoff.names, descriptors[1:], strict=True)),
            ask_symbols=lambda: _names(watching),
            renew_scope=lambda: _rescan(watching),
            samples=SAMPLES_PER_SECOND if watched else FEWER_SAMPLES,  # of a flood: half of memory and time
        )
        self.origin = Origin(
            "live", tuple(safe_text(item.name) for item in observation.interfaces), options.netns
        )
        self.host = safe_text(socket.gethostname(), limit=64)
        own = tuple(Prefix.parse(text) for text in observation.own_addresses)
        self.lookup = open_lookup(options.geoip)
        # /sys shows the interfaces of the namespace that mounted it, not of another watched one.
        loaded = load_config(self.origin.interfaces if options.netns is None else ())
        config = replace(loaded.config, beside_netfilter=frozenset(observation.beside_netfilter))
        earlier = find_earlier(self.origin) if find_earlier is not None else None
        self.earlier = earlier  # None: it looked for no other process's session
        beside = earlier is not None and earlier.path is not None
        # A dry run needs it, although it records nothing, and so does a screen beside a recorder.
        wanted = options.store or beside or options.mode == "dry_run"
        baseline = _stored_baseline(self.host, options.netns) if wanted else None
        known = earlier.attacks if earlier is not None else ()
        self.advisor = Advisor(config, baseline=baseline, lookup=self.lookup, known=known)
        self.session = LiveSession(
            watching,
            self.source,
            Engine(self.lookup, window_seconds=window_seconds, top=options.top, live=True, own=own),
            self.advisor,
            TcpServiceMeter(),
            host=self.host,
            origin=self.origin,
            notes=(*map(safe_text, observation.warnings), *loaded.notes),
            late=lambda: link.late() + quick.late(),
            connections=ConnectionMeter(),
            refresh=RefreshRate(watched=watched),
            ring=ring,
            undo=None if options.readonly or options.mode == "dry_run" else self._undo,
        )
        self.preview = RulePreviews(lambda: self.session.latest, self.advisor.config).preview
        self.recorder = self._recorder() if options.store else None
        if self.recorder is not None and not beside:  # else the other's is kept, which has seen more
            self.recorder.baseline = self.advisor.baseline.to_bytes

    def _undo(self, rule_id: str, why: str) -> None:
        self.links[1].demand(Undo((rule_id,), why=why), seconds=_ASIDE_SECONDS)

    def _recorder(self) -> Recorder:
        parts = TrafficParts(lambda: self.advisor.judged, self.session.mark, self.lookup, _STORED_ROWS)
        return Recorder(
            self.host,
            self.origin,
            lookup=self.lookup,
            cities=open_cities(self.options.geoip),
            window=self.latest_window,
            evidence=EvidenceSampler(lambda: self.advisor.judged, parts.once).take,
            geoip=self.lookup.describe() if isinstance(self.lookup, GeoLookup) else "",
        )

    @property
    def wants(self) -> tuple[Want, ...]:
        """What would help in an attack and isn't set up."""
        allowed = self.session.rules.allowed
        allow = any(peer.role is Role.OPERATOR for peer in allowed)
        return wants(allow=allow, geoip=isinstance(self.lookup, GeoLookup))

    def take(self, snapshot: Snapshot) -> Snapshot:
        """Record a snapshot; return it with a note if recording fails."""
        if self.recorder is None:
            return snapshot
        try:
            return self.recorder.write(snapshot)
        except Exception as failure:
            return replace(snapshot, notes=(*snapshot.notes, failure_line("recording", failure)))

    def latest_window(self) -> Window | None:
        """Return the window of the last tick."""
        return None if self.session.latest is None else self.session.latest.window

    def close(self, *, clean: bool = True) -> None:
        """End the recording and disconnect from the guardian."""
        if self.recorder is not None:
            self.recorder.close(clean=clean)
        with contextlib.suppress(OSError):
            self.source.close()
        for link in self.links:
            link.close()


def _names(link: GuardianLink) -> list[str]:
    """Ask the guardian which functions drop packets; on failure drops are counted without locations."""
    try:
        answer = link.ask(Symbols(), seconds=_ASIDE_SECONDS)
    except FwtopError:
        return []
    return [str(name) for name in answer.data.get("names", ())]


def _rescan(link: GuardianLink) -> None:
    with contextlib.suppress(FwtopError):  # the screen reports a lost guardian
        link.ask(Rescan(), seconds=_ASIDE_SECONDS)


def _stored_baseline(host: str, netns: str | None) -> Baseline | None:
    """Return the baseline of earlier sessions, or of one that is running."""
    stored = BaselineStore().get(host, netns)
    try:
        return Baseline.from_bytes(stored) if stored else None
    except ValueError:
        return None  # another version, or damaged: learn a new one
