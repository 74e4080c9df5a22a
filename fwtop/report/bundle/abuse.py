"""Mails to the networks whose machines took part; never about forged sources."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.text import safe_text
from fwtop.render.numbers import plural
from fwtop.render.observation import rfc3339
from fwtop.report.bundle.senders import Sender
from fwtop.report.facts.spans import AttackSpan
from fwtop.report.summary import Digest

_MOST_MAILS, _MOST_LINES = 200, 200
_PORT_SHARE = 0.1  # of an attack's packets: others are hit by chance, and would mislead who looks for it
_REFLECTED = ("_amplification", "_reflection")
_REFLECTOR = (
    "The machines below answer requests that an attacker sends in our name, and so flood us with answers.",
    "They are probably not compromised, but open to everybody: please restrict who may ask them.",
)
_SENDER = (
    "The machines below sent us the packets of this attack. Their addresses don't look forged: please look",
    "after them, as they are probably compromised.",
)


def abuse_mails(digest: Digest, found: Sequence[Sender]) -> dict[str, str]:
    """Return a mail for each network, those with the most senders first."""
    networks: dict[int, list[Sender]] = {}
    for sender in found:
        if sender.asn is not None:
            networks.setdefault(sender.asn, []).append(sender)
    ranked = sorted(networks.items(), key=lambda item: (-len(item[1]), item[0]))
    spans = {span.kind: span for span in digest.spans}
    return {f"abuse/AS{asn}.txt": _mail(digest, asn, mine, spans) for asn, mine in ranked[:_MOST_MAILS]}


def _mail(digest: Digest, asn: int, found: Sequence[Sender], spans: dict[str, AttackSpan]) -> str:
    name = next((sender.as_name for sender in found if sender.as_name), "")
    titles = ", ".join(dict.fromkeys(sender.title for sender in found))
    lines = [
        f"To: the abuse contact of AS{asn} {name}".rstrip(),
        f"Subject: Attack from AS{asn}: {titles}, {rfc3339(min(sender.first for sender in found))[:10]}",
        "",
        "Hello,",
        "",
    ]
    for kind in dict.fromkeys(sender.kind for sender in found):
        mine = [sender for sender in found if sender.kind == kind]
        span = spans.get(kind)
        lines += _attack(mine, span)
    lines += [
        "Rates are estimates from sampled packets. Times are UTC. Packets are available on request.",
        f"Recorded on {digest.info.host} by fwtop {digest.info.version}, session {digest.info.id}.",
    ]
    return "\n".join(lines) + "\n"


def _attack(mine: Sequence[Sender], span: AttackSpan | None) -> list[str]:
    title = mine[0].title
    lines = [f"{title}: {plural(len(mine), 'machine')} of yours."]
    lines += _REFLECTOR if mine[0].kind.endswith(_REFLECTED) else _SENDER
    if span is not None:
        targets = [safe_text(row.key) for row in span.detail.tables.get("target", ())]
        rows = span.detail.tables.get("port", ())
        ports = [safe_text(row.key) for row in rows if row.share >= _PORT_SHARE]
        lines += [f"Target: {', '.join(targets[:3])}"] if targets else []
        lines += [f"Ports: {', '.join(ports[:3])}"] if ports else []
    lines.append("")
    for sender in mine[:_MOST_LINES]:
        lines.append(
            f"  {sender.address!s:<40} {rfc3339(sender.first)} to {rfc3339(sender.last)}  "
            f"about {sender.peak_pps:,.1f} packets/s"
        )
    left = len(mine) - _MOST_LINES
    return [*lines, *([f"  and {left:,} more"] if left > 0 else []), ""]
