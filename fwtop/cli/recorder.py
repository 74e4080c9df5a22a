"""Verbs of the recorder: record a session until stopped, have systemd do so, and see where its alarms go."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from fwtop.alarms.courier import Started, start_alarms
from fwtop.alarms.message import FILE as ALARMS_FILE
from fwtop.alarms.message import JOURNAL, Alarm, AlarmConfig, read_alarms
from fwtop.cli.files import read_config
from fwtop.cli.launcher import launch, require_root
from fwtop.cli.options import Verb, add_geoip, add_interfaces, flag, option, positive, seconds
from fwtop.console.automatic import FILE, read_policy
from fwtop.console.handoff import DropOptions, Options
from fwtop.kernel.programs import CommandError
from fwtop.kernel.programs import run as run_program
from fwtop.model.errors import FwtopError
from fwtop.model.paths import SERVICE_UNIT, SYSTEMD_BOOTED
from fwtop.model.text import safe_text
from fwtop.model.wire import plain
from fwtop.render.observation import rfc3339


def _record_arguments(parser: argparse.ArgumentParser) -> None:
    add_interfaces(parser)
    add_geoip(parser)
    jsonl = "append one observation per line to this file or pipe (-: standard output)"
    option(parser, "--jsonl", "FILE", jsonl)
    option(parser, "--every", "TIME", "interval between lines (default 1s)", seconds, default=1.0)
    option(parser, "--top", "N", "entries per list in each line", positive, default=10)
    option(parser, "--max-mib", "N", "stop appending at this file size", positive, default=1024)
    metrics = "serve Prometheus metrics at HOST:PORT or unix:/PATH (default: off)"
    option(parser, "--metrics", "ADDRESS", metrics)
    flag(parser, "--metrics-public", "allow a --metrics address that other machines can reach")
    drops = "write a share of the dropped packets to this file (*.pcapng: as pcapng) or unix:/PATH"
    option(parser, "--drops", "FILE", drops)
    flag(parser, "--drops-payload", "with their payload, not only their headers")
    option(parser, "--drops-rate", "N", "packets a second at most (default 1000)", positive, default=1000)
    option(parser, "--drops-mib", "N", "size of FILE and FILE.1 together", positive, default=64)
    _add_alarms(parser)
    automatic = f"policy for automatic rules (default {FILE}; if it does not exist: none)"
    option(parser, "--automatic", "FILE", automatic, Path, default=Path(FILE))
    flag(parser, "--no-alarms", "send no alarms, not even to the systemd journal")
    flag(parser, "--no-store", "keep no session: only tell others (lines, metrics, alarms, the fleet)")


def _record(args: argparse.Namespace) -> int:
    require_root("watching")
    config = _read_alarms(args.alarms)
    alarms = None if args.no_alarms else _start_alarms(config)
    policy, wrong = read_policy(read_config(args.automatic, owners=(0,)))
    for line in wrong:
        print(f"fwtop: {line}", file=sys.stderr)
    options = Options(
        mode="record",
        netns=args.netns,
        geoip=args.geoip,
        jsonl_fd=open_lines(args.jsonl) if args.jsonl is not None else None,
        jsonl_top=args.top,
        jsonl_seconds=args.every,
        jsonl_bytes=args.max_mib << 20,
        # Before the launcher enters the watched namespace: Prometheus is outside of it.
        metrics_fd=listen(args.metrics, public=args.metrics_public) if args.metrics is not None else None,
        alarms_fd=None if alarms is None else alarms.descriptor,
        alarms=plain(config.for_console()),
        automatic=plain(policy) if policy.enabled else {},
        service_fd=service_manager(),
        drops=None if args.drops is None else open_drops(args),
        store=not args.no_store,
    )
    return launch(options, args.interface)


_STDOUT = 1
_BACKLOG = 16


def open_lines(name: str) -> int:
    """Return a descriptor to append JSON lines to; "-" is standard output. Raises FwtopError."""
    if name == "-":
        return _STDOUT
    # Without O_NONBLOCK, a FIFO that nobody reads would hold root up here.
    flags = (
        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    )
    try:
        descriptor = os.open(name, flags, 0o640)
        kind = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            os.close(descriptor)
            raise FwtopError(f"{safe_text(name)} is neither a file nor a pipe; nothing was started", 2)
        os.set_blocking(descriptor, True)
    except (OSError, ValueError) as error:
        line = f"{safe_text(name)} can't be written: {_why(error)}; nothing was started"
        raise FwtopError(line, 2) from None
    return descriptor


def open_drops(args: argparse.Namespace) -> DropOptions:
    """Open the two files or the socket of dropped packets. Raises FwtopError."""
    name = args.drops
    is_socket = name.startswith("unix:")
    if is_socket:
        try:
            descriptors: tuple[int, ...] = (_listen_unix(name, 0o177).detach(),)  # for root only
        except (OSError, ValueError) as error:
            line = f"dropped packets can't be served at {safe_text(name)}: {_why(error)}; nothing was started"
            raise FwtopError(line, 2) from None
    else:
        if name == "-":
            raise FwtopError("--drops takes a file or unix:/PATH; nothing was started", 2)
        stem, dot, end = name.rpartition(".pcapng")
        descriptors = open_lines(name), open_lines(f"{stem}.1{dot}{end}" if dot and not end else f"{name}.1")
    return DropOptions(
        descriptors,
        is_socket,
        name.endswith(".pcapng"),
        args.drops_payload,
        args.drops_rate,
        args.drops_mib << 20,
    )


def _why(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    special = {
        errno.ELOOP: "it is a symbolic link, which is not followed",
        errno.ENXIO: "nobody reads the pipe",
    }
    return special.get(error.errno, os.strerror(error.errno))


def listen(address: str, *, public: bool) -> int:
    """Return a listening socket for scrapes: HOST:PORT or unix:/PATH. Raises FwtopError."""
    try:
        listener = (
            _listen_unix(address) if address.startswith("unix:") else _listen_tcp(address, public=public)
        )
    except (OSError, ValueError) as error:
        name = safe_text(address)
        line = f"metrics can't be served at {name}: {_why(error)}; nothing was started"
        raise FwtopError(line, 2) from None
    return listener.detach()


def service_manager(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return a socket that sd_notify(3) messages go to; None if nobody waits for them. Raises FwtopError."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
    except OSError as error:
        sock.close()
        raise FwtopError(f"NOTIFY_SOCKET can't be used: {_why(error)}; nothing was started", 2) from None
    return sock.detach()


def _listen_tcp(address: str, *, public: bool) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        place = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError("it is no address and port, as in 127.0.0.1:9464 or [::1]:9464") from None
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ValueError("the port is missing")
    if not (place.is_loopback or public):
        raise ValueError("others than this machine reach that address; --metrics-public allows it")
    family = socket.AF_INET if place.version == 4 else socket.AF_INET6
    return socket.create_server((str(place), int(port)), family=family, backlog=_BACKLOG)


def _listen_unix(address: str, mask: int = 0o111) -> socket.socket:
    path = Path(address.removeprefix("unix:"))
    if not path.is_absolute():
        raise ValueError("the path must begin with a slash")
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(mask)  # by default whoever may enter its directory may read, as on loopback
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket of a recording that has ended: its console may not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "in use")


def _alarms_arguments(parser: argparse.ArgumentParser) -> None:
    what = "show the settings (default), or send a test alarm"
    parser.add_argument("what", nargs="?", choices=("show", "test"), default="show", help=what)
    _add_alarms(parser)


def _add_alarms(parser: argparse.ArgumentParser) -> None:
    option(parser, "--alarms", "FILE", "alarm settings", Path, default=Path(ALARMS_FILE))


def _read_alarms(path: Path) -> AlarmConfig:
    """Read the settings, which must be root's; say on standard error what is wrong in them."""
    config, wrong = read_alarms(read_config(path, owners=(0,)))
    for line in wrong:
        print(f"fwtop: {line}", file=sys.stderr)
    return config


