"""SYN floods, and the crowds and background scans that look like them. Source: RFC 4987."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait, count
from fwtop.analysis.engine.entries import CERTAIN, Group, Hypothesis, Least, Proof, cut, feature
from fwtop.analysis.measures.general import (
    ENOUGH,
    observed_live,
    of_protocol,
    rate,
    same_port,
    share,
    sources,
    spoofed,
)
from fwtop.analysis.measures.tcp import BARE, constant_fields, constants
from fwtop.analysis.severity import BACKLOG, CORE, TABLE
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.counting import among, part_marked
from fwtop.analysis.window.features import Features, header_words
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import Rows, mix
from fwtop.render.numbers import percent

_ANSWERS = 2.0  # RSTs for each SYN: its SYN-ACK is repeated (tcp_synack_retries), a second SYN answered, too
_NEARLY_ALL = 0.95  # of the SYNs
_CHANCE = 4.0  # standard deviations by which a sample may hold more RSTs than SYNs


@cut(Proof.HANDSHAKES)
def unanswered_syns(context: AnalysisContext) -> Iterator[Group]:
    """SYNs that no connection follows; of those among a crowd of visitors, only the ones without options."""
    tcp = context.tcp
    unanswered = tcp.syn & context.unclaimed & ~tcp.completed
    if not unanswered.any():
        return
    unanswered &= ~context.traffic.of_flows(tcp.unseen)  # flows with truncated flags may have continued
    if not context.sparse:
        unanswered &= context.unestablished
    features = context.features(unanswered)
    if features.n < context.config.min_samples:
        return
    completed = float(tcp.completed[tcp.syn & context.unclaimed].mean())
    # If connections can be followed, none of these was completed
    followed = completed if context.sparse else 0.0
    bare = context.features(features.rows[header_words(context.traffic, features.rows) == BARE])
    made = bare.share > 0.1 * features.share
    made = made and context.prominence(bare, floor_pps=context.config.flood_pps, normal="tcp.syn") >= 1
    if made and bare.share < 0.9 * features.share and _crowd(context, features):
        features = bare
    packets, rows = context.traffic.packets, features.rows
    own = (packets.src_hi[rows] == packets.dst_hi[rows]) & (packets.src_lo[rows] == packets.dst_lo[rows])
    land = part_marked(own) > _NEARLY_ALL
    form = "LAND attack" if land else "SYN flood"
    notes = {"completed_syns": completed, "bare": made, "opening": True, "form": form}
    forged = Spoof(1.0, ("they bear the address that they are sent to (CERT CA-1997-28)",)) if land else None
    yield Group(context, features, Least(normal="tcp.syn"), notes, completed=followed, known_spoof=forged)


@feature("yes or no")
def without_options(group: Group) -> float:
    """Whether a flood's worth of the SYNs carry no TCP options, as no operating system sends them."""
    return bool(group.notes["bare"])


@feature("yes or no")
def visitor_crowd(group: Group) -> float:
    """Whether most SYNs at this time become connections; in a thin sample, whether more packets follow."""
    return _crowd(group.context, group.packets)


def _crowd(context: AnalysisContext, features: Features) -> bool:
    tcp, weight = context.tcp, context.traffic.weight
    if context.sparse:
        return float(weight[tcp.ack | tcp.fin].sum()) > 1.5 * features.packets
    # Of a connection that goes on, a sample holds one of the next two packets by this chance
    seen = 1 - (1 - 1 / context.traffic.one_in) ** 2
    return features.packets < (1 - 0.5 * seen) * float(weight[tcp.syn].sum())


@feature("packets a second")
def slow_rate(group: Group) -> float:
    """Rate over the window, of a short one over a second."""
    return group.packets.packets / max(group.context.traffic.seconds, 1.0)


@feature("packets a second")
def rate_per_target(group: Group) -> float:
    """Rate for each address of this host that is tried."""
    return group.packets.pps / max(1, group.packets.destinations.distinct)


