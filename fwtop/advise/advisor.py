"""The judge: from a window of packets to attacks, signatures and proposals, with memory between ticks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from fwtop.advise.activity import Activity, activity, story
from fwtop.advise.baseline import Baseline
from fwtop.advise.classify import find_attacks
from fwtop.advise.config import AdviseConfig
from fwtop.advise.contents import signatures
from fwtop.advise.kept import Advice, Picture
from fwtop.advise.normal import normal_traffic, with_unexplained
from fwtop.advise.numbering import Numbering
from fwtop.advise.panel import shown_payloads
from fwtop.advise.propose import numbered, offers
from fwtop.advise.scanmemory import ScanMemory
from fwtop.advise.scene import Finding, Scene
from fwtop.advise.timeline import Timeline
from fwtop.advise.traffic import TCP, Traffic
from fwtop.advise.upstream import pressure
from fwtop.model.packets import PacketBatch
from fwtop.model.snapshot import Attack, Judgement, Tables
from fwtop.model.window import Window

_SHORT = 100  # packets of a capture: then the attack is nearly all of it, or nothing shows


@dataclass
class _Pending:
    """Packets of a quiet tick that wait: the onset of an attack may be among them."""

    end: float
    seconds: float
    packets: PacketBatch


class Advisor:
    """Judges one window after the other. Not thread-safe; one for each observation."""

    def __init__(self, config: AdviseConfig | None = None, baseline: Baseline | None = None) -> None:
        self.config = config or AdviseConfig()
        self.baseline = baseline or Baseline(self.config.baseline_rows)
        self._timeline = Timeline(self.config.linger_seconds)
        self._scans = ScanMemory()
        self._pending: list[_Pending] = []
        self._advice: Advice | None = None
        self._numbers = Numbering()
        self._last_ns = -1
        self._last_end = 0.0

    def judge(self, window: Window, tables: Tables) -> Judgement:
        """Name the attacks of a window, say what would stop them, and learn from it when it is quiet."""
        scene = make_scene(window, self.config, self.baseline, self._scans)
        findings = find_attacks(scene)
        lives = [(finding, activity(scene, finding, _pps(scene, finding))) for finding in findings]
        lives.sort(key=lambda life: life[1].pulses[0])  # what came first can be followed
        attacks = tuple(self._attack(scene, finding, active) for finding, active in lives)
        attacks = tuple(sorted(attacks, key=lambda attack: -attack.share))
        self._learn(scene, window, quiet=not attacks)
        now = window.started + window.seconds
        advice = self._advice = self._advise(scene, now)
        numbers = self._numbers.assign([offer.key for offer in advice.offered], now)
        made = [numbered(offer, number) for offer, number in zip(advice.offered, numbers, strict=True)]
        found = chain.from_iterable(advice.found.values())
        return Judgement(
            attacks=attacks,
            proposals=tuple(sorted(made, key=lambda proposal: proposal.number)),
            payloads=shown_payloads(tables, scene.traffic, found, advice.normal),
            baseline=advice.normal.sentence,
            baseline_packets=len(advice.normal.packets),
        )

    def _advise(self, scene: Scene, now: float) -> Advice:
        """Say what would stop the attacks: what was said a moment ago, where they are the same."""
        normal = normal_traffic(scene)
        picture = Picture.of(scene, normal, pressed=bool(pressure(scene)))
        before = self._advice
        if before is not None and scene.findings and before.holds(picture, now):
            return before
        order = tuple(offer.key for offer in before.offered) if before is not None else ()
        found = {finding.key: signatures(scene, finding, normal) for finding in scene.findings}
        normal = with_unexplained(scene, normal, found)
        return Advice(picture, now, normal, found, offers(scene, normal, found, order))

    def _attack(self, scene: Scene, finding: Finding, active: Activity) -> Attack:
        pps, track = _pps(scene, finding), self._timeline.note(finding, active)
        notes = story(active, pps, peak_pps=track.peak_pps, waves=track.waves, follows=track.follows)
        spoofed = finding.spoof.probability > self.config.spoof_threshold
        evidence = list(finding.evidence)
        if finding.spoof.evidence:
            verdict = (
                "forged" if spoofed else "real" if finding.spoof.probability < 0.3 else "of uncertain origin"
            )
            evidence.append(f"sources look {verdict}: {'; '.join(finding.spoof.evidence[:3])}")
        if spoofed:
            evidence.append("blocking sources is not offered: it would hit those whose addresses were forged")
        return Attack(
            finding.kind,
            finding.title,
            min(1.0, scene.traffic.share(finding.rows)),
            pps,
            finding.confidence,
            spoofed,
            (*evidence, *notes),
            track.since,
            track.peak_pps,
            track.until if active.over else None,
        )

    def _learn(self, scene: Scene, window: Window, *, quiet: bool) -> None:
        """Take quiet packets into the baseline, late; during an attack only connections that are real."""
        if not window.live or len(scene.traffic) == 0:
            return
        packets = scene.traffic.packets
        new = packets.time_ns > self._last_ns
        self._last_ns = max(self._last_ns, int(packets.time_ns.max()))
        end = window.started + window.seconds
        seconds = min(window.seconds, max(0.0, end - self._last_end))
        self._last_end = end
        if not quiet:
            self._pending.clear()
            if self.baseline.ready:
                real = packets.select(new & scene.tcp.real & scene.free)
                self.baseline.renew(real, self.baseline.rows.protocol == TCP)
            return
        fresh = packets.select(new)
        fresh = replace(fresh, weight=scene.traffic.weight[new])
        if seconds > self.config.settle_seconds:  # one long window, as of `fwtop snapshot`: most has settled
            settle = self.config.settle_seconds
            old = fresh.time_ns < int(fresh.time_ns.max()) - int(settle * 1e9)
            self._keep(fresh.select(old), seconds - settle)
            fresh, seconds = fresh.select(~old), settle
        self._pending.append(_Pending(end, seconds, fresh))
        while self._pending and self._pending[0].end <= end - self.config.settle_seconds:
            settled = self._pending.pop(0)
            self._keep(settled.packets, settled.seconds)

    def _keep(self, packets: PacketBatch, seconds: float) -> None:
        self.baseline.keep_rates(packets, packets.weight, seconds)
        self.baseline.keep_rows(packets)


def make_scene(
    window: Window, config: AdviseConfig, baseline: Baseline, scans: ScanMemory | None = None
) -> Scene:
    """Prepare a window for the rules."""
    traffic = Traffic.of(window, config)
    if not window.live and len(traffic) < _SHORT:
        config = replace(config, min_samples=config.min_samples * 2 // 3)
    free = np.ones(len(traffic), np.bool_)
    return Scene(traffic, config, baseline, window.counters, window.own, free, scans or ScanMemory())


def _pps(scene: Scene, finding: Finding) -> float:
    return finding.pps if finding.pps is not None else scene.traffic.pps(finding.rows)
