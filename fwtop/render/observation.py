"""Observations as JSON: docs/JSON.md, schema 1, in which fields are added but never renamed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fwtop.model.rule import Range, RuleStatus
from fwtop.model.traffic.counters import ConntrackSample, TcpService
from fwtop.model.traffic.snapshot import (
    Attack,
    Destination,
    LedgerRow,
    Origin,
    PacketSignature,
    Payload,
    Port,
    Proposal,
    Share,
    Snapshot,
    Source,
    Surroundings,
    Tables,
)
from fwtop.rules.words import describe

SCHEMA = 1


def observation_json(snapshot: Snapshot, *, top: int = 50) -> dict[str, Any]:
    """Return an observation for JSON, with lists cut to `top` entries."""
    tables, judgement = snapshot.tables, snapshot.judgement
    payloads = judgement.payloads or tables.payloads
    return {
        "schema": SCHEMA,
        "host": snapshot.host,
        "source": _origin_json(snapshot.origin),
        "started": rfc3339(snapshot.started),
        "seconds": round(snapshot.seconds, 6),
        **_counts_json(tables),
        "ledger": [_ledger_json(row) for row in tables.ledger[:top]],
        "sources": {
            name: [_source_json(entry) for entry in getattr(tables.sources, name)[:top]]
            for name in ("address", "prefix", "asn", "country")
        },
        "destinations": [_destination_json(entry) for entry in tables.destinations[:top]],
        "ports": [_port_json(port) for port in tables.ports[:top]],
        "payloads": [_payload_json(payload) for payload in payloads[:top]],
        "signatures": [_signature_json(entry) for entry in judgement.signatures[:top]],
        "protocols": {name: share_json(share) for name, share in tables.protocols.items()},
        "conntrack": _conntrack_json(snapshot.conntrack),
        "tcp": _tcp_json(snapshot.tcp),
        **_surroundings_json(snapshot.surroundings, top),
        "not_judged": judgement.not_judged,
        "attacks": [_attack_json(attack) for attack in judgement.attacks[:top]],
        "proposals": [_proposal_json(proposal) for proposal in judgement.proposals[:top]],
        "mitigations": [mitigation_json(status) for status in snapshot.mitigations[:top]],
        "baseline": {"summary": judgement.baseline, "packets": judgement.baseline_packets},
        "notes": list(snapshot.notes),
    }


def rfc3339(unix_seconds: float) -> str:
    """Format a time as RFC 3339 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(unix_seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def share_json(share: Share) -> dict[str, Any]:
    """Return the fields of a SHARE."""
    return {
        "packets": share.packets,
        "bytes": share.bytes,
        "pps": round(share.pps, 3),
        "share": round(share.share, 6),
        "share_low": round(share.share_low, 6),
        "share_high": round(share.share_high, 6),
    }


def mitigation_json(status: RuleStatus) -> dict[str, Any]:
    """Return one entry of `mitigations`."""
    return {
        "id": status.rule.id,
        "kind": status.rule.kind.value,
        "summary": status.rule.summary,
        "state": status.state.value,
        "packets": status.packets,
        "bytes": status.bytes,
        "pps": round(status.pps, 3),
        "predicted_pps": status.rule.predicted_pps,
        "expires": rfc3339(status.expires) if status.expires is not None else None,
        "confirm_by": rfc3339(status.confirm_by) if status.confirm_by is not None else None,
        "note": status.note,
        "acting": status.acting,
        "not_acting": status.not_acting,
    }


def _origin_json(origin: Origin) -> dict[str, Any]:
    return {
        "kind": origin.kind,
        "interfaces": list(origin.interfaces),
        "netns": origin.netns,
        "file": origin.file,
    }


def _counts_json(tables: Tables) -> dict[str, Any]:
    return {
        "totals": {
            "packets": tables.totals.packets,
            "bytes": tables.totals.bytes,
            "pps": round(tables.totals.pps, 3),
            "bps": round(tables.totals.bps, 3),
            "accepted": tables.totals.accepted,
            "dropped": tables.totals.dropped,
        },
        "sampling": {
            "one_in": round(tables.sampling.one_in, 3),
            "samples": tables.sampling.samples,
            "lost": tables.sampling.lost,
            "watched": round(tables.sampling.watched, 4),
        },
    }


def _ledger_json(row: LedgerRow) -> dict[str, Any]:
    return {
        "layer": row.layer,
        "reason": row.reason,
        "packets": row.packets,
        "pps": round(row.pps, 3),
        "rule": row.rule,
        "mostly": describe(row.mostly) if row.mostly is not None else None,
        "mostly_share": round(row.mostly_share, 3),
        "behind_routing": row.filtered,
    }


def _port_json(port: Port) -> dict[str, Any]:
    return {
        "protocol": port.protocol,
        "side": port.side,
        "port": port.port,
        "service": port.service,
        **share_json(port.share),
    }


def _source_json(entry: Source) -> dict[str, Any]:
    return {
        "key": entry.key,
        "country": entry.country,
        "asn": entry.asn,
        "as_name": entry.as_name,
        "who": entry.who,
        **share_json(entry.share),
        "dropped_share": round(entry.dropped_share, 6),
        "dropped_low": round(entry.dropped_low, 6),
        "dropped_high": round(entry.dropped_high, 6),
    }


def _destination_json(entry: Destination) -> dict[str, Any]:
    return {
        "key": entry.key,
        **share_json(entry.share),
        "dropped_share": round(entry.dropped_share, 6),
        "part": entry.part or None,
        "serves": list(entry.serves),
    }


def _payload_json(payload: Payload) -> dict[str, Any]:
    return {
        "hex": payload.data.hex(),
        "text": payload.text,
        "offset": payload.offset,
        "dns_name": payload.dns_name,
        **share_json(payload.share),
        "baseline_share": round(payload.baseline_share, 6),
    }


def _signature_json(entry: PacketSignature) -> dict[str, Any]:
    match = entry.match
    return {
        "matches": describe(match),
        "protocol": match.protocol,
        "sport": match.sport,
        "dport": match.dport,
        "ip_length": _value(match.ip_length),
        "ttl": _value(match.ttl),
        "tcp_flags": None if match.tcp_flags is None else match.tcp_flags[1],
        "tcp_window": _value(match.tcp_window),
        "hex": match.payload[0].data.hex() if match.payload else None,
        **share_json(entry.share),
        "dropped_share": round(entry.dropped_share, 6),
        "baseline_share": round(entry.baseline_share, 6),
        "attack_share": round(entry.attack_share, 6),
        "attack": entry.attack,
    }


def _value(only: Range | None) -> int | None:
    return None if only is None else only.low


def _conntrack_json(sample: ConntrackSample | None) -> dict[str, Any]:
    if sample is None:
        sample = ConntrackSample(0, 0)
    return {
        "count": sample.count,
        "max": sample.max,
        "fill": round(sample.fill, 6),
        "new_per_s": round(sample.new_per_s, 3),
        "insert_failed": sample.insert_failed,
        "drop": sample.drop,
        "early_drop": sample.early_drop,
        "seconds_to_full": sample.seconds_to_full,
        "growth_per_s": round(sample.growth_per_s, 3),
    }


def _tcp_json(service: TcpService | None) -> dict[str, Any] | None:
    if service is None:
        return None
    return {
        "established": service.established,
        "handshakes_per_s": round(service.handshakes_per_s, 3),
        "acknowledged_per_s": round(service.acknowledged_per_s, 3),
    }


def _surroundings_json(around: Surroundings, top: int) -> dict[str, Any]:
    return {
        "listeners": [
            {"protocol": item.protocol, "port": item.port, "name": item.name, "pps": round(item.pps, 3)}
            for item in around.listeners[:top]
        ],
        "rings": [
            {"interface": ring.interface, "size": ring.size, "most": ring.most} for ring in around.rings
        ],
        "firewall_chains": [
            {"stage": chain.stage, "name": chain.name, "drops_by_policy": chain.drops_by_policy}
            for chain in around.chains[:top]
        ],
    }


def _attack_json(attack: Attack) -> dict[str, Any]:
    return {
        "kind": attack.kind,
        "title": attack.title,
        "share": round(attack.share, 6),
        "pps": round(attack.pps, 3),
        "confidence": round(attack.confidence, 3),
        "spoofed": attack.spoofed,
        "uncertain": attack.uncertain,
        "evidence": list(attack.evidence),
        "since": rfc3339(attack.since),
        "peak_pps": round(attack.peak_pps, 3),
        "ended": None if attack.ended is None else rfc3339(attack.ended),
        "bps": round(attack.bps, 1),
        "target": attack.target,
        "sources": attack.sources,
        "mine_share": round(attack.mine_share, 6),
        "other_share": round(attack.other_share, 6),
        "kernel_share": round(attack.kernel_share, 6),
        "effect_of": attack.effect_of,
    }


def _proposal_json(proposal: Proposal) -> dict[str, Any]:
    return {
        "n": proposal.number,
        "kind": proposal.kind,
        "summary": proposal.summary,
        "attack": proposal.attack,
        "attack_share": round(proposal.attack_share, 6),
        "already_share": round(proposal.already_share, 6),
        "collateral_share": round(proposal.collateral_share, 6),
        "collateral_examples": list(proposal.collateral_examples),
        "collateral_is_guess": proposal.guess,
        "cost_ns": round(proposal.cost_ns, 1) if proposal.cost_ns is not None else None,
        "cost_measured": proposal.cost_measured,
        "commands": list(proposal.commands),
        "fwtop": proposal.fwtop,
    }
