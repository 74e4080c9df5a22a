"""All that a session gives to hand over, as files: reports, packets, rules, lists of senders, mails."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.capture.writing import ETHERNET, RAW, pcap_of
from fwtop.model.addresses.address import Prefix
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import SamplePacket, SessionRecord
from fwtop.render.numbers import plural
from fwtop.render.observation import rfc3339
from fwtop.report.attacks import AttackSpan
from fwtop.report.bundle_rules import flowspec_text, ipset_text, iptables_text, nftables_text, provider_text
from fwtop.report.formats import csv_text, rules_script, written
from fwtop.report.summary import Digest

_ABOUT = {
    "report.html": "the report, for a browser or a printer",
    "report.md": "the same for a ticket or a mail",
    "report.json": "the same for programs (docs/JSON.md)",
    "timeline.csv": "the timeline, a line a tick",
    "senders.csv": "senders of attacks whose sources look real",
    "blocklist-ipv4.txt": "these senders, an address or prefix a line",
    "blocklist-ipv6.txt": "the same for IPv6",
    "rules.sh": "the rules that dropped anything, as fwtop commands",
    "rules.nft": "the same for nftables: nft -f rules.nft",
    "rules.ipset": "the same for iptables, its sets: ipset -exist restore < rules.ipset",
    "rules.iptables": "its rules: iptables-restore --noflush rules.iptables",
    "rules.ip6tables": "its rules for IPv6: ip6tables-restore --noflush rules.ip6tables",
    "rules.flowspec": "for the provider's routers (RFC 8955), in ExaBGP's words",
    "provider.txt": "what to tell the provider",
}


def bundle_files(record: SessionRecord, digest: Digest) -> dict[str, bytes]:
    """Return the content of all files by name, of which some are in folders."""
    found = senders(record, digest.spans)
    texts = {
        "report.html": written(digest, "html"),
        "report.md": written(digest, "md"),
        "report.json": written(digest, "json"),
        "timeline.csv": timeline_csv(record),
        "senders.csv": senders_csv(found),
        **block_lists(found),
        "rules.sh": rules_script(digest),
        "rules.nft": nftables_text(digest),
        "rules.ipset": ipset_text(digest),
        "rules.iptables": iptables_text(digest, 4),
        "rules.ip6tables": iptables_text(digest, 6),
        "rules.flowspec": flowspec_text(digest),
        "provider.txt": provider_text(digest),
        **abuse_mails(digest, found),
    }
    packets = pcap_files(record)
    made = {name: text.encode() for name, text in texts.items()} | packets
    return {"README.txt": _readme(digest, made).encode(), **made}


def _readme(digest: Digest, files: dict[str, bytes]) -> str:
    told = [f"{name:<19} {about}" for name, about in _ABOUT.items() if name in files]
    captures = sum(name.startswith("packets/") for name in files)
    mails = sum(name.startswith("abuse/") for name in files)
    if captures:
        told.append(f"{'packets/':<19} sample packets of {captures} attacks, as pcap")
    if mails:
        told.append(f"{'abuse/':<19} {mails} mails to networks of real senders; none about forged sources")
    info = digest.info
    return "\n".join(
        (
            safe_text(f"{digest.headline}: {rfc3339(info.started)}, on {info.host}", limit=400),
            f"Session {info.id}, recorded by fwtop {info.version}",
            "",
            *told,
            "",
            "Rules are those that dropped anything, without fwtop's allow-list and time to live: read them",
            "before you load them. Shares, and what became of attacks' packets, are estimates from samples.",
            "",
        )
    )


_COLUMNS = (
    "pps", "bps", "accepted_pps", "dropped_pps", "mine_pps", "other_pps", "kernel_pps",
    "tcp_handshakes_per_s", "tcp_acknowledged_per_s", "conntrack", "conntrack_max", "softirq_share",
)  # fmt: skip


def timeline_csv(record: SessionRecord) -> str:
    """Write the time series as stored, a row a tick."""
    ticks = ((rfc3339(tick.at), *(getattr(tick, name) for name in _COLUMNS)) for tick in record.ticks)
    return csv_text(("time", *_COLUMNS), ticks)


def pcap_files(record: SessionRecord) -> dict[str, bytes]:
    """Return captures by name; packets with and without Ethernet header can't be in one."""
    groups: dict[tuple[str, bool], list[SamplePacket]] = {}
    for packet in record.packets:
        kind = re.sub(r"[^a-z0-9_]", "_", packet.kind.lower())[:40] or "attack"
        groups.setdefault((kind, packet.is_ethernet), []).append(packet)
    files = {}
    for (kind, is_ethernet), packets in groups.items():
        rows = [(round(packet.at * 1e9), packet.length, packet.data) for packet in packets]
        name = f"packets/{kind}.pcap" if is_ethernet else f"packets/{kind}-ip.pcap"
        files[name] = pcap_of(rows, ETHERNET if is_ethernet else RAW)
    return files


