"""What UDP payloads are: empty, alike, random, questions to a service or its answers, from whatever port."""

from __future__ import annotations

import numpy as np

from fwtop.analysis.engine.entries import Group, feature, noted
from fwtop.analysis.measures import conversations
from fwtop.analysis.measures.conversations import framed
from fwtop.analysis.parsers import dns, tls
from fwtop.analysis.parsers.services import BY_PORT, COLLECTORS, FIRST_OF_QUIC, QUESTIONS, Service
from fwtop.analysis.window.counting import count_distinct, marked
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import ICMP, UDP, Traffic, distinct_texts, mix, payload
from fwtop.model.rule import Match, PayloadMatch
from fwtop.model.text import payload_text
from fwtop.model.traffic.packets import I64, U8
from fwtop.render.numbers import percent, plural
from fwtop.rules.words import bytes_text

_BEGIN = 8  # payload bytes that a tool keeps constant
_FORGED = 0.7  # probability
_ENCRYPTED = 7.5  # bits a byte, of payloads together
_QUOTED = 48  # bytes of a packet that an ICMP error quotes
_HARDLY, _ALL = 0.2, 0.95  # of the payloads
_SEVERAL = "requests of several services"
IMITATIONS = -5.0  # log-odds of spoofing: what only looks like an answer may be forged
REFLECTED = "dropping what comes from the service's port, or a signature of the answers"


@feature("share")
def common_beginning(group: Group) -> float:
    """Part of eight or more sources' payloads with the same first bytes, of no known protocol."""
    features = group.packets
    if features.sources < 8 or features.top("dport").value in BY_PORT:
        return 0.0
    matrix, held = features.head
    begin = matrix[held >= _BEGIN, :_BEGIN]
    if len(begin) < max(50, 0.9 * len(matrix)) or group[all_zeros] or features.payload_variety < 0.02:
        return 0.0
    return float((begin == begin[0]).all(1).mean())


def beginning(group: Group) -> list[str]:
    """Write the bytes that all payloads begin with."""
    if group[common_beginning] <= 0.95:
        return []
    matrix, held = group.packets.head
    first = matrix[held >= _BEGIN, :_BEGIN][0].tobytes()
    return [f"the payloads from all sources begin with {bytes_text(PayloadMatch(first))}"]


@feature("yes or no")
def empty(group: Group) -> float:
    """Whether the packets carry no payload."""
    return not group[unseen] and not (group.packets.head[1] > 0).any()


@feature("yes or no")
def all_zeros(group: Group) -> float:
    """Whether the payload is all zeros."""
    return not group[unseen] and group.packets.zero_bytes > 0.95


@feature("yes or no")
def identical(group: Group) -> float:
    """Whether all payloads are the same, and not empty or zero."""
    features = group.packets
    told = not (group[unseen] or group[empty] or group[all_zeros])
    return told and features.n >= 50 and conversations.variety(features) < 0.02


@feature("yes or no")
def random_payload(group: Group) -> float:
    """Whether the payload is random and not QUIC's; forged packets are never taken for QUIC."""
    return group[encrypted] and not group[quic_packets]


@feature("yes or no")
def quic_packets(group: Group) -> float:
    """Whether random payloads are packets of QUIC connections; forged sources can't open one."""
    return group[encrypted] and tls.looks_like_quic(*group.packets.head) and group.spoof.probability < _FORGED


@feature("yes or no")
def encrypted(group: Group) -> float:
    """Whether the payload is encrypted or drawn at random."""
    features = group.packets
    if group[unseen] or group[empty] or group[all_zeros] or group[identical]:
        return False
    return features.payload_entropy > _ENCRYPTED and features.payload_variety > 0.9


@feature("share")
def replayed(group: Group) -> float:
    """Part of random payloads that their flow has sent before; 0 where payloads aren't random.

    What is encrypted never repeats itself, a recording does. Half may where a mirror shows each packet twice.
    """
    features, traffic = group.packets, group.packets.traffic
    if features.payload_entropy < _ENCRYPTED:
        return 0.0
    matrix, held = payload(traffic.packets, features.rows, 2 * _BEGIN)
    said = mix(traffic.flow_key[features.rows], distinct_texts(matrix))[held == 2 * _BEGIN]
    return 1 - count_distinct(said) / len(said) if len(said) else 0.0


@feature("yes or no")
def random_once(group: Group) -> float:
    """Whether a hundred or more sources send random payloads once a flow; no protocol starts like that."""
    features = group.packets
    return group[random_payload] and features.flow_singles > 0.9 and features.sources >= 100


@feature("yes or no")
def unseen(group: Group) -> float:
    """Whether too few payload bytes were captured to tell their content."""
    return conversations.hidden(group.packets)


