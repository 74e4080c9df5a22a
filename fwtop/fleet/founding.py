"""What `fwtop fleet init` makes: keys, the authority for TLS, configurations of servers, the operators' file.

Of servers that are there already, and others run, it takes an account: a key with which that signs its users.

A server gets what it needs to run and no secret but its own TLS key. The operators' file holds the rest, for
those who admit machines and lead roll-outs. What it holds gives no say over a machine: that takes an SSH
signature by one whom the machine's own signers file names.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct
from msgspec.structs import replace

from fwtop.fleet.broker import Access, joining_rights, node_rights
from fwtop.fleet.document import is_name
from fwtop.fleet.identity import NatsKey, Scope, account, operator, rights, user
from fwtop.fleet.keys import MachineKey
from fwtop.fleet.machine import read
from fwtop.fleet.transport import MAX_ANSWER
from fwtop.model.errors import FwtopError
from fwtop.model.wire import of_json, to_json

PORT, CLUSTER_PORT = 4222, 6222
OPERATOR_FILE = "operator.json"  # in the operators' directory
SIGNERS_FILE = "signers"
STORE = Path("/var/lib/fwtop-broker")
_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 825
_CLIENTS = 20_000
_MAX_MESSAGE = 1 << 20
_HANDSHAKE_SECONDS = 4  # as long as who connects waits: not 2, when thousands come back at once

_USERS = "users"
_REPLICAS = 3
_RIGHTS = {"node": node_rights, "controller": lambda: ([">"], [">"]), "join": joining_rights}

Curve = ec.EllipticCurvePrivateKey


class OperatorFile(Struct, frozen=True, forbid_unknown_fields=True):
    """What those who run a fleet share; secret. `seeds` are nkeys by job; "users": on others' servers."""

    fleet: str
    urls: tuple[str, ...]
    authority: str  # PEM
    account: str  # public key
    seeds: dict[str, str]
    controller_jwt: str
    registrar: str  # secret half of the key that signs the register of machines

    @property
    def access(self) -> Access:
        """How a coordinator connects."""
        seed, system = self.seeds["controller user"], self.system_access if self.is_own else None
        return Access(self.urls, self.authority, self.controller_jwt, seed, "controller", system)

    @property
    def is_own(self) -> bool:
        """Whether the servers are the fleet's own."""
        return _USERS not in self.seeds

    @property
    def servers(self) -> frozenset[str]:
        """The names of the fleet's own servers."""
        return frozenset(f"{self.fleet}-{number}" for number in range(1, self.is_own * len(self.urls) + 1))

    @property
    def replicas(self) -> int:
        """How many servers are to have each document."""
        return _REPLICAS if len(self.urls) >= _REPLICAS else 1

    def paper(self, role: str, key: str, name: str, expires: int = 0) -> str:
        """Return the JWT of a node, a controller or who is to join; rights are in it, or its key's."""
        if self.is_own:
            return user(NatsKey.of_seed(self.seeds[role]), self.account, key, name, expires=expires)
        named = [[one.replace("{{name()}}", name) for one in may] for may in _RIGHTS[role]()]
        may = rights(named[0], named[1], MAX_ANSWER if role == "node" else -1)
        return user(NatsKey.of_seed(self.seeds[_USERS]), self.account, key, name, may=may, expires=expires)

    def system_access(self) -> Access:
        """How the servers are told which accounts there are; made anew for each use."""
        key = NatsKey("U")
        system = NatsKey.of_seed(self.seeds["system"]).public
        signing = NatsKey.of_seed(self.seeds["system users"])
        may, expires = rights([">"], [">"]), int(time.time()) + 60
        jwt = user(signing, system, key.public, "system", may=may, expires=expires)
        return Access(self.urls, self.authority, jwt, key.seed, "system")


