"""What was observed, as one frozen value: the screen, the store, the reports and the JSON all take this.

The JSON form is fixed by INTERFACE.md (schema 1): fields are added, never renamed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fwtop.model.address import Prefix
from fwtop.model.counters import ConntrackSample
from fwtop.model.rule import Rule, RuleStatus

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Share:
    """An estimated part of the arrived traffic, with the 95 % interval of its share."""

    packets: int
    bytes: int
    pps: float
    share: float  # of all arrived packets, 0 to 1
    share_low: float
    share_high: float


@dataclass(frozen=True, slots=True)
class Source:
    """An address, prefix, AS or country and what came from it.

    In `Sources.prefix` the share is that of the prefix after the prefixes below it are taken out.
    """

    key: str  # "203.0.113.7", "198.51.100.0/24", "AS64500", "NL"
    share: Share
    dropped_share: float  # of its own packets, 0 to 1
    country: str | None = None
    asn: int | None = None
    as_name: str | None = None  # sanitised
    prefix: Prefix | None = None  # for addresses and prefixes
    active_rule: str | None = None  # id of an fwtop rule that covers it


@dataclass(frozen=True, slots=True)
class Sources:
    """The same traffic cut four ways."""

    address: tuple[Source, ...] = ()
    prefix: tuple[Source, ...] = ()
    asn: tuple[Source, ...] = ()
    country: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Port:
    """A transport port on one side."""

    protocol: str  # "udp", "tcp"
    side: str  # "src", "dst"
    port: int
    service: str | None
    share: Share


@dataclass(frozen=True, slots=True)
class Payload:
    """A byte string that many packets have in common."""

    data: bytes
    text: str  # sanitised
    offset: int | None  # from the start of the transport payload; None: anywhere
    dns_name: str | None  # sanitised
    share: Share
    baseline_share: float  # of the baseline's packets that have it too


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Where packets ended: a layer and the reason it gave, or delivered, or unexplained."""

    layer: str
    reason: str
    packets: int
    pps: float
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Exact where the kernel counts, for the whole observation."""

    packets: int
    bytes: int
    pps: float
    bps: float
    accepted: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the contents were sampled."""

    one_in: float
    samples: int
    lost: int


@dataclass(frozen=True, slots=True)
class Attack:
    """A named attack with the evidence that an expert would give."""

    kind: str  # one of INTERFACE.md's
    title: str
    share: float
    pps: float
    confidence: float
    spoofed: bool
    evidence: tuple[str, ...]
    since: float  # Unix seconds


@dataclass(frozen=True, slots=True)
class Proposal:
    """A mitigation with its measured effect; `rule` is None where nothing on this machine helps."""

    number: int
    kind: str
    summary: str
    attack_share: float  # of the attack's packets stopped, 0 to 1
    collateral_share: float  # of normal traffic hit, 0 to 1
    collateral_examples: tuple[str, ...] = ()
    cost_ns: float | None = None
    commands: tuple[str, ...] = ()
    fwtop: str = ""  # the same as an fwtop command line
    rule: Rule | None = None
    guess: bool = False  # True: no baseline from before the attack, collateral is estimated
    stopped_pps: float = 0.0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an observation comes from."""

    kind: str  # live, capture, session
    interfaces: tuple[str, ...] = ()
    netns: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """Everything counted in one window."""

    totals: Totals
    sampling: Sampling
    ledger: tuple[LedgerRow, ...] = ()
    sources: Sources = field(default_factory=Sources)
    ports: tuple[Port, ...] = ()
    payloads: tuple[Payload, ...] = ()
    protocols: dict[str, Share] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What it means. `payloads`, where given, replace those of the tables (with baseline shares)."""

    attacks: tuple[Attack, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    payloads: tuple[Payload, ...] = ()
    baseline: str = ""  # one sentence on what normal was measured on
    baseline_packets: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One observation, complete and immutable."""

    host: str
    origin: Origin
    started: float  # Unix seconds
    seconds: float
    tables: Tables
    judgement: Judgement = field(default_factory=Judgement)
    conntrack: ConntrackSample | None = None
    mitigations: tuple[RuleStatus, ...] = ()
    guardian: str = ""  # "", "ready", "lost: …"
    softirq_share: float | None = None
    notes: tuple[str, ...] = ()  # what the operator should know about this observation

    def to_json(self, *, top: int = 50) -> dict[str, Any]:
        """Return the observation of INTERFACE.md, lists cut to `top` entries."""
        tables, judgement = self.tables, self.judgement
        payloads = judgement.payloads or tables.payloads
        return {
            "schema": SCHEMA,
            "host": self.host,
            "source": {
                "kind": self.origin.kind,
                "interfaces": list(self.origin.interfaces),
                "netns": self.origin.netns,
                "file": self.origin.file,
            },
            "started": rfc3339(self.started),
            "seconds": round(self.seconds, 6),
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
            },
            "ledger": [
                {
                    "layer": row.layer,
                    "reason": row.reason,
                    "packets": row.packets,
                    "pps": round(row.pps, 3),
                    "rule": row.rule,
                }
                for row in tables.ledger[:top]
            ],
            "sources": {
                name: [_source_json(entry) for entry in getattr(tables.sources, name)[:top]]
                for name in ("address", "prefix", "asn", "country")
            },
            "ports": [
                {
                    "protocol": port.protocol,
                    "side": port.side,
                    "port": port.port,
                    "service": port.service,
                    **share_json(port.share),
                }
                for port in tables.ports[:top]
            ],
            "payloads": [_payload_json(payload) for payload in payloads[:top]],
            "protocols": {name: share_json(share) for name, share in tables.protocols.items()},
            "conntrack": _conntrack_json(self.conntrack),
            "attacks": [_attack_json(attack) for attack in judgement.attacks[:top]],
            "proposals": [_proposal_json(proposal) for proposal in judgement.proposals[:top]],
            "mitigations": [mitigation_json(status) for status in self.mitigations[:top]],
            "baseline": {"summary": judgement.baseline, "packets": judgement.baseline_packets},
            "notes": list(self.notes),
        }


def rfc3339(unix_seconds: float) -> str:
    """Write a time as RFC 3339 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(unix_seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def share_json(share: Share) -> dict[str, Any]:
    """Return the SHARE part of an entry."""
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
    }


def _source_json(entry: Source) -> dict[str, Any]:
    return {
        "key": entry.key,
        "country": entry.country,
        "asn": entry.asn,
        "as_name": entry.as_name,
        **share_json(entry.share),
        "dropped_share": round(entry.dropped_share, 6),
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
    }


def _attack_json(attack: Attack) -> dict[str, Any]:
    return {
        "kind": attack.kind,
        "title": attack.title,
        "share": round(attack.share, 6),
        "pps": round(attack.pps, 3),
        "confidence": round(attack.confidence, 3),
        "spoofed": attack.spoofed,
        "evidence": list(attack.evidence),
        "since": rfc3339(attack.since),
    }


def _proposal_json(proposal: Proposal) -> dict[str, Any]:
    return {
        "n": proposal.number,
        "kind": proposal.kind,
        "summary": proposal.summary,
        "attack_share": round(proposal.attack_share, 6),
        "collateral_share": round(proposal.collateral_share, 6),
        "collateral_examples": list(proposal.collateral_examples),
        "collateral_is_guess": proposal.guess,
        "cost_ns": proposal.cost_ns,
        "commands": list(proposal.commands),
        "fwtop": proposal.fwtop,
    }