def _start_alarms(config: AlarmConfig) -> Started:
    """Start the process that delivers alarms; raises FwtopError if its user or the secret is not there."""
    secret = ""
    if config.webhook and config.webhook_secret_file:
        path = Path(config.webhook_secret_file)
        file = read_config(path, owners=(0,))
        secret = "" if file is None else file.text.strip()
        if not secret:
            reason = "there is no such file" if file is None else file.wrong or "it is empty"
            line = f"{safe_text(path)} holds no secret for the webhook: {reason}; nothing was started"
            raise FwtopError(line, 2)
    return start_alarms(config, secret=secret)


def _alarms(args: argparse.Namespace) -> int:
    """Print the settings, or deliver a test alarm and wait for that; 1: it could not be delivered."""
    if args.what == "show":
        for name, value in plain(_read_alarms(args.alarms)).items():
            print(f"{name} = {json.dumps(value)}")
        return 0
    require_root("a test alarm")
    config = _read_alarms(args.alarms)
    host = safe_text(socket.gethostname(), limit=64)
    alarm = Alarm("test", rfc3339(time.time()), host, "test", "This is a test of fwtop's alarms")
    started = _start_alarms(config)
    os.write(started.descriptor, alarm.line())
    os.close(started.descriptor)
    status = os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1])
    if status == 0:
        log = "the journal" if Path(JOURNAL).exists() else "standard error"
        hosts = [urlsplit(config.webhook).hostname or ""] if config.webhook else []
        targets = [*([log] if config.journal else []), *config.command[:1], *hosts, *config.mail_to]
        print(f"a test alarm went to {safe_text(' and '.join(targets) or 'nobody: nothing is set')}")
    return int(status != 0)


