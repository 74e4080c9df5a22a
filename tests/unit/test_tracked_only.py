"""Whether logins may need the host's own rules on tracked packets, over rules as text."""

from __future__ import annotations

import pytest

from fwtop.model.rule import Match
from fwtop.netfilter.nft_listed import Listed, of_items
from fwtop.netfilter.saved import Saved, parse
from fwtop.netfilter.stateless import closes, tracked_only
from fwtop.rehearsal.segments import why_lost

ALL_TCP, SSH, WEB = Match(protocol=6), Match(protocol=6, dport=22), Match(protocol=6, dport=80)
STATEFUL = "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
TO_SSH, NEW_SSH = "-A INPUT -p tcp -m tcp --dport 22", "-m conntrack --ctstate NEW"
PORTS = frozenset({22})


def saved(*lines: str, policy: str = "DROP", more: str = "") -> Saved:
    chains = f":INPUT {policy} [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n{more}"
    text = "\n".join([f"*filter\n{chains}", *(f"[0:0] {line}" for line in lines), "COMMIT", ""])
    return parse(text, 4)


LOST = [
    (ALL_TCP, saved(STATEFUL, f"{TO_SSH} {NEW_SSH} -j ACCEPT"), "new SSH logins may be dropped"),
    (SSH, saved(f"{TO_SSH} {NEW_SSH} -j ACCEPT"), "--dport 22 -m conntrack --ctstate NEW"),
    (SSH, saved(f"{TO_SSH} -m state --state NEW -j ACCEPT", STATEFUL), "--state NEW"),
    (SSH, saved(f"{TO_SSH} -s 192.0.2.0/24 {NEW_SSH} -j ACCEPT", STATEFUL), "192.0.2.0/24"),
    (SSH, saved("-A INPUT -m conntrack ! --ctstate INVALID,UNTRACKED -j ACCEPT"), "! --ctstate"),
    (SSH, saved(f"{TO_SSH} {NEW_SSH} -j ACCEPT", "-A INPUT -j REJECT", policy="ACCEPT"), "NEW"),
    (SSH, saved("-A INPUT -j IN", f"{TO_SSH} {NEW_SSH} -j ACCEPT".replace("INPUT", "IN"),
                more=":IN - [0:0]\n"), "-A IN "),
    # Whether a later line lets them in whatever their state is not looked at
    (SSH, saved(STATEFUL, f"{TO_SSH} -j ACCEPT"), "RELATED,ESTABLISHED"),
    (Match(protocol=6, sport=443), saved("-A INPUT -p tcp -m tcp --sport 443 -m state --state ESTABLISHED "
                                         "-j ACCEPT"), "answers to connections that this host opens may"),
]  # fmt: skip
KEPT = [
    (SSH, saved(f"{TO_SSH} -j ACCEPT")),
    (WEB, saved(STATEFUL, f"{TO_SSH} {NEW_SSH} -j ACCEPT")),
    (SSH, saved("-A INPUT -p tcp -m tcp --dport 80 -m conntrack --ctstate NEW -j ACCEPT")),
    (SSH, saved("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")),
    (SSH, saved("-A INPUT -m conntrack --ctstate INVALID -j DROP", policy="ACCEPT")),
    (ALL_TCP, saved(STATEFUL, policy="ACCEPT")),
    (ALL_TCP, saved()),
    (Match(protocol=17), saved(STATEFUL)),
]


@pytest.mark.parametrize(
    ("match", "rules", "says"), LOST, ids=lambda value: value if isinstance(value, str) else ""
)
def test_rules_on_states_may_let_no_untracked_login_in(match: Match, rules: Saved, says: str) -> None:
    assert says in str(why_lost(match, PORTS, tracked_only((rules,), Listed())))


@pytest.mark.parametrize(("match", "rules"), KEPT, ids=lambda _: "")
def test_rules_that_look_at_packets_and_those_that_drop_none_let_it_in(match: Match, rules: Saved) -> None:
    assert why_lost(match, PORTS, tracked_only((rules,), Listed())) is None


NEW_WEB, LOCAL = (
    "-A INPUT -p tcp -m tcp --dport 80 -m conntrack --ctstate NEW -j ACCEPT",
    "-A INPUT -i lo -j ACCEPT",
)
CLOSED = [
    (saved(STATEFUL, LOCAL, NEW_WEB), True),
    (saved(STATEFUL, NEW_WEB, "-A INPUT -j REJECT", policy="ACCEPT"), True),
    (saved(STATEFUL, LOCAL, "-A INPUT -p tcp -m tcp --dport 80 -j ACCEPT"), False),
    (saved(STATEFUL, NEW_WEB.replace("NEW", "NEW,UNTRACKED")), False),
    (saved(STATEFUL, NEW_WEB, policy="ACCEPT"), False),
    (saved(STATEFUL, NEW_WEB, "-A INPUT -s 192.0.2.9/32 -j DROP", policy="ACCEPT"), False),
    (saved(STATEFUL, NEW_WEB, "-A INPUT -s 192.0.2.0/24 -j ACCEPT"), False),  # some get in
]


@pytest.mark.parametrize(("rules", "is_closed"), CLOSED, ids=lambda _: "")
def test_a_default_drop_that_lets_in_tracked_packets_only_closes_an_untracked_service(
    rules: Saved, is_closed: bool
) -> None:
    assert bool(closes((rules,), Listed(), WEB)) is is_closed


def by_state(*states: str) -> list[object]:
    return [
        {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": list(states)}},
        {"accept": None},
    ]


def to_web(*more: object) -> list[object]:
    field = {"payload": {"protocol": "tcp", "field": "dport"}}
    return [{"match": {"op": "==", "left": field, "right": 80}}, *more, {"accept": None}]


LOOPBACK = [{"match": {"op": "==", "left": {"meta": {"key": "iif"}}, "right": "lo"}}, {"accept": None}]


@pytest.mark.parametrize(
    ("policy", "last", "is_closed"),
    [
        ("drop", to_web(by_state("new")[0]), True),
        ("accept", [{"drop": None}], True),
        ("drop", to_web(), False),
        ("accept", LOOPBACK, False),
        ("drop", to_web(by_state("new", "untracked")[0]), False),
    ],
)  # fmt: skip
def test_a_default_drop_of_nftables_too(policy: str, last: list[object], is_closed: bool) -> None:
    place = {"family": "inet", "table": "host"}
    chain = {**place, "name": "in", "type": "filter", "hook": "input", "policy": policy}
    rules = [by_state("established", "related"), LOOPBACK, last]
    items = [("rule", {**place, "chain": "in", "handle": n, "expr": expr}) for n, expr in enumerate(rules)]
    listed = of_items([("chain", chain), *items])
    assert bool(closes((), listed, WEB)) is is_closed
