"""Who signed some bytes: a confined child runs ssh-keygen(1) on them, and only then reads what they say.

The child has a user of its own, no network and no file but memory files: ssh-keygen reads signatures that
anybody may have made. What it decides by, root's files, it gets from its parent.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from fwtop.fleet.document import MAX_SIGNATURES, Refusal, is_name
from fwtop.kernel.programs import ENVIRONMENT
from fwtop.model.errors import FwtopError
from fwtop.model.paths import SSH_KEYGEN, VERIFIER_USER
from fwtop.model.text import safe_text
from fwtop.sandbox.child import ask, unprivileged
from fwtop.sandbox.confine import Profile

_CPU_SECONDS, _SECONDS = 2, 5.0
_MOST_ANSWER = 1 << 22
_MOST_SIGNATURE = 1 << 15  # bytes, armoured: a certificate with many principals fits


class Authorities(Struct, frozen=True):
    """Whose signatures count: the contents of allowed_signers and, if there is one, of a revocation list."""

    signers: bytes
    revoked: bytes | None = None


class Verified(Struct, frozen=True):
    """Who signed, in the order of the signatures, and what a reader made of the bytes, as plain data."""

    principals: tuple[str, ...]
    value: Any


def verified(
    text: bytes,
    signatures: Sequence[str],
    namespace: str,
    authorities: Authorities,
    read: Callable[[bytes], object],
) -> Verified:
    """Have a confined child verify all signatures of some bytes, and then `read` them.

    Raises FwtopError: Refusal.UNSIGNED unless each signature is good and of another principal, what `read`
    raises, or another one where the child could not be had or gave no answer.
    """
    if not SSH_KEYGEN.exists():
        line = "ssh-keygen is not installed; nothing was changed: apt-get install openssh-client"
        raise FwtopError(line, 3)
    if not 1 <= len(signatures) <= MAX_SIGNATURES:
        raise unsigned(f"a document has 1 to {MAX_SIGNATURES} signatures")
    if any(len(one) > _MOST_SIGNATURE or not one.isascii() for one in signatures):
        raise unsigned("not a signature in SSH's armour")

    def work() -> Verified:
        return Verified(_principals(text, signatures, namespace, authorities), read(text))

    found: Verified = ask(
        work, Verified, who="the process that verifies signatures", enter=_enter, keep=(),
        seconds=_SECONDS, most_bytes=_MOST_ANSWER,
    )  # fmt: skip
    return found


def unsigned(why: str) -> FwtopError:
    """Return the refusal of bytes that nobody signed who counts."""
    line = f"{safe_text(why, limit=300)}; nothing was changed; see the file of signers on this machine"
    return FwtopError(line, reason=Refusal.UNSIGNED)


def _enter() -> None:
    unprivileged(Profile.VERIFIER, user=VERIFIER_USER)


def _principals(
    text: bytes, signatures: Sequence[str], namespace: str, authorities: Authorities
) -> tuple[str, ...]:
    """Return who made each signature, in the child; raises FwtopError."""
    content = _file(text)
    allowed = _file(authorities.signers)
    revoked = _file(authorities.revoked) if authorities.revoked is not None else None
    files = [_file(one.encode()) for one in signatures]
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    found = []
    for signature in files:
        principal = _principal(signature, allowed)
        words = ["verify", "-f", _path(allowed), "-I", principal, "-n", namespace, "-s", _path(signature)]
        status, said = _run(words, content, [allowed, signature])
        if status:
            raise unsigned(f"the signature in the name of {principal} does not count: {_reason(said)}")
        if revoked is not None:
            status, _ = _run([*words, "-r", _path(revoked)], content, [allowed, signature, revoked])
            if status:
                raise unsigned(f"the key of {principal} is revoked, or the file of revoked keys is damaged")
        found.append(principal)
    if len(set(found)) < len(found):
        raise unsigned(f"{found[0]} signed twice: a second signature is another person's")
    return tuple(found)


def _principal(signature: int, allowed: int) -> str:
    """Return the name under which the file of signers knows a signature's key now; raises FwtopError."""
    words = ["find-principals", "-f", _path(allowed), "-s", _path(signature)]
    status, said = _run(words, None, [allowed, signature])
    if status:
        raise unsigned(f"the signature is nobody's who may sign here: {_reason(said)}")
    principal = said.splitlines()[0].split(",")[0] if said else ""
    if not is_name(principal):
        raise unsigned("a signer needs a name of letters, digits and '_.@:-', no pattern")
    return principal


def _run(words: Sequence[str], content: int | None, files: Sequence[int]) -> tuple[int, str]:
    if content is not None:
        os.lseek(content, 0, os.SEEK_SET)
    done = subprocess.run(
        [str(SSH_KEYGEN), "-Y", *words],
        stdin=content if content is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENVIRONMENT,
        pass_fds=files,
        check=False,
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _reason(said: str) -> str:
    """Return why ssh-keygen refuses: its first line, the last one is always the same."""
    first = next((line for line in said.splitlines() if line.strip()), "ssh-keygen gives no reason")
    return re.sub(r"/proc/self/fd/\d+:(\d+)", r"line \1 of the signers", first.strip().rstrip("."))


def _file(content: bytes) -> int:
    """Return a memory file; it goes with the child."""
    descriptor = os.memfd_create("fwtop-signed", 0)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return descriptor


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
