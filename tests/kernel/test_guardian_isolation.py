"""The guardian survives the end of what started it, and shortage of memory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from guardian_bench import SOON_SECONDS, Bench, apply, ended, kill, rules_of

from fwtop.client import discovery
from fwtop.guardian.survival import OOM_GUARDIAN, scope_argv
from fwtop.kernel.programs import PRIORITY
from fwtop.model.protocol import Status, Undo
from fwtop.model.rule import Kind, Match, Rule, Setting
from tests.kernel.nursery import start_guardian

pytestmark = pytest.mark.kernel
UDP = "net.netfilter.nf_conntrack_udp_timeout"
PRESSED_BYTES = 96 << 20
MAX_PSS_KILOBYTES = 16 << 10  # measured: 13 to 15 MB, the less the more other processes share Python
HOG = """
import mmap, os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
print("ready", flush=True)
kept = []
while True:
    for at in range(int(sys.argv[2]) >> 20):  # more than there is room for: the OOM killer comes
        kept.append(bytearray(os.urandom(1 << 10) * 1024))
"""


@pytest.fixture(autouse=True)
def _processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "run_starter", start_guardian)


def sysctl_rule(ttl: int) -> Rule:
    return Rule("", Kind.SYSCTL, Match(), "set", ttl, settings=(Setting(UDP, 10),))


def value(bench: Bench) -> int:
    return int(bench.pair.victim.run("sysctl", "-n", UDP).stdout)


def mounted(kind: str, option: str = "") -> Path | None:
    """Return where a cgroup hierarchy is mounted for writing."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, found, options = line.split()[:4]
        if found == kind and "rw" in options.split(",") and (not option or option in options.split(",")):
            return Path(where)
    return None


def status_of(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


@pytest.fixture
def service_cgroup() -> Iterator[Path]:
    """A cgroup like the one of a service that starts fwtop."""
    root = mounted("cgroup2")
    if root is None or not (root / "cgroup.procs").exists():
        pytest.skip("cgroup v2 is not mounted for writing here")
    made = root / f"fwtop-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield made
    with suppress(OSError):
        made.rmdir()


def test_empty_cgroups_of_killed_guardians_are_removed(bench: Bench, service_cgroup: Path) -> None:
    """The process id in a name may be another process's by now."""
    left = service_cgroup.parent / f"fwtop-guardian-1-{os.getpid()}"
    left.mkdir()
    os.utime(left, (0, 0))
    with bench.connect():
        assert not left.exists()


def test_records_of_deleted_namespaces_are_removed(bench: Bench) -> None:
    here = os.stat(f"/run/netns/{bench.netns}").st_ino
    for name, left in {"7-1": -1, "8-1": 600, f"9-{here}": -1}.items():
        (bench.directory / f"state-{name}").mkdir()
        record = json.dumps({"expires": time.monotonic() + left})
        (bench.directory / f"state-{name}" / "rule-900.json").write_text(record)
    with bench.connect():
        kept = sorted(path.name for path in bench.directory.glob("state-*"))
        assert kept == ["state-8-1", f"state-9-{here}"]


def test_end_of_the_service_that_started_it_does_not_end_it(
    bench: Bench, service_cgroup: Path, poll_until
) -> None:
    join = f"Path({str(service_cgroup / 'cgroup.procs')!r}).write_text('0')"
    starter = Path("/proc/self/cgroup").read_text()
    console = _started_in(bench, join)
    with console:
        with bench.connect() as guardian:
            apply(guardian, sysctl_rule(SOON_SECONDS))
            pid = int(guardian.about["pid"])
            watchdog = bench.the_watchdog(poll_until)
        assert console.pid in map(int, (service_cgroup / "cgroup.procs").read_text().split())
        own = re.search(r"^0::(/fwtop-guardian-\S+)", Path(f"/proc/{pid}/cgroup").read_text(), re.MULTILINE)
        assert own
        for member in map(int, (service_cgroup / "cgroup.procs").read_text().split()):
            os.kill(member, signal.SIGKILL)  # what systemd does to a service's cgroup in the end
        console.wait(60)
    assert not ended(pid)
    assert not ended(watchdog)
    poll_until(lambda: value(bench) == 30)
    poll_until(lambda: ended(pid))
    assert not (service_cgroup.parent / own[1].lstrip("/")).exists()
    assert Path("/proc/self/cgroup").read_text() == starter


def _started_in(bench: Bench, join: str) -> subprocess.Popen:
    """Start a guardian from a process that ran `join` first; it stays connected."""
    text = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom pathlib import Path\n"
        f"{join}\nfrom fwtop.client import discovery as client\n"
        "guardian = client.connect(netns=sys.argv[2], run_directory=Path(sys.argv[3]),\n"
        "                          guardian_arguments=tuple(sys.argv[4:]))\n"
        "print('ready', flush=True)\nsys.stdin.read()\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    argv = [sys.executable, "-c", text, root, bench.netns, str(bench.directory), *bench.arguments()]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_told_to_end_gives_back_what_the_kernel_has_no_clock_for(bench: Bench, poll_until) -> None:
    bench.pair.victim.run("sysctl", "-qw", "net.ipv4.tcp_syncookies=0")
    with bench.connect() as guardian:
        stays = apply(guardian, bench.block_rule(4))
        apply(guardian, sysctl_rule(60))
        apply(guardian, Rule("", Kind.SYNPROXY, Match(family=4, protocol=6, dport=80), "proxy", 600))
        pid = int(guardian.about["pid"])
    os.kill(pid, signal.SIGTERM)
    poll_until(lambda: ended(pid))
    assert value(bench) == 30
    assert "synproxy" not in bench.state()["nft"]
    assert not bench.path(4).passes()  # this has a clock of its own
    poll_until(lambda: not bench.watchdogs())
    with bench.connect() as successor:
        assert list(rules_of(successor)) == [stays]
        notes = {item["note"] for item in rules_of(successor, finished=True).values()}
        assert "the guardian was told to end" in notes
        successor.demand(Undo(all=True))


def test_memory_is_locked_small_and_the_last_to_be_taken(bench: Bench) -> None:
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(4, 6))
        guardian.demand(Status())
        pid = int(guardian.about["pid"])
        if status_of(os.getpid(), "CapEff") is not None and _can(14):
            assert status_of(pid, "VmLck") > status_of(pid, "RssAnon") // 2
        pss = int(
            re.findall(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)[0]
        )
        print(f"PSS {pss} kB, locked {status_of(pid, 'VmLck')} kB")
        assert pss <= MAX_PSS_KILOBYTES
        score = int(Path(f"/proc/{pid}/oom_score_adj").read_text())
        guardian.demand(Undo(all=True))
        if _can(23):
            assert os.getpriority(os.PRIO_PROCESS, pid) == PRIORITY
    if not _can(24):
        pytest.skip("oom_score_adj can't be lowered here: no CAP_SYS_RESOURCE")
    assert score == OOM_GUARDIAN


