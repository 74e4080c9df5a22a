"""Machines' own keys: what a machine says is one line with its Ed25519 signature, then the bytes signed.

Each kind of message has its domain, which is signed in front of it: what is signed as one kind is never taken
for another. NATS has keys of its own (identity.py), because a server chooses the bytes that those sign.
"""

from __future__ import annotations

import base64
import binascii

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fwtop.model.errors import FwtopError

SUMMARY, ANSWER, JOINING, REGISTER = (
    f"fwtop fleet {kind} 1\0".encode() for kind in ("summary", "answer", "joining", "register")
)
_LENGTH = 88  # characters of a signature in base64


class MachineKey:
    """A private key; `public` and `secret` are its halves in base64."""

    def __init__(self, secret: str | None = None) -> None:
        """Take a secret as `secret` gave it; None makes a new key. Raises ValueError."""
        self._private = (
            Ed25519PrivateKey.generate()
            if secret is None
            else Ed25519PrivateKey.from_private_bytes(base64.b64decode(secret, validate=True))
        )

    @property
    def public(self) -> str:
        """What verifies its signatures."""
        return base64.b64encode(self._private.public_key().public_bytes_raw()).decode()

    @property
    def secret(self) -> str:
        """What makes them."""
        return base64.b64encode(self._private.private_bytes_raw()).decode()

    def seal(self, domain: bytes, body: bytes) -> bytes:
        """Return the body behind its signature."""
        return base64.b64encode(self._private.sign(domain + body)) + b"\n" + body


def check_public(key: str) -> str:
    """Return a public key; raises FwtopError if it is none."""
    _public(key)
    return key


def unsealed(key: str, domain: bytes, message: bytes) -> bytes:
    """Return the body, which whoever has the key's secret half signed; raises FwtopError."""
    signature, newline, body = message[:_LENGTH], message[_LENGTH : _LENGTH + 1], message[_LENGTH + 1 :]
    try:
        if newline != b"\n":
            raise binascii.Error
        _public(key).verify(base64.b64decode(signature, validate=True), domain + body)
    except (InvalidSignature, binascii.Error):
        raise FwtopError("its signature is wrong") from None
    return body


def body_of(message: bytes) -> bytes:
    """Return the body without a look at the signature: only to learn whose key must verify it."""
    return message[_LENGTH + 1 :]


def _public(key: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True))
    except ValueError:  # binascii.Error is one
        raise FwtopError("this is no Ed25519 public key in base64") from None
