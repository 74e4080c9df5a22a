"""Benign UDP traffic, whatever its rate: calls, games, tunnels, answers, and reports sent one way.

Sources: WireGuard's data message (counter at 8, little-endian), RFC 3550 5.1 (RTP), RFC 3948 and 4303 3.3.3
(ESP in UDP), RFC 9147 4 (DTLS), OpenVPN's packet id, RFC 6056 (the ports that clients take). Reports: RFC
3164 and 5424 (syslog), the statsd, Graphite and InfluxDB line protocols, GELF, RFC 3954 (NetFlow 9), RFC
7011 (IPFIX), the sFlow 5 specification, RFC 3416 (SNMP notifications), RFC 1950 (zlib).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.analysis.parsers import tls
from fwtop.analysis.parsers.services import COLLECTORS
from fwtop.analysis.window.counting import among, distinct_values, in_order, part_marked
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, Traffic, distinct_texts, flow_key, payload
from fwtop.model.traffic.packets import I64, U8, Mask

_ROWS = 2_048
_WIDTH = 20
_STEPS = 50  # random bytes increase that often once in 2^50
_RISING = 0.95  # of the steps of a counter: packets overtake each other
_STREAMS, _STREAM_STEPS = 128, 31  # flows that are judged, and of each; random bytes pass once in 10^6
_FORMS = ((">u2", "i2"), ("<u2", "i2"), (">u4", "i4"), ("<u4", "i4"))
_CONVERSATION_PACKETS, _CONVERSATION_SIZES = 16, 4  # of a flow that is a conversation, at least
_CHOSEN = 10_000  # ephemeral ports start above
_GLIMPSE = 8  # bytes
_SYNC, _CELL = 0x47, 188
_FEW_PEERS, _PEER_PPS = 20, 5_000.0  # of tunnels and calls: more peers may be a query flood
_ANSWERED = 0.5  # answers per packet
_VARIED = 0.1  # distinct beginnings for each packet
_BEGIN_ALIKE, _REPORTS, _READ = 0.5, 0.8, 256  # shares of payloads, and how many are read
_SERVER_PPS = 1_000.0  # of one answering or reporting server: more is a flood
_LINE = re.compile(
    rb"<\d{1,3}>"  # syslog
    rb'|\{\s*"'  # JSON
    rb"|[\w.,=/-]{1,90}:[-+]?[\d.]+\|[a-z]"  # statsd
    rb"|[\w,=/-]{1,60}\.[\w.,=/-]{1,90}\s[-+]?\d"  # Graphite
    rb"|[\w,=.-]+ \w+="  # InfluxDB
    rb"|\d{4}-\d\d-\d\d[T ]\d\d:"  # a time, as programs begin their lines
)
_RECORD = re.compile(
    rb"\x00\x05\x00[\x01-\x1e]|\x00[\x09\x0a][\x00-\x05]|\x00\x00\x00\x05\x00\x00\x00[\x01\x02]"  # flows
    rb"|\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08"  # compressed
    rb"|\x30.{1,3}\x02\x01[\x00\x01\x03]\x04?"  # SNMP
    rb"|2[WC]",  # Beats
    re.DOTALL,
)
_ANSWER = re.compile(
    rb"\xa2(?:[\x00-\x7f]|\x81.|\x82..)\x02(?:\x01(.)|\x02(..)|\x03(...)|\x04(....))", re.DOTALL
)
_TOLD = 16  # bytes
_FEW = 8  # distinct ones of the first 32: a byte or a word again and again


def counts_up(traffic: Traffic, rows: Rows) -> bool:
    """Check for a counter in the first 20 payload bytes of each flow."""
    middle = max(0, (len(rows) - _ROWS) // 2)
    rows = rows[middle : middle + _ROWS]
    key = traffic.flow_key[rows]
    order = np.lexsort((traffic.packets.time_ns[rows], key))
    matrix, pairs = _pairs(traffic, rows[order], key[order])
    if len(pairs) < _STEPS or len(pairs) < 0.5 * len(rows):
        return False
    return any(rises.mean() > _RISING for rises in _rises(matrix, pairs))


def streams(traffic: Traffic, rows: Rows) -> list[Rows]:
    """Return those of the rows whose flow counts, in groups by the place of the counter, the largest first.

    Each protocol has a place of its own. Judged are the first packets of the longest flows.
    """
    flow = traffic.flow_id[rows]
    packets = np.bincount(flow)
    longest = np.flatnonzero(packets > _STREAM_STEPS)
    longest = longest[np.argsort(-packets[longest], kind="stable")[:_STREAMS]]
    if not len(longest):
        return []
    number = np.full(len(packets), len(longest))
    number[longest] = np.arange(len(longest))
    first = _first_of_each(number[flow], len(longest))
    matrix, pairs = _pairs(traffic, rows[first], flow[first])
    of = number[flow[first[pairs]]]
    steps = [np.bincount(of[up], minlength=len(longest)) for up in _rises(matrix, pairs)]
    counting = np.array(steps) > _RISING * _STREAM_STEPS
    found = []
    while (size := (counting * packets[longest]).sum(1)).any():
        mine = counting[size.argmax()].copy()
        counting[:, mine] = False
        found.append(rows[among(flow, longest[mine])])
    return found


def _first_of_each(number: Rows, flows: int) -> Rows:
    """Return where the first packets of the flows with these numbers are, those of a flow together."""
    order = in_order(number)
    begin = np.searchsorted(number[order], np.arange(flows))
    return np.asarray(order[(begin[:, None] + np.arange(_STREAM_STEPS + 1)).ravel()])


def _pairs(traffic: Traffic, rows: Rows, key: NDArray[Any]) -> tuple[U8, Rows]:
    """Return the payloads of rows in order of flow and time, and which are followed by one of their flow."""
    matrix, length = payload(traffic.packets, rows, _WIDTH)
    followed = (key[1:] == key[:-1]) & (length[1:] >= _WIDTH) & (length[:-1] >= _WIDTH)
    return matrix, np.flatnonzero(followed)


def _rises(matrix: U8, pairs: Rows) -> Iterator[Mask]:
    """Yield for each place and form of a counter which pairs increase."""
    for form, signed in _FORMS:
        size = int(form[-1])
        for at in range(_WIDTH - size + 1):
            value = np.ascontiguousarray(matrix[:, at : at + size]).view(form).reshape(-1)
            value = value.astype(f"u{size}")
            yield (value[pairs + 1] - value[pairs]).view(signed) > 0


def has_peers(features: Features) -> bool:
    """Check for traffic of known or few peers."""
    return any(check(features) for check in (conversation, answered, answers, telemetry, video))


def video(features: Features) -> bool:
    """Check for MPEG transport streams of few senders: 188-byte cells with sync byte 0x47 (ISO 13818-1)."""
    matrix, held = features.head
    size = features.traffic.packets.payload_length[features.rows]
    begins = (matrix[:, 0] == _SYNC) & (held > 0)
    return features.sources < _FEW_PEERS and bool(begins.mean() > 0.95 and (size % _CELL == 0).mean() > 0.95)


def conversation(features: Features) -> bool:
    """Check for long flows with packets of many sizes: a tunnel, a game, a call, a download."""
    lengths = features.top("ip_length")
    varied = lengths.distinct > 10 and lengths.share < 0.8
    matrix, held = features.head
    download = features.top("sport").value == 443 and tls.looks_like_quic(matrix, held)
    if features.flow_singles >= 0.3:
        return False
    if features.pps_per_source < 5_000 and (varied or download):
        return True
    # A fast tunnel has few sizes, but its packets carry a counter
    rich = features.payload_entropy > 6 or (features.sources < _FEW_PEERS and not alike(features))
    return rich and counts_up(features.traffic, features.rows)


def numbered(features: Features) -> bool:
    """Check for a few peers whose packets carry a counter: a tunnel, a stream or a measurement."""
    few = features.sources < _FEW_PEERS and not alike(features)
    return few and counts_up(features.traffic, features.rows)


def answered(features: Features) -> bool:
    """Check for a few peers that this host answers about one to one (two-way captures only).

    Peers that are answered speak the protocol, unless their packets repeat.
    """
    traffic = features.traffic
    if not len(traffic.outbound) or features.sources > _FEW_PEERS:
        return False
    if alike(features) or (features.pps_per_source > _PEER_PPS and features.payload_variety < 0.9):
        return False
    inbound = flow_key(traffic.packets.select(features.rows))
    answers = flow_key(traffic.outbound, reverse=True)
    met = among(inbound, answers).mean()
    return bool(met > 0.8 and among(answers, inbound).sum() > _ANSWERED * len(inbound))


def answers(features: Features) -> bool:
    """Check for answers of a few servers to ephemeral ports of this host."""
    packets = features.traffic.packets
    chosen = part_marked(packets.dport[features.rows] >= _CHOSEN)
    sport = features.top("sport")
    few = features.sources < 20 and sport.distinct <= 4 and sport.value < _CHOSEN
    return few and chosen > 0.95 and features.pps_per_source < _SERVER_PPS


def telemetry(features: Features) -> bool:
    """Check for telemetry to a collector: syslog, metrics, flows; varying payloads at moderate rates.

    To a collector's port they begin alike, as those of any protocol do; to another one they are reports.
    """
    dport = features.top("dport")
    if dport.share <= 0.9 or features.pps_per_source >= _SERVER_PPS or variety(features) <= 0.1:
        return False
    alike = hidden(features) or framed(*features.head) >= _BEGIN_ALIKE
    return (dport.value in COLLECTORS and alike) or reported(features) >= _REPORTS


def variety(features: Features) -> float:
    """Return distinct payload beginnings for each packet: of 64 bytes where 32 are alike, as logs' are."""
    if features.payload_variety > _VARIED:
        return features.payload_variety
    matrix = features.head[0]
    return len(distinct_values(distinct_texts(matrix))) / len(matrix) if len(matrix) else 0.0


