"""Fixtures that every kind of test shares."""

from __future__ import annotations

import fcntl
import gc
import os
import runpy
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from fwtop.model import paths
from tests import tiers

CLONE = Path(__file__).resolve().parent.parent
HISTORY_ENDS = 1_790_000_000.0  # 2026-09-21T14:13:20Z, inside an hour and a minute
SELDOM_SECONDS = 0.2  # between two looks at what one waits for
# A slow host is no fault: no example has a time to keep.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# A shell that runs the suite in the background ignores SIGINT, and so would every program of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all tests are collected: there is next to nothing to find


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.leave_to_the_matrix(items)
    tiers.carry_reasons(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    failed = session.exitstatus == pytest.ExitCode.TESTS_FAILED
    if reporter is not None and failed and tiers.failed_beside(reporter):
        session.exitstatus = tiers.MAY_PASS_ALONE


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for test, reason in tiers.failed_beside(terminalreporter).items():
        terminalreporter.write_line(f"MAY PASS ALONE {test}: {reason}")


def pytest_collection_finish() -> None:
    """Let the garbage collector skip what stays for the whole run: thousands of tests and all modules.

    And let it look less often: a screen that starts makes enough objects for dozens of collections, a sixth
    of its time.
    """
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kernel") is not None and os.geteuid() != 0:
        pytest.skip("needs root")


_PRIORITY = os.getpriority(os.PRIO_PROCESS, 0)


@pytest.fixture(autouse=True)
def _unhurried() -> Iterator[None]:
    """Give back the priority that a verb took in this process: else unit tests starve those of the kernel."""
    yield
    if os.getpriority(os.PRIO_PROCESS, 0) != _PRIORITY:
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)


@pytest.fixture
def root_required() -> None:
    """Skip the test when not root; tests marked `kernel` have this already."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that other users can enter; pytest's own are shut again by every run that starts."""
    with tempfile.TemporaryDirectory(prefix="fwtop-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def made_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen days of synthetic history up to HISTORY_ENDS, to be read: made once for all workers."""
    from benches.history import write_history

    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    directory = place / "made-history"
    with (place / "made-history.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            unfinished = tmp_path_factory.mktemp("history")
            write_history(unfinished, HISTORY_ENDS)
            unfinished.rename(directory)
    return directory / "history.db"


@pytest.fixture(scope="session")
def installed() -> Path:
    """The installed command, known to be built from this very clone."""
    build_hash = runpy.run_path(str(CLONE / "scripts/build_hash.py"))["build_hash"]
    build_file = paths.INSTALLED_APP / "BUILD"
    present = build_file.read_text().strip() if build_file.is_file() else "nothing"
    wanted = build_hash(CLONE)
    if present != wanted:
        pytest.fail(f"installed is {present}, the clone is {wanted}: run 'make setup'", pytrace=False)
    return paths.COMMAND


def poll_until_true(
    predicate: Callable[[], object], deadline_s: float = 60.0, every_s: float = 0.01
) -> object:
    """Call `predicate` until it returns something true, and return that; fail after the deadline.

    It is called less and less often: most ask a guardian or start a program, which costs more than the wait.
    """
    end = time.monotonic() + deadline_s
    seldom_s = max(every_s, SELDOM_SECONDS)
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() > end:
            pytest.fail(f"{getattr(predicate, '__name__', predicate)} was not true within {deadline_s} s")
        time.sleep(every_s)
        every_s = min(1.5 * every_s, seldom_s)


@pytest.fixture
def poll_until() -> Callable[..., object]:
    """poll_until(predicate, deadline_s) → the first true result."""
    return poll_until_true
