"""Which proposal is first: near equals stay in place, and the machine's own costs decide ties."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fwtop.analysis.proposals.propose import Offer, ordered, rank, spared_first
from fwtop.model.addresses.address import Prefix
from fwtop.model.harm import NO_REACH, ClientHarm, Reach
from fwtop.model.rule import Kind, Match, PayloadMatch, Rule
from fwtop.model.traffic.snapshot import Proposal


def _offer(kind, share, cost_ns=500.0, stopped_pps=0.0):
    proposal = Proposal(
        0, kind, "", attack_share=share, collateral_share=0.0, cost_ns=cost_ns, stopped_pps=stopped_pps
    )
    return Offer(kind, proposal, gain=share)


def _order(before, *offers):
    return tuple(offer.key for offer in sorted(offers, key=lambda one: rank(one, before)))


def _cutting(kind, share, hit_half):
    made = _offer(kind, share)
    clients = ClientHarm(known=10_000, hit=hit_half, hit_half=hit_half, protocol=6, port=443)
    rule = Rule("", Kind.XDP, Match(), "", 600, predicted_clients=clients)
    return replace(made, proposal=replace(made.proposal, rule=rule))


@given(st.lists(st.tuples(st.floats(0.3, 1.0), st.sampled_from((0, 1, 5_000))), max_size=8))
def test_no_rule_that_cuts_known_clients_is_ahead_of_one_that_stops_about_as_much_without(drawn):
    offered = [_cutting(f"rule {n}", share, cut) for n, (share, cut) in enumerate(drawn)]
    spared = spared_first(offered)
    assert sorted(one.key for one in spared) == sorted(one.key for one in offered)
    cuts = [one.proposal.clients.hit_half > 0 for one in spared]
    for place, one in enumerate(spared):
        behind = [later for later, cut in zip(spared[place:], cuts[place:], strict=True) if not cut]
        assert not cuts[place] or all(later.gain < one.gain - 0.05 for later in behind)


# Each group is offered together, and the first of it is the one to stand first. Shares are in percent: of the
# attack, of normal traffic, and of the attacked service's known clients; the cost is in ns a packet.
PAIRS = """
name                     stops  harm  clients  cost  why last
block a /25               98.9   0.0      0.0   570
drop all of udp/53       100.0  13.6    100.0   105  closes

block the bots            98.4   0.0      0.0   570
limit each address        74.7   0.0      0.0   530

drop from port 123       100.0   0.0      0.0   105
block three /10s         100.0   0.9      0.0   570  force

limit each address        46.0   0.0      0.0   530
drop SYNs to port 25     100.0   2.0      0.0   105  closes

limit each address        40.0   0.5      0.4   530
drop SYNs to port 22     100.0   0.0      0.0   105  force

drop by length            97.0   0.0      0.0   105
drop by payload           98.0   0.0      0.0   945

drop by payload           98.0   0.0      0.0   945
drop by length            88.0   0.0      0.0   105

block the bots            96.0   0.0      0.0   570
drop by TTL              100.0   0.5      9.0   105

limit each address        46.0   0.0      0.0   530
block a forged client     96.0   0.1      0.0   570  forged

answer with cookies      100.0   0.0      0.0  1500
drop by window           100.0   0.2      6.0   105
"""


def _groups():
    for group in PAIRS.strip().partition("\n")[2].strip().split("\n\n"):
        yield [re.split(r"\s{2,}", line.strip()) for line in group.splitlines()]


@pytest.mark.parametrize("group", list(_groups()), ids=lambda group: group[0][0])
def test_the_most_is_stopped_at_nearly_no_harm_then_the_cheapest_is_first(group) -> None:
    offered = []
    for name, stops, harm, clients, cost, *last in group:
        made = _offer("xdp", float(stops) / 100, float(cost), stopped_pps=50_000.0)
        hit = ClientHarm(known=1000, hit=10, share=float(clients) / 100, protocol=6, port=80)
        sources = (Prefix.parse("185.31.8.5"),) if last == ["forged"] else ()
        rule = Rule("", Kind.XDP, Match(sources=sources), "", 600, predicted_clients=hit)
        reach = Reach(closes="53/udp", to="everybody") if last == ["closes"] else NO_REACH
        measured = {"collateral_share": float(harm) / 100, "needs_force": "" if last != ["force"] else "why"}
        measured["bystanders"] = "could be forged: 185.31.8.5 is a client of yours" if sources else ""
        proposal = replace(made.proposal, rule=rule, reach=reach, **measured)
        offered.append(replace(made, key=name, proposal=proposal))
    for before in itertools.permutations(offered):
        assert ordered(before)[0].key == group[0][0]


def test_near_equals_stay_in_place_and_clear_winners_move_up():
    assert _order((), _offer("ipset", 0.970), _offer("xdp", 0.975)) == ("xdp", "ipset")
    assert _order(("xdp", "ipset"), _offer("ipset", 0.978), _offer("xdp", 0.970)) == ("xdp", "ipset")
    assert _order(("ipset", "xdp"), _offer("ipset", 0.978), _offer("xdp", 0.970)) == ("ipset", "xdp")
    assert _order(("xdp", "ipset"), _offer("ipset", 0.999), _offer("xdp", 0.900)) == ("ipset", "xdp")


def test_of_equal_rules_the_cheaper_here_comes_first():
    assert _order((), _offer("xdp", 0.98, 900.0), _offer("ipset", 0.98, 100.0)) == ("ipset", "xdp")
    assert _order((), _offer("xdp", 0.98, 100.0), _offer("ipset", 0.98, 900.0)) == ("xdp", "ipset")


def test_a_rule_that_takes_a_whole_core_loses_to_one_that_stops_a_little_less():
    slow, quick = _offer("string", 1.0, 1000.0, 2e6), _offer("xdp", 0.95, 100.0, 2e6)
    assert _order((), slow, quick) == ("xdp", "string")
    slow, quick = _offer("string", 1.0, 1000.0, 2e4), _offer("xdp", 0.95, 100.0, 2e4)
    assert _order((), slow, quick) == ("string", "xdp")


@pytest.mark.parametrize(
    ("returns", "share", "first"), [(True, 0.955, "ipset"), (True, 0.8, "string"), (False, 0.955, "string")]
)
def test_what_leaves_connections_open_is_behind_a_block_of_nearly_all_senders(returns, share, first):
    """A rule by contents let 600 connections pile up at a server whose bots it had silenced."""
    block = _offer("ipset", share, cost_ns=570.0)
    text = _offer("string", 1.0, cost_ns=945.0)
    rule = Rule("", Kind.STRING, Match(protocol=6, payload=(PayloadMatch(b"python-requests/", 90),)), "", 600)
    text = replace(text, proposal=replace(text.proposal, rule=rule, return_path=returns))
    assert _order((), block, text)[0] == first