@feature("share")
def questions(group: Group) -> float:
    """Part that asks a known service: game servers, SIP, STUN, NTP, SSDP, QUIC, TFTP."""
    return _asked(group)[0]


@feature("share")
def only_quic_openings(group: Group) -> float:
    """Part that opens QUIC connections: of clients', packets of the connection follow."""
    part, title = _asked(group)
    return part if title == FIRST_OF_QUIC else 0.0


def asked(group: Group) -> list[str]:
    """Write what the packets request."""
    part, title = _asked(group)
    return [f"{percent(part)} are {title}"] if part > 0.5 else []


def of_requests(group: Group) -> str:
    """Return what a title says of nothing but requests of one service, "" if it is something else."""
    part, title = _asked(group)
    return f" of {title}" if part > _ALL and title != _SEVERAL else ""


def _asked(group: Group) -> tuple[float, str]:
    """Return the part that asks known services, and which if it is mostly one."""
    if "requests" not in group.notes:
        features = group.packets
        heads, n = features.head, len(features.head[0])
        dport = features.traffic.packets.dport[features.sample]
        found, every = [(0, _SEVERAL)], np.zeros(n, np.bool_)
        for title, port, shape in QUESTIONS:
            if port is not None and not (to_port := dport == port).any():
                continue
            fits = shape(*heads) if port is None else shape(*heads) & to_port
            found.append((marked(fits), title))
            every |= fits
        part = float(every.mean()) if n else 0.0
        count, title = max(found)
        group.notes["requests"] = (part, title if count > n / 2 else found[0][1]) if part > 0.5 else (0.0, "")
    result: tuple[float, str] = group.notes["requests"]
    return result


@feature("yes or no")
def not_reports(group: Group) -> float:
    """Whether they go to a collector's port, and are neither its reports nor begin alike."""
    features, dport = group.packets, group.packets.top("dport")
    if dport.value not in COLLECTORS or dport.share < 0.9 or group[unseen]:
        return False
    return conversations.reported(features) < _HARDLY and framed(*features.head) < _HARDLY


def quic_headers(group: Group) -> list[str]:
    """Write which version of QUIC their headers name."""
    return tls.quic_evidence(group.packets)


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
        notes["quoted"] = _quoted_datagrams(group.context.traffic)
    request = _quoted_requests(notes["quoted"], group.notes["used"])
    return [*lines, request] if request else lines


def match_answers(group: Group) -> Match:
    """Match UDP from the one port that the service uses."""
    used, dport = group.notes["used"], group.packets.top("dport")
    return Match(
        protocol=UDP,
        sport=used[0] if len(used) == 1 else None,
        dport=dport.value if dport.share > 0.98 and not used else None,
    )


valid_answers = noted(
    "valid_answers", "share",
    "Part of the payloads that are answers of the service; -1 if too few bytes were captured to tell.",
    note="fit",
)  # fmt: skip


@feature("yes or no")
def one_to_one(group: Group) -> float:
    """Whether few sources send packets of many sizes in long flows: conversations."""
    features = group.packets
    return (
        features.sources < 20
        and features.flow_singles < 0.1
        and features.top("ip_length").distinct > features.sources
    )


def _quoted_datagrams(traffic: Traffic) -> tuple[U8, I64]:
    """Return the beginnings of UDP packets that ICMP errors quote (RFC 792), and how much was captured."""
    packets = traffic.packets
    rows = traffic.rows(traffic.icmp_errors & (packets.protocol == ICMP))[:2048]
    quoted, length = payload(packets, rows, _QUOTED)
    header = (quoted[:, 0] & 15).astype(np.int64) * 4
    good = (quoted[:, 0] >> 4 == 4) & (quoted[:, 9] == UDP) & (header == 20) & (length >= 28)
    return quoted[good], length[good]


def _quoted_requests(datagrams: tuple[U8, I64], ports: list[int]) -> str:
    """Describe the spoofed requests among quoted datagrams; empty if there are none."""
    quoted, length = datagrams
    if not ports or not len(quoted):
        return ""
    dport = (quoted[:, 22].astype(np.int64) << 8) | quoted[:, 23]
    hits = np.flatnonzero(np.isin(dport, ports))
    if len(hits) == 0:
        return ""
    size = int(np.median((quoted[hits, 24].astype(np.int64) << 8) | quoted[hits, 25])) - 8
    sentence = (
        f"{len(hits):,} ICMP errors quote the spoofed requests to port {ports[0]} ({size} payload bytes"
    )
    longest = hits[np.argmax(length[hits])]
    content = quoted[longest, 28 : int(length[longest])].tobytes()
    return sentence + (f", beginning {payload_text(content, limit=20)!r})" if content else ")")
