"""A NATS that others run: operator, account and TLS are theirs, nothing of it is fwtop's own."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from fwtop.fleet import founding, identity, server
from fwtop.fleet.identity import NatsKey


class Foreign:
    """A nats-server as a company has it: it greets before TLS, and has an account for fwtop."""

    def __init__(self, directory: Path, *, host: str = "127.0.0.1", port: int = 0, tls: bool = True) -> None:
        if not port:
            with socket.socket() as probe:
                probe.bind((host, 0))
                port = probe.getsockname()[1]
        self.directory, self.url = directory, f"nats://{host}:{port}"
        directory.mkdir()
        operator, system, self.account, self.signing = (NatsKey(kind) for kind in "OAAA")
        authority, key = founding._authority("company")
        certificate, own = founding._certificate(authority, key, host)
        self.ca, self.seed = directory / "ca.pem", directory / "fwtop.nk"
        self.ca.write_bytes(authority.public_bytes(Encoding.PEM))
        self.seed.write_text(f"{self.signing.seed}\n")
        (directory / "server.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (directory / "server.key").write_text(founding._pem(own))
        room = {"mem_storage": 0, "disk_storage": 1 << 30, "streams": 10, "consumer": 100}
        claims = {
            "type": "account",
            "limits": {**identity._UNLIMITED, **room},
            "signing_keys": [self.signing.public],
        }
        papers = {
            system.public: identity.account(operator, system, "SYS"),
            self.account.public: identity._jwt(operator, self.account.public, "FWTOP", claims),
        }
        about = {
            "listen": f"{host}:{port}",
            "jetstream": {"store_dir": str(directory / "js")},
            "operator": identity._jwt(operator, operator.public, "company", {"type": "operator"}),
            "system_account": system.public,
            "resolver": "MEMORY",
            "resolver_preload": papers,
        }
        if tls:
            about["tls"] = {
                "cert_file": str(directory / "server.pem"),
                "key_file": str(directory / "server.key"),
            }
        (directory / "nats.conf").write_text(json.dumps(about))

    def start(self, netns: str | None = None) -> subprocess.Popen[bytes]:
        return server.start(self.directory, self.directory / "log", netns)

    @contextlib.contextmanager
    def running(self, netns: str | None = None) -> Iterator[None]:
        process = self.start(netns)
        try:
            end = time.monotonic() + 20
            while "Server is ready" not in (self.directory / "log").read_text():
                assert time.monotonic() < end, (self.directory / "log").read_text()
                assert process.poll() is None, (self.directory / "log").read_text()
                time.sleep(0.02)
            yield
        finally:
            process.kill()
            process.wait()
