"""Units under a real systemd, in a container of its own.

The container's root is this machine's, with what it changes kept in memory and forgotten.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from fwtop.model.paths import ROOT

_SECONDS = 240  # for all of it, on a busy machine
_CLONE = "/srv/fwtop-clone"  # in the container: the unit sees neither /tmp nor anybody's home
_CONTAINER = """\
mount --bind / {folder}/root && exec env SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --quiet \\
  --directory={folder}/root --volatile=overlay --private-network --capability=all --register=no --keep-unit \\
  --system-call-filter="bpf perf_event_open" \\
  --machine={machine} --bind={folder} --bind-ro={root}:{clone} \\
  --bind-ro={folder}/fwtop:/usr/local/bin/fwtop \\
  --bind-ro={folder}/try.service:/etc/systemd/system/try.service \\
  {binds} \\
  --boot systemd.unit=try.service
"""
_TRY = """\
[Service]
Type=oneshot
StandardOutput=append:{folder}/told
StandardError=append:{folder}/told
ExecStart=/bin/sh {folder}/try.sh
ExecStopPost=/bin/systemctl --no-block exit
"""


def told_by(folder: Path, script: str, binds: Mapping[Path, str]) -> dict[str, str]:
    """Boot a container with some files bound in, and return what a script told: a line a fact, name first."""
    assert shutil.which("systemd-nspawn"), "systemd-container is not installed: make setup-dev"
    (folder / "root").mkdir()
    program = folder / "fwtop"
    program.write_text(f'#!/bin/sh\ncd {_CLONE} && exec .venv/bin/python -m fwtop "$@"\n')
    program.chmod(0o755)
    (folder / "try.service").write_text(_TRY.format(folder=folder))
    (folder / "try.sh").write_text(script)
    bound = " ".join(f"--bind-ro={path}:{place}" for path, place in binds.items())
    machine = f"fwtop-{os.getpid()}"
    whole = _CONTAINER.format(folder=folder, root=ROOT, clone=_CLONE, machine=machine, binds=bound)
    # Killed after its time, it takes along all that the container runs
    alone = ["--pid", "--fork", "--kill-child", "--mount-proc"]
    argv = ["unshare", "--mount", "--propagation", "private", *alone, "sh", "-c", whole]
    file: Path = folder / "told"
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        told = file.read_text() if file.exists() else ""
        pytest.fail(f"the container did not end within {_SECONDS} s; it told:\n{told}")
    if not file.exists():
        pytest.skip(f"systemd-nspawn boots no container here: {(done.stderr or done.stdout)[-300:]}")
    return dict(line.split(": ", 1) for line in file.read_text().splitlines() if ": " in line)
