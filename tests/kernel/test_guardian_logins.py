"""Logins against every kind of rule, with real TCP: refused without force, and the operator always gets in.

The operator is logged in from one address of the far end of the cable. Anybody else is another address there.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Status, Undo
from fwtop.model.rule import ConnectionLimit, Kind, Match, PayloadMatch, Range, RateLimit, Rule
from tests.kernel.guardian_bench import VARIANTS, Bench, apply, rules_of, use_variant
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
PORT = 2222
OTHERS = {4: "10.77.0.9", 6: "fd77::9"}
SYN = (0x12, 0x02)
BANNER = b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u6\r\n"
# A process by sshd's name and title that holds the session's socket
SSHD = (
    "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'sshd'); print('ready', flush=True); sys.stdin.read()"
)
SLOW = RateLimit(1, 1)


def span(value: int) -> Range:
    return Range(value, value)


def rule(kind: Kind, **fields) -> Rule:
    limit = fields.pop("limit", None)
    if "payload" in fields:
        fields["payload"] = (PayloadMatch(fields["payload"], fields.pop("offset", None)),)
    return Rule("", kind, Match(**fields), "x", 600, limit=limit)


def cutting(kind: Kind) -> dict[str, Rule]:
    """Return rules of a kind at ingress that cut the logins of this Linux, by both families."""
    return {
        "length": rule(kind, family=4, protocol=6, ip_length=span(60), tcp_flags=SYN),
        "length of IPv6": rule(kind, family=6, protocol=6, ip_length=span(80), tcp_flags=SYN),
        "TTL": rule(kind, protocol=6, ttl=span(64)),
        "window": rule(kind, protocol=6, tcp_window=Range(64000, 65000)),
        "header": rule(kind, protocol=6, tcp_header=span(40)),
    }


AT_INGRESS = (Kind.NFTABLES, Kind.XDP, Kind.TC)
CASES = {
    **{f"{kind.value} {name}": one for kind in AT_INGRESS for name, one in cutting(kind).items()},
    "string banner": rule(Kind.STRING, payload=b"SSH-2.0"),
    "string end of line": rule(Kind.STRING, payload=b"\r\n"),
    "xdp banner": rule(Kind.XDP, payload=b"SSH-2.0"),
    "tc end of line": rule(Kind.TC, payload=b"\r\n"),
    "nftables banner": rule(Kind.NFTABLES, protocol=6, payload=b"SSH-", offset=0),
}  # fmt: skip
ORDINARY = ["nftables length", "xdp TTL", "string end of line"]


class Host:
    """A victim with a listener, and an operator who is logged in there."""

    def __init__(self, bench: Bench, family: int, stack: ExitStack, port: int = PORT) -> None:
        self._port = port
        self.bench, self.family, self._stack = bench, family, stack
        self.operator = bench.attacker(family)
        self.other, self._kind = OTHERS[family], socket.AF_INET if family == 4 else socket.AF_INET6
        self.address = bench.pair.victim.ipv4 if family == 4 else bench.pair.victim.ipv6
        length = "24" if family == 4 else "64"
        options = () if family == 4 else ("nodad",)
        bench.pair.attacker.run("ip", "address", "add", f"{self.other}/{length}", "dev", "a0", *options)
        with inside(bench.netns):
            self.listener = stack.enter_context(socket.create_server((self.address, PORT), family=self._kind))
        self.listener.settimeout(60)
        self.session = self.log_in(self.operator)

    def log_in(self, source: str) -> tuple[socket.socket, socket.socket]:
        client, served = self._connect(source, 60)
        process = subprocess.Popen(
            ["sshd: root@pts/0", "-c", SSHD, str(served.fileno())],
            executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            pass_fds=[served.fileno()],
        )  # fmt: skip
        self._stack.callback(process.communicate, b"")
        assert process.stdout.readline() == b"ready\n"
        return self._stack.enter_context(client), self._stack.enter_context(served)

    def _connect(self, source: str, wait_s: float) -> tuple[socket.socket, socket.socket]:
        with inside(self.bench.pair.attacker.netns):
            client = socket.create_connection((self.address, self._port), wait_s, (source, 0))
        while True:
            served, who = self.listener.accept()
            if who[:2] == client.getsockname()[:2]:
                return client, served
            served.close()  # of a client that gave up

    def gets_in(self, source: str, wait_s: float) -> bool:
        """Say whether a client gets through the handshake, the banner and the first keys."""
        try:
            client, served = self._connect(source, wait_s)
        except TimeoutError:
            return False
        with client, served:
            for sender, receiver, data in (
                (served, client, BANNER),
                (client, served, BANNER),
                (client, served, bytes(1500)),
            ):
                receiver.settimeout(wait_s)
                sender.send(data)
                try:
                    left = len(data)
                    while left:
                        left -= len(receiver.recv(left))
                except TimeoutError:
                    return False
            return True

    def stays(self, source: str) -> bool:
        """Say whether a connection from there comes about; it stays until the end."""
        try:
            for end in self._connect(source, 0.3):
                self._stack.enter_context(end)
        except TimeoutError:
            return False
        return True

    def goes_on(self, session: tuple[socket.socket, socket.socket] | None = None) -> bool:
        """Say whether a session, the operator's first, carries data both ways."""
        client, served = session or self.session
        for sender, receiver in ((client, served), (served, client)):
            receiver.settimeout(60)
            sender.send(BANNER)
            if receiver.recv(100) != BANNER:
                return False
        return True