_UNIT = SERVICE_UNIT.name
_SECONDS = 120.0  # starting includes compiling the observers
_FIELDS = ("UnitFileState", "ActiveState", "StatusText", "Result", "MemoryCurrent", "NRestarts")
_CALLS = {"enable": ("enable", "--now"), "disable": ("disable", "--now"), "restart": ("restart",)}


def _service_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=("status", "enable", "disable", "restart"),
        default="status",
        help="status (default), enable (now and at boot), disable, or restart (with new settings)",
    )


def _service(args: argparse.Namespace) -> int:
    """Run systemctl and print the state of the service; return 1 if it is not as it should be."""
    if not SYSTEMD_BOOTED.is_dir():
        raise FwtopError(
            "systemd doesn't run on this machine, so there is no service; nothing was changed: "
            "have your own supervisor run 'fwtop record' as root",
            3,
        )
    if not SERVICE_UNIT.exists():
        raise FwtopError(f"{SERVICE_UNIT} is not installed; nothing was changed: run 'make setup'", 3)
    if args.what != "status":
        require_root("changing the service")
        _systemctl(*_CALLS[args.what], _UNIT)
    line, is_active, is_wrong = told(_systemctl("show", f"--property={','.join(_FIELDS)}", _UNIT))
    print(line)
    return int(is_wrong or (args.what == "enable" and not is_active))


def told(shown: str) -> tuple[str, bool, bool]:
    """Put what `systemctl show` prints in a line; return also whether it is active, and if that is wrong.

    It is wrong if the service has failed, or should run and doesn't. The line says what to do then.
    """
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    enabled, active = found.get("UnitFileState") == "enabled", found.get("ActiveState", "unknown")
    boot = "starts at boot" if enabled else "doesn't start at boot"
    if active == "active":
        parts = [f"recording, {boot}", *filter(None, [safe_text(found.get("StatusText", ""), limit=200)])]
        memory, restarts = found.get("MemoryCurrent", ""), found.get("NRestarts", "")
        if memory.isdigit() and len(memory) < 16:
            parts.append(f"{int(memory) / (1 << 20):.0f} MiB")
        if restarts.isdigit() and int(restarts):
            parts.append(f"restarts after failures: {int(restarts)} (journalctl -u fwtop)")
        return "; ".join(parts), True, False
    if enabled or active == "failed":
        result = found.get("Result", "")
        why = f" ({safe_text(result, limit=40)})" if result not in ("", "success") else ""
        return f"{safe_text(active, limit=20)}{why}, {boot}; see: journalctl -u fwtop", False, True
    return f"off, {boot}; to record from now on: sudo fwtop service enable", False, False


def _systemctl(*words: str) -> str:
    """Run systemctl; raises FwtopError with its first line."""
    try:
        return run_program(["systemctl", "--quiet", *words], timeout=_SECONDS)
    except CommandError as error:
        raise FwtopError(f"{str(error).rstrip('.')}; see: journalctl -u {_UNIT}") from None


VERBS = {
    "record": Verb(
        "Record a session without a screen until stopped, as a service; 'fwtop report' shows the result.",
        "sudo fwtop record -i eth0 --jsonl /var/log/fwtop.jsonl --every 10s",
        _record_arguments,
        _record,
    ),
    "service": Verb(
        "Have systemd run 'fwtop record' from now on and after each boot.",
        "sudo fwtop service enable",
        _service_arguments,
        _service,
    ),
    "alarms": Verb(
        f"Show where the alarms of 'fwtop record' go ({ALARMS_FILE}), or send a test alarm.",
        "sudo fwtop alarms test",
        _alarms_arguments,
        _alarms,
    ),
}
