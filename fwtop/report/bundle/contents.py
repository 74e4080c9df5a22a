"""The files of a bundle, by name; none of them needs fwtop to be read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fwtop.capture.writing import ETHERNET, RAW, pcap_of
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import SamplePacket, SessionRecord
from fwtop.render.observation import rfc3339
from fwtop.report.bundle.abuse import abuse_mails
from fwtop.report.bundle.provider import flowspec_text, provider_text
from fwtop.report.bundle.rules import ipset_text, iptables_text, nftables_text
from fwtop.report.bundle.senders import block_lists, senders, senders_csv
from fwtop.report.export import csv_text, rules_script
from fwtop.report.formats import written
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
    return csv_text(("time", *_COLUMNS), _ticks(record))


def _ticks(record: SessionRecord) -> Iterator[tuple[object, ...]]:
    for tick in record.ticks:
        yield (rfc3339(tick.at), *(getattr(tick, name) for name in _COLUMNS))


def pcap_files(record: SessionRecord) -> dict[str, bytes]:
    """Return captures by name; packets with and without Ethernet header can't be in one."""
    groups: dict[tuple[str, bool], list[SamplePacket]] = {}
    for packet in record.packets:
        groups.setdefault((_plain(packet.kind), packet.is_ethernet), []).append(packet)
    files = {}
    for (kind, is_ethernet), packets in groups.items():
        rows = [(round(packet.at * 1e9), packet.length, packet.data) for packet in packets]
        name = f"packets/{kind}.pcap" if is_ethernet else f"packets/{kind}-ip.pcap"
        files[name] = pcap_of(rows, ETHERNET if is_ethernet else RAW)
    return files


def _plain(kind: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", kind.lower())[:40] or "attack"