@contextmanager
def host(bench: Bench, family: int = 4, port: int = PORT) -> Iterator[Host]:
    with ExitStack() as stack:
        yield Host(bench, family, stack, port)


def check(bench: Bench, made: Rule, family: int, says: str = "") -> None:
    """Refused without force; with it nobody gets in but the operator, whose session goes on."""
    with host(bench, family) as here, bench.connect() as guardian:
        assert here.gets_in(here.other, 60)
        with pytest.raises(FwtopError, match=says or "new SSH logins"):
            apply(guardian, made)
        assert rules_of(guardian) == {}
        apply(guardian, made, force=True)
        assert not here.gets_in(here.other, 0.3)
        assert here.gets_in(here.operator, 60)
        assert here.goes_on()
        guardian.demand(Undo(all=True))
        assert here.gets_in(here.other, 60)


@pytest.mark.parametrize("case", ORDINARY)
def test_a_rule_that_cuts_logins_spares_the_operator(bench: Bench, case: str) -> None:
    check(bench, CASES[case], 4)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("case", "family"), [(name, family) for name, one in CASES.items() for family in one.match.families]
)
def test_every_rule_that_cuts_logins_spares_the_operator(bench: Bench, case: str, family: int) -> None:
    check(bench, CASES[case], family)


def test_the_operator_gets_in_at_a_redirected_port(bench: Bench) -> None:
    """Rules see the port that the client asks for, the socket another one."""
    outside = 2022
    bench.pair.victim.run(
        "iptables", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", str(outside),
        "-j", "REDIRECT", "--to-ports", str(PORT),
    )  # fmt: skip
    with host(bench, 4, outside) as here, bench.connect() as guardian:
        for kind in AT_INGRESS[:2]:
            closed = rule(kind, protocol=6, dport=outside)
            with pytest.raises(FwtopError, match=f"port {outside} is where operators log in"):
                apply(guardian, closed)
            apply(guardian, closed, force=True)
        assert not here.gets_in(here.other, 0.3)
        assert here.gets_in(here.operator, 60)


FEW = {
    "hashlimit": rule(Kind.HASHLIMIT, protocol=6, limit=SLOW),
    "xdp": rule(Kind.XDP, protocol=6, limit=SLOW),
    "connlimit": replace(rule(Kind.CONNLIMIT, protocol=6, dport=PORT), connections=ConnectionLimit(1)),
}


@pytest.mark.matrix
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("kind", list(FEW))
def test_limits_spare_the_operator(bench: Bench, kind: str, family: int) -> None:
    with host(bench, family) as here, bench.connect() as guardian, ExitStack() as stack:
        with pytest.raises(FwtopError, match="log in"):
            apply(guardian, FEW[kind])
        apply(guardian, FEW[kind], force=True)
        for _ in range(5):
            for end in here.log_in(here.operator):
                stack.enter_context(end)
        assert not all([here.gets_in(here.other, 0.3) and here.stays(here.other) for _ in range(3)])
        assert here.gets_in(here.operator, 60)


