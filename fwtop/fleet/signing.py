"""SSH signatures, made by ssh-keygen(1): with a key file, a key of an agent or of a hardware token."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fwtop.fleet.document import CONFIRMED_FOR, SIGNED_FOR, Confirmation, Document, Sealed, encode
from fwtop.kernel.programs import ENVIRONMENT
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_SECONDS = 120.0  # somebody may have to type a passphrase, or touch a key
_PASSED = ("SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "SSH_SK_PROVIDER", "DISPLAY", "HOME")


def seal(document: Document, keys: list[Path]) -> Sealed:
    """Sign a document with each of the keys; raises FwtopError."""
    text = encode(document)
    return Sealed(text.decode(), tuple(sign(key, text, SIGNED_FOR) for key in keys))


def sign(key: Path, text: bytes, namespace: str) -> str:
    """Return the signature of some bytes, armoured; raises FwtopError.

    `key` is a private key, or a public one whose private half an agent holds.
    """
    return _run("-Y", "sign", "-q", "-n", namespace, "-f", str(key), text=text)


class ConfirmKey:
    """A key for one roll-out, in this process's memory only: nobody can confirm once its maker is gone."""

    def __init__(self) -> None:
        """Make the key."""
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        self._file = os.memfd_create("fwtop-confirm")
        os.fchmod(self._file, 0o600)  # else ssh-keygen takes it for a key that others may read
        os.write(self._file, pem)
        self.public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")

    def seal(self, confirmation: Confirmation) -> Sealed:
        """Sign a confirmation; raises FwtopError."""
        text = encode(confirmation)
        key = f"/proc/self/fd/{self._file}"
        words = ("-Y", "sign", "-q", "-n", CONFIRMED_FOR, "-f", key)
        return Sealed(text.decode(), (_run(*words, text=text, passed=(self._file,)),))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget the key."""
        os.close(self._file)


def _run(*arguments: str, text: bytes = b"", passed: tuple[int, ...] = ()) -> str:
    environment = ENVIRONMENT | {name: os.environ[name] for name in _PASSED if name in os.environ}
    try:
        done = subprocess.run(
            ["ssh-keygen", *arguments],
            input=text,
            capture_output=True,
            env=environment,
            timeout=_SECONDS,
            pass_fds=passed,
            check=False,
        )
    except FileNotFoundError:
        line = "ssh-keygen is not installed; nothing was signed: apt-get install openssh-client"
        raise FwtopError(line, 3) from None
    except subprocess.TimeoutExpired:
        raise FwtopError(f"ssh-keygen took longer than {_SECONDS:g} s; nothing was signed") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise FwtopError(f"ssh-keygen: {safe_text(lines[-1], limit=200)}; nothing was signed")
    return done.stdout.decode("ascii", "replace")
