"""A guardian whose socket is open to groups of programs, and a process of an ordinary user in one of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guardian_bench import Bench

from fwtop.kernel.namespaces import enter_named

READ, LISTS, RULES, NONE, POLICIES = 61_001, 61_002, 61_003, 61_004, 61_005  # groups
NOBODY = 65_534
ACCESS = f"[access]\nread = [{READ}]\nlists = [{LISTS}]\nrules = [{RULES}]\npolicies = [{POLICIES}]\n"


@pytest.fixture(scope="module")
def bench(shared_pair) -> Iterator[Bench]:
    directory = Path(tempfile.mkdtemp(prefix="fwtop-api"))
    directory.chmod(0o755)
    (directory / "guard.toml").write_text(ACCESS)
    made = Bench(shared_pair, directory)
    made.connect().close()
    try:
        with made.connect():
            yield made
    finally:
        made.close()
        shutil.rmtree(directory)


def as_user(bench: Bench, groups: list[int], work: Callable[[], str]) -> str:
    """Have a process of an ordinary user in the victim's namespace do something; returns what it says."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        with contextlib.suppress(BaseException):
            try:
                enter_named(bench.netns)
                os.setgroups(groups)
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                said = work()
            except BaseException:
                said = traceback.format_exc()
            os.write(writer, said.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def open_to_groups(bench: Bench, poll_until) -> None:
    """The socket is open once the guardian has read its file."""
    [path] = bench.directory.glob("*.api")
    stream = bench.directory / f"api-{bench.netns}.sock"
    for one in (path, stream):
        poll_until(lambda one=one: one.exists() and one.stat().st_mode & 0o777 == 0o666)
