"""Match payload bytes: anywhere with xt_string, at an exact offset with xt_u32 (rules/xtables.py)."""

from __future__ import annotations

from fwtop.model.rule import Kind
from fwtop.rules.fields import match_words
from fwtop.rules.kind import Layer, RuleKind
from fwtop.rules.kinds.common import drop_all

KIND = RuleKind(
    Kind.STRING, Layer.RAW, drop_all, match_words,
    missing=lambda rule: "" if rule.match.payload else "match.payload: a match needs one",
    is_filter=True, reads_payload=True, is_part=True,
    on_bridges="--via xdp or tc (with --offset) meets them at the ports",
    evaded="evaded by: another payload", ladder="by payload (string)",
    probes={"string": "-m string --algo bm --hex-string |fe00| -j DROP"},
    verbs=("match",), cost_ns=945.0, bench="match --string {payload} {port}",
)  # fmt: skip