_ACCUSED = ("", "attack")  # what `Source.who` says of everybody else is that they aren't attackers
_MOST = 5_000
_LOOKS = 3  # at an attack, before anybody is accused of it: in one or two a busy moment passes for an attack


class Sender(Struct, frozen=True):
    """An address that sent packets of an attack; its rate is an estimate from samples."""

    address: Prefix
    kind: str
    title: str
    first: float  # Unix seconds: first and last look that showed it
    last: float
    peak_pps: float
    asn: int | None
    as_name: str
    country: str


def senders(record: SessionRecord, spans: Iterable[AttackSpan]) -> tuple[Sender, ...]:
    """Return the senders of all attacks with real sources, the fastest first."""
    found: dict[tuple[Prefix, str], Sender] = {}
    real = [span for span in spans if not (span.spoofed or span.uncertain) and len(span.points) >= _LOOKS]
    for look in record.evidence:
        of_kind = (one for one in real if one.kind == look.kind)
        span = next((one for one in of_kind if one.began <= look.at <= one.until), None)
        if span is None:
            continue
        for source in look.part.tables.sources.address:
            if source.prefix is None or source.who not in _ACCUSED:
                continue
            key = (source.prefix, look.kind)
            sender = Sender(
                source.prefix, look.kind, safe_text(span.title), look.at, look.at, source.share.pps,
                source.asn, safe_text(source.as_name or ""), safe_text(source.country or ""),
            )  # fmt: skip
            before = found.get(key)
            if before is not None:
                peak = max(before.peak_pps, sender.peak_pps)
                sender = replace(before, last=look.at, peak_pps=peak)
            found[key] = sender
    return tuple(sorted(found.values(), key=lambda item: -item.peak_pps)[:_MOST])


def block_lists(found: Sequence[Sender]) -> dict[str, str]:
    """Return a file of addresses for each family, that any firewall and `fwtop block @FILE` can read."""
    files = {}
    for family in (4, 6):
        mine = sorted({sender.address for sender in found if sender.address.family == family})
        files[f"blocklist-ipv{family}.txt"] = "".join(f"{prefix}\n" for prefix in mine)
    return files


def senders_csv(found: Sequence[Sender]) -> str:
    """Write a row for each sender and attack."""
    head = ("address", "as", "as_name", "country", "attack", "peak_pps_estimated", "first_seen", "last_seen")
    rows = (
        (
            str(sender.address), sender.asn, sender.as_name, sender.country, sender.title,
            round(sender.peak_pps, 1), rfc3339(sender.first), rfc3339(sender.last),
        )
        for sender in found
    )  # fmt: skip
    return csv_text(head, rows)


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
    spans: dict[str, list[AttackSpan]] = {}
    for span in digest.spans:
        spans.setdefault(span.kind, []).append(span)
    return {f"abuse/AS{asn}.txt": _mail(digest, asn, mine, spans) for asn, mine in ranked[:_MOST_MAILS]}


def _mail(digest: Digest, asn: int, found: Sequence[Sender], spans: dict[str, list[AttackSpan]]) -> str:
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
        lines += _attack(mine, spans.get(kind, []))
    lines += [
        "Rates are estimates from sampled packets. Times are UTC. Packets are available on request.",
        f"Recorded on {digest.info.host} by fwtop {digest.info.version}, session {digest.info.id}.",
    ]
    return "\n".join(lines) + "\n"


def _attack(mine: Sequence[Sender], spans: Sequence[AttackSpan]) -> list[str]:
    title = mine[0].title
    lines = [f"{title}: {plural(len(mine), 'machine')} of yours."]
    lines += _REFLECTOR if mine[0].kind.endswith(_REFLECTED) else _SENDER
    targets = _keys(spans, "target", 0.0)
    ports = _keys(spans, "port", _PORT_SHARE)
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


def _keys(spans: Sequence[AttackSpan], table: str, least: float) -> list[str]:
    """Return the keys that a table of these attacks lists with at least that share, the largest first."""
    rows = [row for span in spans for row in span.detail.tables.get(table, ()) if row.share >= least]
    rows.sort(key=lambda row: -row.share)
    return list(dict.fromkeys(safe_text(row.key) for row in rows))