def reported(features: Features) -> float:
    """Return the share of payloads that begin as logs, metrics and flow records do."""
    matrix, held = features.head
    some = np.linspace(0, len(matrix) - 1, min(len(matrix), _READ)).astype(np.intp)
    return float(is_report(matrix[some], held[some]).mean()) if len(some) else 0.0


def hidden(features: Features) -> bool:
    """Check whether too few payload bytes were captured to tell their content."""
    size = features.traffic.packets.payload_length[features.sample]
    return features.n > 0 and part_marked((size >= 2 * _GLIMPSE) & (features.head[1] < _GLIMPSE)) > 0.5


def alike(features: Features) -> bool:
    """Check for payloads without information: zeros, identical, or none."""
    held = features.head[1] > 0
    if hidden(features):
        return False
    return not held.any() or features.zero_bytes > 0.95 or variety(features) < 0.02


def conversation_flows(traffic: Traffic, mask: Mask) -> Mask:
    """Mark flows that are conversations: many packets of many sizes."""
    rows = traffic.rows(mask)
    flow, lengths = traffic.flow_id[rows], traffic.packets.ip_length[rows]
    packets = np.bincount(flow)
    _, first = np.unique(flow * 65_536 + lengths, return_index=True)
    sizes = np.bincount(flow[first], minlength=len(packets))
    conversations = np.zeros(len(traffic), np.bool_)
    conversations[rows] = ((packets >= _CONVERSATION_PACKETS) & (sizes >= _CONVERSATION_SIZES))[flow]
    return conversations


