"""What is learned for hosts behind this machine: from two-way evidence, bounded, expiring, in its role."""

from __future__ import annotations

import pytest

from fwtop.dissect.findings import encode_finding, parse_finding
from fwtop.dissect.listening import Conversations, Heard, headers_of
from fwtop.guardian.allow import behind
from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.behind import EXPIRE_SECONDS, LOGIN_SECONDS, MOST, MOST_OF_HOST, Evidence
from fwtop.guardian.limits import read_limits
from fwtop.guardian.rules.guard import judge
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer, Conversation, Role
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.netfilter.ctnetlink import ASSURED, DST_NAT, SEEN_REPLY, SRC_NAT, Entry
from fwtop.rehearsal.host import Host
from tests.kernel.xdp_frames import ipv4, ipv6, tcp, udp

OUTSIDE, INSIDE = 2, 3  # interfaces
HOST, RESOLVER, OPERATOR = "192.0.2.10", "198.51.100.53", "203.0.113.7"


def heard(body: bytes, protocol: int, source: str, target: str, **options) -> Heard:
    make = ipv6 if ":" in source else ipv4
    found = headers_of(make(body, protocol, source, target, **options))
    assert found is not None
    return found


def packed(text: str) -> bytes:
    prefix = Prefix.parse(text)
    return prefix.value.to_bytes(prefix.bits // 8, "big")


def talk(peer: str, protocol: int, port: int, host: str) -> Conversation:
    return Conversation(Prefix.parse(peer), protocol, port, Prefix.parse(host))


def listed(evidence: Evidence, now: float = 1.0) -> set[tuple[Role, Conversation]]:
    return {(item.role, item.conversation) for item in evidence.listed(now)[0]}


QUESTION = heard(udp(40000, 53, b"?"), 17, HOST, RESOLVER)
ANSWER = heard(udp(53, 40000, b"!"), 17, RESOLVER, HOST)


@pytest.mark.parametrize(
    ("ports", "is_learned"),
    [((INSIDE, OUTSIDE), True), ((OUTSIDE, OUTSIDE), False)],
    ids=["from either side", "both from one side, so perhaps forged"],
)
def test_both_directions_must_come_from_different_sides(ports: tuple[int, int], is_learned: bool) -> None:
    evidence = Evidence()
    ears = Conversations(evidence.note, (22,))
    ears.hear(ports[0], QUESTION, 0.0)
    assert not listed(evidence)
    ears.hear(ports[1], ANSWER, 1.0)
    assert listed(evidence) == ({(Role.DNS, talk(RESOLVER, UDP, 53, HOST))} if is_learned else set())


def test_a_flood_of_forged_answers_does_not_push_the_question_out() -> None:
    evidence = Evidence()
    ears = Conversations(evidence.note, (22,))
    ears.hear(INSIDE, QUESTION, 0.0)
    for at in range(5000):
        ears.hear(OUTSIDE, heard(udp(53, 40000, b"!"), 17, f"10.0.{at >> 8}.{at & 255}", HOST), 0.5)
    ears.hear(OUTSIDE, ANSWER, 1.0)
    assert listed(evidence) == {(Role.DNS, talk(RESOLVER, UDP, 53, HOST))}


@pytest.mark.parametrize("client", [OPERATOR, "2001:db8::7"])
def test_an_ssh_session_is_learned_by_its_ports(client: str) -> None:
    host = HOST if client == OPERATOR else "2001:db8:1::10"
    evidence = Evidence()
    ears = Conversations(evidence.note, (22, 2222))
    ears.hear(OUTSIDE, heard(tcp(50123, 2222, 0x18), 6, client, host), 0.0)
    ears.hear(INSIDE, heard(tcp(2222, 50123, 0x10), 6, host, client), 0.1)
    assert listed(evidence) == {(Role.SSH, talk(client, TCP, 50123, host))}


def hello(number: bytes, *neighbours: bytes, version: int = 2) -> bytes:
    head = bytes([version, 1, 0, 0]) + number
    return head + bytes((44 if version == 2 else 36) - len(head)) + b"".join(neighbours)


@pytest.mark.parametrize(("version", "ends"), [(2, ("10.0.0.1", "10.0.0.2")), (3, ("fe80::1", "fe80::2"))])
def test_ospf_routers_are_learned_once_each_names_the_other(version: int, ends: tuple[str, str]) -> None:
    one, two = b"\1\1\1\1", b"\2\2\2\2"
    group = "224.0.0.5" if version == 2 else "ff02::5"
    evidence = Evidence()
    ears = Conversations(evidence.note)
    ears.hear(OUTSIDE, heard(hello(one, two, version=version), 89, ends[0], group), 0.0)
    ears.hear(INSIDE, heard(hello(two, version=version), 89, ends[1], group), 1.0)
    assert not listed(evidence)
    ears.hear(INSIDE, heard(hello(two, one, version=version), 89, ends[1], group), 2.0)
    wanted = {(Role.ROUTER, talk(ends[at], 89, 0, to)) for at in (0, 1) for to in (ends[1 - at], group)}
    assert wanted <= listed(evidence, 2.0)


@pytest.mark.parametrize(("ttl", "is_learned"), [(255, True), (254, False)])
def test_vrrp_counts_only_from_the_link(ttl: int, is_learned: bool) -> None:
    evidence = Evidence()
    Conversations(evidence.note).hear(INSIDE, heard(bytes(20), 112, "10.0.0.1", "224.0.0.18", ttl=ttl), 0.0)
    assert bool(listed(evidence)) == is_learned


def test_bfd_and_bgp_neighbours_are_learned() -> None:
    one, two = "10.0.0.1", "10.0.0.2"
    evidence = Evidence()
    ears = Conversations(evidence.note)
    for port, source, target in ((OUTSIDE, one, two), (INSIDE, two, one)):
        ears.hear(port, heard(udp(50000, 3784, b""), 17, source, target), 0.0)
    ears.hear(OUTSIDE, heard(tcp(179, 40000, 0x10), 6, one, two), 0.0)
    ears.hear(INSIDE, heard(tcp(40000, 179, 0x10), 6, two, one), 0.0)
    assert listed(evidence) == {
        (Role.ROUTER, talk(one, UDP, 3784, two)),
        (Role.ROUTER, talk(two, UDP, 3784, one)),
        (Role.ROUTER, talk(one, TCP, 179, two)),
    }


@pytest.mark.parametrize("size", range(45))
def test_headers_that_are_cut_off_are_no_error(size: int) -> None:
    for packet in (
        ipv4(udp(1, 53, b""), 17, HOST, RESOLVER),
        ipv6(udp(1, 53, b""), 17, "fe80::1", "fe80::2"),
    ):
        headers_of(packet[:size])


def tracked(status: int, reply: tuple[str, int, str, int], state: int = 3) -> tuple[Entry, Entry]:
    entry = Entry(4, TCP, packed(OPERATOR), packed("192.0.2.1"), 50123, 22, status, 100, state)
    return entry, Entry(4, TCP, packed(reply[0]), packed(reply[2]), reply[1], reply[3])


def test_a_translated_connection_is_known_on_both_sides_of_this_machine() -> None:
    entry, reply = tracked(SEEN_REPLY | ASSURED | DST_NAT, ("10.0.0.5", 2222, OPERATOR, 50123))
    own = {Prefix.parse("192.0.2.1")}
    assert set(behind.conversations_of(entry, reply, Role.SSH, own)) == {
        talk(OPERATOR, TCP, 50123, "192.0.2.1"),
        talk(OPERATOR, TCP, 50123, "10.0.0.5"),
    }


def test_what_is_not_established_or_this_hosts_own_is_not_learned() -> None:
    plain = ("192.0.2.1", 22, OPERATOR, 50123)
    own = {Prefix.parse("192.0.2.1")}
    everyone = SEEN_REPLY | ASSURED
    assert list(behind.conversations_of(*tracked(everyone, plain), Role.SSH, set()))
    assert not list(behind.conversations_of(*tracked(everyone, plain), Role.SSH, own))
    assert not list(behind.conversations_of(*tracked(SEEN_REPLY, plain), Role.SSH, set()))
    assert not list(behind.conversations_of(*tracked(everyone, plain, state=2), Role.SSH, set()))


def test_answers_to_a_translating_router_pass() -> None:
    """The host's own address is seen on one side, the router's on the other."""
    entry = Entry(4, UDP, packed("10.0.0.5"), packed(RESOLVER), 40000, 53, SEEN_REPLY | SRC_NAT)
    reply = Entry(4, UDP, packed(RESOLVER), packed("192.0.2.1"), 53, 61000)
    own = {Prefix.parse("192.0.2.1")}
    assert set(behind.conversations_of(entry, reply, Role.DNS, own)) == {
        talk(RESOLVER, UDP, 53, "10.0.0.5"),
        talk(RESOLVER, UDP, 53, "192.0.2.1"),
    }


def sessions(count: int, first: int = 0, hosts: int = 100) -> list[Conversation]:
    return [
        Conversation(Prefix(4, 10 << 24 | at, 32), TCP, 50000, Prefix(4, 192 << 24 | at % hosts, 32))
        for at in range(first, first + count)
    ]


def test_a_crowd_that_does_not_log_in_gives_way_to_sessions_that_last() -> None:
    evidence = Evidence()
    crowd, mine = sessions(MOST[Role.SSH]), sessions(1, 10_000)[0]
    for item in crowd:
        evidence.note(Role.SSH, item, 0.0)
    evidence.note(Role.SSH, mine, 1.0)
    assert (Role.SSH, mine) not in listed(evidence)
    assert evidence.listed(1.0)[1] == 1
    evidence.note(Role.SSH, mine, 2.0 + LOGIN_SECONDS)
    assert (Role.SSH, mine) in listed(evidence, 2.0 + LOGIN_SECONDS)


def test_the_list_is_bounded_for_each_role_and_host_and_expires() -> None:
    evidence = Evidence()
    for role in MOST:
        for item in sessions(20_000):
            evidence.note(role, item, 0.0)
    found, left_out = evidence.listed(1.0)
    assert {role: sum(item.role is role for item in found) for role in MOST} == MOST
    assert left_out > 0
    alone = Evidence()
    for item in sessions(200, hosts=1):
        alone.note(Role.DNS, item, 0.0)
    assert len(alone.listed(1.0)[0]) == MOST_OF_HOST
    assert evidence.listed(EXPIRE_SECONDS + 1.0) == ((), 0)


@pytest.mark.parametrize(
    ("match", "stays"),
    [
        (Match((Prefix.parse("198.51.100.0/24"),), protocol=UDP, sport=53), True),
        (Match((Prefix.parse(RESOLVER),)), True),
        (Match((Prefix.parse(RESOLVER),), protocol=UDP, sport=123), True),
        (Match((Prefix.parse(RESOLVER),), protocol=UDP, sport=53), False),
        (Match((Prefix.parse(RESOLVER),), protocol=UDP, sport=53, dport=4444), False),
    ],
)
def test_a_rule_about_the_role_itself_is_obeyed(match: Match, stays: bool) -> None:
    """Answers forged in a resolver's name can be dropped, by whoever names both its address and port 53."""
    entry = AllowedPeer(Prefix.parse(RESOLVER), Role.DNS, conversation=talk(RESOLVER, UDP, 53, HOST))
    allow = AllowList((), (entry,))
    assert bool(allow.without_overruled([Rule("1", Kind.XDP, match, "x", 60)]).behind) == stays


def test_a_rule_says_what_still_passes_it() -> None:
    allow = AllowList(
        (), (AllowedPeer(Prefix.parse(RESOLVER), Role.DNS, conversation=talk(RESOLVER, UDP, 53, HOST)),)
    )
    rule = Rule("", Kind.XDP, Match((Prefix.parse("198.51.100.0/24"),)), "x", 60)
    assert any(RESOLVER in line and "port 53" in line for line in judge(rule, Host(allow), 0).warnings)


@pytest.mark.parametrize(
    ("text", "learns", "ports", "wrong"),
    [
        ("", True, (22,), 0),
        ("learn_behind = false", False, (22,), 0),
        ("ssh_ports_behind = [22, 2222]", True, (22, 2222), 0),
        ("learn_behind = 1\nssh_ports_behind = [0]", True, (22,), 2),
    ],
)
def test_guard_toml_switches_it_off_and_names_ports(
    tmp_path, text: str, learns: bool, ports: tuple[int, ...], wrong: int
) -> None:
    (tmp_path / "guard.toml").write_text(text)
    limits, warnings = read_limits(tmp_path / "guard.toml")
    assert (limits.learn_behind, limits.ssh_ports_behind, len(warnings)) == (learns, ports, wrong)


FINDINGS = (
    (Role.SSH, talk(OPERATOR, TCP, 50123, HOST)),
    (Role.DNS, talk("2001:db8::53", UDP, 53, "2001:db8:1::10")),
    (Role.ROUTER, talk("10.0.0.1", 89, 0, "224.0.0.5")),
)


@pytest.mark.parametrize(("role", "conversation"), FINDINGS)
def test_findings_come_from_the_reader_of_packets_as_they_are(role: Role, conversation: Conversation) -> None:
    assert parse_finding(encode_finding(role, conversation)) == (role, conversation)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        encode_finding(*FINDINGS[0])[:-1],
        b"\x09" + encode_finding(*FINDINGS[0])[1:],
        encode_finding(Role.SSH, talk(OPERATOR, UDP, 50123, HOST)),
        encode_finding(Role.DNS, talk(RESOLVER, UDP, 54, HOST)),
        encode_finding(Role.ROUTER, talk(RESOLVER, 47, 0, HOST)),
        encode_finding(*FINDINGS[0])[:4] + b"\x05" + encode_finding(*FINDINGS[0])[5:],
        encode_finding(*FINDINGS[0])[:5] + b"\x01" + encode_finding(*FINDINGS[0])[6:],
        encode_finding(Role.SSH, talk(OPERATOR, TCP, 50123, "2001:db8::1")),
    ],
    ids=["none", "cut", "role", "SSH by UDP", "DNS port", "protocol", "family", "address", "two families"],
)
def test_a_reader_that_was_taken_over_can_say_nothing_else(message: bytes) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_finding(message)
