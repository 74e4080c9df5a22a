"""False alarms on a host that real programs use, watched live by a recorder for an hour.

The host uses others itself, too: what no monitor of attacks may call one. Each minute starts the same
programs at other moments, so that what runs at once differs. Programs that aren't installed are left out.
"""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benches.resolver_lab import UNBOUND
from benches.two_hosts import TwoHosts
from fwtop.bench.frame import Document, Options, Result, progress, until
from fwtop.bench.measured_harm import forget_session
from fwtop.bench.programs import fwtop_argv
from fwtop.kernel.namespaces import inside
from fwtop.lab import namespaces
from fwtop.lab.network import GATEWAY_4, VICTIM_4
from fwtop.lab.processes import Program
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_MINUTES, _QUICK_MINUTES = 60, 2
_SEED = 12
_READY_SECONDS = 30.0


class Watched(Struct, frozen=True):
    """What the recorder saw: windows, those in which an attack went on, and each attack once."""

    windows: int
    alarmed: int
    packets: float
    alarms: tuple[str, ...]

    @staticmethod
    def of(lines: Iterable[str]) -> Watched:
        """Read the recorder's lines."""
        windows, alarmed, packets = 0, 0, 0.0
        alarms: dict[tuple[str, str], str] = {}
        for line in lines:
            seen = json.loads(line)
            going_on = [attack for attack in seen["attacks"] if attack["ended"] is None]
            windows, alarmed = windows + 1, alarmed + bool(going_on)
            packets = max(packets, float(seen["totals"]["pps"]))
            alarms |= {(one["kind"], one["since"]): _alarm(one) for one in going_on}
        return Watched(windows, alarmed, packets, tuple(alarms.values()))


def _alarm(attack: dict[str, Any]) -> str:
    return (
        f"{attack['since']}: {attack['kind']}, {attack['confidence']:.0%} sure, "
        f"{attack['pps']:,.0f} packets/s, {attack['share']:.0%} of the traffic: "
        f"{'; '.join(attack['evidence'][:2])}"
    )


def run(options: Options) -> Document:
    """Watch; `rounds` is the number of minutes."""
    minutes = options.choose(_MINUTES, _QUICK_MINUTES)
    with tempfile.TemporaryDirectory(prefix="fwtop-") as folder, EverydayLab(_SEED) as lab:
        lines = Path(folder) / "lines"
        argv = ("record", "--netns", lab.victim, "--no-alarms", "--jsonl", str(lines))
        try:
            with Program(fwtop_argv(*argv)):
                if not until(lambda: lines.exists() and lines.stat().st_size > 0, _READY_SECONDS):
                    raise FwtopError("the recorder did not start; the lab is taken down")
                for number in range(1, minutes + 1):
                    for program in lab.minute():
                        progress(f"minute {number} of {minutes}: {program}")
            progress("")
        finally:
            forget_session(lab)
        watched = Watched.of(lines.read_text(encoding="utf-8").splitlines())
        return Document("hour", 1, _results(watched, minutes), tuple(_notes(lab, watched.alarms)))


def _results(watched: Watched, minutes: int) -> tuple[Result, ...]:
    figures = (
        ("false alarms", "attacks", len(watched.alarms)),
        ("windows in which one went on", "windows", watched.alarmed),
        ("windows judged", "windows", watched.windows),
        ("watched", "minutes", minutes),
        ("most packets/s in a window", "packets/s", watched.packets),
    )
    return tuple(Result(name, unit, (float(value),)) for name, unit, value in figures)


def _notes(lab: EverydayLab, alarms: Sequence[str]) -> list[str]:
    started = ", ".join(f"{program} {count:,}" for program, count in sorted(lab.started.items()))
    failed = ", ".join(f"{program} {count:,}" for program, count in sorted(lab.failed.items()) if count)
    return [
        *alarms,
        f"started: {started}",
        *([f"of these ended with an error: {failed}"] if failed else []),
        *([f"not installed, and so left out: {', '.join(lab.missing)}"] if lab.missing else []),
    ]


_SERVING_SECONDS = 10.0