def is_report(matrix: U8, held: I64) -> Mask:
    """Mark the payloads that begin as reports do; `held` bytes of each row are real."""
    texts = (one[:n].tobytes() for one, n in zip(matrix, held.tolist(), strict=True))
    return np.array([bool(_LINE.match(text) or _RECORD.match(text)) for text in texts], np.bool_)


def framed(matrix: U8, held: I64) -> float:
    """Return the share of payloads with the most common first byte: protocols begin alike, noise doesn't."""
    first = matrix[held > 0, 0]
    return float(np.bincount(first).max()) / len(first) if len(first) else 0.0


def is_filler(matrix: U8, held: I64) -> Mask:
    """Mark the payloads of 16 bytes or more that repeat a byte or a word."""
    ordered = np.sort(matrix, axis=1)
    padded = (held < matrix.shape[1]) & (ordered[:, 0] == 0)
    distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1) - padded
    return np.asarray((held >= _TOLD) & (distinct <= _FEW))


def snmp_numbers(matrix: U8, held: I64) -> list[bytes]:
    """Return the request number of each SNMP response (RFC 3416 3) among the payloads."""
    found = (_ANSWER.search(one[:n].tobytes()) for one, n in zip(matrix, held.tolist(), strict=True))
    return [next(filter(None, one.groups()), b"") for one in found if one]
