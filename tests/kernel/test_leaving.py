"""Uninstalling takes fwtop's rules out of every network namespace, whatever holds it, and ends the guardians.

It happens in a small world: process ids, mounts, bpffs and the first network namespace of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fwtop.model.paths import ROOT

pytestmark = pytest.mark.kernel
INSIDE = r"""
import json, os, subprocess, sys
from pathlib import Path

def run(*argv, **options):
    return subprocess.run(argv, check=True, text=True, timeout=120, stdin=subprocess.DEVNULL, **options)

for place in ("/run", "/var/lib/fwtop-guardian"):
    Path(place).mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", place)
run("mount", "-t", "bpf", "bpf", "/sys/fs/bpf")  # else its guardians remove pins of namespaces unseen
Path("/run/elsewhere").touch()
first = os.stat("/proc/self/ns/net").st_ino
processes = [subprocess.Popen(["unshare", "--net", "sleep", "600"]) for _ in range(2)]
while any(os.stat(f"/proc/{process.pid}/ns/net").st_ino == first for process in processes):
    pass
run("unshare", "--net=/run/elsewhere", "true")
held = os.open(f"/proc/{processes[1].pid}/ns/net", os.O_RDONLY)
processes[1].kill()
processes[1].wait()
places = {
    "process": f"/proc/{processes[0].pid}/ns/net",
    "mounted": "/run/elsewhere",
    "held": f"/proc/{os.getpid()}/fd/{held}",
    "first": "/proc/self/ns/net",
}

def inside(place, *argv, **options):
    return run("nsenter", f"--net={places[place]}", *argv, **options)

def guardians():
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes()
        if b"fwtop.guardian" in words and b"fwtop-watchdog" not in words:
            found.append(int(path.parent.name))
    return found

def kernel():
    found = {}
    for place in places:
        sets = inside(place, "ipset", "list", "-n", capture_output=True).stdout
        lines = inside(place, "iptables-save", capture_output=True).stdout
        found[place] = (sets + lines).lower().count("fwtop")
    return found

for number, place in enumerate(places):
    inside(place, sys.executable, "-m", "fwtop", "block", f"192.0.2.{number}", "--yes", capture_output=True)
    if place != "process":  # there, it lives
        for pid in guardians():
            if os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat(places[place]).st_ino:
                os.kill(pid, 9)
before = kernel()
argv = [sys.executable, "-m", "fwtop.guardian.leaving"]
left = subprocess.run(argv, capture_output=True, text=True, timeout=200)
print(json.dumps({
    "before": before, "after": kernel(), "status": left.returncode, "said": left.stderr,
    "guardians": [Path(f"/proc/{pid}/stat").read_text().split()[2] for pid in guardians()],
}))
processes[0].kill()
"""


def test_nothing_is_left_in_any_namespace(tmp_path: Path) -> None:
    (tmp_path / "inside.py").write_text(INSIDE)
    argv = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", sys.executable]
    done = subprocess.run(
        [*argv, str(tmp_path / "inside.py")],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(found["before"].values()), found
    assert set(found["after"].values()) == {0}, found
    assert (found["status"], found["said"].count("removed")) == (0, 4), found
    assert set(found["guardians"]) <= {"Z"}, found
