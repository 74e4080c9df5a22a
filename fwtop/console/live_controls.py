"""What the screen's keys do on a live console: requests to the guardian, previews, reports, dissection."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from fwtop.console.bootstrap import LiveConsole
from fwtop.console.controls import Looking, in_thread
from fwtop.console.guardian_link import GuardianLink
from fwtop.console.packet_ring import PacketRing, judged_packets
from fwtop.console.rules import read_ruleset
from fwtop.console.samples import SamplePackets, TrafficParts
from fwtop.dissect.client import Dissector
from fwtop.enrich.geoip import prefixes_of_asn, prefixes_of_country
from fwtop.model.errors import FwtopError
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.protocol import Answer, Apply, Keep, Plan, Repair, Undo, Why
from fwtop.model.rule import PlanView, Rule, RuleStatus
from fwtop.model.ruleset import Ruleset
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import Trends
from fwtop.store.history import FILE_NAME
from fwtop.store.trends import read_trends

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

    async def keep(self, rule_id: str, *, ttl_seconds: int | None = None) -> RuleStatus:
        """Confirm or renew a rule."""
        return await self._change(self._quick.demand, Keep(rule_id, ttl_seconds))

    async def repair(self, rule_id: str) -> RuleStatus:
        """Reinstall the parts of a rule that are missing from the kernel."""
        return await self._change(self._link.demand, Repair(rule_id))

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
        export=export,
        export_formats=_EXPORT_FORMATS,
    )


def _expand_origin(rule: Rule) -> Rule:
    """Expand a rule's origin `asn:N` or `country:CC` to prefixes; return other rules unchanged."""
    kind, _, name = (rule.origin or "").partition(":")
    if rule.match.sources or kind not in ("asn", "country"):
        return rule
    prefixes = prefixes_of_asn(int(name)) if kind == "asn" else prefixes_of_country(name)
    if not prefixes:
        line = f"the address database knows no prefixes of {safe_text(rule.origin)}; nothing was blocked"
        raise FwtopError(line)
    return replace(rule, match=replace(rule.match, sources=tuple(prefixes)))
