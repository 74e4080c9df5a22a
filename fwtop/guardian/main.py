"""The guardian's process: root, one in each network namespace, outliving every console.

It holds no packet contents. It installs and removes rules, runs their clocks, and hands observers'
descriptors to consoles.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import syslog
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from msgspec import Struct, ValidationError, convert

from fwtop.guardian import survival
from fwtop.guardian.allow import allowlist
from fwtop.guardian.allow.allowlist import ALLOW_FILE
from fwtop.guardian.allow.behind import Learning
from fwtop.guardian.allow.found import Session
from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.limits import LIMITS_FILE, read_limits
from fwtop.guardian.mechanisms.chains.chain import Chains
from fwtop.guardian.mechanisms.compiled.rules import CompiledRules
from fwtop.guardian.mechanisms.kernel import Kernel
from fwtop.guardian.records.files import Records, lock_path_of
from fwtop.guardian.records.journal import Journal
from fwtop.guardian.rules.adoption import adopt_all
from fwtop.guardian.rules.lifecycle import Lifecycle
from fwtop.guardian.rules.state import GuardianState
from fwtop.guardian.serving.changes import ChangeLog
from fwtop.guardian.serving.foresight import Foresight
from fwtop.guardian.serving.programs import SUFFIX, listen
from fwtop.guardian.serving.reports import Reports
from fwtop.guardian.serving.requests import FleetRequests, Handlers, ListRequests
from fwtop.guardian.serving.server import Identity, Server
from fwtop.guardian.serving.worker import Worker
from fwtop.kernel import namespaces
from fwtop.kernel.descriptors import closing, is_served, locked, raise_limit
from fwtop.kernel.links import readable_links, receiving_links
from fwtop.kernel.programs import GUARDIAN_ENVIRONMENT
from fwtop.model import paths
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.netfilter import iptables

if TYPE_CHECKING:
    from fwtop.guardian.fleet.authority import Authority
    from fwtop.guardian.rules.named_lists import NamedLists


LOCK_SECONDS = 5.0  # how long a predecessor may take to hand over


class Options(Struct, forbid_unknown_fields=True):
    """What `--name value` or `--name=value` sets, with `-` for `_`.

    Only other parts of fwtop start a guardian; argparse would cost it 0.6 MB for good.
    """

    build: str  # hash of the program that starts it
    netns: str | None = None  # work in this named network namespace
    netns_fd: int = -1  # or in that of this inherited descriptor
    netns_path: str = ""  # or in that of this file in /proc, for a caller that can't pass descriptors
    run_directory: Path = paths.RUN_DIRECTORY
    state_directory: Path = paths.GUARDIAN_DIRECTORY
    allow_file: str = ALLOW_FILE
    limits_file: Path = Path(LIMITS_FILE)
    crash_at: Failpoint | None = None  # for tests: SIGKILL there
    overdue: Literal["", "here", "everywhere"] = ""  # start nothing: give back the sysctls that are overdue

    @classmethod
    def parse(cls, arguments: list[str]) -> Options:
        """Parse the command line; raises FwtopError."""
        given = {"build": paths.build_id()}
        found = cls(paths.build_id())
        rest = iter(arguments)
        for word in rest:
            option, equals, value = word.partition("=")
            try:
                name = option.removeprefix("--").replace("-", "_")
                given[name] = value if equals else next(rest)
                found = convert(given, cls, strict=False, dec_hook=lambda kind, text: kind(text))
            except (ValidationError, StopIteration):
                raise FwtopError(f"the guardian has no option {word!r}; nothing was started", 2) from None
        return found

    def same_state(self) -> list[str]:
        """Return the arguments of a guardian that works with the same files."""
        names = ("build", "run_directory", "state_directory", "allow_file", "limits_file")
        return [f"--{name.replace('_', '-')}={getattr(self, name)}" for name in names]


def main() -> int:
    """Start a guardian; returns when it is ready and detached."""
    os.umask(0o077)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(GUARDIAN_ENVIRONMENT)
    try:
        options = Options.parse(sys.argv[1:])
        if os.geteuid() != 0:
            raise FwtopError("the guardian needs root; nothing was started; try: sudo fwtop", 3)
        if options.overdue:
            return _give_back(options)
        descriptor = _netns(options)
        namespaces.enter(descriptor)
        os.close(descriptor)
        return _daemonise(options)
    except FwtopError as error:
        print(error, file=sys.stderr)
        return error.code


def _give_back(options: Options) -> int:
    """Give back the sysctls that are overdue, and say for those of this namespace when to look again."""
    if options.overdue == survival.HERE:
        print(survival.uptime_of(survival.give_back_here(options.run_directory)[0]))
    else:
        survival.give_back_everywhere(options.run_directory)
    return 0


def _netns(options: Options) -> int:
    if options.netns_fd >= 0:
        return options.netns_fd
    if not options.netns_path:
        return namespaces.open_netns(options.netns)
    try:
        return os.open(options.netns_path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        line = f"{safe_text(options.netns_path)}: {error.strerror}; nothing was started"
        raise FwtopError(line) from None


def _daemonise(options: Options) -> int:
    """Fork; the parent reports whether the child became ready, and exits."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _detached(options, writer)
    os.close(writer)
    with os.fdopen(reader) as report:
        code, _, line = report.read().partition(" ")
    survival.give_back_everywhere(
        options.run_directory
    )  # of other namespaces, whose guardian and watchdog are gone
    if code != "0":
        print(line or "the guardian ended before it was ready", file=sys.stderr)
    return int(code) if code.isdigit() else 1


