"""Header fields and first payload bytes that many packets have in common."""

from __future__ import annotations

from msgspec.structs import replace

from fwtop.model.rule import Match, PayloadMatch, Range
from fwtop.model.traffic.protocols import WITH_PORTS, flag_names, spoken_protocol
from fwtop.model.traffic.snapshot import PacketSignature
from fwtop.render.rows.field import DROPPED, NORMAL, Field, RowType, Unit, estimate
from fwtop.rules.fields import range_text
from fwtop.rules.words import bytes_text, describe

_NAMES = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6"}
_FRAGMENTS = "(ip.flags.mf == 1 || ip.frag_offset > 0)"


def signature_words(match: Match) -> list[str]:
    """Write the fields of a signature, each in a few characters."""
    protocol = spoken_protocol(match.protocol) if match.protocol is not None else "any"
    words = [protocol if match.family != 6 else f"{protocol} (IPv6)"]
    if match.fragment:
        words[0] += " fragments"
    ports = [f"{match.sport}→" if match.sport is not None else ""]
    ports.append(f"→{match.dport}" if match.dport is not None else "")
    words += ["".join(ports).replace("→→", "→")] if any(ports) else []
    if match.tcp_flags is not None:
        words.append(flag_names(match.tcp_flags[1]) or "no flags")
    if match.icmp_type is not None:
        words.append(f"type {match.icmp_type}")
    for name, span in (("len", match.ip_length), ("ttl", match.ttl), ("win", match.tcp_window)):
        words += [f"{name} {range_text(span)}"] if span is not None else []
    return [*words, *(bytes_text(item) for item in match.payload)]


def packets_of(match: Match) -> str:
    """Write the fields that the filter of packets knows; it then shows more packets rather than fewer."""
    six = match.family == 6
    name = _NAMES.get(match.protocol or 0, "")
    parts = ["ipv6" if six else "ip"] if match.family is not None else []
    parts += [name] if name else [f"ip.proto == {match.protocol}"] if match.protocol and not six else []
    if name in ("tcp", "udp") and match.protocol in WITH_PORTS:
        parts += [f"{name}.srcport == {match.sport}"] if match.sport is not None else []
        parts += [f"{name}.dstport == {match.dport}"] if match.dport is not None else []
    if match.fragment and not six:
        parts.append(_FRAGMENTS)
    if match.ip_length is not None and not six:
        parts.append(f"ip.len == {match.ip_length.low}")
    if match.ttl is not None:
        parts.append(f"{'ipv6.hlim' if six else 'ip.ttl'} == {match.ttl.low}")
    if match.tcp_flags is not None:
        parts.append(f"tcp.flags & 0x{match.tcp_flags[0]:02x} == 0x{match.tcp_flags[1]:02x}")
    if match.tcp_window is not None:
        parts.append(f"tcp.window_size_value == {match.tcp_window.low}")
    if match.icmp_type is not None and name.startswith("icmp"):
        parts.append(f"{name}.type == {match.icmp_type}")
    return " && ".join([*parts, *(_bytes(name, one) for one in match.payload)])


def _bytes(name: str, wanted: PayloadMatch) -> str:
    where = f"{name}.payload" if name in ("tcp", "udp") else "frame"
    return f"{where} contains {wanted.data.hex(':')}"


def _matches(item: PacketSignature) -> str:
    return describe(item.match)


def _only(value: Range | None) -> int | None:
    return None if value is None else value.low


def _reported(item: PacketSignature) -> tuple[str, str]:
    normal = f"{item.baseline_share * 100:.1f} % of normal packets" if item.baseline_share else ""
    return describe(item.match), normal


_MOSTLY = "{attack_share} of its packets, mostly {attack}"
SIGNATURE = RowType(
    of=PacketSignature,
    key=_matches,
    search=lambda item: f"{' '.join(signature_words(item.match))} {item.attack}",
    fields=(
        Field("matches", value=_matches, heading="signature", width=24, grow=1, whole=True, label="matches"),
        Field("protocol", value="match.protocol"),
        Field("sport", value="match.sport"),
        Field("dport", value="match.dport"),
        Field("ip_length", value=lambda item: _only(item.match.ip_length)),
        Field("ttl", value=lambda item: _only(item.match.ttl)),
        Field("tcp_flags", value=lambda item: item.match.tcp_flags and item.match.tcp_flags[1]),
        Field("tcp_window", value=lambda item: _only(item.match.tcp_window)),
        Field("hex", value=lambda item: item.match.payload[0].data.hex() if item.match.payload else None),
        *estimate(),
        DROPPED,
        replace(NORMAL, keep=9, words="{baseline_share} of normal packets match it too"),
        Field("attack_share", Unit.SHARE),
        Field("attack", heading="who", width=8, keep=4, label="attack", words=_MOSTLY),
    ),
    columns="matches attack bar share error pps baseline_share dropped_share",
    details="matches share packets bytes dropped_share baseline_share attack",
    sorts=(
        ("rare in normal", lambda item: -item.baseline_share),
        ("dropped", lambda item: item.dropped_share),
        ("bytes", lambda item: item.share.bytes),
    ),
    title=lambda item: f"signature {' '.join(signature_words(item.match))}",
    packets=lambda item: packets_of(item.match),
    reported=_reported,
)
