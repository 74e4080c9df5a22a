"""What `--preview` prints of every kind of rule is as it was (tests/golden/files/preview)."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import socket
from collections.abc import Iterator

import pytest
from guardian_bench import Bench

from fwtop.cli.main import main
from fwtop.cli.rules import mitigation
from fwtop.client import discovery
from fwtop.model.rule import Kind, Preview
from tests.golden.kept import check
from tests.kernel.wire import inside

LONG = 3  # lines
pytestmark = pytest.mark.kernel
MEASURED = Preview(
    attack_share=0.94, attack_pps=250_000.0, collateral_share=0.012, collateral_pps=36.0, total_pps=253_000.0,
    examples=("192.0.2.7:443 tcp",), attack="UDP flood",
)  # fmt: skip
COMMANDS = {
    Kind.IPSET: ("block 198.51.100.0/24 2001:db8::/48", "block 198.51.100.7 --via tc --ttl 1h"),
    Kind.HASHLIMIT: ("limit --proto udp --dport 53 --per 24 --rate 1000/s", "limit --per 32 --rate 2MB/s -4"),
    Kind.CONNLIMIT: ("limit --dport 443 --per 32 --connections 20",),
    Kind.STRING: (
        "match --string evil --proto tcp --dport 80",
        "match --hex deadbeef --mask ff00ff00 --offset 4 --proto udp",
        "match --dns attack.example.com --type ANY --proto udp --dport 53 --via tc",
    ),
    Kind.XDP: ("drop --proto tcp --dport 80 --tcp-flags syn,ack/syn --length 40:40 --via xdp",),
    Kind.TC: (
        "drop --proto udp --sport 123 --length 400:500 --via tc",
        "limit --per 24 --rate 100/s --via tc",
    ),
    Kind.NFTABLES: ("drop --proto udp --fragment --via nftables", "block 198.51.100.0/24 --via nftables"),
    Kind.NOTRACK: ("notrack --proto udp --dport 53",),
    Kind.SYNPROXY: ("synproxy --dport 443",),
    Kind.SYSCTL: ("sysctl syncookies=always synack_retries=1",),
    Kind.PROTECT: ("protect 22/tcp --level closed", "protect 8080/tcp 8080/udp --level open --priority 7"),
    Kind.HARDEN: ("harden stateless --apply",),
}
FIREWALL = (
    "-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
    "-A INPUT -p tcp --dport 80 -m conntrack --ctstate NEW -j ACCEPT",
    "-P INPUT DROP",
)
# Of the machine, not of the rule: name servers, what is mounted and filled, what this kernel can't do
NOT_OURS = re.compile(
    r"nomatch$|add element \S+ \S+ (peers|hosts)[46] |mount -t bpf| MiB|entries|this kernel"
)
NUMBERED = re.compile(r"(?<=/sys/fs/bpf/fwtop/)\d+|(?<=tables)-(?:nft|legacy)")


def test_previews_of_every_kind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(COMMANDS) == set(Kind)
    connect = functools.partial(
        discovery.connect, run_directory=bench.directory, guardian_arguments=bench.arguments()
    )
    monkeypatch.setattr(discovery, "connect", connect)
    monkeypatch.setattr(mitigation, "measure", lambda rules, *_: [MEASURED] * len(rules))
    for words in FIREWALL:  # for a playbook to convert
        bench.pair.victim.run("iptables", *words.split())
    with inside(bench.netns):
        service = socket.create_server((bench.pair.victim.ipv4, 80))
    seen: set[str] = set()
    try:
        found = {f"{kind}.txt": _previews(lines, bench, capsys, seen) for kind, lines in COMMANDS.items()}
    finally:
        service.close()
        with connect(netns=bench.netns) as guardian:
            bench.pids.add(int(guardian.about["pid"]))
    check("preview", found)


def _previews(
    lines: tuple[str, ...], bench: Bench, capsys: pytest.CaptureFixture[str], seen: set[str]
) -> str:
    text: list[str] = []
    for line in lines:
        status = main([*shlex.split(line), "--preview", "--netns", bench.netns])
        printed = capsys.readouterr()
        text.append(f"$ fwtop {line} --preview")
        shown = NUMBERED.sub("", f"{printed.out}{printed.err}".replace(bench.netns, "NETNS")).splitlines()
        text += _shorter([one for one in shown if not NOT_OURS.search(one)], seen)
        text += [f"exit status {status}", ""]
    return "\n".join(text)


def _shorter(lines: list[str], seen: set[str]) -> Iterator[str]:
    """Leave out runs of lines that earlier previews had, too: most are about the allow-list."""
    for known, run in itertools.groupby(lines, lambda line: line in seen):
        part = [*run]
        yield from part if not known or len(part) < LONG else ["  ⋮ lines that came before"]
    seen.update(lines)