def _detached(options: Options, writer: int) -> NoReturn:
    def report(text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(writer, text.encode())
        with contextlib.suppress(OSError):
            os.close(writer)

    code = 1
    cgroup = survival.Cgroup(namespaces.own())
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)
        syslog.openlog("fwtop-guardian", syslog.LOG_PID, syslog.LOG_DAEMON)
        cgroup.enter()
        code = _serve(options, lambda: report("0 "))
    except FwtopError as error:
        code = error.code
        report(f"{error.code} {error}")
        syslog.syslog(syslog.LOG_ERR, str(error))
    except BaseException as error:
        line = safe_text(f"guardian: {type(error).__name__}: {error}")
        report(f"1 {line}")
        syslog.syslog(syslog.LOG_CRIT, line)
    finally:
        cgroup.leave()
        os._exit(code)


def _serve(options: Options, ready: Callable[[], None]) -> int:
    """Run until there are neither clients nor active rules."""
    number = namespaces.own()
    directory = options.run_directory
    path = directory / f"{number}.sock"
    with contextlib.ExitStack() as held:
        try:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            directory.chmod(0o755)
            # One that was started at the same moment as another doesn't keep its client waiting
            lock = locked(lock_path_of(directory, number), LOCK_SECONDS, given_up=lambda: is_served(path))
            held.enter_context(lock)
        except BlockingIOError:
            raise FwtopError("another guardian holds this namespace; nothing was started") from None
        except OSError as error:
            raise FwtopError(f"cannot use {directory}: {error.strerror}; nothing was started") from None
        held.callback(path.unlink, missing_ok=True)
        remove_stale(directory)
        Records.remove_deserted(directory, set(namespaces.everywhere()))
        records = Records(
            directory, namespaces.cookie(), namespaces.boot_id(), number, options.state_directory
        )
        journal = Journal(records)
        server = _server(options, number, journal, records)
        listener = listen(path, 1024)  # many at once must keep nobody away
        survival.protect()
        ready()
        server.run(listener)
        journal.close()
    return 0


