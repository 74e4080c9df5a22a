"""A victim that answers DNS to the world: a real unbound, its authority, clients, and attacks through it.

The victim's unbound recurses for anybody. In the other namespace another unbound is authoritative for the
zones; the authority of one zone never answers, as that of an attacked zone. There are the clients, too, in
networks of their own, and the address that reflected answers go to.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from msgspec import Struct, field

from benches.two_hosts import TwoHosts
from fwtop.kernel.namespaces import inside
from fwtop.lab import namespaces
from fwtop.lab.network import GATEWAY_4, VICTIM_4
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.protocols import wire_name

CLIENTS = tuple(f"198.19.{number}.10" for number in range(1, 41))
TARGET = "198.19.200.7"  # of reflected answers
_SILENT = "198.18.0.3"  # the authority of the attacked zone
NAMES = tuple(f"www{number}.shop.example" for number in range(200))
BIG, ATTACKED = "big.example", "hunted.example"
_ANY, _A, _TXT = 255, 1, 16
_READY_SECONDS = 10.0
_COUNTER = f"""table ip far {{
 counter reflected {{ }}
 chain in {{
  type filter hook prerouting priority -400
  ip daddr {_SILENT} drop
  ip daddr {TARGET} counter name reflected drop
 }}
}}
"""
UNBOUND = """server:
 interface: {address}
 directory: "{folder}"
 access-control: 0.0.0.0/0 allow
 module-config: "iterator"
 do-not-query-localhost: no
 max-udp-size: 4096
 edns-buffer-size: 4096
 chroot: ""
 username: ""
 pidfile: ""
 use-syslog: no
 do-daemonize: no
 do-ip6: no
 num-threads: 1
remote-control:
 control-enable: no
"""
_RESOLVES = f"""stub-zone:
 name: {ATTACKED}
 stub-addr: {_SILENT}
stub-zone:
 name: example
 stub-addr: {GATEWAY_4}
"""
_KNOWS = """auth-zone:
 name: example
 zonefile: example.zone
 for-upstream: no
"""


class ResolverLab(TwoHosts):
    """The namespaces, daemons and addresses, for the duration of the `with` block."""

    def __init__(self) -> None:
        super().__init__((*CLIENTS, TARGET, _SILENT))

    def _require(self) -> None:
        if shutil.which("unbound") is None:
            raise FwtopError("unbound is not installed; nothing was started: apt-get install unbound", 3)

    def _serve(self) -> None:
        namespaces.run("ip", "netns", "exec", self.attacker, "nft", "-f", "-", text=_COUNTER)
        zone = [
            "$ORIGIN example.",
            "$TTL 1",
            "@ SOA ns hostmaster 1 60 60 60 60",
            " NS ns",
            f"ns A {GATEWAY_4}",
        ]
        zone += [f"{name}. A 192.0.2.{number % 250}" for number, name in enumerate(NAMES)]
        zone += [f'{BIG}. TXT "{number:02d}{"x" * 240}"' for number in range(12)]
        (self.folder / "example.zone").write_text("\n".join(zone) + "\n", encoding="ascii")
        for netns, address, zones in (
            (self.attacker, GATEWAY_4, _KNOWS),
            (self.victim, VICTIM_4, _RESOLVES),
        ):
            config = self.folder / f"{address}.conf"
            server = UNBOUND.format(address=address, folder=self.folder)
            config.write_text(server + zones, encoding="ascii")
            self._daemon(netns, "unbound", "-d", "-c", str(config))
            self._wait_for(address)

    def _wait_for(self, address: str) -> None:
        end = time.monotonic() + _READY_SECONDS
        question = query(NAMES[0], _A)
        with inside(self.attacker):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sock:
            sock.settimeout(0.2)
            while time.monotonic() < end:
                sock.sendto(question, (address, 53))
                try:
                    if sock.recv(4096)[3] & 15 == 0:
                        return
                except OSError:  # nobody there yet, or no answer
                    time.sleep(0.05)
        raise FwtopError(f"unbound at {address} did not begin to answer; the lab is taken down again")

    def clients(self, seconds: float) -> ClientAnswers:
        """Let the clients ask real names for so long; return what became of their questions."""
        return ask_names(self.attacker, VICTIM_4, CLIENTS, NAMES, seconds)

    def reflected(self) -> tuple[int, int]:
        """Return packets and bytes that reached the target of the reflection so far."""
        return self.counted(self.attacker, "ip", "far", "reflected")

    def reflection(self, pps: int) -> AbstractContextManager[object]:
        """Ask for the big answer in the target's name, for the duration of the block."""
        ports = iter(lambda: random.randrange(1024, 65535), 0)  # noqa: S311
        questions = [forged(TARGET, next(ports), query(BIG, kind, 4096)) for kind in (_ANY, _TXT) * 64]
        return self.forging(questions, pps)

    def random_names(self, pps: int) -> AbstractContextManager[object]:
        """Ask for names that don't exist in the attacked zone, in the names of many, during the block."""
        letters = "abcdefghijklmnopqrstuvwxyz"
        made = random.Random(1)  # noqa: S311
        questions = [
            forged(
                f"198.19.{made.randrange(100, 200)}.{made.randrange(1, 255)}",
                made.randrange(1024, 65535),
                query(f"{''.join(made.choices(letters, k=12))}.{ATTACKED}", _A),
            )
            for _ in range(20_000)
        ]
        return self.forging(questions, pps)


