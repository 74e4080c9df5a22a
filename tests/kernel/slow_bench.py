"""A lab with a real web server on port 8080, watched by the parts of a console, in this process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from guardian_bench import Bench, inside
from msgspec import Struct, field

from fwtop.client.discovery import GuardianClient
from fwtop.console.bootstrap import WINDOW_SECONDS
from fwtop.console.live import LiveSession
from fwtop.incidents.advisor import Advisor
from fwtop.lab import network as net
from fwtop.lab import scenario
from fwtop.lab.run import Lab
from fwtop.live.connections import ConnectionMeter, TcpServiceMeter
from fwtop.live.source import LiveSource
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Undo, Watch
from fwtop.model.traffic.packets import NoOrigin
from fwtop.model.traffic.snapshot import Incident, Origin, Proposal, Snapshot
from fwtop.observe.messages import decode_reply
from fwtop.stats.engine import Engine
from tests.kernel.conftest import Host, NetnsPair

PORT, TLS_PORT = 8080, 8443
_BIG = 200_000  # bytes of the file that slow readers ask for
_TICK = 0.25
_NGINX = """
daemon off; master_process off; pid {0}/pid; error_log {0}/error.log;
events {{ worker_connections 300; }}
http {{
    access_log off; client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/f;
    uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;
    server {{
        listen {1}; {2} root {0}/www; client_max_body_size 1m;
        location /login {{ proxy_pass http://127.0.0.1:9; }}
    }}
}}
"""
_TLS = "listen {1} ssl; ssl_certificate {0}/cert; ssl_certificate_key {0}/key;"
_APACHE = """
ServerRoot {0}
ServerName shop.example
DefaultRuntimeDir {0}
PidFile {0}/pid
ErrorLog {0}/error.log
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
Listen {1}
StartServers 2
ThreadsPerChild 25
MaxRequestWorkers 50
User www-data
Group www-data
DocumentRoot {0}/www
"""
SERVERS = ("nginx", "apache2")


def certify(directory: Path) -> None:
    """Make a certificate and its key in a folder."""
    made = ["-keyout", str(directory / "key"), "-out", str(directory / "cert")]
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=shop.example"]
    subprocess.run([*request, *made], check=True, capture_output=True)


@contextmanager
def web_server(name: str, netns: str, *, tls: bool = False) -> Iterator[None]:
    """Run nginx or Apache with few workers and the timeouts that it comes with, nginx also behind TLS."""
    with tempfile.TemporaryDirectory(prefix="fwtop-web-") as made:
        directory = Path(made)
        directory.chmod(0o755)
        (directory / "www").mkdir()
        (directory / "www/index.html").write_bytes(b"<title>shop</title>" * 20)
        (directory / "www/big").write_bytes(bytes(_BIG))
        config = directory / "server.conf"
        if tls:
            certify(directory)
        more = _TLS.format(directory, TLS_PORT) if tls else ""
        config.write_text((_NGINX if name == "nginx" else _APACHE).format(directory, PORT, more))
        if name == "nginx":
            argv = ["ip", "netns", "exec", netns, "nginx", "-p", made, "-c", str(config)]
        else:
            argv = ["ip", "netns", "exec", netns, "apache2", "-f", str(config), "-DFOREGROUND"]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(argv, stdout=quiet, stderr=quiet, start_new_session=True) as process:
            try:
                yield
            finally:
                os.killpg(process.pid, signal.SIGKILL)  # with its workers, whatever they wait for


class SlowLab(Struct):
    """A watched lab."""

    lab: Lab
    session: LiveSession
    guardian: GuardianClient
    seen: list[Snapshot] = field(default_factory=list)

    def tick(self) -> Snapshot:
        with inside(self.lab.victim):
            self.seen.append(self.session.tick())
        return self.seen[-1]

    def watch(self, seconds: float, until: str = "") -> float | None:
        """Tick for some time, or until an attack of a kind is all that is named; return after how long."""
        start = time.monotonic()
        while time.monotonic() < start + seconds:
            shown = self.tick()
            if until and [attack.kind for attack in shown.judgement.attacks] == [until]:
                return time.monotonic() - start
            time.sleep(_TICK)
        return None

    def kinds(self) -> set[str]:
        """All kinds that were named so far."""
        return {attack.kind for shot in self.seen for attack in shot.judgement.attacks}

    def attack(self) -> Incident:
        return self.seen[-1].judgement.attacks[0]

    def proposal(self, kind: str) -> Proposal:
        return next(one for one in self.seen[-1].judgement.proposals if one.kind == kind)

    def served(self, tries: int = 8, seconds: float = 30.0) -> int:
        """Let a real client ask for the page some times; return how often it got it."""
        return sum(self._fetch(seconds) for _ in range(tries))

    def _fetch(self, seconds: float) -> bool:
        with inside(self.lab.attacker):
            end = socket.socket()
        with end, suppress(OSError):
            end.settimeout(seconds)
            end.bind((self.lab.legitimate.clients[0], 0))
            end.connect((net.VICTIM_4, PORT))
            end.sendall(b"GET /index.html HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
            return end.recv(100).startswith(b"HTTP/1.1 200")
        return False


class _Link:
    lost = ""

    def __init__(self, client: GuardianClient) -> None:
        self._client = client

    def demand(self, request: Any, **_: float) -> Any:
        return self._client.demand(request)


def crowd(protocol: str, connections: int, sources: int, *, path: str = "/", rate: int = 200) -> str:
    """Return the part of a scenario that holds connections to the web server."""
    return (
        f'[[crowd]]\nprotocol = "{protocol}"\nport = {PORT}\n'
        f'clients = {sources}\nconnections = {connections}\nrate = {rate}\npaths = ["{path}"]\n'
    )


@contextmanager
def slow_lab(crowds: str, directory: Path, server: str, *, tls: bool = False) -> Iterator[SlowLab]:
    """Set everything up; nothing has been attacked yet."""
    text = f'title = "t"\nopen_ports = ["tcp/{PORT}", "tcp/{TLS_PORT}"]\n{crowds}'
    with Lab(scenario.parse(text, "slow"), source=text) as lab, web_server(server, lab.victim, tls=tls):
        victim = Host(lab.victim, net.VICTIM_INTERFACE, net.VICTIM_4, net.VICTIM_6)
        attacker = Host(lab.attacker, net.ATTACKER_INTERFACE, net.GATEWAY_4, net.GATEWAY_6)
        bench = Bench(NetnsPair(victim, attacker), directory)
        source = None
        try:
            with bench.connect("console") as console, bench.connect() as guardian:
                answer, descriptors = console.watch(Watch((net.VICTIM_INTERFACE,)))
                assert answer.ok, answer.error
                with inside(lab.victim):
                    source = LiveSource(*decode_reply(answer, descriptors))
                    session = LiveSession(
                        _Link(console),  # type: ignore[arg-type]
                        source,
                        Engine(NoOrigin(), window_seconds=WINDOW_SECONDS, live=True,
                               own=(Prefix.parse(net.VICTIM_4),)),
                        Advisor(),
                        TcpServiceMeter(),
                        host="victim",
                        origin=Origin("live", (net.VICTIM_INTERFACE,)),
                        connections=ConnectionMeter(),
                    )  # fmt: skip
                    session.start()
                made = SlowLab(lab, session, guardian)
                _wait_for_server(made)
                yield made
                guardian.demand(Undo(all=True))
        finally:
            if source is not None:
                with inside(lab.victim):
                    source.close()
            bench.close()


def _wait_for_server(made: SlowLab) -> None:
    end = time.monotonic() + 120
    while not made.served(1, 5.0):
        assert time.monotonic() < end, "the web server does not answer"
        time.sleep(0.1)