def _server(options: Options, number: int, journal: Journal, records: Records) -> Server:
    raise_limit()
    worker = Worker()  # first: what it keeps back has low numbers, below any limit
    choice = _choose_iptables()
    failpoints = Failpoints(options.crash_at)
    compiled = CompiledRules(failpoints, number, worker.serve_urgent)
    kernel = Kernel(
        Chains(choice.variant), journal.former, failpoints, compiled,
        lambda: receiving_links(readable_links(), compiled.interfaces), serve_urgent=worker.serve_urgent,
    )  # fmt: skip
    operators: dict[Session, float] = {}
    name = namespaces.name_of(number)
    member = paths.fleet_directory(name, options.limits_file.parent) / paths.MACHINE_FILE
    limits = partial(read_limits, options.limits_file, member=member)
    learning = Learning(limits)
    state = GuardianState(
        journal,
        kernel,
        lambda: allowlist.gather(dict(operators), name, options.allow_file, learning.learn),
        limits,
        partial(_named_lists, records.directory, failpoints),
        machine=choice.warnings,
    )
    lifecycle = Lifecycle(
        state,
        failpoints,
        set_watchdog=survival.Watchdog(*options.same_state()).set_deadline,
        serve_urgent=worker.serve_urgent,
    )
    reports = Reports(state, wait=worker.wait)
    identity = Identity(os.getpid(), options.build, number, choice.variant.name, named=bool(name))
    lists = ListRequests(state)
    changes = ChangeLog(state, worker.wake_loop)
    fleet = FleetRequests(partial(_authority, lifecycle, reports, options, name, changes.foresight), member)
    worker.own(lifecycle, reports, lists, fleet, state, journal, kernel, compiled)
    worker.before_all(lambda: _adopt(state, lifecycle, compiled, failpoints))
    programs = options.run_directory / f"{number}{SUFFIX}"
    worker.after_changes(changes.note, fleet.note)
    return Server(
        Handlers(lifecycle, reports, lists, fleet), identity, operators, compiled, worker,
        changes=changes, programs=programs,
        policies=(str(options.state_directory / "policy"), options.allow_file),
        restart=options.same_state(),
    )  # fmt: skip


def _named_lists(directory: Path, failpoints: Failpoints, state: GuardianState) -> NamedLists:
    # Imported here: a guardian without lists needn't carry numpy.
    from fwtop.guardian.records.list_files import ListFiles
    from fwtop.guardian.rules.named_lists import NamedLists

    return NamedLists(
        ListFiles(directory, namespaces.boot_id()), state.kernel, failpoints, state.active,
        check=state.check_lists, check_access=state.check_access, changed=state.list_changed,
    )  # fmt: skip


def _authority(
    lifecycle: Lifecycle, reports: Reports, options: Options, netns: str | None, foresight: Foresight
) -> Authority:
    # Imported here: few machines are of a fleet.
    from fwtop.guardian.fleet.authority import Authority
    from fwtop.guardian.fleet.record import Recorder
    from fwtop.guardian.fleet.rollouts import Rollouts

    recorder = Recorder(paths.fleet_records(netns, options.state_directory))
    recorder.begin()
    rollouts = Rollouts(lifecycle, reports.state, recorder, namespaces.boot_id())
    directory = paths.fleet_directory(netns, options.limits_file.parent)
    return Authority(rollouts, reports.plan, foresight.of, recorder, directory)


def _adopt(
    state: GuardianState, lifecycle: Lifecycle, compiled: CompiledRules, failpoints: Failpoints
) -> None:
    """Take over what the last guardian left, in the worker's thread: a large rule set delays no client."""
    try:
        compiled.find()
    except FwtopError as error:
        syslog.syslog(syslog.LOG_ERR, f"the XDP rules of a former guardian could not be read: {error}")
    for line in adopt_all(state, lifecycle):
        syslog.syslog(syslog.LOG_NOTICE, line)
    failpoints.enabled = True


def _choose_iptables() -> iptables.Choice:
    """Return the variant in use; without iptables, watching and other kinds of rules still work."""
    try:
        return iptables.choose()
    except FwtopError as error:
        syslog.syslog(syslog.LOG_WARNING, safe_text(error))
        return iptables.Choice(iptables.Variant(iptables.NFT, ""))


def remove_stale(directory: Path) -> None:
    """Remove sockets and locks of those that were killed: nobody holds their lock any more.

    Where programs are served the path stays while its namespace does: systemd may listen there.
    """
    for path in directory.glob("*.lock"):
        what, _, name = path.stem.partition("-")
        if not what.isdigit() and what not in ("api", "start"):
            continue
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(OSError), closing(os.open(path, flags)) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if what.isdigit() or (what == "api" and name and not (namespaces.NETNS / name).exists()):
                path.with_suffix(".sock").unlink(missing_ok=True)
                path.with_suffix(SUFFIX).unlink(missing_ok=True)
            path.unlink()
