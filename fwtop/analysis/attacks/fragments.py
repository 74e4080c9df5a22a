"""Fragments whose datagrams belong to no other attack."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.compete import datagrams_of
from fwtop.analysis.engine.entries import CERTAIN, Group, Hypothesis, Proof, cut, feature, matching
from fwtop.analysis.measures.general import ENOUGH, mean_length, newcomers_first, sources
from fwtop.analysis.severity import CORE, LINK
from fwtop.analysis.window.counting import distinct_values
from fwtop.model.traffic.packets import Fragment


@cut(Proof.VOLUME)
def fragments(context: AnalysisContext) -> Iterator[Group]:
    """Fragments that belong to no other attack's datagrams; beside known senders those of other sources."""
    packets = context.traffic.packets
    loose = (packets.fragment != Fragment.NONE) & context.unclaimed & (packets.family != 0)
    yield newcomers_first(context, np.asarray(loose), "fragment")


@feature("share")
def later_fragments(group: Group) -> float:
    """Part that isn't the first fragment of its datagram."""
    packets = group.context.traffic.packets
    return float((packets.fragment[group.packets.rows] == Fragment.LATER).mean())


@feature("fragments")
def pieces(group: Group) -> float:
    """Sampled fragments of a datagram."""
    return group.packets.n / max(_number_of_datagrams(group), 1)


@feature("fragments")
def fragments_per_first(group: Group) -> float:
    """Sampled fragments for each first fragment; infinite without any."""
    heads = _heads(group)
    return group.packets.n / heads if heads else np.inf


@feature("share")
def whole_datagrams(group: Group) -> float:
    """Datagrams that the sample would hold if all were complete, by those that it holds.

    Of a datagram of k pieces one is the first. If one packet in N is sampled, each piece is seen with
    probability 1 / N, so that as many datagrams show as the first fragments lead one to expect.
    """
    heads = _heads(group)
    if not heads:
        return 0.0
    seen = min(1.0, 1 / max(1.0, group.context.traffic.one_in))
    expected = heads / seen * (1 - (1 - seen) ** (group.packets.n / heads))
    return float(expected) / max(1, _number_of_datagrams(group))


def _heads(group: Group) -> int:
    packets = group.context.traffic.packets
    return int((packets.fragment[group.packets.rows] == Fragment.FIRST).sum())


def _number_of_datagrams(group: Group) -> int:
    rows = group.packets.rows
    return group.once("datagrams", lambda: len(distinct_values(datagrams_of(group.context, rows))))


ENTRIES = (
    Hypothesis(
        "fragment flood", fragments, 2.0,
        kind="fragment_flood",
        exhausts=(LINK, CORE),
        title="Fragment flood",
        needs=(ENOUGH,),
        lead="{amount:fragments} from {senders}, {later_fragments:percent} of them not the first, "
        "{pieces:.1f} per datagram, mean length {mean_length:.0f} bytes",
        match=matching("protocol", fragment=True),
        stopped_by="dropping fragments",
    ),
    Hypothesis(
        "large datagrams of few servers", fragments, CERTAIN,  # NFS, video; 64 KiB have 46 pieces
        needs=(
            sources.at_most(9), mean_length.at_least(501), fragments_per_first.at_most(46),
            whole_datagrams.at_least(0.8),
        ),
    ),
)  # fmt: skip
