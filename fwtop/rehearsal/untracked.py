"""What this host's own rules would drop of logins and answers that are no longer tracked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from fwtop.model.rule import Kind, Match
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP
from fwtop.netfilter.own_verdicts import HostRules, Probe
from fwtop.netfilter.saved import Packets
from fwtop.rehearsal.logins import ACK, SYN, SYN_ACK, answers, login
from fwtop.rehearsal.rehearse import matches

_CLIENT, _SERVER = 40_000, 443


def why_lost(match: Match, ports: Iterable[int], rules: HostRules) -> str | None:
    """Say in a sentence what would be dropped because it is no longer tracked, None if nothing would."""
    for what, probe in (*_logins(match, ports), *_asked(match)):
        verdict = rules.lost(probe)
        if verdict is not None:
            by = f"'{safe_text(verdict.by, limit=140)}'" if verdict.by else "what lets them pass now"
            return f"{what} would be dropped by this host's own rules: untracked, they don't meet {by}"
    return None


def _logins(match: Match, ports: Iterable[int]) -> Iterator[tuple[str, Probe]]:
    """Yield the packets of logins that a match is about, as they are while tracked."""
    for port in sorted(ports):
        for family in match.families:
            segments = [item for client in login(port, family) for item in client]
            met = {item.step for item in segments if matches(Kind.NOTRACK, match, item)}
            there, back = Packets(TCP, _CLIENT, port), Packets(TCP, port, _CLIENT)
            if "SYN" in met:
                yield "new SSH logins", Probe(family, True, SYN, there, "NEW")
            if met - {"SYN"}:
                yield "new SSH logins", Probe(family, True, ACK, there, "ESTABLISHED")
            if met and match.tcp_flags is None:
                yield "answers to SSH logins", Probe(family, False, SYN_ACK, back, "ESTABLISHED")


def _asked(match: Match) -> Iterator[tuple[str, Probe]]:
    """Yield the answers to this host that a match is about."""
    port, anywhere = match.sport or _SERVER, replace(match, sport=None)
    for family in match.families:
        if any(matches(Kind.NOTRACK, anywhere, item) for item in answers(family)):
            what = "answers to connections that this host opens"
            yield what, Probe(family, True, SYN_ACK, Packets(TCP, port, _CLIENT), "ESTABLISHED")
