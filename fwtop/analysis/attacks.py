"""The attacks of a snapshot: what the findings of one window mean, with their history."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.attack_words import sources_of, target_of
from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.fate import Fate
from fwtop.analysis.history.timeline import Activity, Timeline, history
from fwtop.model.traffic.snapshot import Attack

_REAL = 0.3  # probability of forged sources, below which they count as real


class Life(Struct, frozen=True):
    """A finding, when it was active in the window, and what became of its packets."""

    finding: Finding
    active: Activity
    fate: Fate

    @property
    def onset(self) -> tuple[float, float]:
        """First and last packet of its first pulse."""
        return self.active.pulses[0]


def attacks_of(
    context: AnalysisContext, lives: Sequence[Life], timeline: Timeline
) -> list[tuple[Attack, Finding]]:
    """Return the attacks and their findings, the greatest share first."""
    made: list[Attack] = []
    for life in lives:
        attack = _attack(context, life, timeline)
        same = sum(other.kind == attack.kind and other.target.startswith(attack.target) for other in made)
        made.append(replace(attack, target=f"{attack.target} #{same + 1}") if same else attack)
    cause = _cause(made, lives)
    made = [replace(attack, effect_of=cause) if _is_effect(attack) else attack for attack in made]
    named = [(attack, life.finding) for attack, life in zip(made, lives, strict=True)]
    return sorted(named, key=lambda item: -item[0].share)


def pps_of(context: AnalysisContext, finding: Finding) -> float:
    """Return the packets (or entries) a second of a finding."""
    return finding.pps if finding.pps is not None else context.traffic.pps(finding.rows)


def _is_effect(attack: Attack) -> bool:
    return attack.kind == "conntrack_exhaustion"


def _cause(attacks: Sequence[Attack], lives: Sequence[Life]) -> str:
    """Return the key of the attack of which most packets pass, and so fill the table of connections."""
    passing = [
        (life.fate.reaching_pps, attack.pps, attack.key)
        for attack, life in zip(attacks, lives, strict=True)
        if not _is_effect(attack) and len(life.finding.rows)
    ]
    return max(passing, default=(0.0, 0.0, ""))[2]


def _attack(context: AnalysisContext, life: Life, timeline: Timeline) -> Attack:
    finding, active, fate = life.finding, life.active, life.fate
    sampled, track = (
        pps_of(context, finding),
        timeline.note(finding, active, context.traffic.started + context.traffic.seconds),
    )
    pps = fate.pps or sampled
    if len(finding.rows) or finding.held is not None:
        track.target = target_of(context, finding, track.target)
    spoofed = finding.spoof.probability > context.config.spoof_threshold
    return Attack(
        finding.kind,
        finding.title,
        min(1.0, context.traffic.share(finding.rows)),
        pps,
        finding.confidence,
        spoofed,
        (*finding.evidence, *_on_sources(finding, spoofed=spoofed), *history(active, pps, track)),
        track.since,
        track.peak_pps,
        track.until if active.over else None,
        bps=context.traffic.bps(finding.rows) * (pps / sampled if sampled > 0 else 1.0),
        target=_target(finding, track.target),
        mine_share=fate.mine,
        other_share=fate.other,
        kernel_share=fate.kernel,
        sources=sources_of(context, finding, spoofed=spoofed),
        match=finding.match if len(finding.rows) or finding.held is not None else None,
        uncertain=not spoofed and finding.spoof.probability >= _REAL,
    )


def _target(finding: Finding, words: str) -> str:
    """Add the address to the words, where another attack of the same kind hits another address."""
    aside = finding.part and not finding.part.startswith("port ") and not words.startswith(finding.part)
    return f"{finding.part} {words}" if aside else words


def _on_sources(finding: Finding, *, spoofed: bool) -> list[str]:
    evidence = []
    if finding.spoof.evidence:
        unsure = "real" if finding.spoof.probability < _REAL else "of uncertain origin"
        verdict = "spoofed" if spoofed else unsure
        evidence.append(f"sources look {verdict}: {'; '.join(finding.spoof.evidence[:3])}")
    if spoofed:
        evidence.append("blocking sources is not offered: it would hit the owners of the spoofed addresses")
    return evidence
