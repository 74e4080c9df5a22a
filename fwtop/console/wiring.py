"""Puts the parts of a live console together from what the launcher handed over."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from fwtop.advise.advisor import Advisor
from fwtop.advise.baseline import Baseline
from fwtop.advise.preview import preview
from fwtop.aggregate.engine import Engine
from fwtop.collect.live import LiveSource
from fwtop.collect.tcp_service import TcpServiceMeter
from fwtop.console.controls import LiveControls
from fwtop.console.guardian_link import GuardianLink
from fwtop.console.handoff import Handoff, Options
from fwtop.console.judging import standards
from fwtop.console.live import LiveSession
from fwtop.console.recorder import Recorder
from fwtop.enrich.geoip import open_lookup
from fwtop.enrich.prefixes import prefixes_of_asn, prefixes_of_country
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.preview import Preview
from fwtop.model.rule import Rule
from fwtop.model.snapshot import Origin, Snapshot
from fwtop.model.text import safe_text
from fwtop.store.baselines import BaselineStore

WINDOW_SECONDS = 3.0  # long enough for 60,000 samples, short enough to follow a pulse wave


@dataclass(frozen=True, slots=True)
class LiveConsole:
    """The parts of a live console that its modes use."""

    options: Options
    link: GuardianLink
    source: LiveSource
    session: LiveSession
    recorder: Recorder | None
    controls: LiveControls
    try_rule: Callable[[Rule], Preview]

    def take(self, snapshot: Snapshot) -> Snapshot:
        """Store a snapshot, and return it with the notes that storing left."""
        return snapshot if self.recorder is None else self.recorder.write(snapshot)

    def run(
        self, stop: threading.Event, tick_seconds: float, on_snapshot: Callable[[Snapshot], None]
    ) -> None:
        """Tick, store and deliver until told to stop."""
        self.session.run(stop, tick_seconds, lambda snapshot: on_snapshot(self.take(snapshot)))

    def close(self, *, clean: bool = True) -> None:
        """Store the end of the session and hang up."""
        if self.recorder is not None:
            self.recorder.close(clean=clean)
        with contextlib.suppress(OSError):
            self.source.close()
        self.link.close()


def build(
    options: Options, handoff: Handoff, descriptors: list[int], *, window_seconds: float | None
) -> LiveConsole:
    """Make the parts; raises FwtopError with a line for people."""
    link = GuardianLink(socket.socket(fileno=descriptors[0]))
    source = LiveSource(handoff.watch, dict(zip(handoff.names, descriptors[1:], strict=True)))
    origin = Origin("live", tuple(handoff.watch["interfaces"]), options.netns, None)
    host = safe_text(socket.gethostname(), limit=64)
    own = tuple(Prefix.parse(text) for text in handoff.watch.get("own", ()))
    lookup = open_lookup(options.geoip)
    recorder = Recorder(host, origin) if options.store else None
    # /sys shows the interfaces of the namespace that mounted it: not those of another one that is watched
    judging = standards(origin.interfaces if options.netns is None else ())
    advisor = Advisor(judging.config, baseline=_stored_baseline(host, options))
    engine = Engine(lookup, window_seconds=window_seconds, top=options.top, live=True, own=own)
    notes = [safe_text(warning) for warning in handoff.watch.get("warnings", ())]
    notes += judging.notes
    session = LiveSession(
        link, source, engine, advisor, TcpServiceMeter(), host=host, origin=origin, notes=notes
    )
    if recorder is not None:
        recorder.baseline = advisor.baseline.to_bytes

    def try_rule(rule: Rule) -> Preview:
        # The baseline learns at every judgement, on the observing thread.
        with session.judging:
            if session.latest is None:
                raise FwtopError("nothing has been observed yet; try again in a second")
            return preview(rule, session.latest, advisor.baseline, advisor.config)

    def export(format_name: str) -> str:
        if recorder is None:
            raise FwtopError("this session is not stored, so there is nothing to report on")
        return recorder.export(format_name)

    controls = LiveControls(
        link,
        preview=try_rule,
        expand=expand_origin,
        export=export,
        changed=session.rules_changed,
        readonly="started with --readonly" if options.readonly else "",
    )
    return LiveConsole(options, link, source, session, recorder, controls, try_rule)


def _stored_baseline(host: str, options: Options) -> Baseline | None:
    """Return what was normal here before; a rule's preview wants it too, though it stores nothing."""
    wanted = options.store or options.mode == "trial"
    stored = BaselineStore().get(host, options.netns) if wanted else None
    try:
        return Baseline.from_bytes(stored) if stored else None
    except ValueError:
        return None  # of another version, or damaged: a new one is learnt


def expand_origin(rule: Rule) -> Rule:
    """Fill in the prefixes of `asn:N` or `country:CC` where the rule names its sources so."""
    kind, _, name = (rule.origin or "").partition(":")
    if rule.match.sources or kind not in ("asn", "country"):
        return rule
    prefixes = prefixes_of_asn(int(name)) if kind == "asn" else prefixes_of_country(name)
    if not prefixes:
        raise FwtopError(
            f"the address database knows no prefixes of {safe_text(rule.origin)}; nothing was blocked"
        )
    return dataclasses.replace(rule, match=dataclasses.replace(rule.match, sources=tuple(prefixes)))
