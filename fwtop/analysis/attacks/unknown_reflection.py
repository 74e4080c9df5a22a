"""Reflection off a service that no table knows."""

from __future__ import annotations

from collections.abc import Iterator

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import (
    CERTAIN,
    Group,
    Hypothesis,
    Least,
    Proof,
    at_least,
    at_most,
    cut,
    feature,
    is_not,
    is_so,
)
from fwtop.analysis.measures import answers
from fwtop.analysis.measures.general import ENOUGH, mean_length, same_length, sources
from fwtop.analysis.parsers.services import Service

_BEGIN = 4  # payload bytes that all answers of one program share


@cut(Proof.VOLUME)
def answers_of_unknown_service(context: AnalysisContext) -> Iterator[Group]:
    """UDP packets from the most common source port, if no table knows it."""
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.benign
    features = context.features(pool)
    top = features.top("sport")
    if (
        features.n < context.config.min_samples
        or top.share <= 0.3
        or top.value in (0, 443)
        or top.value >= 49_152
    ):
        return
    service = Service("udp", f"UDP (unknown service, port {top.value})", (top.value,))
    mine = context.features(pool & (packets.sport == top.value))
    notes = answers.answer_notes(service, None, [top.value])
    yield Group(context, mine, Least("flood_pps", None), notes, spoof_prior=answers.IMITATIONS)


@feature("probability")
def sources_forged(group: Group) -> float:
    """Probability that the addresses are forged, whatever service the ports suggest."""
    return group.context.spoof(group.packets.rows).probability


@feature("yes or no")
def worded_alike(group: Group) -> float:
    """Whether all begin alike and differ in length: answers of one program. Spoofed floods have one size."""
    matrix, length = group.packets.head
    begin = matrix[length >= _BEGIN, :_BEGIN]
    if len(begin) < 0.9 * len(matrix) or group.packets.top("ip_length").share > 0.2:
        return False
    return bool((begin == begin[0]).all(1).mean() > 0.95 and begin[0].any())


@feature("yes or no")
def same_port_both_ends(group: Group) -> float:
    """Whether nearly all go to the port that they come from: peers of a symmetric protocol."""
    dport = group.packets.top("dport")
    return dport.value == group.packets.top("sport").value and dport.share > 0.9


@feature("distinct payloads a packet")
def payload_variety(group: Group) -> float:
    """Distinct payload beginnings (32 bytes) for each packet: 0 constant, 1 all different."""
    return group.packets.payload_variety


ENTRIES = (
    Hypothesis(
        "amplification by a service that no table knows", answers_of_unknown_service, 5.0,
        kind="udp_amplification",
        traits=Trait.REFLECTED | Trait.AMPLIFIED,
        title="{service_title} amplification",
        needs=(
            ENOUGH, at_least(sources, 20), at_least(mean_length, 300),
            at_least(payload_variety, 0.02), at_most(same_length, 0.9),
        ),
        details=(answers.servers,),
        match=answers.match_answers,
        stopped_by=answers.REFLECTED,
    ),
    Hypothesis(
        "conversations of few peers", answers_of_unknown_service, CERTAIN, needs=(is_so(answers.one_to_one),)
    ),
    Hypothesis(
        "peers of a symmetric protocol", answers_of_unknown_service, CERTAIN,
        needs=(is_so(same_port_both_ends),),
    ),
    Hypothesis(
        # no amplification, that is: whether they are a UDP flood is asked of their destination ports
        "forged packets: no server sends them", answers_of_unknown_service, CERTAIN,
        needs=(at_least(sources_forged, 0.5), is_not(worded_alike)),
    ),
)  # fmt: skip
