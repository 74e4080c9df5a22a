"""Proposals of near-equal worth keep their numbers from one judgement to the next."""

from fwtop.advise.propose import _rank
from fwtop.model.snapshot import Proposal


def _proposal(kind, share):
    return Proposal(0, kind, "", attack_share=share, collateral_share=0.0, cost_ns=500.0)


def _order(before, **shares):
    proposals = [_proposal(kind, share) for kind, share in shares.items()]
    return tuple(one.kind for one in sorted(proposals, key=lambda one: _rank(one, before)))


def test_near_equals_stay_in_place_and_clear_winners_move_up():
    assert _order((), ipset=0.970, xdp=0.975) == ("xdp", "ipset")
    assert _order(("xdp", "ipset"), ipset=0.978, xdp=0.970) == ("xdp", "ipset")
    assert _order(("ipset", "xdp"), ipset=0.978, xdp=0.970) == ("ipset", "xdp")
    assert _order(("xdp", "ipset"), ipset=0.999, xdp=0.900) == ("ipset", "xdp")