def target_port(group: Group) -> list[str]:
    """Write where they go."""
    dport = group.packets.top("dport")
    if dport.share > 0.3:
        return [f"{percent(dport.share)} go to port {dport.value}"]
    return [f"they go to {dport.distinct:,} different ports"]


def carried_data(group: Group) -> list[str]:
    """Write that they carry data."""
    load = group.context.traffic.packets.payload_length[group.packets.rows]
    return [f"they carry data (mean {load.mean():.0f} bytes)"] if (load > 0).mean() > 0.5 else []


def with_resets(group: Group) -> Rows:
    """Claim the SYNs and the RSTs that they cause."""
    return np.sort(np.concatenate([group.packets.rows, _resets(group)]))


def resets_included(group: Group) -> list[str]:
    """Write how many RSTs were claimed."""
    resets = _resets(group)
    if not len(resets):
        return []
    return [f"{count(group.context.traffic.weight[resets].sum())} RSTs of the same sources are included"]


match_syn = partial(of_protocol, flags=(SYN | ACK, SYN))


def _resets(group: Group) -> Rows:
    """Find the RSTs of hosts that got a SYN-ACK for a SYN their kernel never sent (Moore et al. 2001).

    Besides the owners of forged addresses, these are the senders themselves if a tool bypasses their kernel.
    A thin sample hardly holds both packets of a flow, so all RSTs of its sources to the ports it hits count.
    """
    return group.once("resets", lambda: _find_resets(group.context, group.packets))


def _find_resets(context: AnalysisContext, features: Features) -> Rows:
    traffic = context.traffic
    pool: Rows = traffic.rows(context.tcp.rst & context.unclaimed)
    pool = pool[header_words(traffic, pool) == BARE]
    if len(pool) == 0:
        return pool
    aimed = mix(traffic.source_key, traffic.packets.dport.astype(np.uint64))
    mine: Rows = pool[among(aimed[pool], aimed[features.rows])]
    chance = _CHANCE * float(np.sqrt(traffic.weight[mine].sum() * traffic.one_in))
    answered = float(traffic.weight[mine].sum()) <= _ANSWERS * features.packets + chance
    return mine if answered else mine[:0]


ENTRIES = (
    Hypothesis(
        "SYN flood", unanswered_syns, 1.7,
        kind="syn_flood",
        title="{form}",
        exhausts=(BACKLOG, TABLE, CORE),
        traits=Trait.APART | Trait.OPENINGS,
        needs=(ENOUGH,),
        lead="{amount:SYNs} from {senders}; {completed_syns:percent} of all SYNs led to a connection",
        evidence=(
            without_options.if_so(8.0,
                  "they carry no TCP options; the SYN of every operating system does (RFC 9293 3.7.1)"),
            constants.above(0, 1.7),
            spoofed.above(0.8, 1.7),
        ),
        details=(target_port, carried_data, resets_included, constant_fields),
        match=match_syn,
        rows=with_resets,
        stopped_by="SYN cookies, a limit of SYNs, or a signature of their constant fields",
    ),
    Hypothesis(
        "visitors whose connections are completed", unanswered_syns, 7.5,  # a flash crowd
        needs=(visitor_crowd.yes, without_options.no),
    ),
    Hypothesis(
        "attempts of a few hosts at many closed ports", unanswered_syns, CERTAIN,
        needs=(sources.at_most(3), same_port.at_most(0.1), slow_rate.at_most(299)),
    ),
    *(
        Hypothesis(
            f"background scans{how}", unanswered_syns, CERTAIN,
            needs=(observed_live.no, same_port.at_most(0.5), spoofed.at_most(0.9), *needs),
        )
        for how, needs in (
            (", some a minute and address", (rate_per_target.at_most(1),)),  # Wustrow et al. 2010
            (" of one address", (rate.at_most(20),)),
            (" beside other traffic", (share.at_most(0.5), rate.at_most(100))),
        )
    ),
)  # fmt: skip