PEERS = tuple(f"198.19.{number}.10" for number in range(1, 61))
_MINUTE = 60.0
_PATIENCE_SECONDS = 90.0  # then a program is ended
_PAGES, _LARGE_BYTES = 40, 8 << 20
_NGINX = """worker_processes 1; user root; daemon off; pid {folder}/{name}.pid; error_log /dev/null;
events {{ worker_connections 512; }}
http {{
 access_log {folder}/access.log;
 client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
 uwsgi_temp_path {folder}; scgi_temp_path {folder};
 server {{
  listen {address}:80; listen {address}:443 ssl http2; root {folder}/www;
  ssl_certificate {folder}/cert; ssl_certificate_key {folder}/cert-key;
 }}
}}
"""
_SSHD = """ListenAddress {host}
HostKey {folder}/key
PidFile none
AuthorizedKeysFile {folder}/key.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
"""
_RSYNCD = """address = {host}
port = 873
use chroot = no
[incoming]
path = {folder}/incoming
read only = no
uid = root
gid = root
"""
_KNOWS = 'server:\n local-zone: "example." redirect\n local-data: "example. 20 A 192.0.2.7"\n'
_ASKS = f"stub-zone:\n name: example\n stub-addr: {GATEWAY_4}\n"
_PEOPLE = "function delay() return math.random(500, 4000) end\n"  # of wrk, in milliseconds
_SSHD_FOLDER = Path("/run/sshd")  # sshd refuses to start without; Debian's service makes it
_CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=everyday "
    "-keyout {folder}/cert-key -out {folder}/cert"
)
_SSH_KEY = "ssh-keygen -q -t ed25519 -N  -f {folder}/key"  # of the host and of its user; no passphrase
_SSH = "-i {folder}/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes"


class Server(Struct, frozen=True):
    """A program that serves: its command, the port that it listens on, and on which of the hosts.

    `key_maker` is a command that makes the key that it doesn't start without.
    """

    command: str
    port: int
    far: bool = False
    key_maker: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """What isn't installed of the programs that it takes."""
        commands = (self.command, self.key_maker) if self.key_maker else (self.command,)
        names = (command.split()[0] for command in commands)
        return tuple(Path(name).name for name in names if shutil.which(name) is None)


class Use(Struct, frozen=True):
    """A program that is started so many times a minute, at random moments, by a peer or on the host itself.

    In the command, {host} and {far} are the addresses of the watched host and of the other, {peer} is that of
    the peer that runs it, {page} one of the site's pages, {folder} where files are.
    """

    command: str
    a_minute: int
    port: int  # of the server that it needs
    own: bool = False  # started on the watched host

    @property
    def program(self) -> str:
        """The executable."""
        return self.command.split()[0]


SERVERS = (
    Server("nginx -p {folder} -c {folder}/nginx.conf", 80, key_maker=_CERTIFICATE),
    Server("nginx -p {folder} -c {folder}/nginx-far.conf", 80, far=True, key_maker=_CERTIFICATE),
    Server("/usr/sbin/sshd -D -f {folder}/sshd.conf", 22, key_maker=_SSH_KEY),
    Server("rsync --daemon --no-detach --config {folder}/rsyncd.conf", 873),
    Server("iperf3 -s -p 5201", 5201),
    Server("iperf3 -s -p 5202", 5202),
    Server("iperf3 -s -p 5203", 5203),
    Server("unbound -d -c {folder}/unbound.conf", 53),
    Server("unbound -d -c {folder}/unbound-far.conf", 53, far=True),
    Server("mosquitto -c {folder}/mosquitto.conf", 1883),
)
USES = (
    Use(
        "curl -s --interface {peer} -o /dev/null -o /dev/null -o /dev/null "
        "http://{host}/ http://{host}/style.css http://{host}/{page}",
        60,
        80,
    ),
    Use(
        "curl -sk --interface {peer} -o /dev/null -o /dev/null https://{host}/ https://{host}/{page}", 40, 80
    ),
    Use("wget -q --bind-address={peer} -O /dev/null http://{host}/large", 6, 80),
    Use("wrk -t 1 -c 10 -d 20 -s {folder}/people.lua http://{host}/", 1, 80),
    Use("h2load --rps 3 -c 4 -D 20 https://{host}/", 1, 80),
    Use("siege -q -d 4 -c 15 -t 20S http://{host}/", 1, 80),
    Use("ssh -b {peer} " + _SSH + " root@{host} for n in $(seq 60); do date; sleep 0.2; done", 2, 22),
    Use("scp -q -o BindAddress={peer} " + _SSH + " {folder}/www/large root@{host}:/dev/null", 2, 22),
    Use("rsync -r --ignore-times --address={peer} {folder}/www/ rsync://{host}/incoming/", 2, 873),
    Use("iperf3 -c {host} -p 5201 -B {peer} -b 50M -t 10", 1, 5201),
    Use("iperf3 -c {host} -p 5202 -B {peer} -b 50M -t 10 -P 4 -R", 1, 5202),
    Use("iperf3 -c {host} -p 5203 -B {peer} -u -b 40M -t 10", 1, 5203),
    Use("dnsperf -s {host} -a {peer} -d {folder}/names -Q 60 -l 15 -c 4", 3, 53),
    Use(
        "mosquitto_pub -h {host} -A {peer} -t room/temperature -m 21.5 --repeat 30 --repeat-delay 1", 10, 1883
    ),
    Use("ping -q -I {peer} -i 0.2 -c 100 {host}", 3, 0),
    Use("curl -s -o /dev/null http://{far}/large", 3, 80, own=True),
    Use("wget -q -O /dev/null --no-check-certificate https://{far}/large", 2, 80, own=True),
    Use("nmap -n -Pn -p 1-2000 {far}", 1, 0, own=True),
    Use("dnsperf -s {host} -d {folder}/names -Q 20 -l 15", 1, 53, own=True),
)


