"""Random changes of a list, with failures in them: the kernel has what a model in Python says, after each.

As root, `TRANSACTIONS=10000 scripts/test.sh tests/kernel/test_list_transactions.py` makes more of them
than the 300 of a usual run.
"""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import pytest
from msgspec import Struct, field

from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.mechanisms.chains import list_sets, sets
from fwtop.guardian.mechanisms.chains.chain import Chains
from fwtop.guardian.mechanisms.compiled.rules import CompiledRules
from fwtop.guardian.mechanisms.kernel import Kernel
from fwtop.guardian.mechanisms.tables.state import NftListChange
from fwtop.guardian.records import list_files
from fwtop.guardian.records.files import Records
from fwtop.guardian.records.journal import Entry, Journal
from fwtop.guardian.records.list_files import ListFiles
from fwtop.guardian.rules.named_lists import NamedLists
from fwtop.kernel.namespaces import boot_id
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule, State
from fwtop.netfilter import ipset, iptables
from fwtop.rules.kind import SetSpec
from fwtop.rules.xtables import list_set_name
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
TRANSACTIONS = int(os.environ.get("TRANSACTIONS", "300"))
ROOM = 30  # elements of a set, so that many changes fill it
POINTS = (
    Failpoint.LIST_PREPARED,
    Failpoint.LIST_RECORDED,
    Failpoint.LIST_COMPILED,
    Failpoint.LIST_CHANGED,
)
RULE = Rule("1", Kind.IPSET, Match(), "", 600, origin="list:x")


class Guardian(Struct, dict=True):
    """The lists of a guardian in this process, and what the list must hold."""

    kernel: Kernel
    directory: Path
    rng: random.Random
    model: set[Prefix] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.failpoints = Failpoints(None)
        self.start()
        self.lists.create("x", (), None)
        for family in (4, 6):
            self.kernel.chains.lists.ensure(
                SetSpec(list_set_name("x", family), family, (), timed=False, shared=True)
            )

    def start(self, failpoints: Failpoints | None = None) -> None:
        """Begin anew with what is recorded."""
        active = {"1": Entry(RULE, "", State.CONFIRMED, 1e9)}
        files = ListFiles(self.directory, "boot")
        self.lists = NamedLists(files, self.kernel, failpoints or self.failpoints, active)
        self.lists.restore_unfinished()
        self.lists.tidy()

    def entry(self) -> Prefix:
        if self.rng.random() < 0.6:
            length = self.rng.choice((8, 24, 31, 32))
            value = 10 << 24 | self.rng.getrandbits(4) << 16 | self.rng.getrandbits(5)
            return Prefix(4, value >> 32 - length << 32 - length, length)
        length = self.rng.choice((32, 64, 127, 128))
        value = 0x20010DB8 << 96 | self.rng.getrandbits(3) << 64 | self.rng.getrandbits(5)
        return Prefix(6, value >> 128 - length << 128 - length, length)

    def transaction(self) -> tuple[Callable[[], object], set[Prefix]]:
        """Return a random change, and what the list holds after it."""
        given = tuple(self.entry() for _ in range(self.rng.choice((1, 3, 30, 150))))
        match self.rng.choice(("add", "add", "remove", "replace")):
            case "add":
                return lambda: self.lists.add("x", given, None, force=False), self.model | set(given)
            case "remove":
                gone = given if self.rng.random() < 0.8 else tuple(self.model)[:200]
                return lambda: self.lists.remove("x", gone), self.model - set(gone)
        return lambda: self.lists.replace("x", given, None, force=False), set(given)

    def kernel_holds(self) -> set[Prefix]:
        found = set()
        for family in (4, 6):
            for item in ipset.elements(list_set_name("x", family)):
                bits = 32 if family == 4 else 128
                found.add(Prefix(family, int.from_bytes(item.address, "big"), item.length or bits))
        return found

    def killed_at(self, point: Failpoint, change: Callable[[], object]) -> bool:
        """Make the change in a child that dies at a point; say whether it got there."""
        child = os.fork()
        if child == 0:
            points = Failpoints(point)
            points.enabled = True
            with mock.patch.object(self.lists, "_failpoints", points):
                change()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        self.start()
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.fixture
def guardian(netns_pair, tmp_path, monkeypatch) -> Iterator[Guardian]:
    """Lists in the victim's namespace, whose sets are small."""
    monkeypatch.setattr(list_sets, "_LEAST_ROOM", ROOM)
    monkeypatch.setattr(list_sets, "_MOST_EDITED", 600)
    monkeypatch.setattr(list_sets, "_SHRINK_ABOVE", 20)
    with inside(netns_pair.victim.netns):
        journal, failpoints = Journal(Records(tmp_path, 1, boot_id())), Failpoints(None)
        compiled = CompiledRules(failpoints, 0)
        kernel = Kernel(Chains(iptables.choose().variant), journal.former, failpoints, compiled, list)
        yield Guardian(kernel, tmp_path, random.Random(13))
        kernel.chains.lists.tidy(())
        assert not sets.names()


