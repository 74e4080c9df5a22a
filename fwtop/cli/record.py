"""fwtop record: record a session without a screen until stopped, with outputs for other programs."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import os
import socket
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from fwtop.cli.alarms import add_file, read_file, start
from fwtop.cli.files import read_config
from fwtop.cli.launcher import launch, require_root
from fwtop.cli.options import add_geoip, add_interfaces, flag, option, positive, seconds
from fwtop.console.automatic import FILE, read_policy
from fwtop.console.handoff import Options
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.wire import plain

HELP = "Record a session without a screen until stopped, as a service; 'fwtop report' shows the result."
EXAMPLE = "sudo fwtop record -i eth0 --jsonl /var/log/fwtop.jsonl --every 10s"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
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
    add_file(parser)
    automatic = f"policy for automatic rules (default {FILE}; if it does not exist: none)"
    option(parser, "--automatic", "FILE", automatic, Path, default=Path(FILE))
    flag(parser, "--no-alarms", "send no alarms, not even to the systemd journal")


def run(args: argparse.Namespace) -> int:
    """Record until stopped."""
    require_root("watching")
    config = read_file(args.alarms)
    alarms = None if args.no_alarms else start(config)
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
        raise FwtopError(
            f"{safe_text(name)} can't be written: {_why(error)}; nothing was started", 2
        ) from None
    return descriptor


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
        raise FwtopError(
            f"metrics can't be served at {name}: {_why(error)}; nothing was started", 2
        ) from None
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


def _listen_unix(address: str) -> socket.socket:
    path = Path(address.removeprefix("unix:"))
    if not path.is_absolute():
        raise ValueError("the path must begin with a slash")
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o111)  # whoever may enter its directory may read, as on loopback
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
