"""A rule's conditions on header fields and payload, as nft(8) writes them.

A later fragment has no transport header: nft's transport expressions don't match it
(net/netfilter/nft_payload.c), so ports and payload are never read from its data.
"""

from __future__ import annotations

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match, PayloadMatch
from fwtop.model.traffic.protocols import ICMP, ICMPV6, TCP, UDP
from fwtop.rules.fields import FRAGMENT, IP, PORTED, PORTS, SEGMENT, TCP_FLAGS

_ORDER = (*PORTS, TCP_FLAGS, *SEGMENT, *IP, FRAGMENT)
_WORD = 16  # bytes that a register of nf_tables holds
_FURTHEST = 255  # nft_payload keeps offsets in a byte
_SHORT_HEADER = 8  # UDP, and ICMP's common part


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
    if protocol is None and (match.sport, match.dport) != (None, None):
        words.append(f"meta l4proto {{ {', '.join(map(str, sorted(PORTED)))} }}")
    if match.reads_tcp and protocol != TCP:
        raise FwtopError("fields of TCP need --proto tcp; nothing was installed", 2)
    for field in _ORDER:
        condition = field.of(match)
        if condition is None:
            continue
        said = field.nft(condition, family) if family in field.families else None
        if said is None:
            return None
        words.append(said)
    for item in match.payload:
        words += payload_words(item, protocol)
    return words


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
