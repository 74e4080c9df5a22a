"""The key of one roll-out: ssh-keygen itself verifies what it signs, and no file holds it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fwtop.fleet.document import CONFIRMED_FOR, Action, Confirmation
from fwtop.fleet.signing import ConfirmKey
from fwtop.model.paths import SSH_KEYGEN


@pytest.mark.skipif(not SSH_KEYGEN.exists(), reason="ssh-keygen is not installed")
@pytest.mark.parametrize("is_changed", [False, True])
def test_ssh_keygen_verifies_what_a_key_in_memory_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_changed: bool
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with ConfirmKey() as key:
        sealed = key.seal(
            Confirmation(fleet="prod", rollout="r1", document="0" * 64, action=Action.KEEP, number=1)
        )
        assert list(tmp_path.iterdir()) == []
    signers, signature = tmp_path / "signers", tmp_path / "signature"
    signers.write_text(f'r1 namespaces="{CONFIRMED_FOR}" {key.public}\n')
    signature.write_text(sealed.signatures[0])
    words = [SSH_KEYGEN, "-Y", "verify", "-f", signers, "-I", "r1", "-n", CONFIRMED_FOR, "-s", signature]
    said = sealed.text.replace("keep", "undo") if is_changed else sealed.text
    done = subprocess.run(words, input=said.encode(), capture_output=True, check=False)
    assert (done.returncode == 0) is not is_changed
