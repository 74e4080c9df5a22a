"""The rate that a limit really keeps, which preview and `status` tell: iptables reads back the same."""

from __future__ import annotations

import re

import pytest
from guardian_bench import VARIANTS, Bench, apply, rules_of

from fwtop.model.protocol import Plan
from fwtop.model.rule import Kind, Match, RateLimit, Rule
from fwtop.rules.kinds import as_kept, is_rounded
from fwtop.rules.words import with_summary
from fwtop.rules.xtables import iptables_bytes, limit_args

pytestmark = pytest.mark.kernel
PACKETS = (1, 3, 700, 999, 30_000, 70_000, 300_000, 333_334, 500_000, 500_001, 600_000, 900_000, 1_000_000)
BYTES = (64, 5_000, 100_000, 10**6, 10**7, 10**8, 10**9, 2 * 10**9, 4 * 10**9, (1 << 32) - 1)
_SHOWN = re.compile(r"--hashlimit-above (\d+)(/sec|b/s|kb/s|mb/s)")
_UNITS = {"/sec": 1, "b/s": 1, "kb/s": 1024, "mb/s": 1024**2}
_CHUNK = 16  # bytes: iptables rounds down to it, the kernel up


def limit(rate: int, *, in_bytes: bool = False, kind: Kind = Kind.HASHLIMIT) -> Rule:
    return Rule(
        "", kind, Match(protocol=17, family=4), "x", 60, limit=RateLimit(rate, rate, 32, 64, in_bytes)
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_iptables_reads_the_same_rate_back(netns_pair, variant: str) -> None:
    wanted = [limit(rate) for rate in PACKETS] + [limit(rate, in_bytes=True) for rate in BYTES]
    lines = []
    for number, rule in enumerate(wanted, 1):
        lines.append(" ".join(["-A", "PREROUTING", *limit_args(str(number), rule.limit, 4), "-j", "DROP"]))
    text = "\n".join(["*raw", *lines, "COMMIT"])
    netns_pair.victim.run("sh", "-c", f"echo '{text}' | iptables-{variant}-restore")
    saved = netns_pair.victim.run(f"iptables-{variant}-save", "-t", "raw").stdout
    shown = [int(number) * _UNITS[unit] for number, unit in _SHOWN.findall(saved)]
    assert len(shown) == len(wanted)
    for rule, read in zip(wanted, shown, strict=True):
        kept = as_kept(rule)
        assert kept is not None
        if not kept.in_bytes:
            assert int(kept.per_second) in (read, read + 1), rule.limit  # iptables cuts off the fraction
        else:  # it prints kilobytes and megabytes, and not what the kernel's 32 bits cut off
            exact = 0.08 if read > 10**8 else 0.002
            assert kept.per_second == pytest.approx(read + _CHUNK, rel=exact), rule.limit
            assert read == pytest.approx(iptables_bytes(rule.limit.per_second), abs=1024**2), rule.limit


def test_preview_and_status_tell_the_rate_that_the_kernel_keeps(bench: Bench) -> None:
    with bench.connect() as guardian:
        rule = limit(900_000)
        plan = guardian.demand(Plan(rule.to_dict())).data
        told = "1,000,000/s (900,000/s rounded by hashlimit) per /32"
        assert told in " ".join(plan["warnings"]), plan
        first = apply(guardian, rule)
        second = apply(guardian, with_summary(limit(70_000)))
        third = apply(guardian, with_summary(limit(2_000)))
        found = rules_of(guardian)
    assert [found[name]["kept_per_second"] for name in (first, second, third)] == [1_000_000, 71_429, 2_000]
    assert told in found[first]["note"]
    assert "71,429/s (70,000/s rounded by hashlimit)" in found[second]["rule"]["summary"]
    assert found[second]["note"] == ""  # once is enough
    assert "rounded" not in found[third]["rule"]["summary"] + found[third]["note"]


def test_what_is_rounded_by_less_than_is_worth_a_word() -> None:
    assert not any(map(is_rounded, map(limit, (1, 7, 999, 1_000, 10_000, 50_000, 500_000, 1_000_000))))
    assert all(map(is_rounded, map(limit, (30_000, 300_000, 333_334, 500_001, 900_000))))
    assert not is_rounded(limit(900_000, kind=Kind.XDP))
    assert is_rounded(limit(4_200_000_000, in_bytes=True, kind=Kind.XDP))
