"""Stateless equivalents of rules on connection states, as text."""

from __future__ import annotations

import pytest

from fwtop.model.rule import Match
from fwtop.netfilter.saved import Line, parse, split, take_apart
from fwtop.netfilter.stateless import already_untracked, inserts, names

WEB, DNS = Match(protocol=6, dport=80), Match(protocol=17, dport=53)
NOT_SYN = "! --tcp-flags FIN,SYN,RST,ACK SYN"
SYN = "--tcp-flags FIN,SYN,RST,ACK SYN"


def lines(*rules: str, family: int = 4) -> list[Line]:
    saved = "\n".join(["*filter", *(f"[0:0] -A {rule}" for rule in rules), "COMMIT"])
    return list(parse(saved, family).lines)


def beside(*rules: str, service: Match = WEB, family: int = 4) -> list[str]:
    """Return what is put in, without the lines for ICMP."""
    found = inserts(lines(*rules, family=family), [service], family)
    words = [(item.chain, item.number, " ".join(item.arguments)) for item in found]
    return [f"{chain} {number} {text}" for chain, number, text in words if "icmp" not in text]


@pytest.mark.parametrize(
    ("rule", "service", "expected"),
    [
        ("INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", WEB, [f"{NOT_SYN} -j ACCEPT"]),
        ("INPUT -m state --state NEW -p tcp -m tcp --dport 80 -j ACCEPT", WEB, [f"{SYN} -j ACCEPT"]),
        ("INPUT -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT", WEB, ["-j ACCEPT"]),
        ("INPUT -s 10.0.0.0/8 -m conntrack --ctstate NEW -j ACCEPT", WEB, [f"{SYN} -s 10.0.0.0/8 -j ACCEPT"]),
        ("INPUT -p tcp -m multiport --dports 22,79:81 -m state --state NEW -j DROP", WEB, [f"{SYN} -j DROP"]),
        # Not about it, or nothing that an untracked packet can be told by:
        ("INPUT -p tcp -m multiport --dports 22,81:90 -m state --state NEW -j ACCEPT", WEB, []),
        ("INPUT -p udp -m state --state NEW -j ACCEPT", WEB, []),
        ("INPUT -m conntrack --ctstate INVALID -j DROP", WEB, []),
        ("INPUT -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -m state --state NEW -j DROP", WEB, []),
        ("INPUT -m conntrack ! --ctstate NEW -j ACCEPT", WEB, []),
        ("INPUT -m conntrack --ctstate NEW -m connlimit --connlimit-above 9 -j DROP", WEB, []),
        ("FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT", WEB, []),
        # Each datagram is judged as a new one:
        ("INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", DNS, []),
        ("INPUT -s 10.0.0.0/8 -p udp -m state --state NEW -j ACCEPT", DNS, ["-s 10.0.0.0/8 -j ACCEPT"]),
        # What is negated excludes only what it names:
        ("INPUT -p tcp -m tcp ! --dport 22 -m state --state NEW -j DROP", WEB, [f"{SYN} -j DROP"]),
        ("INPUT -p tcp -m tcp ! --dport 80 -m state --state NEW -j DROP", WEB, []),
        ("INPUT -p tcp -m multiport ! --dports 22,443 -m state --state NEW -j DROP", WEB, [f"{SYN} -j DROP"]),
        ("INPUT ! -p udp -m state --state NEW -j DROP", WEB, [f"{SYN} -j DROP"]),
        ("INPUT ! -p tcp -m state --state NEW -j DROP", WEB, []),
        # A condition on the client's port is kept:
        (
            "INPUT -p tcp -m tcp --sport 1024:65535 --dport 80 -m state --state NEW -j ACCEPT",
            WEB,
            [f"--sport 1024:65535 {SYN} -j ACCEPT"],
        ),
        (
            "INPUT -p tcp -m multiport --ports 80,443 -m state --state NEW -j ACCEPT",
            WEB,
            [f"{SYN} -j ACCEPT"],
        ),
        (
            "INPUT -p tcp -m tcp --tcp-flags ACK ACK -m state --state ESTABLISHED -j ACCEPT",
            WEB,
            [f"--tcp-flags ACK ACK -m tcp {NOT_SYN} -j ACCEPT"],
        ),
        ("INPUT -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -m state --state ESTABLISHED -j DROP", WEB, []),
        # A comment is no condition:
        (
            'INPUT -m comment --comment "-m helper don\\\'t -j DROP" -m state --state NEW -j ACCEPT',
            WEB,
            [f"{SYN} -m comment --comment -m helper don't -j DROP -j ACCEPT"],
        ),
        # More than one plain list of states:
        ("INPUT -m conntrack --ctstate NEW --ctorigdst 192.0.2.1 -j ACCEPT", WEB, []),
        ("INPUT -m state --state NEW,ESTABLISHED -m conntrack --ctstate NEW -j ACCEPT", WEB, []),
    ],
)
def test_each_line_on_states_gets_its_stateless_equivalents(
    rule: str, service: Match, expected: list[str]
) -> None:
    name = "tcp" if service is WEB else "udp"
    head = f"INPUT 2 -p {name} -m {name} --dport {service.dport} "
    assert beside(rule, service=service) == [head + text for text in expected]