class Token(Struct, frozen=True, forbid_unknown_fields=True):
    """What root pastes on a machine that is to join: whose certificates and signatures it trusts."""

    fleet: str
    id: str
    authority: str
    jwt: str
    seed: str
    signers: str  # the text of the signers file

    @property
    def text(self) -> str:
        """Write it as one word."""
        return base64.urlsafe_b64encode(to_json(self)).decode().rstrip("=")

    @staticmethod
    def of(text: str) -> Token:
        """Read one word; raises FwtopError."""
        try:
            token: Token = of_json(
                Token, base64.urlsafe_b64decode(text.strip() + "=" * (-len(text.strip()) % 4))
            )
        except ValueError:
            raise FwtopError("this is no token of 'fwtop fleet token'; nothing was changed", 2) from None
        return token


class ServerPlace(Struct, frozen=True):
    """Where a server listens: an address or a host's name, which its certificate bears."""

    host: str
    port: int = PORT


def found(
    directory: Path, fleet: str, places: list[ServerPlace], signers: str, *, store: Path = STORE
) -> OperatorFile:
    """Write a fleet's files below `directory`: `operator`, and `server` (of several `server-1`, …).

    Each of several is to be `directory`/server on its own machine: its configuration says so.
    Raises FwtopError if there is a fleet already.
    """
    _check_new(directory, fleet)
    keys = {name: NatsKey("A") for name in ("system", "system users", "fleet", "node", "controller", "join")}
    keys |= {"operator": NatsKey("O"), "accounts": NatsKey("O"), "controller user": NatsKey("U")}
    authority, authority_key = _authority(fleet)
    pem = authority.public_bytes(Encoding.PEM).decode()
    file = OperatorFile(
        fleet,
        tuple(f"tls://{_in_url(place.host)}:{place.port}" for place in places),
        pem,
        keys["fleet"].public,
        {name: key.seed for name, key in keys.items()},
        user(keys["controller"], keys["fleet"].public, keys["controller user"].public, "controller"),
        MachineKey().secret,
    )
    for number, place in enumerate(places, 1):
        name = "server" if len(places) == 1 else f"server-{number}"
        certificate, key = _certificate(authority, authority_key, place.host)
        files = {
            "authority.pem": pem,
            "server.pem": certificate.public_bytes(Encoding.PEM).decode(),
            "server.key": _pem(key),
            "operator.jwt": operator(keys["operator"], keys["accounts"], keys["system"]),
            "nats.conf": _configuration(directory / "server", places, number, file, store),
        }
        _write(directory / name, files)
    write_operators(directory, file, signers, {"authority.key": _pem(authority_key)})
    return file


def adopted(
    directory: Path, fleet: str, urls: tuple[str, ...], authority: str, *, seed: str, account: str = ""
) -> OperatorFile:
    """Return the operators' file of a fleet on servers that others run; raises FwtopError.

    `seed` is of a key with which `account` signs users (""): of the account itself.
    """
    _check_new(directory, fleet)
    signing, controller = NatsKey.of_seed(seed), NatsKey("U")
    bare = OperatorFile(
        fleet, urls, authority, account or signing.public,
        {_USERS: signing.seed, "controller user": controller.seed}, "", MachineKey().secret,
    )  # fmt: skip
    return replace(bare, controller_jwt=bare.paper("controller", controller.public, "controller"))


def write_operators(directory: Path, file: OperatorFile, signers: str, more: dict[str, str]) -> None:
    """Write the operators' directory."""
    files = {OPERATOR_FILE: to_json(file).decode(), SIGNERS_FILE: signers}
    _write(directory / "operator", files | more)


def _check_new(directory: Path, fleet: str) -> None:
    """Raise FwtopError unless a fleet of this name may be made here."""
    if not is_name(fleet):
        raise FwtopError("a fleet's name has up to 64 letters, digits and '_.@:-'; nothing was changed", 2)
    if (operators := directory / "operator").exists():
        line = f"{operators} is there already: a second init would lock out its machines; nothing was changed"
        raise FwtopError(line)


def read_operator(directory: Path) -> OperatorFile:
    """Read the operators' file; raises FwtopError, which says what to do."""
    missing = "'fwtop fleet init' makes it; a copy elsewhere is named with --fleet"
    return read(OperatorFile, directory / OPERATOR_FILE, missing)


