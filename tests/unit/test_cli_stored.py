"""The verbs on stored sessions, as a person types them."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from stored_samples import session_ticks

from fwtop.store.writer import SessionWriter

HERE = Path(__file__).resolve().parent


def reader_account() -> pwd.struct_passwd:
    """Whom root becomes for reading: the console's user, where `make setup` has made it."""
    try:
        return pwd.getpwnam("fwtop")
    except KeyError:
        return pwd.getpwnam("nobody")


@pytest.fixture
def tmp_path(open_path: Path) -> Path:
    """Another user reads here."""
    return open_path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one session."""
    directory = tmp_path_factory.mktemp("recorded")
    session = SessionWriter(directory, host="web-1", interfaces=("eth0",), version="0.1.0")
    for tick in session_ticks():
        session.write(tick)
    session.close()
    return directory


@pytest.fixture
def place(tmp_path: Path, recorded: Path) -> Path:
    """The same, owned by the console's user as in /var/lib/fwtop."""
    shutil.copytree(recorded, tmp_path / "sessions")
    if os.geteuid() == 0:
        account = reader_account()
        for path in (tmp_path / "sessions", *(tmp_path / "sessions").iterdir()):
            os.chown(path, account.pw_uid, account.pw_gid)
    return tmp_path / "sessions"


