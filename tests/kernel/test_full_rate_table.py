"""A hashlimit table that is full; run with what floods, as a slow sender never fills it."""

from __future__ import annotations

import pytest
from guardian_bench import PORT, Bench, apply

from fwtop.model.protocol import Why
from fwtop.model.rule import Kind, Match, RateLimit, Rule
from fwtop.rules.xtables import HASHLIMIT_MAX
from tests.kernel.wire import forged_arrivals

pytestmark = pytest.mark.kernel
UDP = 17


def why(guardian, rule_id: str) -> str:
    return "\n".join(guardian.demand(Why(rule_id)).data["sentences"])


def test_full_table_of_a_rate_limit_is_named(bench: Bench, poll_until) -> None:
    """More sources than xt_hashlimit remembers: all new clients are dropped, far below the rate."""
    rule = Rule("", Kind.HASHLIMIT, Match(family=4, protocol=UDP), "x", 600, limit=RateLimit(1000, 1000))
    with bench.connect() as guardian:
        assert any(
            "remembers 262,144 source prefixes" in line for line in guardian.plan(rule).data["warnings"]
        )
        rule_id = apply(guardian, rule)
        assert "table" not in why(guardian, rule_id)
        with forged_arrivals(bench.pair.victim, PORT + 1, HASHLIMIT_MAX + 1000):
            said = poll_until(lambda: told if "its table is full" in (told := why(guardian, rule_id)) else "")
    assert "262,144 of 262,144 source prefixes (IPv4): packets of every new client are" in said
