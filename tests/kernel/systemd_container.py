"""Units under a real systemd, in a container of its own.

The container's root is this machine's, with what it changes kept in memory and forgotten.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from fwtop.model.paths import ROOT

_SECONDS = 240  # for all of it, on a busy machine
# For scripts: wait for what comes true, and end with the journal if it does not.
SOON = """\
soon() {
  for _ in $(seq 300); do "$@" && return; sleep 0.2; done
  echo "never: $*"; journalctl -n 40 -o cat; exit 1
}
"""
_CLONE = "/srv/fwtop-clone"  # in the container: the unit sees neither /tmp nor anybody's home
# Of containers that share a cgroup, each systemd sees and kills the processes of the others' units.
_CONTAINER = """\
for cgroups in {cgroups}; do mkdir -p $cgroups && echo 0 >$cgroups/cgroup.procs || exit; done
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


def _hierarchies() -> list[Path]:
    """Return where the hierarchies of cgroups are mounted that systemd puts its units into."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [
        Path(point)
        for _, point, kind, options, *_ in mounts
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(","))
    ]


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
    machine = f"fwtop-{secrets.token_hex(4)}"
    cgroups = [mounted / machine for mounted in _hierarchies()]
    whole = _CONTAINER.format(
        folder=folder,
        root=ROOT,
        clone=_CLONE,
        machine=machine,
        binds=bound,
        cgroups=" ".join(map(str, cgroups)),
    )
    # Killed after its time, it takes along all that the container runs
    alone = ["--pid", "--fork", "--kill-child", "--mount-proc"]
    argv = ["unshare", "--mount", "--propagation", "private", *alone, "sh", "-c", whole]
    file: Path = folder / "told"
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        told = file.read_text() if file.exists() else "nothing"
        pytest.fail(f"the container did not end within {_SECONDS} s; it told:\n{told}", pytrace=False)
    finally:
        for path in cgroups:
            subprocess.run(["find", path, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";"], check=False)
    if not file.exists():
        pytest.skip(f"systemd-nspawn boots no container here: {(done.stderr or done.stdout)[-300:]}")
    text = file.read_text()
    facts = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if "never" in facts:
        pytest.fail(f"one thing never happened, and the journal's end follows:\n{text}", pytrace=False)
    return facts
