"""Previews: any rule replayed on the present window, before it is installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import AnalysisContext, Finding, make_context
from fwtop.analysis.memory import Baseline
from fwtop.analysis.proposals import effect
from fwtop.analysis.proposals.bystanders import has_return_path, reach_of, unseen_share
from fwtop.analysis.proposals.census import Aim
from fwtop.analysis.proposals.held import is_about, with_connections
from fwtop.analysis.proposals.limits import full_table_warning
from fwtop.analysis.proposals.matching import allowed_rows
from fwtop.analysis.proposals.normal import Normal, normal_traffic, with_unexplained
from fwtop.analysis.proposals.present import lost_now
from fwtop.analysis.proposals.signatures import matches, signatures
from fwtop.model.harm import Reach
from fwtop.model.rule import Preview, Rule
from fwtop.model.traffic.packets import F64, U64, Mask, Window
from fwtop.rehearsal.host import NO_PEERS, KnownPeers
from fwtop.render.numbers import percent
from fwtop.rules.kinds import drops_nothing, of

_BROAD = 0.05


class Basis(Struct, frozen=True):
    """A window judged once, to preview several rules on it."""

    context: AnalysisContext
    findings: tuple[Finding, ...]
    normal: Normal
    held: tuple[Finding, ...] = ()  # those that hold connections
    active: tuple[Rule, ...] = ()  # rules that act already


def basis(
    window: Window,
    baseline: Baseline | None = None,
    config: AdviseConfig | None = None,
    active: Iterable[Rule] = (),
    attackers: Sequence[U64] = (),
) -> Basis:
    """Judge a window: find its attacks and its normal traffic; `attackers` as of AnalysisContext."""
    config = config or AdviseConfig()
    context = make_context(window, config, baseline or Baseline())
    context.attackers = attackers
    found_all = find_attacks(context)
    findings = [finding for finding in found_all if not finding.state]
    held = tuple(finding for finding in found_all if finding.held is not None)
    normal = normal_traffic(context)
    if normal.guess:
        found = {finding.key: signatures(context, finding, normal) for finding in findings}
        normal = with_unexplained(context, normal, matches(found))
    return Basis(context, tuple(findings), normal, held, effect.replayable(tuple(active)))


def preview(
    rule: Rule, window: Window, baseline: Baseline | None = None, config: AdviseConfig | None = None
) -> Preview:
    """Return the share of each attack that the rule would stop, and of normal traffic that it would drop."""
    return preview_on(rule, basis(window, baseline, config))


def preview_on(rule: Rule, judged: Basis, known: KnownPeers = NO_PEERS) -> Preview:
    """Return `preview` of a rule without judging the window again.

    What passes by the allow-list is neither stopped nor harmed.
    """
    allowed = (*known.entries, *known.behind)
    context, findings, normal = judged.context, judged.findings, judged.normal
    traffic = context.traffic
    passing = allowed_rows(allowed, traffic.packets)
    dropped = np.where(passing, 0.0, effect.stopped_by(rule, context, traffic))
    total_pps = effect.dropped_pps(dropped, rule.match, traffic, np.arange(len(traffic)))
    if drops_nothing(rule):
        pps = total_pps if of(rule.kind).untracks else 0.0
        return Preview(0.0, 0.0, 0.0, 0.0, pps, guess=normal.guess)
    shares = [
        effect.share_stopped(dropped, rule.match, traffic, finding, finding.rows) for finding in findings
    ]
    rates = [effect.dropped_pps(dropped, rule.match, traffic, finding.rows) for finding in findings]
    aimed = int(np.argmax(rates)) if findings else None
    cost = effect.harm_by(rule, normal, traffic, allowed_rows(allowed, normal.packets))
    reach = reach_of(context, (*findings, *judged.held), rule, cost.part, normal)
    harmed = min(1.0, cost.share + unseen_share(rule, reach, normal))
    holding = (one for one in judged.held if one.held is not None and is_about(rule.match, one.held))
    against = findings[aimed] if aimed is not None and rates[aimed] > 0 else next(holding, None)
    spared = [peer.prefix for peer in allowed]
    named = zip((finding.title for finding in findings), shares, strict=True)
    returns = against is not None and has_return_path(context, against)
    now = lost_now(rule, dropped, context, normal, returns=returns)
    clients = effect.clients_harmed(rule, cost, now, normal, Aim.at(against, context), allowed=spared)
    made = Preview(
        attack_share=shares[aimed] if aimed is not None else 0.0,
        attack_pps=sum(rates),
        collateral_share=harmed,
        collateral_pps=cost.pps,
        total_pps=total_pps,
        examples=cost.examples,
        warnings=_warnings(judged, rule, reach, total_pps, 0.0 if clients.known else harmed),
        reach=reach,
        guess=normal.guess,
        attack=findings[aimed].title if aimed is not None else "",
        attacks=tuple(sorted(named, key=lambda item: -item[1])),
        clients=clients,
        losses=normal.rehearsed(replace(rule, predicted_clients=clients), known).losses,
    )
    made = _beside_active(made, rule, judged, dropped, passing)
    return with_connections(made, rule, context, judged.held, normal)


def _beside_active(made: Preview, rule: Rule, judged: Basis, dropped: F64, passing: Mask) -> Preview:
    """Add what active rules stop of each attack, and what they and the previewed one do together."""
    if not judged.active:
        return made
    context, traffic = judged.context, judged.context.traffic
    before = np.where(passing, 0.0, effect.stopped_by_all(judged.active, context))
    both = np.maximum(before, dropped)
    already, together = [], []
    for one in judged.findings:
        if (share := effect.share_of(before, traffic, one.rows)) > 0:
            already.append((one.title, share))
            whole = effect.share_stopped(both, rule.match, traffic, one, one.rows)
            together.append((one.title, max(share, whole)))
    return replace(made, already=tuple(already), together=tuple(together))


def _warnings(judged: Basis, rule: Rule, reach: Reach, total_pps: float, share: float) -> tuple[str, ...]:
    """Warn of what the numbers don't say; `share` is that of normal packets, where no client is known."""
    context = judged.context
    vectors = (one for one in context.findings if not one.state)
    forged = [one.title for one in vectors if one.spoof.probability > context.config.spoof_threshold]
    whose = f"the sources of the {forged[0] if forged else ''} look spoofed"
    full = full_table_warning(rule, context.traffic)
    found = (
        (reach.closes, reach.closing),
        (rule.match.sources and forged, f"{whose}: blocking them stops little and hits others"),
        (full, full or ""),
        (not context.findings, "no attack is in progress"),
        (total_pps == 0 and rule.connections is None, "no packet of this window matches"),
        (share > _BROAD, f"it would drop {percent(share)} of normal traffic"),
        (judged.normal.guess, "no baseline yet: client impact is estimated"),
    )
    return tuple(text for is_so, text in found if is_so)