@contextmanager
def failing_disk() -> Iterator[None]:
    """Have the next record end half-way: the disk is full."""

    def half(path: Path, data: bytes) -> None:
        path.with_name(f"{path.name}.new").write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with mock.patch.object(list_files, "replace_file", half):
        yield


@contextmanager
def full_set(lists: Guardian) -> Iterator[None]:
    """Have elements added to sets that have no room for them: the kernel refuses some of a change."""
    with (
        mock.patch.object(list_sets, "_MOST_EDITED", 1000),
        mock.patch.object(type(lists.kernel.chains.lists), "_fits", return_value=True),
    ):
        yield


@contextmanager
def failing_at(guardian: Guardian, point: Failpoint) -> Iterator[None]:
    guardian.failpoints.enabled = True
    guardian.failpoints.errors = {point: FwtopError("no memory")}
    yield
    guardian.failpoints.errors = {}


def test_random_transactions_with_failures(guardian: Guardian) -> None:
    rng = guardian.rng
    failed: dict[str, int] = {}
    for _ in range(TRANSACTIONS):
        change, after = guardian.transaction()
        how = rng.choice(("well",) * 5 + ("disk", "full", "point", "nft", "killed"))
        if how == "killed":
            point = rng.choice((*POINTS, Failpoint.LIST_DONE))
            was_killed = guardian.killed_at(point, change)
            done = not was_killed or point is Failpoint.LIST_DONE
            failed["killed"] = failed.get("killed", 0) + was_killed
        else:
            with ExitStack() as stack:
                if how == "disk":
                    stack.enter_context(failing_disk())
                elif how == "full":
                    stack.enter_context(full_set(guardian))
                elif how == "nft":  # the last part of a change, after the ipsets
                    refused = FwtopError("nft failed")
                    stack.enter_context(mock.patch.object(NftListChange, "commit", side_effect=refused))
                elif how == "point":
                    stack.enter_context(failing_at(guardian, rng.choice(POINTS)))
                done = not fails(change)
            failed[how] = failed.get(how, 0) + (not done)
        if done:
            guardian.model = after
        assert guardian.kernel_holds() == guardian.model
        assert set(guardian.lists.find("x").rows) == guardian.model
    assert failed.pop("well") == 0
    assert all(failed[how] for how in ("disk", "full", "point", "nft", "killed")), failed
    guardian.start()
    assert set(guardian.lists.find("x").rows) == guardian.model, "as it was recorded"


def fails(change: Callable[[], object]) -> bool:
    try:
        change()
    except FwtopError:
        return True
    return False


def test_what_can_not_be_put_back_at_once_is_put_back_later(guardian: Guardian) -> None:
    wanted = (Prefix.parse("198.51.100.1"), Prefix.parse("2001:db8::1"))
    guardian.lists.add("x", wanted, None, force=False)
    change = ipset.change_sets
    calls = []

    def half(edits) -> None:
        calls.append(edits)
        if len(calls) == 1:
            change(edits[:1])
        raise FwtopError("no memory")

    with mock.patch.object(ipset, "change_sets", half), pytest.raises(FwtopError, match="no memory"):
        guardian.lists.replace("x", (Prefix.parse("203.0.113.1"),), None, force=False)
    assert guardian.kernel_holds() != set(wanted)
    guardian.lists.tick(1e6)
    assert guardian.kernel_holds() == set(wanted)
    assert set(guardian.lists.find("x").rows) == set(wanted)


def test_a_set_that_another_made_smaller_is_built_anew(guardian: Guardian) -> None:
    guardian.lists.add("x", (Prefix.parse("198.51.100.1"),), None, force=False)
    name = list_set_name("x", 4)
    ipset.restore("create other hash:net family inet maxelem 4 counters\nadd other 198.51.100.1\n")
    ipset.swap_sets([(name, "other")])
    ipset.destroy_set("other")
    wanted = {Prefix.parse(f"198.51.100.{number}") for number in range(1, 21)}
    guardian.lists.add("x", tuple(wanted), None, force=False)
    assert guardian.kernel_holds() == wanted


def test_an_unused_list_takes_no_kernel_memory(guardian: Guardian) -> None:
    many = PrefixRows.of([Prefix(4, 10 << 24 | number, 32) for number in range(1000)])
    guardian.lists.create("unused", many, None)
    assert guardian.lists.told("unused")["kernel_bytes"] == 0
    guardian.lists.remove("unused", many)
    assert guardian.lists.told("unused")["ipv4"] == 0