class EverydayLab(TwoHosts):
    """The hosts with whatever servers are installed."""

    def __init__(self, seed: int, peers: Sequence[str] = PEERS) -> None:
        super().__init__(peers)
        unused = {one.program for one in USES if shutil.which(one.program) is None}
        self.missing = sorted(unused.union(*(one.missing for one in SERVERS)))
        self.started: Counter[str] = Counter()  # by program
        self.failed: Counter[str] = Counter()
        self._random = random.Random(seed)  # noqa: S311
        self.ports = {0}
        self._running: list[tuple[float, str, subprocess.Popen[bytes]]] = []

    def close(self) -> None:
        """End everything that runs; idempotent."""
        self._reap(all_of_them=True)
        super().close()

    def minute(self) -> Iterator[str]:
        """Use the host for a minute; yield what is started, when it is."""
        begun = time.monotonic()
        uses = [one for one in USES if one.port in self.ports and one.program not in self.missing]
        plan = [(self._random.uniform(0, _MINUTE), one) for one in uses for _ in range(one.a_minute)]
        for at, use in sorted(plan, key=lambda item: item[0]):
            time.sleep(max(0.0, begun + at - time.monotonic()))
            self._reap()
            argv = self.filled(use.command).split()
            child = self.start(self.victim if use.own else self.attacker, *argv)
            self._running.append((time.monotonic(), use.program, child))
            self.started[use.program] += 1
            yield use.program
        time.sleep(max(0.0, begun + _MINUTE - time.monotonic()))

    def _reap(self, *, all_of_them: bool = False) -> None:
        """Take note of what has ended; end what runs for too long."""
        for one in [*self._running]:
            at, program, child = one
            late = all_of_them or time.monotonic() - at > _PATIENCE_SECONDS
            if late and child.poll() is None:
                child.kill()
                child.wait()
            elif child.poll() is not None:
                self.failed[program] += child.returncode != 0
            else:
                continue
            self._running.remove(one)

    def filled(self, command: str) -> str:
        """Return a command with its addresses, a page and a peer drawn anew."""
        page = f"page{self._random.randrange(_PAGES)}.html"
        peer = self._random.choice(PEERS)
        return command.format(host=VICTIM_4, far=GATEWAY_4, peer=peer, page=page, folder=self.folder)

    def _serve(self) -> None:
        self._write_files()
        _SSHD_FOLDER.mkdir(mode=0o755, exist_ok=True)
        for command in sorted({one.key_maker for one in SERVERS if one.key_maker and not one.missing}):
            namespaces.run(*command.format(folder=self.folder).split(" "))
        for server in SERVERS:
            if server.missing:
                continue
            netns, address = (self.attacker, GATEWAY_4) if server.far else (self.victim, VICTIM_4)
            self._daemon(netns, *self.filled(server.command).split())
            if not _wait_for_port(netns, address, server.port):
                program = safe_text(server.command.split()[0])
                raise FwtopError(f"{program} did not begin to serve; the lab is taken down again")
            self.ports.add(server.port)

    def _write_files(self) -> None:
        drawn, folder = self._random, self.folder
        (folder / "www").mkdir()
        (folder / "incoming").mkdir()
        names = ("index.html", "style.css", *(f"page{number}.html" for number in range(_PAGES)))
        for name in names:
            (folder / "www" / name).write_bytes(drawn.randbytes(drawn.randrange(2_000, 60_000)))
        (folder / "www" / "large").write_bytes(drawn.randbytes(_LARGE_BYTES))
        asked = "".join(f"www{number}.example A\n" for number in range(500))
        texts = {
            "nginx.conf": _NGINX.format(folder=folder, name="nginx", address=VICTIM_4),
            "nginx-far.conf": _NGINX.format(folder=folder, name="nginx-far", address=GATEWAY_4),
            "sshd.conf": _SSHD.format(folder=folder, host=VICTIM_4),
            "rsyncd.conf": _RSYNCD.format(folder=folder, host=VICTIM_4),
            "unbound.conf": UNBOUND.format(folder=folder, address=VICTIM_4) + _ASKS,
            "unbound-far.conf": UNBOUND.format(folder=folder, address=GATEWAY_4) + _KNOWS,
            "mosquitto.conf": f"listener 1883 {VICTIM_4}\nallow_anonymous true\n",
            "people.lua": _PEOPLE,
            "names": asked,
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="ascii")


def _wait_for_port(netns: str, address: str, port: int) -> bool:
    """Wait until something accepts TCP connections there, at most ten seconds."""

    def accepts() -> bool:
        with inside(netns):
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with sock:
            sock.settimeout(1.0)
            return sock.connect_ex((address, port)) == 0

    return until(accepts, _SERVING_SECONDS, every=0.05)
