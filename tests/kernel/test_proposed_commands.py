"""What a proposal shows to type by hand is what the guardian plans for its rule, and a shell takes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pytest
from guardian_bench import Bench

from fwtop.lab import scenario
from fwtop.model.protocol import Plan
from fwtop.render.observation import observation_json
from tests.golden.snapshots import observed

pytestmark = pytest.mark.kernel
TOP = 9
_LEFT_OUT = re.compile(r"… and [\d,]+ more|\.\.\.")  # of a long list
_CHAINS = re.compile(r"(?<= -[AI] )(FWTOP\S*|PREROUTING|OUTPUT)( 1)? |(?<=tables)-(nft|legacy)")


def lines(commands: Iterable[str]) -> Iterator[str]:
    """Yield each set and each line of a rule, whatever chain it is in; whoever makes it makes the chains."""
    for command in commands:
        for text in command.split("\n"):
            line = text.removeprefix("ipset ")
            if line.startswith(("create ", "add ")) or (" -A " in line and "-j FWTOP" not in line):
                yield _CHAINS.sub("", line)


def installed(bench: Bench) -> None:
    """Take out what commands by hand have put in."""
    for program in ("iptables", "ip6tables"):
        bench.pair.victim.run(program, "-t", "raw", "-F")
        bench.pair.victim.run(program, "-t", "raw", "-X")
    bench.pair.victim.run("ipset", "destroy")


@pytest.mark.one_each("arms_amplification", "dns_query_flood", "syn_flood_ipv6")
@pytest.mark.parametrize("name", scenario.names())
def test_a_proposal_shows_what_is_planned_for_its_rule(bench: Bench, name: str) -> None:
    proposals = observation_json(observed(scenario.load(name)), top=TOP)["proposals"]
    for one in proposals:
        if one["rule"] is None:  # advice, of which nothing is run
            continue
        with bench.connect() as guardian:
            plan = guardian.demand(Plan({"id": "", **one["rule"]})).data
        assert plan["refused"] is None
        planned = set(lines(plan["commands"]))
        elements = {line for line in lines(one["commands"]) if line.startswith("add ")}
        shown = [line for line in lines(one["commands"]) if line not in elements]
        assert [line for line in shown if line not in planned] == [], one["summary"]
        cut = len(elements - planned)
        assert not cut or cut > 3, "a long list is cut in a plan, after its first elements"
        script = "\n".join(one["commands"]).replace("fwtop-N-", "fwtop-9-")
        try:
            bench.pair.victim.run("sh", "-e", "-c", script)
        finally:
            installed(bench)
