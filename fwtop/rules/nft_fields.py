"""A rule's conditions on header fields and payload, as nft(8) writes them.

A later fragment has no transport header: nft's transport expressions don't match it
(net/netfilter/nft_payload.c), so ports and payload are never read from its data.
"""

from __future__ import annotations

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match, PayloadMatch, Range
from fwtop.model.traffic.protocols import ICMP, ICMPV6, TCP, UDP
from fwtop.rules.xtables import data_offsets

_PORTED = "meta l4proto { 6, 17, 132, 136 }"
_WORD = 16  # bytes that a register of nf_tables holds
_FURTHEST = 255  # nft_payload keeps offsets in a byte
_SHORT_HEADER = 8  # UDP, and ICMP's common part
_IPV6_HEADER = 40


def field_words(match: Match, family: int) -> list[str] | None:
    """Return header fields and payload in nft's words, None where no packet of this family can match."""
    words: list[str] = []
    protocol = match.protocol
    if match.icmp_type is not None:
        mine = ICMP if family == 4 else ICMPV6
        if protocol not in (None, mine):
            return None
        words.append(f"meta l4proto {mine} {'icmp' if family == 4 else 'icmpv6'} type {match.icmp_type}")
    elif protocol is not None:
        words.append(f"meta l4proto {protocol}")
    if match.sport is not None or match.dport is not None:
        words += [_PORTED] if protocol is None else []
        words += [f"th sport {match.sport}"] if match.sport is not None else []
        words += [f"th dport {match.dport}"] if match.dport is not None else []
    segment = _segment_words(match)
    if segment and protocol != TCP:
        raise FwtopError("fields of TCP need --proto tcp; nothing was installed", 2)
    words += segment
    header = _ip_words(match, family)
    if header is None:
        return None
    words += header
    for item in match.payload:
        words += payload_words(item, protocol)
    return words


def _ip_words(match: Match, family: int) -> list[str] | None:
    """Return the conditions on the IP header, None where this family has no such header."""
    words: list[str] = []
    if match.ip_length is not None:
        lengths = _length_words(match.ip_length, family)
        if lengths is None:
            return None
        words.append(lengths)
    if match.ttl is not None:
        words.append(f"{'ip ttl' if family == 4 else 'ip6 hoplimit'} {_span(match.ttl)}")
    if match.ip_id is not None:
        if family != 4:
            return None
        words.append(f"ip id {_span(match.ip_id)}")
    if match.fragment is not None:
        words.append(_fragment_words(match.fragment, family))
    return words


def _segment_words(match: Match) -> list[str]:
    """Return the conditions on a TCP header."""
    words: list[str] = []
    if match.tcp_flags is not None:
        words.append(f"tcp flags & {match.tcp_flags[0]:#x} == {match.tcp_flags[1]:#x}")
    if match.tcp_seq is not None:
        words.append(f"tcp sequence {_span(match.tcp_seq)}")
    if match.tcp_window is not None:
        words.append(f"tcp window {_span(match.tcp_window)}")
    if match.tcp_header is not None:
        words.append(f"tcp doff {_span(data_offsets(match.tcp_header))}")
    return words


def _span(span: Range) -> str:
    return str(span.low) if span.low == span.high else f"{span.low}-{span.high}"


def _length_words(span: Range, family: int) -> str | None:
    """IPv6 writes down its length without the fixed header (RFC 8200, 3)."""
    if family == 4:
        return f"ip length {_span(span)}"
    low, high = max(0, span.low - _IPV6_HEADER), span.high - _IPV6_HEADER
    return f"ip6 length {_span(Range(low, high))}" if high >= 0 else None


def _fragment_words(wanted: bool, family: int) -> str:
    if family == 4:
        return f"ip frag-off & 0x3fff {'!=' if wanted else '=='} 0"
    return f"exthdr frag {'exists' if wanted else 'missing'}"


def payload_words(item: PayloadMatch, protocol: int | None) -> list[str]:
    """Return raw expressions for bytes at an offset of the transport payload; raises FwtopError (code 2)."""
    if item.offset is None:
        raise FwtopError(
            "netdev ingress finds bytes at an offset only: use fwtop match, or --via xdp; nothing was "
            "installed", 2,
        )  # fmt: skip
    if protocol in (None, TCP, UDP):  # @ih follows the TCP header's length (Linux 5.16)
        base, start = "ih", item.offset
        words = ["meta l4proto { 6, 17 }"] if protocol is None else []
    else:
        base, start, words = "th", item.offset + _SHORT_HEADER, []
    for at in range(0, len(item.data), _WORD):
        part, care = item.data[at : at + _WORD], item.compared_bits[at : at + _WORD]
        if start + at > _FURTHEST:
            raise FwtopError(
                f"nftables reads up to byte {_FURTHEST} of the payload; nothing was installed", 2
            )
        place = f"@{base},{8 * (start + at)},{8 * len(part)}"
        want = bytes(byte & bits for byte, bits in zip(part, care, strict=True))
        mask = f" & 0x{care.hex()}" if care != b"\xff" * len(care) else ""
        words.append(f"{place}{mask} == 0x{want.hex()}")
    return words