def account_jwt(seeds: dict[str, str], revoked: dict[str, int] | None = None) -> str:
    """Return the JWT of the fleet's account: who may do what."""
    keys = {name: NatsKey.of_seed(seed) for name, seed in seeds.items()}
    scopes = [
        Scope(keys[role], role, *may(), MAX_ANSWER if role == "node" else -1) for role, may in _RIGHTS.items()
    ]
    return account(keys["accounts"], keys["fleet"], "FLEET", scopes, revoked=revoked)


def token(file: OperatorFile, signers: str, machines: int, seconds: float) -> Token:
    """Return a token with which so many machines may ask to join, for so long."""
    key, name = NatsKey("U"), f"{os.urandom(4).hex()}-{machines}"
    expires = int(time.time() + seconds)
    jwt = file.paper("join", key.public, name, expires)
    return Token(file.fleet, name, file.authority, jwt, key.seed, signers)


def _configuration(
    directory: Path, places: list[ServerPlace], number: int, file: OperatorFile, store: Path
) -> str:
    """Write a server's configuration; JSON is valid in it, so values are written as JSON."""
    place, keys = places[number - 1], {name: NatsKey.of_seed(seed) for name, seed in file.seeds.items()}
    system = account(keys["accounts"], keys["system"], "SYS", plain=[keys["system users"]])
    tls = {"cert_file": f"{directory}/server.pem", "key_file": f"{directory}/server.key"}
    about: dict[str, object] = {
        "server_name": f"{file.fleet}-{number}",
        "listen": f"{_in_url(place.host)}:{place.port}",
        "max_payload": _MAX_MESSAGE,
        "max_connections": _CLIENTS,
        "write_deadline": "10s",
        "tls": {
            **tls,
            "ca_file": f"{directory}/authority.pem",
            "min_version": "1.3",
            "handshake_first": True,
            "timeout": _HANDSHAKE_SECONDS,
        },
        # Each write reaches the disk before it is acknowledged.
        "jetstream": {"store_dir": f"{store}/{number}", "max_file_store": 4 << 30, "sync_interval": "always"},
        "operator": f"{directory}/operator.jwt",
        "system_account": keys["system"].public,
        "resolver": {"type": "full", "dir": f"{store}/{number}/accounts", "allow_delete": False, "limit": 16},
        "resolver_preload": {
            keys["system"].public: system,
            keys["fleet"].public: account_jwt(file.seeds),
        },
    }
    if len(places) > 1:
        about["cluster"] = {
            "name": file.fleet,
            "listen": f"{_in_url(place.host)}:{CLUSTER_PORT}",
            "routes": [f"nats-route://{_in_url(one.host)}:{CLUSTER_PORT}" for one in places],
            # One that is parted gets questions, too, until its route is given up: by default after minutes.
            "ping_interval": "2s",
            "ping_max": 2,
            "tls": {**tls, "ca_file": f"{directory}/authority.pem", "verify": True, "timeout": 5},
        }
    return json.dumps(about, indent=2) + "\n"


def _authority(fleet: str) -> tuple[x509.Certificate, Curve]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named(f"fwtop fleet {fleet}")
    made = _builder(name, name, key, _AUTHORITY_DAYS).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    made = made.add_extension(
        x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        ),
        critical=True,
    )  # fmt: skip
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return made.sign(key, hashes.SHA256()), key


def _certificate(
    authority: x509.Certificate, authority_key: Curve, host: str
) -> tuple[x509.Certificate, Curve]:
    key = ec.generate_private_key(ec.SECP256R1())
    try:
        known: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        known = x509.DNSName(host)
    made = _builder(_named(host), authority.subject, key, _SERVER_DAYS)
    purposes = [
        ExtendedKeyUsageOID.SERVER_AUTH,
        ExtendedKeyUsageOID.CLIENT_AUTH,
    ]  # to the others of a cluster
    for extension in (
        x509.SubjectAlternativeName([known]),
        x509.ExtendedKeyUsage(purposes),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
    ):
        made = made.add_extension(extension, critical=False)
    return made.sign(authority_key, hashes.SHA256()), key


def _builder(subject: x509.Name, issuer: x509.Name, key: Curve, days: int) -> x509.CertificateBuilder:
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)  # clocks differ
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=days))
    )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _pem(key: Curve) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _write(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(mode=0o700, parents=True)
    for name, text in files.items():
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
