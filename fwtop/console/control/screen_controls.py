"""Build what the screen's keys do on a live console."""

from __future__ import annotations

import socket

from msgspec.structs import replace

from fwtop.console.bootstrap import LiveConsole
from fwtop.console.control.controls import LiveControls
from fwtop.console.packets.packet_lists import LivePackets
from fwtop.console.packets.packet_ring import PacketRing
from fwtop.console.packets.samples import SamplePackets
from fwtop.console.traffic_parts import TrafficParts
from fwtop.dissect.client import Dissector
from fwtop.enrich.prefixes import prefixes_of_asn, prefixes_of_country
from fwtop.model.errors import FwtopError
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.history import Trends
from fwtop.store.history_schema import FILE_NAME
from fwtop.store.trends import read_trends


def live_controls(console: LiveConsole, ring: PacketRing) -> LiveControls:
    """Return the controls of a console whose newest packets `ring` keeps."""
    options, session, advisor = console.options, console.session, console.advisor
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

    return LiveControls(
        link,
        quick=quick,
        preview=console.preview,
        expand=expand_origin,
        samples=SamplePackets(console.latest_window, console.lookup, dissector),
        packets=LivePackets(
            lambda: ring.latest, lambda: (session.statuses, session.allowed, advisor.standing)
        ),
        parts=TrafficParts(lambda: advisor.judged, session.mark, console.lookup, options.top),
        trends=trends,
        export=export,
        changed=session.rules_changed,
        readonly="started with --readonly" if options.readonly else "",
    )


def expand_origin(rule: Rule) -> Rule:
    """Expand a rule's origin `asn:N` or `country:CC` to prefixes; return other rules unchanged."""
    kind, _, name = (rule.origin or "").partition(":")
    if rule.match.sources or kind not in ("asn", "country"):
        return rule
    prefixes = prefixes_of_asn(int(name)) if kind == "asn" else prefixes_of_country(name)
    if not prefixes:
        raise FwtopError(
            f"the address database knows no prefixes of {safe_text(rule.origin)}; nothing was blocked"
        )
    return replace(rule, match=replace(rule.match, sources=tuple(prefixes)))