NOTRACK = {"all": rule(Kind.NOTRACK, protocol=6), "port": rule(Kind.NOTRACK, protocol=6, dport=PORT)}


CLOSED = f"""table inet closed {{
chain in {{
type filter hook input priority 0; policy drop;
iif lo accept
icmpv6 type {{ 133, 134, 135, 136 }} accept
ct state vmap {{ established : accept, related : accept }}
tcp dport {PORT} ct state new accept
}}
}}
"""


def close(bench: Bench, way: str) -> None:
    """Let only new connections to the port in, and what belongs to them."""
    victim = bench.pair.victim
    if way == "native":
        (bench.directory / "closed.nft").write_text(CLOSED)
        victim.run("nft", "-f", str(bench.directory / "closed.nft"))
        return
    use_variant(bench, way)
    for tool in (f"iptables-{way}", f"ip6tables-{way}"):
        for words in (
            f"-A INPUT -p tcp --dport {PORT} -m conntrack --ctstate NEW -j ACCEPT",
            "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-P INPUT DROP",
        ):
            victim.run(tool, *words.split())
    for kind in (133, 134, 135, 136):
        victim.run(
            f"ip6tables-{way}", "-I", "INPUT", "-p", "icmpv6", "--icmpv6-type", str(kind), "-j", "ACCEPT"
        )


@pytest.mark.parametrize(("way", "name"), [("nft", "all"), ("native", "port")])
def test_notrack_behind_rules_on_states_spares_the_operator(bench: Bench, way: str, name: str) -> None:
    close(bench, way)
    check(bench, NOTRACK[name], 4, "new SSH logins may be dropped by this host's own rules: untracked")


@pytest.mark.matrix
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("way", [*VARIANTS, "native"])
@pytest.mark.parametrize("name", list(NOTRACK))
def test_every_notrack_behind_rules_on_states(bench: Bench, way: str, name: str, family: int) -> None:
    close(bench, way)
    check(bench, NOTRACK[name], family, "new SSH logins may be dropped by this host's own rules: untracked")


def test_notrack_without_such_rules_needs_no_force(bench: Bench) -> None:
    with host(bench) as here, bench.connect() as guardian:
        apply(guardian, NOTRACK["port"])
        assert here.gets_in(here.other, 60)
        assert here.goes_on()


@pytest.mark.parametrize(("way", "family"), [("nft", 4), pytest.param("native", 6, marks=pytest.mark.matrix)])
def test_sessions_outlive_their_entries_behind_a_syn_proxy(
    bench: Bench, way: str, family: int, poll_until
) -> None:
    """Strict tracking takes no connection up in its middle; the proxy translates those that it let in."""

    def tracked(client: socket.socket) -> bool:
        listed = bench.pair.victim.run("conntrack", "-L", "-p", "tcp", "-f", f"ipv{family}").stdout
        return f"sport={client.getsockname()[1]} dport={PORT}" in listed

    close(bench, way)
    with host(bench, family) as here, bench.connect() as guardian:
        proxy = rule(Kind.SYNPROXY, protocol=6, dport=PORT)
        with pytest.raises(FwtopError, match=f"port {PORT} is where operators log in"):
            apply(guardian, proxy)
        apply(guardian, proxy, force=True)
        assert here.gets_in(here.operator, 60)
        through = here.log_in(here.other)  # nobody knows yet who that is
        assert here.goes_on(through)
        poll_until(lambda: here.other in str(guardian.demand(Status()).data["allow"]))
        bench.pair.victim.run(
            "conntrack", "-D", "-p", "tcp", "--sport", str(here.session[0].getsockname()[1])
        )
        poll_until(lambda: tracked(here.session[0]))  # so the other was looked at, too
        for _ in range(2):
            bench.pair.victim.run("conntrack", "-F")
            assert here.goes_on()
            assert here.goes_on(through)
        guardian.demand(Undo(all=True))
        bench.pair.victim.run("conntrack", "-F")
        assert here.goes_on()