def test_answers_are_let_out_where_output_asks_for_states() -> None:
    rules = (
        "OUTPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT",
        "OUTPUT -p tcp --dport 80 -m state --state NEW -j ACCEPT",
    )
    assert beside(*rules) == ["OUTPUT 2 -p tcp -m tcp --sport 80 -j ACCEPT"]
    high = "OUTPUT -p tcp -m tcp --sport 80 --dport 1024:65535 -m state --state ESTABLISHED -j ACCEPT"
    assert beside(high) == ["OUTPUT 2 -p tcp -m tcp --sport 80 --dport 1024:65535 -j ACCEPT"]


def test_chains_that_input_leads_to_are_converted_where_their_lines_are() -> None:
    rules = (
        "INPUT -j mine",
        "mine -s 192.0.2.1/32 -j DROP",
        "mine -m conntrack --ctstate ESTABLISHED -j ACCEPT",
        "other -m conntrack --ctstate ESTABLISHED -j ACCEPT",
    )
    assert beside(*rules) == [f"mine 3 -p tcp -m tcp --dport 80 {NOT_SYN} -j ACCEPT"]


@pytest.mark.parametrize(
    ("family", "needed"), [(4, ("3", "11")), (6, ("2", "3", "133", "134", "135", "136"))]
)
def test_errors_come_before_the_line_that_would_drop_them_as_invalid(
    family: int, needed: tuple[str, ...]
) -> None:
    rules = (
        "INPUT -i lo -j ACCEPT",
        "INPUT -m conntrack --ctstate INVALID -j DROP",
        "INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    )
    found = [
        item for item in inserts(lines(*rules, family=family), [WEB], family) if "DROP" not in item.arguments
    ]
    errors = [item for item in found if "-m" in item.arguments and item.arguments[1].endswith("icmp")]
    assert {item.number for item in errors} == {2}
    assert set(needed) <= {item.arguments[5] for item in errors}


def test_service_needs_a_rule_that_names_its_port() -> None:
    assert names(lines("INPUT -p tcp -m tcp --dport 80 -j ACCEPT"), WEB)
    assert names(lines("INPUT -p tcp -m tcp --sport 1024:65535 --dport 80 -j ACCEPT"), WEB)
    assert not names(lines("INPUT -p tcp -m tcp --dport 80 -j DROP", "INPUT -j ACCEPT"), WEB)
    assert not names(lines("INPUT -p tcp -m tcp ! --dport 22 -j ACCEPT"), WEB)
    assert not names(lines("OUTPUT -p tcp -m tcp --dport 80 -j ACCEPT"), WEB)


def test_words_of_a_saved_rule_are_those_that_were_given() -> None:
    given = ["-m", "comment", "--comment", 'a "b" \\ don\'t\n$x', "-j", "LOG", "--log-prefix", "-j DROP"]
    saved = r'-m comment --comment "a \"b\" \\ don\'t' + "\n" + r'$x" -j LOG --log-prefix "-j DROP"'
    assert split(saved) == given
    assert take_apart(saved).target_name == "LOG"


@pytest.mark.parametrize(
    ("raw", "untracked"),
    [
        ("PREROUTING -p tcp -m tcp --dport 80 -j CT --notrack", True),
        ("PREROUTING -p tcp -m multiport --dports 80,443 -j NOTRACK", True),
        ("PREROUTING -s 10.0.0.0/8 -p tcp -m tcp --dport 80 -j CT --notrack", False),
        ("PREROUTING -p tcp -m tcp --dport 80 -m set --match-set x src -j CT --notrack", False),
        ("PREROUTING -p udp -m udp --dport 80 -j CT --notrack", False),
        ("OUTPUT -p tcp -m tcp --dport 80 -j CT --notrack", False),
        ("other -p tcp -m tcp --dport 80 -j CT --notrack", False),
        ("FWTOP-RULES -p tcp -m tcp --dport 80 -m set --match-set fwtop-7-on4 src -j CT --notrack", True),
        (
            "FWTOP-RULES -p tcp -m tcp --dport 80 -m set --match-set fwtop-7-on4 src -s 192.0.2.1/32 "
            "-j CT --notrack",
            False,
        ),
    ],
)
def test_service_is_untracked_already_only_if_all_its_packets_are(raw: str, untracked: bool) -> None:
    saved = f"*raw\n[0:0] -A {raw}\nCOMMIT"
    either = [line for family in (4, 6) for line in parse(saved, family).lines]
    assert bool(already_untracked(either, WEB)) == untracked
    assert not already_untracked([line for line in either if line.family == 4], WEB)
