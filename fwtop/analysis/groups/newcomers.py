"""Packets of a class in which this host has few usual peers: newcomers are looked at first."""

from __future__ import annotations

import numpy as np

from fwtop.analysis.context import NEW, AnalysisContext
from fwtop.analysis.engine.group import Group, Least
from fwtop.analysis.window.traffic import Rows
from fwtop.model.traffic.packets import Mask

_FEW = 64  # peers: in a class where more are usual, newcomers are no news


def newcomers_first(context: AnalysisContext, every: Mask, normal: str) -> Group:
    """Return the packets of sources that the baseline of a class doesn't have; all if these are no attack.

    Beside a tunnel, a flood at its rate is as much as usual twice: as a whole it is no news, without the
    tunnel's packets it is.
    """
    usual = context.baseline_sources(normal)
    whole = np.flatnonzero(every)
    if not 0 < len(usual) <= _FEW:
        return _group(context, whole, normal)
    known = np.isin(context.traffic.source_key[whole], usual)
    if not known.any() or known.all():
        return _group(context, whole, normal)
    group = Group(context, context.features(whole[~known]), Least(normal=NEW))
    group.otherwise = lambda: _group(context, whole, normal)
    return group


def _group(context: AnalysisContext, rows: Rows, normal: str) -> Group:
    return Group(context, context.features(rows), Least(normal=normal))
