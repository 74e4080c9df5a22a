"""NATS' decentralised identities: nkeys, and the JWTs by which operator, accounts and users are known.

Written out here because they are a page, and nobody's library of them is packaged. An operator's signing key
makes accounts, an account's scoped signing keys make users, whose rights are the scope's: whoever holds the
key for nodes can make nodes and nothing else. A server needs the operator's and the accounts' JWTs only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fwtop.model.errors import FwtopError

_PREFIXES = {"O": 14 << 3, "A": 0, "U": 20 << 3}  # operator, account, user
_SEED = 18 << 3
_HEADER = b'{"typ":"JWT","alg":"ed25519-nkey"}'
_UNLIMITED = {
    **dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn"), -1),
    "wildcards": True,
    "leaf": 0,
}
# Replicas count: a stream of 1 GiB on three servers takes 3 GiB of an account's limit.
_JETSTREAM = {"mem_storage": 0, "disk_storage": 3 << 30, "streams": 8, "consumer": 64}


class NatsKey:
    """An nkey: an Ed25519 key whose text says what it is of."""

    def __init__(self, kind: str, secret: bytes | None = None) -> None:
        """Make a key of an operator (O), account (A) or user (U)."""
        self._kind = kind
        self._private = (
            Ed25519PrivateKey.from_private_bytes(secret) if secret else Ed25519PrivateKey.generate()
        )

    @classmethod
    def of_seed(cls, seed: str) -> NatsKey:
        """Read a secret as `seed` wrote it; raises FwtopError."""
        try:
            raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
            prefix = (raw[0] & 7) << 5 | raw[1] >> 3
            [kind] = [kind for kind, known in _PREFIXES.items() if known == prefix]
            if len(raw) != 36 or raw[0] & 0xF8 != _SEED or _checksum(raw[:-2]) != raw[-2:]:
                raise ValueError
        except (ValueError, IndexError):
            raise FwtopError("this is no nkey seed") from None
        return cls(kind, raw[2:34])

    @property
    def public(self) -> str:
        """Its public half, by which servers and others know it."""
        return _text(bytes([_PREFIXES[self._kind]]) + self._private.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        """Its secret."""
        prefix = _PREFIXES[self._kind]
        head = bytes([_SEED | prefix >> 5, (prefix & 31) << 3])
        return _text(head + self._private.private_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """Return the signature of what a server asks to be signed, or of a JWT."""
        return self._private.sign(data)


class Scope:
    """A signing key of an account and what those users may do that it makes."""

    def __init__(
        self, key: NatsKey, role: str, publish: Sequence[str], subscribe: Sequence[str], payload: int = -1
    ) -> None:
        """`{{name()}}` in a subject stands for the user's name; a role that subscribes may answer once.

        No message may have more than `payload` bytes (-1: than the server takes).
        """
        self.key = key
        self.claims: dict[str, Any] = {
            "kind": "user_scope",
            "key": key.public,
            "role": role,
            "template": rights(publish, subscribe, payload),
        }


def rights(publish: Sequence[str], subscribe: Sequence[str], payload: int = -1) -> dict[str, Any]:
    """Return what a user, or those of a scope, may do."""
    return {
        "subs": -1,
        "data": -1,
        "payload": payload,
        "pub": {"allow": [*publish]},
        "sub": {"allow": [*subscribe]},
        "resp": {"max": 1, "ttl": 30_000_000_000},  # nanoseconds
    }


def operator(key: NatsKey, signing: NatsKey, system: NatsKey) -> str:
    """Return an operator's JWT: accounts are valid only by its signing key, so `key` may stay offline."""
    claims = {
        "type": "operator",
        "system_account": system.public,
        "strict_signing_key_usage": True,
        "signing_keys": [signing.public],
    }
    return _jwt(key, key.public, "fwtop", claims)


def account(
    signing: NatsKey,
    key: NatsKey,
    name: str,
    scopes: Sequence[Scope] = (),
    *,
    plain: Sequence[NatsKey] = (),
    revoked: Mapping[str, int] | None = None,
) -> str:
    """Return an account's JWT; one with scopes has streams. `revoked`: users' keys, and since when."""
    claims: dict[str, Any] = {
        "type": "account",
        "limits": {**_UNLIMITED, **(_JETSTREAM if scopes else {})},
        "signing_keys": [*(scope.claims for scope in scopes), *(one.public for one in plain)],
        "default_permissions": {"pub": {}, "sub": {}},
        **({"revocations": {**revoked}} if revoked else {}),
    }
    return _jwt(signing, key.public, name, claims)


def user(
    signing: NatsKey,
    account_key: str,
    key: str,
    name: str,
    *,
    may: Mapping[str, Any] | None = None,
    expires: int = 0,
) -> str:
    """Return the JWT of a user of that public key; `expires` in Unix seconds, 0: never.

    A scope's users have no rights of their own.
    """
    claims: dict[str, Any] = {"type": "user", **(may or {})}
    claims |= {"issuer_account": account_key} if signing.public != account_key else {}
    return _jwt(signing, key, name, claims, expires)


def scopes_of(jwt: str) -> Any:  # noqa: ANN401 - JSON
    """Return what an account's JWT says that its users may do; raises ValueError."""
    body = jwt.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["nats"].get("signing_keys")


def _jwt(issuer: NatsKey, subject: str, name: str, nats: dict[str, Any], expires: int = 0) -> str:
    claims: dict[str, Any] = {
        "iat": int(time.time()),
        "iss": issuer.public,
        "name": name,
        "sub": subject,
        "nats": {**nats, "version": 2},
        **({"exp": expires} if expires else {}),
    }
    digest = hashlib.new("sha512_256", json.dumps(claims, sort_keys=True).encode()).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_url64(_HEADER)}.{_url64(json.dumps(claims).encode())}"
    return f"{text}.{_url64(issuer.sign(text.encode()))}"


def _url64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _text(raw: bytes) -> str:
    return base64.b32encode(raw + _checksum(raw)).decode().rstrip("=")


def _checksum(data: bytes) -> bytes:
    """Return CRC-16/XMODEM, little-endian, as nkeys end with."""
    return binascii.crc_hqx(data, 0).to_bytes(2, "little")