def fwtop(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fwtop", *map(str, words)],
        env={"PYTHONPATH": str(HERE.parents[1]), "PATH": os.environ["PATH"]},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which is given away before the session is read")
@pytest.mark.parametrize("words", [("report",), ("sessions",), ("replay", "--json")])
def test_a_copy_that_only_root_can_read_works(place: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "clone").symlink_to(HERE.parents[1])
    (private / "packages").symlink_to(sysconfig.get_path("purelib"))
    done = subprocess.run(
        [sys.executable, "-S", "-m", "fwtop", *words, "--directory", place],
        env={"PYTHONPATH": f"{private}/clone:{private}/packages", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_sessions_are_listed(place: Path) -> None:
    done = fwtop("sessions", "--directory", place)
    assert (done.returncode, done.stderr) == (0, "")
    head, line = done.stdout.splitlines()
    assert head.split()[:3] == ["SESSION", "STARTED", "(UTC)"]
    assert line.split() == [
        "2026-11-21T03-12-39Z-eth0", "2026-11-21", "03:12", "2:04", "web-1", "eth0", "200", "kpps",
        "dns_amplification", "1",
    ]  # fmt: skip
    data = json.loads(fwtop("sessions", "--json", "--directory", place).stdout)
    assert data["sessions"][0]["state"] == "clean"
    assert data["sessions"][0]["attacks"] == ["dns_amplification"]


def test_no_sessions_yet(tmp_path: Path) -> None:
    done = fwtop("sessions", "--directory", tmp_path / "none")
    assert done.returncode == 0
    assert "no session is stored" in done.stdout
    assert json.loads(fwtop("sessions", "--json", "--directory", tmp_path / "none").stdout)["sessions"] == []
    done = fwtop("report", "--directory", tmp_path / "none")
    assert done.returncode == 1
    assert done.stderr.startswith("fwtop: no session is stored in")


def test_a_report_goes_where_it_is_asked(place: Path, tmp_path: Path) -> None:
    piped = fwtop("report", "--directory", place)
    assert piped.stdout.startswith("<!doctype html>")
    target = tmp_path / "incident.md"
    target.write_text("an earlier one")
    written = fwtop("report", "2026-11-21T03", "--directory", place, "-o", target)
    assert (written.returncode, written.stdout) == (0, "")
    assert written.stderr == f"fwtop: wrote {target}\n"
    assert target.read_text().startswith("# DNS amplification, 1 min 20 s")
    assert (
        json.loads(fwtop("report", "--format", "json", "--directory", place, "-o", "-").stdout)["schema"] == 1
    )
    assert fwtop("report", "--format", "sh", "--directory", place).stdout.startswith("#!/bin/sh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["incident.md", "sessions"]


def test_a_device_is_written_to_and_not_replaced(place: Path) -> None:
    assert fwtop("report", "--directory", place, "-o", "/dev/null").returncode == 0
    assert Path("/dev/null").is_char_device()


def test_a_session_file_of_one_s_own(place: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    copy = own / "copied.db"
    copy.write_bytes(next(place.glob("*.db")).read_bytes())
    done = fwtop("report", copy, "--format", "md")
    assert done.returncode == 0, done.stderr
    assert "Session copied, recorded by fwtop 0.1.0" in done.stdout
    assert sorted(path.name for path in own.iterdir()) == ["copied.db"]


def test_replay_prints_observations(place: Path) -> None:
    done = fwtop("replay", "--json", "--top", 3, "--directory", place)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 120
    assert lines[50]["source"] == {
        "kind": "session",
        "interfaces": ["eth0"],
        "netns": None,
        "file": "2026-11-21T03-12-39Z-eth0",
    }
    assert len(lines[50]["sources"]["address"]) == 3


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("report", "2031"), 2, "there is no session '2031'; 'fwtop sessions' lists them"),
        (("report", "./none.db"), 1, "there is no session file ./none.db"),
        (("report", "--format", "pdf"), 2, "invalid choice: 'pdf'"),
        (("report", "-o", "/nonexistent/x.md"), 1, "was not written: No such file"),
        (("replay",), 2, "needs a terminal; --json prints"),
        (("replay", "--json", "--top", "0"), 2, "a whole number above 0"),
        (("replay", "--speed", "nan"), 2, "a factor above 0"),
        (("replay", "2031\x1b[2J", "--json"), 2, "there is no session '2031·[2J'"),
    ],
)
def test_mistakes_are_one_line(place: Path, words: tuple[str, ...], status: int, says: str) -> None:
    done = fwtop(*words, "--directory", place)
    assert done.returncode == status
    if "--json" in words:
        told = json.loads(done.stdout)
        assert (told["ok"], told["code"], told["reason"], told["retryable"]) == (
            False,
            status,
            "invalid",
            False,
        )
        assert says in told["error"]
    else:
        assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


def test_a_damaged_session_is_listed_and_refused(place: Path) -> None:
    (place / "2020-01-01T00-00-00Z-eth0.db").write_bytes(b"noise" * 999)
    done = fwtop("sessions", "--directory", place)
    assert done.stdout.splitlines()[1].split() == ["2020-01-01T00-00-00Z-eth0", "damaged"]
    refused = fwtop("report", "2020", "--directory", place)
    assert refused.returncode == 1
    assert "damaged or no session of fwtop" in refused.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whom the console's user would deceive")
@pytest.mark.parametrize("planted", ["database", "log", "directory", "hard link"])
def test_root_opens_nothing_by_way_of_a_planted_link(
    place: Path, tmp_path: Path, recorded: Path, planted: str
) -> None:
    secret = tmp_path / "secret"
    shutil.copytree(recorded, secret)
    (secret / "secret-wal").write_text("root's own")
    secret.chmod(0o700)
    account = reader_account()
    session = next(place.glob("*.db"))
    named = session
    match planted:
        case "database":
            session.unlink()
            session.symlink_to(next(secret.glob("*.db")))
            os.chown(session, account.pw_uid, account.pw_gid, follow_symlinks=False)
        case "log":
            log = Path(f"{session}-wal")
            log.unlink(missing_ok=True)
            log.symlink_to(secret / "secret-wal")
            os.chown(log, account.pw_uid, account.pw_gid, follow_symlinks=False)
        case "directory":
            planted_directory = tmp_path / "elsewhere"
            planted_directory.symlink_to(secret)
            os.chown(planted_directory, account.pw_uid, account.pw_gid, follow_symlinks=False)
            named = planted_directory / next(secret.glob("*.db")).name
        case _:
            session.unlink()
            session.hardlink_to(next(secret.glob("*.db")))
    done = fwtop("report", named, "--format", "json")
    assert done.returncode != 0
    assert done.stdout == ""
    assert "root" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whom the console's user would deceive")
def test_root_writes_no_report_through_a_planted_link(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("root's own")
    link = place / "report.md"
    link.symlink_to(target)
    account = reader_account()
    os.chown(link, account.pw_uid, account.pw_gid, follow_symlinks=False)
    done = fwtop("report", "--directory", place, "-o", link)
    assert done.returncode != 0
    assert "another user" in done.stderr
    assert target.read_text() == "root's own"


def test_reports_follow_the_callers_own_links_and_go_to_devices(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.md").symlink_to(tmp_path / "real.md")
    assert fwtop("report", "--directory", place, "-o", tmp_path / "mine.md").returncode == 0
    assert (tmp_path / "real.md").stat().st_size > 0
    assert (tmp_path / "mine.md").is_symlink()
    done = fwtop("report", "--directory", place, "--format", "md", "-o", "/dev/stdout")
    assert "recorded by fwtop" in done.stdout


def test_a_reader_that_closes_its_end_early_sees_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-m", "fwtop", "read", "/nonexistent", "--json"]
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(
            argv, cwd=HERE.parents[1], stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "fwtop: /nonexistent: No such file or directory; nothing was read\n",
    )
