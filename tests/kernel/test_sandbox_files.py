"""The files that the screen of a capture or a session may write, run by a user who owns many more."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fwtop.store.writer import SessionWriter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from stored_samples import session_ticks

CLONE = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.kernel
NOBODY = 65534
OWN = (".bashrc", ".ssh/authorized_keys", "new", "tmp/script", "tmp/new")
# Runs a verb as far as its sandbox; then, in the parser's place, tries to write and tells what it could.
PROGRAM = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import fwtop.console.playback.capture, fwtop.console.playback.screens
from fwtop.cli import main
from fwtop.model.paths import exports_directory
from fwtop.store.reader import replay

def write(path):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        return error.strerror
    return "written"

def attempts(*given, **options):
    played = 0 if options.get("top") else len(list(replay(given[0])))
    found = {name: write(name) for name in sys.argv[5:]}
    found |= {"export": write(exports_directory() / "export"), "played": played}
    os.write(int(sys.argv[4]), json.dumps(found).encode())
    return 0

def attempts_of_read(*given, **options):
    attempts(*given, **options)
    raise SystemExit(0)

os.set_inheritable(int(sys.argv[4]), False)  # like what fwtop opens itself
fwtop.console.playback.capture.observe_capture = attempts_of_read
fwtop.console.playback.screens.show_session = attempts
sys.exit(main.main([sys.argv[2], sys.argv[3]]))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with a capture, a session, and files that must stay as they are."""
    with tempfile.TemporaryDirectory(prefix="fwtop-test-", dir="/var/tmp") as name:
        place = Path(name)
        for path in OWN:
            (place / path).parent.mkdir(exist_ok=True)
            if not path.endswith("new"):
                (place / path).write_text("mine")
        (place / "a.pcap").write_bytes(b"")
        session = SessionWriter(place / "sessions", host="web-1", interfaces=("eth0",), version="0.1.0")
        for tick in session_ticks():
            session.write(tick)
        session.close()
        next((place / "sessions").glob("*.db")).rename(place / "a.db")
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        yield place


@pytest.mark.parametrize(("verb", "file"), [("read", "a.pcap"), ("replay", "./a.db")])
def test_a_screen_writes_nothing_but_exports(home: Path, verb: str, file: str) -> None:
    reading, writing = os.pipe()
    master, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, CLONE, verb, file, str(writing), *OWN],
            user=NOBODY, group=NOBODY, extra_groups=[], cwd=home, pass_fds=[writing], timeout=60, check=False,
            stdin=terminal, stdout=terminal, stderr=subprocess.PIPE, text=True,
            env={"HOME": str(home), "TMPDIR": str(home / "tmp"), "PATH": os.environ["PATH"], "TERM": "xterm"},
        )  # fmt: skip
    finally:
        for descriptor in (writing, master, terminal):
            os.close(descriptor)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(answer)
    assert (found.pop("played") > 0) == (verb == "replay")
    assert found == {**dict.fromkeys(OWN, "Permission denied"), "export": "written"}
    assert sorted(path.name for path in (home / "tmp").iterdir()) == ["script"]
