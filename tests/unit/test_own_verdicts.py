"""Whether the host's own rules still let logins in once they are not tracked, over rules as text."""

from __future__ import annotations

import pytest

from fwtop.model.rule import Match
from fwtop.netfilter.own_verdicts import HostRules
from fwtop.netfilter.saved import parse
from fwtop.rehearsal.segments import why_lost

ALL_TCP, SSH, WEB = Match(protocol=6), Match(protocol=6, dport=22), Match(protocol=6, dport=80)
STATEFUL = "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
TO_SSH, NEW_SSH = "-A INPUT -p tcp -m tcp --dport 22", "-m conntrack --ctstate NEW"
PORTS = frozenset({22})


def saved(*lines: str, policy: str = "DROP", more: str = "") -> HostRules:
    chains = f":INPUT {policy} [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n{more}"
    text = "\n".join([f"*filter\n{chains}", *(f"[0:0] {line}" for line in lines), "COMMIT", ""])
    return HostRules((parse(text, 4),))


LOST = [
    (ALL_TCP, saved(STATEFUL, f"{TO_SSH} {NEW_SSH} -j ACCEPT"), "new SSH logins would be dropped"),
    (SSH, saved(STATEFUL, f"{TO_SSH} {NEW_SSH} -j ACCEPT"), "--dport 22 -m conntrack --ctstate NEW"),
    (SSH, saved(STATEFUL, f"{TO_SSH} -m state --state NEW -j ACCEPT"), "--state NEW"),
    (SSH, saved(STATEFUL, f"{TO_SSH} -s 192.0.2.0/24 {NEW_SSH} -j ACCEPT"), "192.0.2.0/24"),
    # The SYN passes, the rest of the login does not
    (SSH, saved(STATEFUL, f"{TO_SSH} --tcp-flags FIN,SYN,RST,ACK SYN -j ACCEPT"), "RELATED,ESTABLISHED"),
    (SSH, saved("-A INPUT -m conntrack ! --ctstate INVALID,UNTRACKED -j ACCEPT"), "! --ctstate"),
    (SSH, saved(STATEFUL, f"{TO_SSH} {NEW_SSH} -j ACCEPT", "-A INPUT -j REJECT", policy="ACCEPT"), "NEW"),
    (SSH, saved(STATEFUL, "-A INPUT -j IN", f"{TO_SSH} {NEW_SSH} -j ACCEPT".replace("INPUT", "IN"),
                more=":IN - [0:0]\n"), "-A IN "),
    # Logins pass whatever their state, answers to this host's own connections don't
    (ALL_TCP, saved(STATEFUL, f"{TO_SSH} -j ACCEPT"), "answers to connections that this host opens would"),
]  # fmt: skip
KEPT = [
    (SSH, saved(STATEFUL, f"{TO_SSH} -j ACCEPT")),
    (
        SSH,
        saved(STATEFUL, "-A INPUT -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW,UNTRACKED -j ACCEPT"),
    ),
    (WEB, saved(STATEFUL, f"{TO_SSH} {NEW_SSH} -j ACCEPT")),
    (ALL_TCP, saved(STATEFUL, policy="ACCEPT")),
    (ALL_TCP, saved()),  # nobody gets in as it is
    (Match(protocol=17), saved(STATEFUL)),
]


@pytest.mark.parametrize(
    ("match", "rules", "says"), LOST, ids=lambda value: value if isinstance(value, str) else ""
)
def test_rules_on_states_let_no_untracked_login_in(match: Match, rules: HostRules, says: str) -> None:
    assert says in str(why_lost(match, PORTS, rules))


@pytest.mark.parametrize(("match", "rules"), KEPT, ids=lambda _: "")
def test_rules_that_look_at_packets_do(match: Match, rules: HostRules) -> None:
    assert why_lost(match, PORTS, rules) is None
