"""What answers of UDP services have in common, from whatever port they come."""

from __future__ import annotations

from fwtop.analysis.engine.entries import Group, feature
from fwtop.analysis.parsers import dns
from fwtop.analysis.parsers.icmp import quoted_datagrams, quoted_requests
from fwtop.analysis.parsers.services import BY_PORT, Service
from fwtop.analysis.window.counting import marked
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import UDP
from fwtop.model.rule import Match
from fwtop.render.numbers import percent, plural

IMITATIONS = -5.0  # log-odds of spoofing: what only looks like an answer may be forged
REFLECTED = "dropping what comes from the service's port, or a signature of the answers"


def best_service(features: Features, port: int) -> tuple[Service, float | None]:
    """Return the service of a port that the payloads fit best, and the share that fits."""
    fits = [(service, _fit(service, features)) for service in BY_PORT[port]]
    return max(fits, key=lambda pair: -1.0 if pair[1] is None else pair[1])


def _fit(service: Service, features: Features) -> float | None:
    """Return the share of payloads that are answers of this service; None if too few bytes were captured."""
    matrix, length = features.head
    enough = length >= 4
    if service.shape is None or marked(enough) < 10:
        return None
    return marked(service.shape(matrix, length) & enough) / marked(enough)


def answer_notes(service: Service, fit: float | None, used: list[int]) -> dict[str, object]:
    """Return what hypotheses about answers of a service want to know; `used` are its ports."""
    return {
        "service": service.name,
        "service_title": service.title,
        "asked": service,
        "used": used,
        "fit": -1.0 if fit is None else fit,
        "origin": f"from port {', '.join(map(str, used[:4]))}" if used else "from various ports",
    }


def servers(group: Group) -> list[str]:
    """Write how many servers answer."""
    features = group.packets
    return [
        f"{features.amount('unsolicited UDP packets')} {group.notes['origin']} of "
        f"{plural(features.sources, 'server')}, mean length {features.mean_length:.0f} bytes"
    ]


def contents(group: Group) -> list[str]:
    """Write which share is answers of the service, names that DNS asks for, and what ICMP errors quote."""
    service, fit = group.notes["asked"], group.notes["fit"]
    lines = []
    if service.shape is not None and fit >= 0:
        only = f"{percent(fit)} of the payloads are {service.title} answers"
        lines.append(
            only if fit >= 0.5 else f"only {percent(fit)} of the payloads look like {service.title} answers"
        )
    if service.name in ("dns", "mdns", "llmnr"):
        sentences, group.notes["dns_name"] = dns.answer_evidence(group.packets)
        lines += sentences
    notes = group.context.notes
    if "quoted" not in notes:
        notes["quoted"] = quoted_datagrams(group.context.traffic)
    request = quoted_requests(notes["quoted"], group.notes["used"])
    return [*lines, request] if request else lines


def match_answers(group: Group) -> Match:
    """Match UDP from the one port that the service uses."""
    used, dport = group.notes["used"], group.packets.top("dport")
    return Match(
        protocol=UDP,
        sport=used[0] if len(used) == 1 else None,
        dport=dport.value if dport.share > 0.98 and not used else None,
    )


@feature("share")
def valid_answers(group: Group) -> float:
    """Part of the payloads that are answers of the service; -1 if too few bytes were captured to tell."""
    return float(group.notes["fit"])


@feature("yes or no")
def one_to_one(group: Group) -> float:
    """Whether few sources send packets of many sizes in long flows: conversations."""
    features = group.packets
    return (
        features.sources < 20
        and features.flow_singles < 0.1
        and features.top("ip_length").distinct > features.sources
    )