def query(name: str, kind: int, room: int = 0) -> bytes:
    """Build a question with RD; `room`: with EDNS, for answers of so many bytes."""
    head = struct.pack(">6H", random.randrange(1 << 16), 0x0100, 1, 0, 0, int(room > 0))  # noqa: S311
    question = wire_name([label.encode() for label in name.split(".")]) + struct.pack(">2H", kind, 1)
    return head + question + (struct.pack(">BHHIH", 0, 41, room, 0, 0) if room else b"")


def forged(source: str, port: int, payload: bytes) -> bytes:
    """Build a datagram to the victim's port 53; the kernel fills in the header's checksum (raw(7))."""
    udp = struct.pack(">4H", port, 53, 8 + len(payload), 0) + payload
    ends = socket.inet_aton(source) + socket.inet_aton(VICTIM_4)
    return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 57, 17, 0) + ends + udp


_TRIES, _TRY_SECONDS = 3, 1.0
_PAUSE_SECONDS = 0.2  # of a client between two questions
_TRUNCATED = 0x02


class ClientAnswers(Struct):
    """What became of the clients' questions."""

    asked: int = 0
    answered: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def success(self) -> float:
        """The share that was answered."""
        return self.answered / self.asked if self.asked else 0.0


def ask_names(
    netns: str, server: str, clients: Sequence[str], names: Sequence[str], seconds: float
) -> ClientAnswers:
    """Let clients of a namespace ask a server for names, each from an address of its own."""
    answers = ClientAnswers()

    async def run() -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(_client(_Stub(netns, server, one), names, end, answers) for one in clients))

    asyncio.run(run())
    return answers


class _Stub(Struct, frozen=True):
    """A client: where it lives, and which server it asks."""

    netns: str
    server: str
    address: str

    def socket(self, kind: socket.SocketKind) -> socket.socket:
        with inside(self.netns):
            sock = socket.socket(socket.AF_INET, kind)
        sock.setblocking(False)
        sock.bind((self.address, 0))
        return sock


async def _client(stub: _Stub, names: Sequence[str], end: float, answers: ClientAnswers) -> None:
    await asyncio.sleep(random.random() * _PAUSE_SECONDS)  # noqa: S311
    while time.monotonic() < end:
        started = time.monotonic()
        answers.asked += 1
        if await _resolve(stub, random.choice(names)):  # noqa: S311
            answers.answered += 1
            answers.seconds.append(time.monotonic() - started)
        await asyncio.sleep(_PAUSE_SECONDS)


async def _resolve(stub: _Stub, name: str) -> bool:
    question = query(name, _A)
    with stub.socket(socket.SOCK_DGRAM) as sock:
        sock.connect((stub.server, 53))
        for _ in range(_TRIES):
            with contextlib.suppress(TimeoutError, OSError):
                answer = await _exchange(sock, question)
                if answer[2] & _TRUNCATED:
                    return await _by_tcp(stub, question)
                return _is_answer(answer)
    return False


async def _exchange(sock: socket.socket, question: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_TRY_SECONDS):
        await loop.sock_sendall(sock, question)
        while True:
            answer = await loop.sock_recv(sock, 4096)
            if answer[:2] == question[:2] and len(answer) >= 12:
                return answer


async def _by_tcp(stub: _Stub, question: bytes) -> bool:
    loop = asyncio.get_running_loop()
    with stub.socket(socket.SOCK_STREAM) as sock, contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_TRIES * _TRY_SECONDS):
            await loop.sock_connect(sock, (stub.server, 53))
            await loop.sock_sendall(sock, struct.pack(">H", len(question)) + question)
            answer = b""
            while len(answer) < 14 or len(answer) < 2 + int.from_bytes(answer[:2], "big"):
                more = await loop.sock_recv(sock, 4096)
                if not more:
                    return False
                answer += more
            return _is_answer(answer[2:])
    return False


def _is_answer(message: bytes) -> bool:
    return message[3] & 15 == 0 and int.from_bytes(message[6:8], "big") > 0
