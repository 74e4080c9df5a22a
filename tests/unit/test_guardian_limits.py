"""Limits, NTP servers and the rules that need connection tracking, read from texts as they are found."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fwtop.guardian.allow.found import configured_time_servers, time_servers_talked_to
from fwtop.guardian.limits import Limits, read_limits
from fwtop.guardian.rules.guard import check_share
from fwtop.model.addresses.address import Prefix, covered
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, RateLimit, Rule
from fwtop.netfilter.saved import parse
from fwtop.netfilter.tracking import may_meet, needs_tracking

SAVED = """*nat
[3:180] -A PREROUTING -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 8080
[0:0] -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
COMMIT
*filter
[9:900] -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
[0:0] -A INPUT -p udp -m udp --dport 53 -m state --state NEW -j ACCEPT
[0:0] -A INPUT ! -p tcp -m conntrack --ctstate INVALID -j DROP
[0:0] -A INPUT -p udp -m udp --dport 53 -j ACCEPT
COMMIT
"""


def blocking(*texts: str, **fields) -> Rule:
    return Rule("", Kind.IPSET, Match(sources=tuple(map(Prefix.parse, texts)), **fields), "x", 60)


def test_rules_that_need_tracking_are_told_from_those_that_do_not() -> None:
    lines = list(parse(SAVED, 4).lines)
    assert [needs_tracking(line) for line in lines] == [True, True, True, True, True, False]
    dns = Match(protocol=17, dport=53)
    assert [may_meet(line, dns) for line in lines[:5]] == [False, True, True, True, True]
    assert [may_meet(line, Match(protocol=17, dport=99)) for line in lines[:5]] == [
        False,
        True,
        True,
        False,
        True,
    ]


def test_share_of_all_rules_together_is_limited() -> None:
    limits = Limits(0.25)
    check_share(blocking("0.0.0.0/2"), [], limits)
    check_share(blocking("64.0.0.0/3"), [blocking("96.0.0.0/3"), blocking("96.0.0.0/4")], limits)
    with pytest.raises(
        FwtopError, match=r"^with this rule 38 % of all IPv4 addresses.*at most 25 %.*guard\.toml"
    ):
        check_share(blocking("64.0.0.0/3"), [blocking("0.0.0.0/2")], limits)
    with pytest.raises(FwtopError, match="IPv6"):
        check_share(blocking("2000::/4"), [], limits)


@pytest.mark.parametrize("fields", [{"protocol": 6}, {"protocol": 6, "dport": 22}, {"sport": 53}])
def test_sources_count_whatever_the_other_conditions(fields: dict[str, int]) -> None:
    with pytest.raises(FwtopError, match="IPv4"):
        check_share(blocking("0.0.0.0/1", **fields), [], Limits(0.1))
    with pytest.raises(FwtopError, match="IPv4"):
        check_share(blocking("192.0.2.1"), [blocking("0.0.0.0/1", **fields)], Limits(0.1))


@pytest.mark.parametrize("kind", [Kind.IPSET, Kind.STRING, Kind.XDP, Kind.TC, Kind.NFTABLES])
def test_every_kind_that_blocks_counts(kind: Kind) -> None:
    half = replace(blocking("0.0.0.0/1"), kind=kind)
    with pytest.raises(FwtopError, match="IPv4"):
        check_share(half, [], Limits(0.1))
    with pytest.raises(FwtopError, match="IPv4"):
        check_share(blocking("192.0.2.1"), [half], Limits(0.1))
    if kind not in (Kind.XDP, Kind.TC):  # no other kind heeds a limit
        with pytest.raises(FwtopError, match="IPv4"):
            check_share(replace(half, limit=RateLimit(1, 1)), [], Limits(0.1))


@pytest.mark.parametrize("kind", [Kind.HASHLIMIT, Kind.XDP, Kind.TC])
def test_limits_do_not_count(kind: Kind) -> None:
    slowed = replace(blocking("0.0.0.0/1"), kind=kind, limit=RateLimit(1, 1))
    check_share(slowed, [], Limits(0.1))
    check_share(blocking("192.0.2.1"), [slowed], Limits(0.1))


prefixes = st.lists(
    st.builds(
        lambda value, length: Prefix.of_columns(4, 0, value << 16, length),
        st.integers(0, 99),
        st.integers(16, 32),
    ),
    max_size=12,
)


@given(prefixes)
def test_covered_counts_each_address_once(listed: list[Prefix]) -> None:
    kept = [p for p in set(listed) if not any(q != p and q.contains(p) for q in listed)]
    assert covered([tuple(listed)], 4) == sum(1 << 32 - p.length for p in kept)


@pytest.mark.parametrize(
    ("text", "share", "warned"),
    [
        ("max_blocked_share = 0.1\n", 0.1, False),
        ("max_blocked_share = 7\n", 0.5, True),
        ("max_blocked_share = 'x'\n", 0.5, True),
        ("nonsense\n", 0.5, True),
        ("max_blocked_share = 1\nother = 2\n", 1.0, True),
    ],
)
def test_a_wrong_limit_is_warned_of_and_keeps_its_default(
    tmp_path: Path, text: str, share: float, warned: bool
) -> None:
    file = tmp_path / "guard.toml"
    file.write_text(text)
    limits, warnings = read_limits(file)
    assert (limits.max_blocked_share, bool(warnings)) == (share, warned)
    assert read_limits(tmp_path / "none")[0].max_blocked_share == 0.5


def test_everything_wrong_with_the_limits_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "guard.toml"
    file.write_text("max_blocked_share = 9\nconsole_may_force = 'x'\nmax_bloked_share = 0.1\n")
    limits, warnings = read_limits(file)
    assert (limits.max_blocked_share, limits.console_may_force) == (0.5, False)
    assert [word for text in warnings for word in ("0.5", "false", "max_bloked_share") if word in text] == [
        "0.5",
        "false",
        "max_bloked_share",
    ]


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"max_blocked_share = 0.1\n#" + bytes(2 << 20)),
        lambda path: path.write_bytes(b"max_blocked_share = 0.1 # \xe9"),
        lambda path: path.write_bytes(b"x = " + b"[" * 100_000),
        lambda path: path.write_bytes(b"max_blocked_share = nan"),
        lambda path: path.write_bytes(b"max_blocked_share = true"),
        lambda path: path.write_bytes(b"[max_blocked_share]"),
        lambda path: path.write_bytes(b"[[access]]\nread = ['root']"),
    ],
)
def test_limits_file_of_any_nonsense_is_told_in_a_line_and_waited_for_never(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    file = tmp_path / "guard.toml"
    make(file)
    limits, warnings = read_limits(file)
    assert (limits.max_blocked_share, limits.console_may_force, limits.access.granted) == (0.5, False, False)
    assert ["guard.toml" in text and "\n" not in text for text in warnings] == [True]


def test_time_servers_of_the_usual_files(tmp_path: Path) -> None:
    for name, text in (
        ("ntp.conf", "# server 192.0.2.1\nserver 192.0.2.2 iburst\npeer 2001:db8::2\n"),
        ("chrony/chrony.conf", "pool 0.debian.pool.ntp.org iburst\nserver 192.0.2.3\n"),
        ("chrony/sources.d/x.sources", "server 192.0.2.4\n"),
        (
            "systemd/timesyncd.conf",
            "[Time]\nNTP=192.0.2.5 time.example.com\n#NTP=192.0.2.6\nFallbackNTP=192.0.2.7\n",
        ),
    ):
        file = tmp_path / "etc" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = {str(prefix) for prefix in configured_time_servers(tmp_path)}
    assert found == {"192.0.2.2", "2001:db8::2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.7"}


def test_only_system_users_sockets_name_time_servers(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
    row = "  1: 0100000A:9C40 {peer}:{port} 01 00000000:00000000 00:00000000 00000000 {uid} 0 1 2 0 0\n"
    (tmp_path / "udp").write_text(
        head
        + row.format(peer="020200C0", port="007B", uid=100)
        + row.format(peer="030200C0", port="007B", uid=1000)
        + row.format(peer="040200C0", port="0035", uid=0)
    )
    six = "B80D0120000000000000000001000000"
    (tmp_path / "udp6").write_text(head + row.format(peer=six, port="007B", uid=0))
    found = time_servers_talked_to(tmp_path / "udp", tmp_path / "udp6")
    assert [str(prefix) for prefix in found] == ["192.0.2.2", "2001:db8::1"]
