"""What nothing else explains: a surge is an attack if it is far above normal, or nearly all rejected."""

from fwtop.analysis.engine.hypothesis import CERTAIN, Hypothesis, at_least, at_most, is_not, is_so
from fwtop.analysis.groups.measures import observed_live, samples, share, spoofed
from fwtop.analysis.groups.rest import (
    above_all_normal,
    match_shared,
    rejected,
    scattered,
    shared_fields,
    surge,
    unexplained,
)

_LEAD = "{amount:packets of no known kind} from {senders}, mean length {mean_length:.0f} bytes"

REST_ENTRIES = (
    *(
        Hypothesis(
            name, unexplained, 0.1,
            kind="unknown_flood",
            title="Unknown flood",
            needs=(at_least(samples, 60), is_not(scattered), *needs),
            lead=_LEAD,
            details=(surge, shared_fields),
            match=match_shared,
            stopped_by="a signature of what the packets share; a limit for each source",
        )
        for name, needs in (
            ("surge far above normal",
             (is_so(observed_live), at_least(share, 0.5), at_least(above_all_normal, 1))),
            ("surge that this host rejects",
             (is_so(observed_live), at_least(share, 0.5), at_least(rejected, 0.8))),
            ("capture of almost only forged packets",
             (is_not(observed_live), at_least(share, 0.8), at_least(spoofed, 0.8))),
        )
    ),
    Hypothesis("scans of a network for hosts", unexplained, CERTAIN, needs=(is_so(scattered),)),
    Hypothesis("mixed remainder", unexplained, 2.0, needs=(at_most(share, 0.499),)),
)  # fmt: skip