def _can(capability: int) -> bool:
    text = Path("/proc/self/status").read_text()
    return bool(int(re.findall(r"^CapEff:\s+(\S+)", text, re.MULTILINE)[0], 16) >> capability & 1)


@pytest.fixture
def tight(bench: Bench) -> Iterator[tuple[Path, int]]:
    """A memory cgroup with little room and a guardian in it: the cgroup, the guardian."""
    version1, version2 = mounted("cgroup", "memory"), mounted("cgroup2")
    if version1 is not None:
        made, limit = version1 / f"fwtop-test-{os.getpid()}", "memory.limit_in_bytes"
    elif version2 is not None and "memory" in (version2 / "cgroup.subtree_control").read_text().split():
        made, limit = version2 / f"fwtop-test-{os.getpid()}", "memory.max"
    else:
        pytest.skip("no memory cgroup can be made here")
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    (made / limit).write_text(str(PRESSED_BYTES))
    # Charged where it is first touched, so it must be started in there; a v2 guardian leaves and is put back.
    with _started_in(bench, f"Path({str(made / 'cgroup.procs')!r}).write_text('0')") as starter:
        with bench.connect() as guardian:
            pid = int(guardian.about["pid"])
        (made / "cgroup.procs").write_text(str(pid))
        yield made, pid
        starter.kill()
    kill(pid)
    for left in map(int, (made / "cgroup.procs").read_text().split()):
        os.kill(left, signal.SIGKILL)
    with suppress(OSError):
        made.rmdir()


def test_answers_while_memory_is_short(bench: Bench, tight: tuple[Path, int]) -> None:
    cgroup, pid = tight
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(4))
        taken = 0
        for _ in range(3):  # each takes all that there is, until the OOM killer comes
            argv = [sys.executable, "-c", HOG, str(cgroup / "cgroup.procs"), str(2 * PRESSED_BYTES)]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as hog:
                assert hog.stdout is not None
                assert hog.stdout.readline() == "ready\n"
                assert len(guardian.demand(Status(), timeout=60).data["rules"]) == 1
                taken += hog.wait(60) == -signal.SIGKILL
        assert taken == 3
        assert not ended(pid)
        assert len(guardian.demand(Status(), timeout=60).data["rules"]) == 1
        guardian.demand(Undo(all=True))


def test_console_is_the_first_to_be_taken() -> None:
    from fwtop.cli import launcher

    child = os.fork()
    if child == 0:
        launcher._offer_to_oom_killer()
        os._exit(int(Path("/proc/self/oom_score_adj").read_text()) == 500)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_scope_is_asked_of_systemd_in_its_words() -> None:
    argv = scope_argv("fwtop-guardian-7", 42)
    at = argv.index("ssa(sv)a(sa(sv))")
    assert argv[at - 1 : at + 6] == [
        "StartTransientUnit",
        "ssa(sv)a(sa(sv))",
        "fwtop-guardian-7.scope",
        "fail",
        "4",
        "PIDs",
        "au",
    ]
    assert argv[-1] == "0"
