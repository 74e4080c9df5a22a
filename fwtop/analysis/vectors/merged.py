"""Answers of one service from its own port and from other ports are one attack."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.context import Finding
from fwtop.analysis.window.traffic import UDP
from fwtop.model.rule import Match


def merged(findings: list[Finding]) -> list[Finding]:
    """Return the findings, reflections off one service as one."""
    result: dict[str, Finding] = {}
    for finding in findings:
        first = result.get(finding.kind)
        if first is None or not finding.kind.endswith("_amplification"):
            result[finding.kind if first is None else f"{finding.kind} {len(result)}"] = finding
            continue
        large, small = sorted((first, finding), key=lambda one: -len(one.rows))
        result[finding.kind] = replace(
            large,
            rows=np.sort(np.concatenate([large.rows, small.rows])),
            confidence=max(large.confidence, small.confidence),
            evidence=(large.evidence[0], f"also {small.evidence[0]}", *large.evidence[1:]),
            match=Match(protocol=UDP),
            dns_name=large.dns_name if large.dns_name == small.dns_name else None,
        )
    return list(result.values())
